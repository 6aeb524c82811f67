"""Settings that depend on the size of the text, for runs whose recipe leaves them open.

`choose` fills in what a user has not given for an HMM that AdamW trains. The tables were found by
trials on two CPU cores (`results/cpu/defaults.json`, docs/log.md); those for a GPU follow
runs of the frontier (`papers/frontier`) and were not tried on their own. What a user gives is never
changed, and recipes are what they say. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bighmm.model.options import NeuralOptions
from bighmm.train.recipe import Recipe


@dataclass(frozen=True)
class TextSize:
    """What the choice depends on."""

    tokens: int  # of the training text
    words: int  # of the vocabulary
    used: int  # of them that the training text has


@dataclass(frozen=True)
class Chosen:
    """A recipe without open settings, and for each that was chosen the reason."""

    recipe: Recipe
    reasons: dict[str, str]  # by "section.field", such as "model.states"

    def summary(self, size: TextSize) -> str:
        """One sentence that says what was chosen, and for what."""
        recipe = self.recipe.to_dict()
        values = []
        for name in self.reasons:
            section, _, field = name.partition(".")
            value = recipe[section][field]
            if isinstance(value, int | float):
                value = f"{value:,}" if isinstance(value, int) else f"{value:g}"
            values.append(f"{field} {value}")
        return f"chosen for {size.tokens:,} training tokens: {', '.join(values)}"


@dataclass(frozen=True)
class Row:
    """What suits texts of up to so many training tokens."""

    tokens: float
    states: int
    blocks: int
    width: int
    tokens_read: float  # in all epochs
    most_epochs: float
    state_dropout: float
    averaging: float
    batch: int
    lr: float = 0.01


CPU = (
    Row(3e3, 8, 4, 16, 1e6, 40, 0.0, 0.0, 16),
    Row(2e4, 256, 16, 64, 1e6, 16, 0.5, 0.98, 16),
    Row(2e5, 2048, 64, 128, 1e6, 8, 0.5, 0.99, 16),
    Row(2e6, 8192, 128, 128, 4e6, 6, 0.5, 0.992, 64, 0.02),
    Row(math.inf, 6144, 128, 128, 6e6, 1, 0.0, 0.998, 64, 0.014),
)
GPU = (
    *CPU[:2],
    Row(2e5, 8192, 64, 128, 4e6, 8, 0.5, 0.995, 16),
    Row(2e6, 65536, 128, 256, 2e7, 9, 0.5, 0.998, 64, 0.014),
    Row(2e7, 65536, 256, 256, 8e7, 8, 0.25, 0.998, 64, 0.014),
    Row(math.inf, 262144, 1024, 256, 1e8, 4, 0.25, 0.9995, 64, 0.012),
)
DENSE_STATES = {"cpu": 256, "cuda": 1024}  # a step costs their square


def choose(recipe: Recipe, given: Collection[str], size: TextSize, device: str) -> Chosen:
    """A recipe whose settings that are not `given` suit the text.

    given: names of the fields that a user has set, such as "states".
    device: "cpu" or "cuda".

    Models of other families, and those that Baum-Welch trains, keep the settings they have.
    """
    row = next(r for r in (GPU if device == "cuda" else CPU) if size.tokens <= r.tokens)
    if recipe.model.family != "hmm" or recipe.training.optimizer != "adamw":
        return Chosen(recipe, {})
    text = f"{size.tokens:,} training tokens"
    place = "a GPU" if device == "cuda" else "a CPU"
    changes: dict[str, dict[str, Any]] = {"model": {}, "options": {}, "training": {}}
    reasons: dict[str, str] = {}

    def set_(section: str, field: str, value: Any, reason: str) -> None:
        if field not in given:
            changes[section][field] = value
            reasons[f"{section}.{field}"] = reason

    for field, (value, reason) in _of_states(recipe, given, size, row, device).items():
        set_("model", field, value, reason)
    if isinstance(recipe.options, NeuralOptions):
        if not {"size", "backbone", "pretrained", "head", "network"} & set(given):
            set_("options", "width", row.width, f"enough for {text} on {place}")
        set_("options", "start", "direct", "one number per state is as good, and faster")
    epochs = min(row.most_epochs, row.tokens_read / size.tokens)
    epochs = round(epochs) if epochs >= 2 else float(f"{epochs:.2g}")
    limit = "more would overfit" if epochs == row.most_epochs else f"minutes on {place}"
    set_("training", "epochs", float(epochs), f"{epochs:g} × {text}; {limit}")
    dropout = 0.0 if recipe.model.support == "per-token" else row.state_dropout
    few = "there are too few states" if row.most_epochs > 1 else "text read once is not overfitted"
    reason = "the less text, the more is dropped" if dropout else few
    set_("training", "state_dropout", dropout, reason)
    set_("training", "batch", row.batch, f"{row.batch} rows for {text}")
    if "batch" not in given:
        set_("training", "lr", row.lr, f"suits batches of {row.batch} rows")
    set_("training", "averaging", row.averaging, "the average of late steps overfits less")
    set_("training", "checks_per_epoch", min(4.0, 20 / epochs), "twenty validations at most")
    return Chosen(recipe.changed(**changes), reasons)


def _of_states(
    recipe: Recipe, given: Collection[str], size: TextSize, row: Row, device: str
) -> dict[str, tuple[int, str]]:
    """States and blocks with reasons; those that are given decide about the other."""
    model, text = recipe.model, f"{size.tokens:,} training tokens"
    if model.support != "blocked":
        states = min(row.states, DENSE_STATES[device])
        return {"states": (states, f"every word may have any of them, for {text}")}
    if model.paths is not None or "init_from" in given:
        return {}
    if model.blocks == "words":
        each = max(1, min(16, row.states // size.words))
        return {"states": (each * size.words, f"{each} for each of {size.words:,} words")}
    most = max(1, size.used // 2)  # a block should have words to share its states
    if "blocks" in given:
        states = max(1, round(row.states / model.blocks)) * model.blocks
        return {"states": (states, f"a multiple of {model.blocks:,} blocks, for {text}")}
    wanted = min(row.blocks, most)
    if "states" in given:
        blocks = _divisor(model.states, max(1, min(wanted, model.states // 2)), most)
        return {"blocks": (blocks, f"they share {model.states:,} states equally")}
    states = row.states // row.blocks * wanted
    return {
        "states": (states, f"for {text}"),
        "blocks": (wanted, f"{states // wanted} states each"),
    }


def _divisor(number: int, wanted: int, most: int) -> int:
    """The divisor of a number nearest to `wanted` by its ratio, and at most `most`."""
    small = [d for d in range(1, math.isqrt(max(1, number)) + 1) if number % d == 0]
    divisors = {*small, *(number // d for d in small)}
    fitting = [d for d in divisors if d <= most] or [1]
    return min(fitting, key=lambda d: (abs(math.log(d / wanted)), d))
