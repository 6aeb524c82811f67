"""`bighmm distill-lm`: an HMM with a language model's tokens, from texts that it writes."""

from __future__ import annotations

import dataclasses
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.table import Table

from bighmm.base.files import write_json
from bighmm.cli.common import AsJson, out, print_json
from bighmm.cli.progress import stages_progress
from bighmm.cli.train import flag_value, parse_recipe, train_in_terminal
from bighmm.distill.from_language_model import Distillation, Labelling
from bighmm.distill.sampling import SampleSettings
from bighmm.lm.opening import RECIPE, find_device
from bighmm.model.params import find
from bighmm.train.recipe import (
    CorpusSettings,
    InitialSettings,
    ModelSettings,
    Recipe,
    TrainingSettings,
    find_recipe,
)

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
    length: Annotated[int, tyro.conf.arg(help="Tokens of a text at most, with its end mark.")] = (
        SampleSettings.length
    )
    prompt: Annotated[
        Texts, tyro.conf.arg(metavar="TEXT", help="What texts come after; several in turn.")
    ] = ()
    prompts: Annotated[Path | None, tyro.conf.arg(help="A file with a prompt on each line.")] = None
    chat: Annotated[
        bool, tyro.conf.arg(help="Prompts are a user's turns, in the model's template.")
    ] = False
    temperature: float = 1.0
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


def distill_lm_command(argv: list[str]) -> None:
    recipe, found = _arguments(argv)
    run, seconds = found.run.out, {}
    samples = _sample_settings(found.sample, recipe, find_device(recipe.training.device))
    labelling = Labelling(
        found.label.labelled_epochs, found.label.cluster_tokens, found.label.layer
    )
    distillation = Distillation(run, found.run.model, samples, recipe, labelling)
    try:
        for name, stage in (("sampling", distillation.sample), ("labels", distillation.label)):
            began = time.monotonic()
            with stages_progress() as progress:
                stage(progress)
            seconds[name] = round(time.monotonic() - began, 2)
    except KeyboardInterrupt:
        print("bighmm: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    began = time.monotonic()
    resuming = (run / RECIPE).exists()
    asked = distillation.recipe_for_training()
    trained = train_in_terminal(run, asked, resuming, "the same command")
    seconds["training"] = round(time.monotonic() - began, 2)
    result = {
        "language_model": {"name": found.run.model, **distillation.perplexities()},
        **trained,
        "stage_seconds": seconds,
    }
    write_json(run / "result.json", result)
    if found.run.as_json:
        print_json(result)
    else:
        _show(result)


def _arguments(argv: list[str]) -> tuple[Recipe, Any]:
    own = [
        ("run", RunArguments),
        ("sample", SampleArguments, field(default_factory=SampleArguments)),
        ("label", LabelArguments, field(default_factory=LabelArguments)),
    ]
    about = "Sample texts from a language model and train an HMM on them, with the same tokens."
    start = _starting_point(argv)
    recipe, found = parse_recipe(argv, "distill-lm", about, own, start, ("corpus", "initial"))
    if recipe.model.family != "hmm":
        raise ValueError(f"distill-lm trains an HMM, not a model of {recipe.model.family}")
    if recipe.training.batches == "documents":
        training = dataclasses.replace(recipe.training, window=found.sample.length)
        recipe = dataclasses.replace(recipe, training=training)
    return recipe, found


def _starting_point(argv: list[str]) -> Recipe:
    """The recipe of the flag --recipe, or one that suits sampled texts and the device."""
    if file := flag_value(argv, "--recipe"):
        recipe = find_recipe(file)
        if recipe.corpus != CorpusSettings() or recipe.initial != InitialSettings():
            raise ValueError(
                f"the recipe {file} has a [corpus] or [initial], and distill-lm makes both; leave "
                "them out"
            )
        return recipe
    asked = flag_value(argv, "--device") or "auto"
    on_gpu = asked.startswith("cuda") or (asked == "auto" and torch.cuda.is_available())
    return Recipe(
        model=ModelSettings(
            states=4096 if on_gpu else 512, support="dense", parameterisation="one-relu"
        ),
        options=find("one-relu").options(init_scale=0.5),
        training=TrainingSettings(
            epochs=10.0 if on_gpu else 4.0,  # little text is soon known by heart
            # Texts that were cut off have no end mark and must not run on into the next.
            batches="documents",
            batch=256 if on_gpu else 32,
            state_dropout=0.0,
            beta2=0.95,
            weight_decay=0.1,
            warmup=0.05,
            final_lr=0.1,
            checks_per_epoch=1.0,
            checkpoint_at_checks=False,
        ),
    )


def _sample_settings(
    arguments: SampleArguments, recipe: Recipe, device: torch.device
) -> SampleSettings:
    on_gpu = device.type == "cuda"
    return SampleSettings(
        tokens=_or(arguments.tokens, 10_000_000 if on_gpu else 50_000),
        length=arguments.length,
        prompts=_prompts(arguments),
        chat=arguments.chat,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        at_once=_or(arguments.at_once, 1024 if on_gpu else 64),
        seed=recipe.training.seed,
    )


def _prompts(arguments: SampleArguments) -> tuple[str, ...]:
    if arguments.prompts is None:
        return arguments.prompt
    try:
        lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{arguments.prompts} is not UTF-8 text") from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError(f"{arguments.prompts} holds no prompts; it needs one on a line")
    return (*arguments.prompt, *found)


def _show(result: dict[str, Any]) -> None:
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
        console.print(f"  {text!r}", markup=False)
    run, name = result["run"], result["language_model"]["name"]
    console.print(
        f"\nTry next:\n  bighmm sample {run} --n 5\n  bighmm guide {run} {name} --must WORD",
        markup=False,
    )


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
