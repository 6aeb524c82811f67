"""TensorBoard beside the JSONL log; needs the extra `bighmm[tensorboard]`."""

from __future__ import annotations

from pathlib import Path

from bighmm.evaluate import Evaluation
from bighmm.learn.loop import Observer, StepReport


def with_tensorboard(observer: Observer, run: Path) -> Observer:
    """An observer that passes everything on and writes scalars to RUN/tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "TensorBoard is not installed; install bighmm[tensorboard] or leave out --tensorboard"
        ) from None
    return _WithTensorBoard(observer, SummaryWriter(str(run / "tensorboard")))


class _WithTensorBoard:
    def __init__(self, observer: Observer, writer: object) -> None:
        self.observer, self.writer = observer, writer

    def stepped(self, report: StepReport) -> None:
        self.writer.add_scalar("train/loss", report.loss, report.step)  # type: ignore[attr-defined]
        self.writer.add_scalar("train/lr", report.lr, report.step)  # type: ignore[attr-defined]
        self.observer.stepped(report)

    def checked(self, report: StepReport, valid: Evaluation, best: bool) -> None:
        self.writer.add_scalar(  # type: ignore[attr-defined]
            "valid/perplexity", valid.perplexity, report.step
        )
        self.writer.flush()  # type: ignore[attr-defined]
        self.observer.checked(report, valid, best)

    def said(self, sentence: str) -> None:
        self.observer.said(sentence)
