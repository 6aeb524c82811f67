"""Hidden Markov language models with very many states."""

from bighmm.hmm import HMM, BestPath, Posterior
from bighmm.lm import HMMLM

__all__ = ["HMM", "HMMLM", "BestPath", "Posterior"]
