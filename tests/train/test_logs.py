"""The log of a run read back: what is no line of a log is left out."""

import json

import pytest

from bighmm.train.curves import read_curves
from bighmm.train.logs import LONGEST, read_log

STEP = {"kind": "step", "step": 1, "epoch": 0.5, "loss": 2.0, "lr": 0.1, "tokens": 9, "seconds": 1}
CHECK = {"kind": "check", "step": 1, "perplexity": 7.0, "best": True}


def changed(entry, **values):
    return json.dumps(entry | values)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 20_000 + "]" * 20_000,
        changed(STEP, kind=["x"]),
        changed(STEP, epoch=10**400),
        changed(STEP, epoch=-1),
        changed(STEP, epoch=1e-320),
        changed(STEP, loss=1e308),
        changed(STEP, loss=True),
        changed(STEP, tokens="x", seconds=[]),
        changed(STEP, lr=float("nan")),
        changed(STEP, more="x" * LONGEST),
        changed(CHECK, perplexity=-5),
        changed(CHECK, perplexity=0),
        changed(CHECK, perplexity=-float("inf")),
        changed(CHECK, perplexity=float("inf")),
        changed(CHECK, step=None),
        "3",
        "no json",
        json.dumps(STEP)[:20],
    ],
    ids=range(18),
)
def test_lines_that_are_left_out(tmp_path, line):
    good = [json.dumps(STEP), json.dumps(CHECK)]
    later = [changed(STEP, step=2, epoch=1.0), changed(CHECK, step=2)]
    (tmp_path / "log.jsonl").write_text("\n".join([*good, line, *later]) + "\n")
    log = read_log(tmp_path)
    assert [step["step"] for step in log.steps] == [1, 2]
    assert log.curve() == [(0.5, 7.0), (1.0, 7.0)]
    assert log.epochs_at(2) == 1.0
    curves = read_curves(tmp_path)
    assert curves.steps["step"] == curves.checks["step"] == [1, 2]


def test_a_speed_is_finite(tmp_path):
    steps = [changed(STEP, seconds=0), changed(STEP, step=2, tokens=99, seconds=5e-324)]
    (tmp_path / "log.jsonl").write_text("\n".join(steps) + "\n")
    assert read_curves(tmp_path).steps["tokens_per_second"] == [None, None]
