"""Exact inference: pure functions of a `Model` and sequences.

`filter` (likelihood and carried state), `smooth` (posteriors), `viterbi` and `best_paths`,
`predict` (next state and token), `sample`, `fill` and `best_fill` (gaps), `acceptance` and
`constrained` (rules), `counts` (expected counts), `joint` (known states). `reference` is the slow
truth that tests compare with.
"""

__all__: list[str] = []
