"""Which states may emit which token.

Three kinds come with the library: every state emits every token (`Dense`), tokens and states are
cut into blocks and a token is emitted by the states of its block (`Blocked`), or every token has
its own list of states (`PerToken`). Each is one file in this folder, and announces itself with
`@register_support`. Inference is written against the protocol `Support` and never asks which kind
it has. Shape letters are those of `model.model`.
"""

from __future__ import annotations

from bighmm.model.support.base import (
    Described,
    States,
    Support,
    SupportRequest,
    find_support,
    register_support,
    restore_support,
)
from bighmm.model.support.blocked import Blocked
from bighmm.model.support.dense import Dense
from bighmm.model.support.per_token import PerToken

__all__ = [
    "Blocked",
    "Dense",
    "Described",
    "PerToken",
    "States",
    "Support",
    "SupportRequest",
    "find_support",
    "register_support",
    "restore_support",
]
