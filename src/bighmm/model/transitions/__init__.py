"""Transition distributions p(z' | z), one family per file.

A family holds the tensors that its probabilities are made of and knows everything about them: its
normaliser, tiles between the states of two tokens, products with a vector from either side, the
gradient from expected moves, its restriction under state dropout, its description in a file and,
where it has them, its kernels. Inference asks the protocol `Transitions` and never which family it
has. A family announces itself with `@register_transitions`.
"""

from __future__ import annotations

from bighmm.model.transitions.base import (
    EVERY,
    BlockedChain,
    Transitions,
    register_transitions,
    restore_transitions,
)
from bighmm.model.transitions.flat import Flat
from bighmm.model.transitions.product import Product, TiledProduct
from bighmm.model.transitions.table import Table
from bighmm.model.transitions.two_level import TwoLevel
from bighmm.model.transitions.two_level_table import TwoLevelTable

__all__ = [
    "EVERY",
    "BlockedChain",
    "Flat",
    "Product",
    "Table",
    "TiledProduct",
    "Transitions",
    "TwoLevel",
    "TwoLevelTable",
    "register_transitions",
    "restore_transitions",
]
