"""The training loop.

Everything random is a function of the seed and the step number, and everything else is in the
checkpoint, so a run that was interrupted anywhere goes on as if it had not been.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Protocol

from bighmm.base import processes
from bighmm.base.allocator import give_back_freed_memory
from bighmm.base.files import existing_folder, naming, replace_folder
from bighmm.base.own_files import append_to
from bighmm.base.settings import Between, Count, fill
from bighmm.data.corpus import Corpus
from bighmm.lm.evaluation import Evaluation
from bighmm.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from bighmm.train.phases import make_runner
from bighmm.train.recipe import Recipe
from bighmm.train.schedule import make_schedule
from bighmm.train.setup import batches_of

SECONDS_BETWEEN_CHECKPOINTS = 60.0
SHARE_OF_SAVING = 0.05  # of the time, at most, where checkpoints are so large that they take long


class Diverged(ValueError):
    """The loss or the gradient is no longer a finite number."""


class Stopped(Exception):
    """The run was asked to stop and has saved itself."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


@dataclass(frozen=True)
class StepReport:
    step: int  # steps done
    total_steps: int
    epoch: float
    loss: float  # nats per token of this batch
    lr: float  # or the step size of Baum-Welch
    tokens: int  # tokens seen in all
    seconds: float  # spent in training in all, over interruptions


class Observer(Protocol):
    """What a run tells whoever watches it."""

    def stepped(self, report: StepReport) -> None: ...

    def checked(self, report: StepReport, valid: Evaluation, best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


class Training:
    """One run: `recipe` and `corpus` train `lm`, an HMM or a network, in the folder `run`.

    more: the second text of the recipe, if it has one.
    """

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        lm: Any,
        run: Path,
        observer: Observer,
        more: Corpus | None = None,
    ) -> None:
        settings = recipe.training
        self.settings, self.corpus, self.lm, self.run_folder = settings, corpus, lm, run
        self.observer = observer
        if settings.averaging:
            size = sum(p.nbytes for p in lm.params.parameters())
            observer.said(
                f"averaging keeps another {_readable(size)} beside the parameters, and as much "
                "again during validation"
            )
        self.processes = processes.current()
        self.batches = batches_of(recipe, corpus, more)
        self.steps_per_epoch = 1 if settings.full_batch else self.batches.steps_per_epoch
        self.total_steps = max(1, round(settings.epochs * self.steps_per_epoch))
        self.check_steps = self._steps_with_checks()
        self.schedule = make_schedule(settings, self.total_steps)
        self.runner = make_runner(recipe, corpus, lm, self.batches, self.schedule)
        self.log = Log(run / "log.jsonl" if self.processes.first else None)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.best = math.inf

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> float:
        """Train to the end and return the best validation perplexity.

        Raises `Diverged` on a loss that is not finite, with the last good checkpoint in place,
        and `Stopped` once `should_stop` says so, after saving.
        """
        with closing(self.log):
            return self._run(should_stop)

    def _run(self, should_stop: Callable[[], bool]) -> float:
        if self.step == 0:
            self.log.cut(0)  # left by a run that was stopped before its first checkpoint
        saved, between = time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
        while self.step < self.total_steps:
            report = self._steps_together()
            checked = self.step in self.check_steps
            if checked:
                self._check(report)
            stop = should_stop() and self.step < self.total_steps
            late = time.monotonic() - saved > between
            if not self.processes.alone:  # they must agree, as all of them take part in saving
                stop, late = (n > 0 for n in self.processes.sums(stop, late))
            due = checked and self.settings.checkpoint_at_checks
            due = due or self.step == self.total_steps
            if due or stop or late:
                began = time.monotonic()
                self.save()
                saved = time.monotonic()
                between = max(SECONDS_BETWEEN_CHECKPOINTS, (saved - began) / SHARE_OF_SAVING)
            if stop:
                raise Stopped(self.step)
        return self.best

    def save(self) -> None:
        checkpoint = Checkpoint(self.runner.tensors(), self._state())  # by all of them
        with self.processes.first_does() as here:
            if here:
                save_checkpoint(self.run_folder, checkpoint)

    def save_model(self) -> None:
        """The model as RUN/model, whole or not at all; call it in `runner.evaluated()`."""

        def fill(folder: Path) -> None:
            self.lm.save_pretrained(folder)

        with self.processes.first_does() as here:
            if here:
                replace_folder(self.run_folder / "model", fill, keep_previous=False)

    def resume(self) -> None:
        """Go back to the last checkpoint of the run folder."""
        checkpoint = Checkpoint({}, {})
        with self.processes.first_does() as here:
            if here:
                checkpoint, warning = load_checkpoint(self.run_folder)
                if warning:
                    self.observer.said(warning)
        state = self.processes.from_first(checkpoint.state)
        checkpoint = Checkpoint(self.processes.tensors_from_first(checkpoint.tensors), state)
        try:
            self._restore(checkpoint)
        except ValueError as error:
            raise ValueError(f"the checkpoint of {self.run_folder} does not fit: {error}") from None

    def _steps_together(self) -> StepReport:
        """As many steps as are best done at once, up to the next check; the last one's report."""
        next_check = min(step for step in self.check_steps if step > self.step)
        count = min(self.runner.at_once, next_check - self.step)
        began = time.monotonic()
        finished = self.runner.run(self.step, count)
        each = (time.monotonic() - began) / max(1, len(finished))
        for result in finished:
            self._require_finite(self.step + 1, "loss", result.loss)
            self._require_finite(self.step + 1, "gradient's norm", result.norm)
            self.step += 1
            self.tokens += result.tokens
            self.seconds += each
            report = StepReport(
                step=self.step,
                total_steps=self.total_steps,
                epoch=self.step / self.steps_per_epoch,
                loss=result.loss,
                lr=result.size,
                tokens=self.tokens,
                seconds=self.seconds,
            )
            self.log.write("step", dataclasses.asdict(report))
            self.observer.stepped(report)
        return report

    def _check(self, report: StepReport) -> None:
        with self.runner.evaluated():
            valid = self.lm.perplexity(self.corpus, split="valid")
            self._require_finite(self.step, "validation perplexity", valid.perplexity)
            best = valid.perplexity < self.best
            if best:
                self.best = valid.perplexity
                self.save_model()
        give_back_freed_memory()
        self.schedule.checked(-valid.log_prob / valid.tokens)
        self.log.write("check", {"step": self.step} | dataclasses.asdict(valid) | {"best": best})
        self.observer.checked(report, valid, best)

    def _require_finite(self, step: int, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        saved = existing_folder(self.run_folder / "checkpoint")
        remedy = f"a lower learning rate than {self.settings.lr}"
        if self.settings.optimizer == "baum-welch":
            remedy = f"a smaller step_size than {self.settings.step_size} or more smoothing"
        raise Diverged(
            f"the run diverged at step {step}: the {what} is {value}; "
            + ("nothing was saved yet" if saved is None else f"the last good checkpoint is {saved}")
            + f", and {remedy} may help"
        )

    def _steps_with_checks(self) -> set[int]:
        per_check = self.steps_per_epoch / self.settings.checks_per_epoch
        number = math.ceil(self.total_steps / per_check)
        return {round((i + 1) * per_check) for i in range(number)} | {self.total_steps}

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "best": self.best if math.isfinite(self.best) else None,
            "schedule": self.schedule.state(),
            "log_bytes": self.log.size(),
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        state = fill(Progress, checkpoint.state, "its state")
        self.schedule.restore(state.schedule)
        self.runner.restore(checkpoint.tensors)
        self.step, self.tokens, self.seconds = state.step, state.tokens, state.seconds
        self.best = math.inf if state.best is None else state.best
        self.log.cut(state.log_bytes)


def _readable(size: int) -> str:
    """So many bytes, in MiB or GiB."""
    return f"{size / 2**20:.1f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says about a run, beside its tensors."""

    step: Count
    tokens: Count
    seconds: Annotated[float, Between(0)]
    best: float | None  # the perplexity of the best model
    schedule: dict[str, Any]
    log_bytes: Count


class Log:
    """A JSONL file that is always up to date. It is made when it is first written to."""

    def __init__(self, path: Path | None) -> None:
        """path: None where another process keeps the log."""
        self.path = path

    @cached_property
    def file(self) -> BinaryIO:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return append_to(self.path)

    def write(self, kind: str, values: dict[str, Any]) -> None:
        if self.path is None:
            return
        with naming(self.path):
            self.file.write(json.dumps({"kind": kind, **values}).encode() + b"\n")
            self.file.flush()

    def size(self) -> int:
        return 0 if self.path is None else self.path.stat().st_size

    def cut(self, size: int) -> None:
        """Forget what was logged after a checkpoint; a log that is shorter stays as it is."""
        if self.path is None:
            return
        with naming(self.path), closing(self):
            self.file.truncate(min(size, self.size()))

    def close(self) -> None:
        """Close the file; what is written after this opens it again."""
        if self.path is not None and "file" in self.__dict__:
            with naming(self.path):  # a full disk shows here again
                self.__dict__.pop("file").close()
