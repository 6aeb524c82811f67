"""Progress of a run for people: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from bighmm.cli.common import err

if TYPE_CHECKING:
    from bighmm.lm.evaluation import Evaluation
    from bighmm.train.loop import StepReport

SECONDS_BETWEEN_LINES = 15.0
SMOOTHING = 0.98  # of the running loss


@contextlib.contextmanager
def clustering_progress() -> Iterator[Callable[[int, int], None]]:
    """A progress(done, total) callback that draws a bar on a terminal."""
    columns = (TextColumn("clustering"), BarColumn(), MofNCompleteColumn(), TextColumn("words"))
    console, left = err(), TimeRemainingColumn()
    live = console.is_terminal
    with Progress(*columns, left, console=console, transient=True, disable=not live) as progress:
        task = progress.add_task("clustering", total=None)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield report


@contextlib.contextmanager
def stages_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress(stage, done, total) callback: bars on a terminal, elsewhere some lines."""
    console, last_line = err(), time.monotonic()
    live = console.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Speed())
    left = TimeRemainingColumn()
    with Progress(*columns, left, console=console, disable=not live) as progress:
        tasks: dict[str, TaskID] = {}
        began: dict[str, tuple[float, int]] = {}  # time and progress at each stage's first report

        def report(stage: str, done: int, total: int) -> None:
            nonlocal last_line
            now = time.monotonic()
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
                began[stage] = (now, done)
            progress.update(tasks[stage], completed=done, total=total)
            if not live and now - last_line > SECONDS_BETWEEN_LINES:
                last_line = now
                line, (then, before) = f"{stage}: {done:,} of {total:,}", began[stage]
                if done > before and now > then:
                    speed = (done - before) / (now - then)
                    line += f"  {speed:,.0f}/s  {(total - done) / speed:,.0f} s left"
                console.print(line)

        yield report


class TrainingDisplay:
    """Shows loss, perplexity, speed and the time left; an observer of `Training`."""

    def __init__(self) -> None:
        self.console = err()
        self.live = self.console.is_terminal
        self.loss = math.nan
        self.last_line = time.monotonic()
        self.began: tuple[float, int] | None = None
        self.speed = 0.0
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            _Figures(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.live,
        )
        self.task = self.progress.add_task("training", total=None, figures="")

    def __enter__(self) -> TrainingDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def stepped(self, report: StepReport) -> None:
        """Show the figures of a training step."""
        blend = SMOOTHING if math.isfinite(self.loss) else 0.0
        self.loss = blend * self.loss + (1 - blend) * report.loss if blend else report.loss
        if self.began is None:
            self.began = (report.seconds, report.tokens)
        seconds, tokens = report.seconds - self.began[0], report.tokens - self.began[1]
        self.speed = tokens / seconds if seconds > 0 else 0.0
        figures = (
            f"epoch {report.epoch:.2f}  loss {self.loss:.3f}  "
            f"perplexity {math.exp(min(self.loss, 700)):.1f}  {self.speed:,.0f} tokens/s"
        )
        if self.live:
            self.progress.update(
                self.task, completed=report.step, total=report.total_steps, figures=figures
            )
        elif time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            left = self._seconds_left(report)
            self.console.print(
                f"step {report.step}/{report.total_steps}  {figures}  {left:.0f} s left"
            )

    def checked(self, report: StepReport, valid: Evaluation, best: bool) -> None:
        """Show the figures of a validation."""
        self.console.print(
            f"epoch {report.epoch:.2f}  validation perplexity {valid.perplexity:.2f}"
            + ("  (best so far, saved)" if best else "")
        )

    def said(self, sentence: str) -> None:
        """Show a message."""
        self.console.print(sentence, markup=False)

    def _seconds_left(self, report: StepReport) -> float:
        per_step = report.tokens / report.step
        return (report.total_steps - report.step) * per_step / self.speed if self.speed else 0.0


class _Speed(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class _Figures(ProgressColumn):
    """Loss, perplexity and speed, as they were last formatted."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["figures"])
