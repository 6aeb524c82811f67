"""Training steps of the neural baselines: cross-entropy on streams with a carried state."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bighmm import randomness
from bighmm.baselines.neural import NeuralLM, State
from bighmm.batches import Batches
from bighmm.learn.schedule import Schedule
from bighmm.learn.steps import (
    Done,
    clip,
    make_optimizer,
    restore_tensors,
    saved_tensors,
    set_rate,
)
from bighmm.recipe import TrainingSettings


class NeuralSteps:
    at_once = 1

    def __init__(
        self, lm: NeuralLM, batches: Batches, settings: TrainingSettings, schedule: Schedule
    ) -> None:
        self.lm, self.batches, self.settings, self.schedule = lm, batches, settings, schedule
        self.optimizer = make_optimizer(lm, settings)
        self.carried: State | None = None  # the network's state, and the last words as "last"

    def run(self, step: int, count: int) -> list[Done]:
        return [self._one(step + i) for i in range(count)]

    def _one(self, step: int) -> Done:
        batch = self.batches.batch(step)
        ids = torch.from_numpy(batch.ids).to(self.lm.device)
        lengths = torch.from_numpy(batch.lengths).to(self.lm.device)
        carried = self.carried if batch.continues and self.carried is not None else self._begin(ids)
        last = carried["last"]
        state = {name: tensor for name, tensor in carried.items() if name != "last"}
        previous = torch.cat([last.unsqueeze(1), ids[:, :-1]], dim=1)
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)

        self.lm.params.train()
        log_probs, state = self._forward(previous, state, step)
        each = log_probs.gather(2, ids.unsqueeze(2)).squeeze(2)
        loss = -(each * inside).sum() / inside.sum()
        rate = self.schedule.rate(step)
        set_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip(self.lm, self.optimizer, self.settings)
        done = Done(float(loss.detach()), float(norm), rate, int(batch.lengths.sum()))
        if math.isfinite(done.loss) and math.isfinite(done.norm):
            self.optimizer.step()
            kept = {name: tensor.detach() for name, tensor in state.items()}
            self.carried = {**kept, "last": ids[:, -1]}
        return done

    def _forward(self, previous: Tensor, state: State, step: int) -> tuple[Tensor, State]:
        """With dropout that is a function of the seed and the step."""
        devices = [previous.device] if previous.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(randomness.key(self.settings.seed, step)) % 2**63)
            return self.lm.params(previous, state)

    def _begin(self, ids: Tensor) -> State:
        begun = self.lm.params.begin(len(ids), self.lm.end)
        return {**begun, "last": ids.new_full((len(ids),), self.lm.end)}

    def tensors(self) -> dict[str, Tensor]:
        return saved_tensors(self.lm, self.optimizer, self.carried)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.carried = restore_tensors(self.lm, self.optimizer, tensors)
