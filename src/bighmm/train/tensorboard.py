"""TensorBoard beside the JSONL log; needs the extra `bighmm[tensorboard]`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from bighmm.lm.evaluation import Evaluation
from bighmm.train.loop import Observer, StepReport


def with_tensorboard(observer: Observer, run: Path) -> Observer:
    """An observer that passes everything on and writes scalars to RUN/tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard is not installed; install bighmm[tensorboard] or leave out --tensorboard"
        ) from None
    return _WithTensorBoard(observer, lambda: SummaryWriter(str(run / "tensorboard")))


class _WithTensorBoard:
    def __init__(self, observer: Observer, make_writer: Callable[[], Any]) -> None:
        self.observer, self._make_writer = observer, make_writer

    @cached_property
    def writer(self) -> Any:
        """It makes its folder, which is not to be there before the run has begun."""
        return self._make_writer()

    def stepped(self, report: StepReport) -> None:
        self.writer.add_scalar("train/loss", report.loss, report.step)
        self.writer.add_scalar("train/lr", report.lr, report.step)
        self.observer.stepped(report)

    def checked(self, report: StepReport, valid: Evaluation, best: bool) -> None:
        self.writer.add_scalar("valid/perplexity", valid.perplexity, report.step)
        self.writer.flush()
        self.observer.checked(report, valid, best)

    def said(self, sentence: str) -> None:
        self.observer.said(sentence)
