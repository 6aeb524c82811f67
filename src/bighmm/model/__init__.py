"""The parts of an HMM, and the modules that compute them from parameters.

`support` says which states may emit which token, `transitions` and `emissions` hold the
distributions, `model` puts them together, `params` computes them from trainable parameters, with
the `networks` that some of these use. Importing this package loads nothing: `options` must be
readable without torch.
"""

__all__: list[str] = []
