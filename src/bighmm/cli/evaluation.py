"""`bighmm eval`: perplexity with its conventions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import tyro

from bighmm.cli.common import ON_ANY_DEVICE, AsJson, DeviceFlags, ModelPath, out, parse, print_json


@dataclass(frozen=True)
class EvalArguments:
    """Perplexity of a model; every token counts, with end marks and unknown words."""

    model: ModelPath
    data: Annotated[
        str | None, tyro.conf.arg(help="A corpus; without it the one the run was trained on.")
    ] = None
    split: Annotated[Literal["train", "valid", "test"], tyro.conf.arg(help="Which part of it.")] = (
        "test"
    )
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
    from bighmm.lm.evaluation import evaluate_corpus
    from bighmm.lm.opening import corpus_for

    found = evaluate_corpus(
        arguments.compute.open(arguments.model),
        corpus_for(arguments.model, arguments.data),
        arguments.split,
        convention="carry" if arguments.carry else "reset" if arguments.reset else None,
        check_normalised=arguments.check_normalised,
        contexts=arguments.contexts,
    )
    if arguments.as_json:
        print_json({name: value for name, value in asdict(found).items() if value is not None})
        return
    console = out()
    console.print(
        f"{found.split} perplexity [bold]{found.perplexity:.2f}[/] over {found.tokens:,} "
        f"tokens (log-probability {found.log_prob:,.1f} nats)"
    )
    after = "the model starts anew" if found.convention == "reset" else "the state is carried on"
    console.print(f"after an end mark: {after}; vocabulary {found.vocabulary[:12]}")
    console.print(f"a unigram model has {found.unigram_perplexity:.2f}")
    if found.largest_deviation_from_one is not None:
        console.print(
            f"next-word probabilities sum to one within {found.largest_deviation_from_one:.1e} "
            f"in {arguments.contexts} contexts"
        )
