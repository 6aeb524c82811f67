"""Dropout on the vectors that a model is computed from: which of them, and how much, in a step.

A step trains the model of the vectors that are left. It is normalised like any other, as masks come
before all normalisers, and before vectors are rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from bighmm.ops.feature_dropout import drop_features
from bighmm.ops.impl import Impl

if TYPE_CHECKING:
    from bighmm.model.params import Parameterisation

EMBEDDINGS, VECTORS, WORDS = 1_000, 2_000, 3_000  # places of masks; tables and roles count on


@dataclass(frozen=True)
class FeatureRates:
    """Shares of the numbers that a step does without."""

    embeddings: float = 0.0  # of a state's embedding, as networks read it
    vectors: float = 0.0  # of a state's vector for each role
    words: float = 0.0  # of word embeddings
    shared: bool = False  # all rows lose the same columns, instead of each its own

    def __bool__(self) -> bool:
        return any((self.embeddings, self.vectors, self.words))


@dataclass(frozen=True)
class FeatureDropout:
    """The masks of a step."""

    rates: FeatureRates
    key: Tensor  # () of the step, on the parameters' device

    def embeddings(self, tables: list[Tensor], ids: Tensor | None, impl: Impl) -> list[Tensor]:
        """Embeddings (N, H) of the states `ids`; tables that are one stay one."""
        found: dict[int, Tensor] = {}
        for table in tables:
            if id(table) not in found:
                place = EMBEDDINGS + len(found)
                found[id(table)] = self._drop(table, self.rates.embeddings, place, ids, impl)
        return [found[id(table)] for table in tables]

    def vectors(
        self, by_role: dict[str, Tensor], ids: Tensor | None, impl: Impl
    ) -> dict[str, Tensor]:
        """The vectors (N, H) of the states `ids` for every role."""
        return {
            role: self._drop(x, self.rates.vectors, VECTORS + i, ids, impl)
            for i, (role, x) in enumerate(by_role.items())
        }

    def words(self, words: Tensor, impl: Impl) -> Tensor:
        """Word embeddings (V, H)."""
        return self._drop(words, self.rates.words, WORDS, None, impl)

    def _drop(self, x: Tensor, rate: float, place: int, ids: Tensor | None, impl: Impl) -> Tensor:
        shared = self.rates.shared
        return drop_features(x, rate, self.key, place, ids, shared=shared, impl=impl)


@contextmanager
def dropping(params: Parameterisation, rates: FeatureRates, key: Tensor) -> Iterator[None]:
    """Context in which models are computed with the masks of a step, if any rate is above 0."""
    if rates:
        params.feature_dropout = FeatureDropout(rates, key.to(next(params.parameters()).device))
    try:
        yield
    finally:
        params.feature_dropout = None
