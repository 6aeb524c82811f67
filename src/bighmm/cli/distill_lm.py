"""`bighmm distill-lm`: an HMM with a language model's tokens, from texts that it writes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bighmm.cli.common import AsJson, flag_value, out, print_json
from bighmm.cli.train import (
    all_arguments,
    parse_recipe,
    shortened,
    stoppable_watch,
    stopped_with,
)
from bighmm.distill.settings import (
    Labelling,
    SampleSettings,
    distillation_recipe,
    read_prompts,
)
from bighmm.train.recipe import Recipe, find_recipe

if TYPE_CHECKING:
    from bighmm.distill.from_language_model import DistillationWatch

Texts = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class RunArguments:
    model: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="LM", help="A Hugging Face model's folder or name, or a .gguf file."),
    ]
    out: Annotated[Path, tyro.conf.arg(help="The run's folder; what is begun there goes on.")]
    recipe: Annotated[
        Path | None, tyro.conf.arg(help="A TOML file with settings of model and training.")
    ] = None
    as_json: AsJson = False


@dataclass(frozen=True)
class SampleArguments:
    tokens: Annotated[
        int | None,
        tyro.conf.arg(help="How many to sample. Left out: 10,000,000 on a GPU, else 50,000."),
    ] = None
    length: Annotated[
        int,
        tyro.conf.arg(
            help="Tokens of a text at most, the end mark not counted; 63: with the end mark a "
            "window of 64."
        ),
    ] = SampleSettings.length
    prompt: Annotated[
        Texts, tyro.conf.arg(metavar="TEXT", help="What texts come after; several in turn.")
    ] = ()
    prompts: Annotated[Path | None, tyro.conf.arg(help="A file with a prompt on each line.")] = None
    chat: Annotated[
        bool, tyro.conf.arg(help="Prompts are a user's turns, in the model's template.")
    ] = False
    temperature: Annotated[
        float, tyro.conf.arg(help="Below 1 likely words get likelier; 1: the model's own.")
    ] = 1.0
    top_p: Annotated[
        float, tyro.conf.arg(help="Sample from the likeliest tokens of this probability in all.")
    ] = 1.0
    at_once: Annotated[
        int | None, tyro.conf.arg(help="Texts at once. Left out: 1,024 on a GPU, else 64.")
    ] = None


@dataclass(frozen=True)
class LabelArguments:
    labelled_epochs: Annotated[
        float, tyro.conf.arg(help="How many of the epochs are trained with labels; 0: none.")
    ] = Labelling.epochs
    cluster_tokens: Annotated[
        int, tyro.conf.arg(help="Tokens to find the clusters of labels with, at most.")
    ] = Labelling.cluster_tokens
    layer: Annotated[
        int | None,
        tyro.conf.arg(
            help="Whose vectors are clustered; -1 is the last, 0 the embeddings. Left out: two "
            "thirds up."
        ),
    ] = Labelling.layer


ABOUT = """Sample texts from a language model and train an HMM on them, with the same tokens.

The defaults of model and training shown here are those on a CPU; a GPU gets a larger model.
"""
OWN = [
    ("run", RunArguments),
    ("sample", SampleArguments, field(default_factory=SampleArguments)),
    ("label", LabelArguments, field(default_factory=LabelArguments)),
]
MADE = ("corpus", "initial", "mixed")  # sections of the recipe that the distillation fills in


def distill_lm_command(argv: list[str]) -> None:
    """Train an HMM on texts that a language model writes."""
    recipe, found = _parse(argv)
    from bighmm.distill.from_language_model import distill_language_model

    with (
        _interrupted(),
        stopped_with("the same command"),
        _watch(found.run.out) as (watch, should_stop),
    ):
        result = distill_language_model(
            found.run.out,
            found.run.model,
            recipe,
            _samples(found.sample, recipe),
            Labelling(found.label.labelled_epochs, found.label.cluster_tokens, found.label.layer),
            watch=watch,
            should_stop=should_stop,
        )
    if found.run.as_json:
        print_json(result)
    else:
        _show(result)


def distill_lm_arguments() -> list[type]:
    """Dataclasses of all flags that the command may have, which depend on the model."""
    return all_arguments(ABOUT, OWN, distillation_recipe("cpu"), MADE)


def _parse(argv: list[str]) -> tuple[Recipe, Any]:
    return parse_recipe(argv, "distill-lm", ABOUT, OWN, _starting_point(argv), MADE)


def _starting_point(argv: list[str]) -> Recipe:
    """The recipe that flags change: that of --recipe, or the one for the device."""
    if file := flag_value(argv, "--recipe"):
        return find_recipe(file)
    if {"-h", "--help"} & set(argv):  # which shows the defaults for a CPU, without loading torch
        return distillation_recipe("cpu")
    from bighmm.lm.opening import find_device

    device = find_device(flag_value(argv, "--device") or "auto")
    return distillation_recipe("cuda" if device.type == "cuda" else "cpu")


def _samples(arguments: SampleArguments, recipe: Recipe) -> SampleSettings:
    from bighmm.lm.opening import find_device

    return SampleSettings.on_device(
        find_device(recipe.training.device).type,
        arguments.tokens,
        arguments.at_once,
        length=arguments.length,
        prompts=arguments.prompt
        + (() if arguments.prompts is None else read_prompts(arguments.prompts)),
        chat=arguments.chat,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=recipe.training.seed,
    )


@contextmanager
def _watch(run: Path) -> Iterator[tuple[DistillationWatch, Callable[[], bool]]]:
    """Callbacks that display the stages in a terminal, and whether training should stop.

    In training, the first Ctrl-C saves and stops; before it, nothing is lost by an interruption.
    """
    from bighmm.cli.progress import stages_progress
    from bighmm.distill.from_language_model import DistillationWatch

    with stoppable_watch(run) as (watch, should_stop):
        yield DistillationWatch(stages_progress, watch), should_stop


@contextmanager
def _interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("bighmm: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table

    console = out()
    table = Table("held-out texts", "HMM", "language model", "unigram", "tokens")
    for split in ("valid", "test"):
        found, theirs = result[split], result["language_model"][split]
        table.add_row(
            split,
            f"{found['perplexity']:.2f}",
            f"{theirs['perplexity']:.2f}",
            f"{found['unigram_perplexity']:.2f}",
            f"{found['tokens']:,}",
        )
    console.print(table)
    stages = ", ".join(f"{name} {value:,.0f} s" for name, value in result["stage_seconds"].items())
    console.print(f"perplexities; {stages}")
    console.print("Three texts that the HMM wrote:")
    for text in result["samples"]:
        console.print(f"  {shortened(text)}", markup=False)
    run, name = result["run"], result["language_model"]["name"]
    console.print(
        f"\nTry next:\n  bighmm sample {run} --n 5\n  bighmm guide {run} {name} --must WORD",
        markup=False,
    )
