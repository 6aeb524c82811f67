"""`bighmm eval`: perplexity with its conventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    keep_memory,
    out,
    parse,
    print_json,
)

if TYPE_CHECKING:
    from bighmm.answers.objects import Perplexity


@dataclass(frozen=True)
class EvalArguments:
    """Perplexity of a model; every token counts, with end marks and unknown words.

    A text file, or a folder of text without splits, is evaluated whole.
    """

    model: ModelPath
    data: Annotated[
        str | None,
        tyro.conf.arg(help="A text or corpus; without it the one the run was trained on."),
    ] = None
    split: Annotated[
        Literal["train", "valid", "test"] | None,
        tyro.conf.arg(
            help="Which part of a corpus (test); with it a text is divided as for training."
        ),
    ] = None
    carry: Annotated[
        bool, tyro.conf.arg(help="Carry the state over end marks instead of starting anew.")
    ] = False
    reset: Annotated[
        bool, tyro.conf.arg(help="Start anew after end marks, as HMMs and n-grams do anyway.")
    ] = False
    check_normalised: Annotated[
        bool,
        tyro.conf.arg(
            help="Also check that the next-word probabilities of sampled contexts sum to one."
        ),
    ] = False
    contexts: Annotated[int, tyro.conf.arg(help="How many contexts to check.")] = 32
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def eval_command(argv: list[str]) -> None:
    """Print the perplexity of a model on a split of a corpus."""
    arguments = parse(EvalArguments, argv, "eval")
    if arguments.carry and arguments.reset:
        raise ValueError("--carry and --reset exclude each other; give at most one")
    from bighmm import answers
    from bighmm.lm.opening import text_for

    keep_memory(arguments.compute.device)
    lm = arguments.compute.open(arguments.model)
    corpus, split = text_for(arguments.model, arguments.data, arguments.split)
    found = answers.evaluate(
        lm,
        corpus,
        split,
        convention="carry" if arguments.carry else "reset" if arguments.reset else None,
        check_normalised=arguments.check_normalised,
        contexts=arguments.contexts,
    )
    if arguments.as_json:
        print_json(found)
    else:
        _print(found, arguments.contexts)


def _print(found: Perplexity, contexts: int) -> None:
    from bighmm.lm.opening import WHOLE

    console = out()
    part = "whole-text" if found["split"] == WHOLE else found["split"]
    console.print(
        f"{part} perplexity [bold]{_number(found['perplexity'], 2)}[/] over "
        f"{found['tokens']:,} tokens (log-probability {_number(found['log_prob'], 1)} nats)"
    )
    if found["unknown_tokens"]:
        known = found["perplexity_known"]
        console.print(
            f"unknown words: {found['unknown_tokens']:,} tokens "
            f"({found['unknown_tokens'] / found['tokens']:.1%})"
            + ("" if known is None else f"; the others have perplexity {known:.2f}")
        )
    anew = found["convention"] == "reset"
    after = "the model starts anew" if anew else "the state is carried on"
    console.print(f"after an end mark: {after}; vocabulary {found['vocabulary'][:12]}")
    if found["unigram_perplexity"] is not None:
        console.print(f"a unigram model has {found['unigram_perplexity']:.2f}")
    if "largest_deviation_from_one" in found:
        console.print(
            f"next-word probabilities sum to one within {found['largest_deviation_from_one']:.1e} "
            f"in {contexts} contexts"
        )


def _number(value: float | None, places: int) -> str:
    return "infinite" if value is None else f"{value:,.{places}f}"
