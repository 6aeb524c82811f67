"""`bighmm calibrate`: an HMM made as sure as held-out text says it should be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bighmm.base.locks import is_unused
from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    err,
    keep_memory,
    open_corpus,
    out,
    parse,
    print_json,
)

if TYPE_CHECKING:
    from bighmm.model.calibration import Calibration


@dataclass(frozen=True)
class CalibrateArguments:
    """The same model with factors for its logits of the next block, state and word, which make the
    validation text of a corpus likeliest.

    A model that was trained for long is surer of what comes next than it is right. It stays one
    HMM of the same size, exactly normalised. Factors that it has already are fitted anew.
    """

    model: ModelPath
    out: Annotated[Path, tyro.conf.arg(help="A new folder for the calibrated model.")]
    data: Annotated[
        str | None,
        tyro.conf.arg(help="A corpus; without it the one the run was trained on."),
    ] = None
    split: Annotated[str, tyro.conf.arg(help="Which text of the corpus to fit.")] = "valid"
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def calibrate_command(argv: list[str]) -> None:
    """Write a calibrated model and print its factors."""
    arguments = parse(CalibrateArguments, argv, "calibrate")
    if not is_unused(arguments.out):
        raise ValueError(f"{arguments.out} already holds files; choose another --out")
    from bighmm.lm.calibrating import calibrate
    from bighmm.lm.cards import about_model, write_card

    keep_memory(arguments.compute.device)
    lm = arguments.compute.open_hmm(arguments.model, "calibration")
    corpus = open_corpus(arguments.model, arguments.data)
    found = calibrate(lm, corpus, arguments.split, _tell)
    lm.save_pretrained(arguments.out)
    write_card(arguments.out, about_model(lm))
    if arguments.as_json:
        print_json(
            {"out": str(arguments.out), "split": arguments.split} | dataclasses.asdict(found)
        )
        return
    out().print(f"{found.sentence}; the model: {arguments.out}", markup=False)


def _tell(factors: Calibration, perplexity: float) -> None:
    """A line about each evaluation."""
    tried = ", ".join(
        f"{name} {factor:.3f}" for name, factor in dataclasses.asdict(factors).items()
    )
    err().print(f"perplexity {perplexity:8.2f}  {tried}", markup=False)
