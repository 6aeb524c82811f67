"""Time of a forward pass over one batch, from the parameters on, for recipes of a paper.

    python benchmarks/eval_batch.py chiu2020 vl-hmm-16384 scalar-16384 --data FOLDER

Tables 2 and 4 of Chiu & Rush give this time for the states that are left in a training step, so
state dropout is that of the recipe. No trained model is needed. Results go to
papers/PAPER/results/eval-batch.json.
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
from bighmm.train.losses import Likelihood, Window
from bighmm.train.recipe import CorpusSettings, read_recipe
from bighmm.train.setup import new_model, open_data, training_batches
from record import ROOT, save, surroundings

PAPERS = ROOT / "papers"


@dataclass(frozen=True)
class Arguments:
    paper: tyro.conf.Positional[str]
    recipes: tyro.conf.Positional[tuple[str, ...]]
    data: str
    """A corpus, as for `bighmm train --data`."""
    device: str = "auto"
    repeats: int = 30


def main(arguments: Arguments) -> None:
    rows = []
    for name in arguments.recipes:
        ms = _milliseconds(forward_pass(arguments, name), arguments.repeats)
        print(f"{name}: {ms:.2f} ms")
        rows.append({"recipe": name, "ms": ms, **surroundings()})
    file = PAPERS / arguments.paper / "results" / "eval-batch.json"
    print(f"saved to {save(file, rows)}")


def forward_pass(arguments: Arguments, name: str) -> Callable[[], object]:
    recipe = read_recipe(PAPERS / arguments.paper / "recipes" / f"{name}.toml")
    settings, device = recipe.training, find_device(arguments.device)
    corpus = open_data(CorpusSettings(data=arguments.data))
    lm = new_model(recipe, corpus).to(device, settings.matmul_dtype)
    assert isinstance(lm, HMMLM)
    batch = training_batches(corpus, settings).batch(0)
    window = Window(*(torch.from_numpy(x).to(device) for x in (batch.ids, batch.lengths)))
    likelihood = Likelihood(lm.params, settings.state_dropout)
    state, key = likelihood.initial_state(len(batch.ids)), torch.tensor(1, device=device)

    @torch.no_grad()
    def run() -> None:
        likelihood(window, state, key)
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
