"""Milliseconds of a forward pass over one batch, parameters included, for recipes of a paper.

    python benchmarks/eval_batch.py chiu2020 vl-hmm-16384 scalar-16384 --data FOLDER

Chiu & Rush's Tables 2 and 4 give this time with the states that a training step keeps, so state
dropout is as in the recipe. Needs no trained model. Results go to results/PAPER/eval-batch.json.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro

from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import find_device
from bighmm.train.objective import HMMObjective, Window
from bighmm.train.recipe import CorpusSettings, read_recipe
from bighmm.train.setup import new_model, open_data, training_batches
from record import ROOT, save, surroundings


@dataclass(frozen=True)
class Arguments:
    paper: tyro.conf.Positional[str]
    recipes: tyro.conf.Positional[tuple[str, ...]]
    data: str
    """A corpus, as `bighmm train --data` takes it."""
    device: str = "auto"
    repeats: int = 30


def main(arguments: Arguments) -> None:
    rows = []
    for name in arguments.recipes:
        ms = _milliseconds(forward_pass(arguments, name), arguments.repeats)
        print(f"{name}: {ms:.2f} ms")
        rows.append({"recipe": name, "ms": ms, **surroundings()})
    print(f"saved to {save(f'{arguments.paper}/eval-batch.json', rows)}")


def forward_pass(arguments: Arguments, name: str) -> Callable[[], object]:
    recipe = read_recipe(ROOT / "recipes" / arguments.paper / f"{name}.toml")
    settings, device = recipe.training, find_device(arguments.device)
    corpus = open_data(CorpusSettings(data=arguments.data))
    lm = new_model(recipe, corpus).to(device, settings.matmul_dtype)
    assert isinstance(lm, HMMLM)
    batch = training_batches(corpus, settings).batch(0)
    window = Window(*(torch.from_numpy(x).to(device) for x in (batch.ids, batch.lengths)))
    objective = HMMObjective(lm, settings)
    carried, key = objective.begin(len(batch.ids)), torch.tensor(1, device=device)

    @torch.no_grad()
    def run() -> None:
        objective.loss(window, carried, key)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def _milliseconds(run: Callable[[], object], repeats: int) -> float:
    for _ in range(3):
        run()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
