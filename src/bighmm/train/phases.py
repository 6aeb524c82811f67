"""Training in phases: first on words with their labels, or with frozen embeddings, then freely."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bighmm.base import processes
from bighmm.data.batches import Batches, Labelled
from bighmm.data.corpus import Corpus
from bighmm.data.labels import open_labels
from bighmm.infer.filter import can_be_captured
from bighmm.model.feature_dropout import FeatureRates
from bighmm.train.averaging import Average
from bighmm.train.expectation_maximisation import ExpectationMaximisation
from bighmm.train.initial import embeddings_to_freeze
from bighmm.train.losses import CrossEntropy, LabelledLikelihood, Likelihood, Loss
from bighmm.train.recipe import Recipe, TrainingSettings
from bighmm.train.runner import EagerRunner, Runner, StepResult
from bighmm.train.schedule import Schedule
from bighmm.train.setup import training_batches
from bighmm.train.update import Descent, Optimizer, Update, make_optimizer

PHASE = "phase"  # the checkpoint's tensor that says which one it is of


def make_runner(
    recipe: Recipe, corpus: Corpus, lm: Any, batches: Batches, schedule: Schedule
) -> Runner:
    """The steps of a recipe: in phases where it has labels or frozen embeddings.

    lm: the model that is trained, an HMM or a neural baseline.
    """
    settings, initial = recipe.training, recipe.initial
    per_step = len(corpus.split("train")) if settings.full_batch else batches.tokens_per_step
    labelled = math.ceil(initial.labelled_tokens / per_step) if initial.labels else 0
    frozen = math.ceil(initial.frozen_tokens / per_step)
    average = Average(lm.params, settings.averaging) if settings.averaging else None
    if recipe.model.family != "hmm" or not (labelled or frozen):
        return _runner(recipe, lm, batches, schedule, None, average)
    optimizer = make_optimizer(lm.params, settings) if settings.optimizer == "adamw" else None
    phases, begin = [], 0.0
    for end in sorted({float(labelled), float(frozen), math.inf} - {0.0}):
        read = batches
        if begin < labelled and initial.labels:
            labels = open_labels(initial.labels, corpus)
            labels.check_states(lm.params.support.label_key())
            read = training_batches(corpus, settings, labels.states)
        runner = _runner(recipe, lm, read, schedule, optimizer, average)
        phases.append(Phase(end, runner, frozen=begin < frozen))
        begin = end
    return PhasedRunner(phases, embeddings_to_freeze(lm) if frozen else [])


@dataclass(frozen=True)
class Phase:
    until: float  # the first step after it
    runner: Runner
    frozen: bool  # embeddings stay as they are


class PhasedRunner:
    """One runner after the other.

    All train the same parameters with the same optimiser, so only the carried state differs, and
    that is forgotten between two.
    """

    def __init__(self, phases: list[Phase], embeddings: list[nn.Parameter]) -> None:
        self.phases, self.embeddings = phases, embeddings
        self.number = 0

    @property
    def at_once(self) -> int:
        return self.phases[self.number].runner.at_once

    def run(self, step: int, count: int) -> list[StepResult]:
        number = next(i for i, phase in enumerate(self.phases) if step < phase.until)
        if number != self.number:
            self.phases[self.number].runner.release()
            self.number = number
        phase = self.phases[number]
        for parameter in self.embeddings:
            parameter.requires_grad_(not phase.frozen)
        return phase.runner.run(step, int(min(phase.until - step, count)))

    def evaluated(self) -> AbstractContextManager[None]:
        return self.phases[self.number].runner.evaluated()

    def tensors(self) -> dict[str, Tensor]:
        return {**self.phases[self.number].runner.tensors(), PHASE: torch.tensor(self.number)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        number = int(tensors[PHASE]) if PHASE in tensors and tensors[PHASE].dim() == 0 else -1
        if not 0 <= number < len(self.phases):
            raise ValueError("it does not say which phase of training it is from")
        self.number = number
        self.phases[self.number].runner.restore(tensors)

    def release(self) -> None:
        for phase in self.phases:
            phase.runner.release()


def _runner(
    recipe: Recipe,
    lm: Any,
    batches: Batches,
    schedule: Schedule,
    optimizer: Optimizer | None,
    average: Average | None,
) -> Runner:
    """Captured steps on a GPU where that is possible and wanted, else eager ones."""
    settings, labelled = recipe.training, isinstance(batches, Labelled)
    update = _update(recipe, lm, labelled, schedule, optimizer, average)
    capture = settings.capture and lm.device.type == "cuda" and batches.shape is not None
    capture = capture and processes.current().capturable
    if capture and not settings.full_batch and _capturable(recipe, lm):
        from bighmm.train.captured import CapturedRunner

        return CapturedRunner(update, batches, settings.seed, changed=lm.clear_cache)
    return EagerRunner(
        update,
        batches,
        settings.seed,
        full_batch=settings.full_batch,
        changed=lm.clear_cache,
    )


def _update(
    recipe: Recipe,
    lm: Any,
    labelled: bool,
    schedule: Schedule,
    optimizer: Optimizer | None,
    average: Average | None,
) -> Update:
    settings = recipe.training
    if settings.optimizer == "baum-welch":
        return ExpectationMaximisation(lm.params, settings, schedule, labelled)
    loss: Loss
    reset = settings.convention == "reset"
    if recipe.model.family != "hmm":
        loss = CrossEntropy(lm.params, lm.end)
    elif labelled:
        loss = LabelledLikelihood(lm.params, feature_rates(settings), reset)
    else:
        loss = Likelihood(
            lm.params,
            settings.state_dropout,
            feature_rates(settings),
            settings.hidden_words,
            reset,
        )
    return Descent(lm.params, loss, settings, schedule, optimizer, average)


def feature_rates(settings: TrainingSettings) -> FeatureRates:
    """The dropout on vectors that a recipe asks for."""
    return FeatureRates(
        settings.embedding_dropout,
        settings.vector_dropout,
        settings.word_dropout,
        shared=settings.dropout_masks == "shared",
    )


def _capturable(recipe: Recipe, lm: Any) -> bool:
    """Whether no step asks the host for a number, and all have the same shapes."""
    if recipe.model.family != "hmm":
        return True
    with torch.no_grad():
        model = lm.params()
    em = recipe.training.optimizer == "baum-welch"
    return can_be_captured(model) and (not em or model.support.is_dense)
