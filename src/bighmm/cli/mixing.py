"""`bighmm mix`: several HMMs as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bighmm.base.locks import is_unused
from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    keep_memory,
    out,
    parse,
    print_json,
)


@dataclass(frozen=True)
class MixArguments:
    """A mixture of HMMs with the same words and blocks: one HMM whose states are those of all.

    Its weights make the validation text of a corpus likeliest, each sentence from one of the
    models, unless they are given.
    """

    models: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="MODEL MODEL …", help="Folders of models, or of their runs."),
    ]
    out: Annotated[Path, tyro.conf.arg(help="A new folder for the mixture.")]
    data: Annotated[
        str | None,
        tyro.conf.arg(help="A corpus; without it the one the first run was trained on."),
    ] = None
    weights: Annotated[
        tuple[float, ...] | None, tyro.conf.arg(help="One for each model; no corpus is needed.")
    ] = None
    equal: Annotated[bool, tyro.conf.arg(help="The same weight for each instead.")] = False
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def mix_command(argv: list[str]) -> None:
    """Write a mixture of models and print their weights."""
    arguments = parse(MixArguments, argv, "mix")
    if arguments.equal and arguments.weights is not None:
        raise ValueError("--equal and --weights exclude each other; give at most one")
    if not is_unused(arguments.out):
        raise ValueError(f"{arguments.out} already holds files; choose another --out")
    from bighmm.lm.cards import about_mixture, write_card
    from bighmm.lm.mixing import fitted_weights, mix, weights_of
    from bighmm.lm.opening import corpus_for

    keep_memory(arguments.compute.device)
    lms = [arguments.compute.open_hmm(path, "mixture") for path in arguments.models]
    mix(lms)  # which says if it cannot be, before there is any work
    weights = list(arguments.weights) if arguments.weights is not None else None
    if weights is None and not arguments.equal:
        weights = fitted_weights(lms, corpus_for(arguments.models[0], arguments.data))
    mixed = mix(lms, weights)
    mixed.save_pretrained(arguments.out)
    found = weights_of(mixed)
    names = [path.name for path in arguments.models]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    write_card(arguments.out, about_mixture(mixed, dict(zip(names, found, strict=True))))
    states = mixed.params.support.num_states
    if arguments.as_json:
        print_json({"out": str(arguments.out), "states": states, "weights": found})
        return
    console = out()
    for path, weight in zip(arguments.models, found, strict=True):
        console.print(f"{weight:.4f}\t{path}", markup=False)
    console.print(f"one HMM of {states:,} states: {arguments.out}", markup=False)
