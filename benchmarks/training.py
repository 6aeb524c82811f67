"""Tokens per second of training, from text on the disk to new parameters.

    python benchmarks/training.py papers/lee2025/recipes/scalar-512.toml --data FOLDER
    python benchmarks/training.py quickstart benchmarks/recipes/quickstart-flat.toml --device cpu

Each recipe is trained for some steps that are not timed, in which kernels are compiled and a graph
is captured, and then for `--tokens` more. The timed part is what `bighmm train` does between two
validations, with the preparation of batches.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from bighmm.data.corpus import Corpus, prepare
from bighmm.lm.opening import find_device
from bighmm.train.phases import make_runner
from bighmm.train.recipe import InitialSettings, Recipe, find_recipe
from bighmm.train.schedule import make_schedule
from bighmm.train.setup import new_model, training_batches
from record import save, surroundings


@dataclass(frozen=True)
class Arguments:
    recipes: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, or names of packaged recipes."""
    data: str = "pydoc"
    tokenizer: str | None = None
    tokens: int = 50_000_000
    """Number of tokens of each recipe that are timed."""
    warm_up: int = 200
    """Number of steps before, which are not timed."""
    device: str = "auto"
    out: str = "bench/training.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    device = find_device(arguments.device)
    corpus = prepare(arguments.data, tokenizer=arguments.tokenizer)
    rows = []
    for name in arguments.recipes:
        row = measure(find_recipe(name), corpus, device, arguments)
        recipe = Path(name).stem
        rows.append({"operation": "training", "recipe": recipe, **row, **surroundings()})
        print(f"{recipe}: {row['tokens_per_second']:,.0f} tokens per second")
    print(f"saved to {save(arguments.out, rows)}")


def measure(
    recipe: Recipe, corpus: Corpus, device: torch.device, arguments: Arguments
) -> dict[str, Any]:
    recipe = dataclasses.replace(recipe, initial=InitialSettings())  # random initial parameters
    torch.manual_seed(recipe.training.seed)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    lm = new_model(recipe, corpus).to(device)
    batches = training_batches(corpus, recipe.training)
    total = round(recipe.training.epochs * batches.steps_per_epoch)
    runner = make_runner(recipe, corpus, lm, batches, make_schedule(recipe.training, total))
    step = 0
    while step < arguments.warm_up:
        step += len(runner.run(step, runner.at_once))
    tokens, loss = 0, 0.0
    _wait(device)
    began = time.perf_counter()
    while tokens < arguments.tokens:
        done = runner.run(step, runner.at_once)
        step, tokens, loss = step + len(done), tokens + sum(d.tokens for d in done), done[-1].loss
    _wait(device)
    seconds = time.perf_counter() - began
    return {
        "corpus": corpus.folder.name,
        "states": recipe.model.states,
        "blocks": recipe.model.blocks if recipe.model.support == "blocked" else None,
        "options": dataclasses.asdict(recipe.options),
        "num_parameters": sum(p.numel() for p in lm.params.parameters()),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "loss": loss,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(tyro.cli(Arguments))
