"""Options of the parameterisations that come with the package, by name.

They stand apart from the modules that they describe: a command's help must not wait for torch. A
parameterisation elsewhere registers its options together with itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["factored", "direct"]


@dataclass(frozen=True)
class NeuralOptions:
    """Networks over state embeddings."""

    width: int = 256
    """Width of embeddings and networks (the papers' h and d)."""
    size: int | None = None
    """About how many parameters in all; the width is then chosen for it."""
    embeddings: Literal["independent", "split", "factored"] = "independent"
    """One per state, one per state and role, or a block's and a state's half composed."""
    network: Literal["mlp", "transformer"] = "mlp"
    """What makes vectors of embeddings."""
    monolithic: bool = False
    """One network for all roles, instead of one each."""
    layers: int = 2
    """Linear layers of an MLP (0: no network at all), or blocks of a transformer."""
    skip: bool = True
    """Skip connections in an MLP."""
    relu: bool = True
    """Rectified linear units in an MLP."""
    layer_norm: bool = True
    """A norm at the end of an MLP."""
    heads: int = 4
    """Of a transformer."""
    backbone: str | None = None
    """All sizes of a transformer as JSON; where it begins with a pretrained one, that one's."""
    entering: Literal["embedding", "mlp"] = "embedding"
    """What a state is entered by: its raw embedding, or a network of it."""
    start: Form = "factored"
    """Start logits from embeddings, or one number each."""
    transitions: Literal["auto", "two-level", "flat", "table"] = "auto"
    """two-level: first the next block, then a state in it; flat: one softmax over all states; both
    from embeddings. table: one logit for each pair. auto: two-level where there are blocks."""
    choosing: Literal["own", "leaving"] = "own"
    """What chooses the next block of two-level transitions: vectors of a state's own, or those that
    also choose the state."""
    emission: Form = "factored"
    """Emission logits from embeddings, or one number each."""
    scaled: bool = False
    """Factored transition logits are divided by about the root of the width, as attention's are;
    where networks end with a norm they are that large at first, and training may not start."""
    word_bias: bool = True
    """A number per word is added to factored emission logits."""
    init_scale: float = 0.1
    """Standard deviation of the initial embeddings."""
    direct_scale: float = 1.0
    """Standard deviation of the initial logits of direct parts."""


LEE = {"entering": "mlp", "transitions": "flat"}  # three roles, none of them raw
VARIANTS: dict[str, dict[str, Any]] = {
    "neural": {},
    "chiu-rush": LEE,
    "ablation-a": LEE | {"layers": 0},
    "ablation-b": LEE | {"layers": 0, "embeddings": "split"},
    # the variants that did better than ablation B in Lee & Berg-Kirkpatrick's Table 3
    "one-relu": LEE | {"layers": 1, "skip": False, "layer_norm": False},
    "split-one-relu": LEE
    | {"embeddings": "split", "layers": 1, "skip": False, "layer_norm": False},
    "two-skip-relu": LEE | {"layer_norm": False},
    "split-two-norm": LEE | {"embeddings": "split", "skip": False, "relu": False},
    "split-two-skip-relu": LEE | {"embeddings": "split", "layer_norm": False},
    "split-monolithic-two-skip-relu": LEE
    | {"embeddings": "split", "monolithic": True, "layer_norm": False},
    "one-linear": LEE | {"layers": 1, "skip": False, "relu": False, "layer_norm": False},
    "monolithic-mlp": LEE | {"monolithic": True},
    "transformer": LEE | {"network": "transformer"},
    "monolithic-transformer": LEE | {"network": "transformer", "monolithic": True},
}


@dataclass(frozen=True)
class ScalarOptions:
    """Tables of logits: Z start, Z² transition, and V·K emission parameters."""

    init_scale: float = 1.0
    """Standard deviation of the initial logits."""
    transitions: Literal["table", "two-level"] = "table"
    """One softmax over all states, or first the next block, then a state in it."""


LATER_OPTIONS = {"choosing", "transitions"}  # which files of the first version do not have


def with_new_names(options: Any) -> Any:
    """Options as a file has them, with the names and values of today."""
    if not isinstance(options, dict):
        return options
    forms = {"factored": "flat", "direct": "table"}
    return {
        "transitions" if name == "transition" else name: (
            forms.get(value, value) if name == "transition" else value
        )
        for name, value in options.items()
    }


def _with_defaults(name: str, changes: dict[str, Any]) -> type:
    """NeuralOptions with other defaults."""
    fields = [
        (field.name, field.type, dataclasses.field(default=changes[field.name]))
        for field in dataclasses.fields(NeuralOptions)
        if field.name in changes
    ]
    title = "".join(part.title() for part in name.split("-"))
    return dataclasses.make_dataclass(
        f"{title}Options",
        fields,
        bases=(NeuralOptions,),
        frozen=True,
        namespace={"__doc__": NeuralOptions.__doc__, "__module__": __name__},
    )


OPTIONS: dict[str, type] = {
    "scalar": ScalarOptions,
    **{
        name: _with_defaults(name, changes) if changes else NeuralOptions
        for name, changes in VARIANTS.items()
    },
}
