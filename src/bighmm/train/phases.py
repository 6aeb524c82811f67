"""Training in phases: first on words with their labels, or with frozen embeddings, then freely."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bighmm.data.batches import Batches
from bighmm.data.corpus import Corpus
from bighmm.distill.labels import open_labels
from bighmm.lm.hmmlm import HMMLM
from bighmm.train.initial import embeddings_to_freeze
from bighmm.train.objective import LabelledObjective, Trainable
from bighmm.train.recipe import Recipe
from bighmm.train.schedule import Schedule
from bighmm.train.setup import training_batches
from bighmm.train.steps import Done, Steps, make_optimizer, make_steps

PHASE = "phase"  # the checkpoint's tensor that says which one it is of


@dataclass(frozen=True)
class Phase:
    until: float  # the step that is no longer in it
    steps: Steps
    frozen: bool  # embeddings stay as they are


class Phases:
    """Steps of one phase after the other.

    All train the same model with the same optimiser, so only what is carried differs, and that is
    forgotten between two.
    """

    def __init__(self, phases: list[Phase], embeddings: list[nn.Parameter]) -> None:
        self.phases, self.embeddings = phases, embeddings
        self.number = 0

    @property
    def at_once(self) -> int:
        return self.phases[self.number].steps.at_once

    def run(self, step: int, count: int) -> list[Done]:
        number = next(i for i, phase in enumerate(self.phases) if step < phase.until)
        if number != self.number:
            self.phases[self.number].steps.release()
            self.number = number
        phase = self.phases[number]
        for parameter in self.embeddings:
            parameter.requires_grad_(not phase.frozen)
        return phase.steps.run(step, int(min(phase.until - step, count)))

    def tensors(self) -> dict[str, Tensor]:
        return {**self.phases[self.number].steps.tensors(), PHASE: torch.tensor(self.number)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.number = int(tensors[PHASE])
        others = {name: tensor for name, tensor in tensors.items() if name != PHASE}
        self.phases[self.number].steps.restore(others)

    def release(self) -> None:
        for phase in self.phases:
            phase.steps.release()


def make_phases(
    recipe: Recipe, corpus: Corpus, lm: Trainable, batches: Batches, schedule: Schedule
) -> Steps:
    """The steps of a recipe: in phases where it has labels or frozen embeddings."""
    settings, initial = recipe.training, recipe.initial
    per_step = len(corpus.split("train")) if settings.full_batch else batches.tokens_per_step
    labelled = math.ceil(initial.labelled_tokens / per_step) if initial.labels else 0
    frozen = math.ceil(initial.frozen_tokens / per_step)
    if not isinstance(lm, HMMLM) or not (labelled or frozen):
        return make_steps(lm, batches, settings, schedule)
    optimizer = make_optimizer(lm, settings) if settings.optimizer == "adamw" else None
    phases, begin = [], 0.0
    for end in sorted({float(labelled), float(frozen), math.inf} - {0.0}):
        read, objective = batches, None
        if begin < labelled and initial.labels:
            read, objective = _labelled(recipe, corpus, lm, initial.labels), LabelledObjective(lm)
        steps = make_steps(lm, read, settings, schedule, objective, optimizer)
        phases.append(Phase(end, steps, frozen=begin < frozen))
        begin = end
    return Phases(phases, embeddings_to_freeze(lm) if frozen else [])


def _labelled(recipe: Recipe, corpus: Corpus, lm: HMMLM, folder: str) -> Batches:
    labels = open_labels(folder, corpus)
    labels.check_support(lm.params.support)
    return training_batches(corpus, recipe.training, labels.states)
