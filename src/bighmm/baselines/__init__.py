"""Language models that hidden Markov models are compared with."""
