"""How much longer the steps of a tokenizer of the `tokenizers` library can make a text.

A step that replaces every character by two doubles a text, and forty of them fill any memory. Those
of usual tokenizers replace a space by one other character.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

MOST_STEPS = 256
MOST_GROWTH = 1024  # how many times longer a text may become
MOST_ADDED = 1024  # characters that a step puts before a text
STEPS_WITHIN = ("normalizers", "pretokenizers", "decoders")


def check_growth(parts: list[Any]) -> None:
    """Raises ValueError if steps can make a text very much longer.

    parts: the normalizer, the pre-tokenizer and the decoder as in a tokenizer's file; None for one
        that there is not.
    """
    growth, number = 1, 0
    for step in _steps(parts):
        growth, number = growth * _growth(step), number + 1
        if number > MOST_STEPS:
            raise ValueError(f"it has more than {MOST_STEPS} steps")
        if growth > MOST_GROWTH:
            raise ValueError(f"its steps make a text more than {MOST_GROWTH} times longer")
        if len(step.get("prepend", "")) > MOST_ADDED:
            raise ValueError(f"it puts more than {MOST_ADDED} characters before a text")


def _steps(parts: list[Any]) -> Iterator[dict[str, Any]]:
    """All steps, those within others too."""
    waiting = list(parts)
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            yield step
            for name in STEPS_WITHIN:
                waiting += step.get(name, ())


def _growth(step: dict[str, Any]) -> int:
    """How many times longer a step makes a text at most."""
    if step.get("type") == "ByteLevel":
        return 4  # a character for each byte
    if step.get("type") != "Replace":
        return 1
    content, replaced = len(step["content"]), step["pattern"].get("String", "")
    if replaced:
        return max(1, math.ceil(content / len(replaced)))
    return 1 + content  # an expression may match nothing, at every place
