"""Hidden Markov language models with very many states."""

from bighmm.hmm import HMM, BestPath, Posterior

__all__ = ["HMM", "BestPath", "Posterior"]
