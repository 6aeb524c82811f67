"""Runs that are killed, interrupted or out of disk space, at the worst moments, and then resumed.

Every run is `bighmm train` in a process of its own. The processes are forked from a server that
has imported torch already but has not used it. A sabotage is a function that such a process calls
before it trains, to arrange for its own end.
"""

import contextlib
import io
import json
import multiprocessing
import os
import random
import resource
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bighmm.base import files
from bighmm.cli.main import main
from bighmm.train import checkpoint, loop
from bighmm.train.checkpoint import load_checkpoint

SMALL = [
    *("--states", "24", "--blocks", "4", "--width", "8"),
    *("--batch", "8", "--window", "8", "--epochs", "1.2", "--device", "cpu"),
    *("--checks-per-epoch", "4", "--state-dropout", "0.5"),
]
FIRST_CHECK, SECOND_CHECK = 8, 15  # of 30 steps per epoch, and four checks
MIDDLE = 19  # a step between two checks
SPACE = 8192  # bytes, of which a checkpoint needs more


@pytest.fixture(scope="module")
def bighmm(tmp_path_factory):
    """bighmm(arguments, sabotage) gives the exit status and the standard error of a process."""
    folder = tmp_path_factory.mktemp("bighmm")
    processes = multiprocessing.get_context("forkserver")
    # AdamW imports torch._dynamo when it is first used.
    processes.set_forkserver_preload(["pytest", "torch._dynamo", "bighmm.cli.train"])

    def bighmm(*arguments: object, sabotage: Callable[[], None] | None = None) -> tuple[int, str]:
        errors = folder / "stderr"
        given = ([str(word) for word in arguments], folder / "cache", errors, sabotage)
        process = processes.Process(target=_run, args=given)
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode, errors.read_text()

    return bighmm


def _run(argv: list[str], cache: Path, errors: Path, sabotage: Callable[[], None] | None) -> None:
    os.environ["BIGHMM_CACHE"] = str(cache)
    torch.set_num_threads(1)
    if sabotage:
        sabotage()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(errors.open("w", buffering=1))
        stack.enter_context(contextlib.redirect_stderr(file))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        main(argv)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    draw = random.Random(0)
    words = [f"w{word:02}" for word in range(40)]
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    path.write_text("".join(" ".join(draw.choices(words, k=6)) + "\n" for _ in range(300)))
    return path


@pytest.fixture(scope="module")
def undisturbed(bighmm, text, tmp_path_factory):
    """What a run that nothing happens to leaves behind."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    status, said = bighmm("train", "--data", text, *SMALL, "--out", run)
    assert status == 0, said
    found = left_by(run)
    assert len(found["losses"]) == 36 and len(found["checks"]) == 5
    return found


def left_by(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    result = json.loads((run / "result.json").read_text())
    return {
        "losses": [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"],
        "checks": [line for line in lines if line["kind"] == "check"],
        "model": (run / "model" / "model.safetensors").read_bytes(),
        "checkpoint": (run / "checkpoint" / "tensors.safetensors").read_bytes(),
        "result": (result["valid"], result["test"], result["samples"], result["steps"]),
    }


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_step(number: int, act: Callable[[], None]) -> None:
    """Do something when step `number` is to be logged, with half of its line written."""
    write = loop.Log.write

    def write_or_act(log, kind, values):
        if kind == "step" and values["step"] == number:
            log.file.write(b'{"kind": "step", "st')
            log.file.flush()
            act()
            log.file.truncate(log.size() - len('{"kind": "step", "st'))
        write(log, kind, values)

    loop.Log.write = write_or_act  # type: ignore[method-assign]


def before_rename(name: str, number: int) -> None:
    """Be killed before the new folder `name` gets its name for the n-th time."""
    rename, seen = Path.rename, []

    def rename_or_die(self, target):
        if self.name.startswith(f".{name}."):
            seen.append(self)
            if len(seen) == number:
                die()
        return rename(self, target)

    Path.rename = rename_or_die  # type: ignore[method-assign,assignment]


def killed_before_the_first_checkpoint() -> None:
    at_step(3, die)


def killed_in_the_middle() -> None:
    at_step(MIDDLE, die)


def killed_writing_a_checkpoint() -> None:
    write = checkpoint.write_tensors

    def write_half(path, tensors):
        write(path, tensors)
        if (path.parent.parent / "checkpoint.previous").exists():  # so this is the third
            os.truncate(path, path.stat().st_size // 2)
            die()

    checkpoint.write_tensors = write_half


def killed_with_a_checkpoint_written() -> None:
    flush, seen = files.flush, []

    def flush_and_die(folder):
        flush(folder)
        if folder.name.startswith(".checkpoint."):
            seen.append(folder)
            if len(seen) == 3:
                die()

    files.flush = flush_and_die


def killed_in_the_first_save() -> None:
    before_rename("checkpoint", 1)


def killed_between_the_renames() -> None:
    before_rename("checkpoint", 2)


def killed_between_the_renames_of_the_model() -> None:
    before_rename("model", 2)


def killed_with_the_run_over() -> None:
    before_rename("checkpoint", 5)


@pytest.mark.parametrize(
    ("sabotage", "steps_kept"),
    [
        (killed_before_the_first_checkpoint, 0),
        (killed_in_the_first_save, 0),
        (killed_in_the_middle, SECOND_CHECK),
        (killed_writing_a_checkpoint, SECOND_CHECK),
        (killed_with_a_checkpoint_written, SECOND_CHECK),
        (killed_between_the_renames, FIRST_CHECK),
        (killed_between_the_renames_of_the_model, FIRST_CHECK),
        (killed_with_the_run_over, 30),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_killed_run_goes_on_as_if_it_had_not_been(
    bighmm, text, undisturbed, tmp_path, sabotage, steps_kept
):
    run = tmp_path / "run"
    status, _ = bighmm("train", "--data", text, *SMALL, "--out", run, sabotage=sabotage)
    assert status == -signal.SIGKILL
    assert not (run / "result.json").exists()
    if steps_kept:
        found, warning = load_checkpoint(run)
        assert found.state["step"] == steps_kept and warning is None
    else:
        with pytest.raises(ValueError, match="no checkpoint"):
            load_checkpoint(run)
    status, said = bighmm("train", "--resume", "--out", run)
    assert status == 0
    assert (f"resumed at step {steps_kept} of 36" in said) == (steps_kept > 0)
    assert left_by(run) == undisturbed
    names = {"recipe.json", "log.jsonl", "result.json", "model", "checkpoint"}
    assert {path.name for path in run.iterdir()} == names | {"checkpoint.previous"}


def test_killed_baum_welch_goes_on_as_if_it_had_not_been(bighmm, text, tmp_path):
    options = "--optimizer baum-welch --step-size 0.3 --parameters scalar --state-dropout 0"
    size = "--states 24 --blocks 4 --batch 8 --window 8 --epochs 1 --device cpu"
    arguments = ["train", "--data", text, *options.split(), *size.split(), "--out"]
    assert bighmm(*arguments, tmp_path / "whole")[0] == 0
    run = tmp_path / "run"
    assert bighmm(*arguments, run, sabotage=killed_in_the_middle)[0] == -signal.SIGKILL
    assert load_checkpoint(run)[0].state["step"] == SECOND_CHECK
    assert bighmm("train", "--resume", "--out", run)[0] == 0
    assert left_by(run) == left_by(tmp_path / "whole")


def test_killed_with_touched_rows_goes_on_as_if_it_had_not_been(bighmm, text, tmp_path):
    arguments = ["train", "--data", text, *SMALL, "--rows", "touched", "--out"]
    assert bighmm(*arguments, tmp_path / "whole")[0] == 0
    run = tmp_path / "run"
    assert bighmm(*arguments, run, sabotage=killed_in_the_middle)[0] == -signal.SIGKILL
    saved = load_checkpoint(run)[0].tensors
    counts = [saved[name] for name in saved if name.endswith(".row_steps")]
    assert counts and all(0 < int(steps.max()) <= SECOND_CHECK for steps in counts)
    assert any(len(steps.unique()) > 1 for steps in counts)
    assert bighmm("train", "--resume", "--out", run)[0] == 0
    assert left_by(run) == left_by(tmp_path / "whole")


def test_killed_again_and_again(bighmm, text, undisturbed, tmp_path):
    run = tmp_path / "run"
    arguments = ["train", "--data", text, *SMALL, "--out", run]
    for sabotage in (
        killed_between_the_renames,
        killed_between_the_renames,
        killed_in_the_middle,
        killed_in_the_middle,
        killed_writing_a_checkpoint,
    ):
        assert bighmm(*arguments, sabotage=sabotage)[0] == -signal.SIGKILL
        arguments = ["train", "--resume", "--out", run]
    assert bighmm(*arguments)[0] == 0
    assert left_by(run) == undisturbed


def interrupted_once() -> None:
    at_step(MIDDLE, lambda: os.kill(os.getpid(), signal.SIGINT))


def terminated() -> None:
    at_step(MIDDLE, lambda: os.kill(os.getpid(), signal.SIGTERM))


@pytest.mark.parametrize("sabotage", [interrupted_once, terminated])
def test_interrupted_run_saves_itself_and_says_how_to_go_on(
    bighmm, text, undisturbed, tmp_path, sabotage
):
    run = tmp_path / "run"
    status, said = bighmm("train", "--data", text, *SMALL, "--out", run, sabotage=sabotage)
    assert status == 130 and "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith(f"bighmm: stopped at step {MIDDLE}; go on with: bighmm train --resume")
    assert load_checkpoint(run)[0].state["step"] == MIDDLE
    command = shlex.split(last.partition("go on with: ")[2])
    assert command[0] == "bighmm" and bighmm(*command[1:])[0] == 0
    assert left_by(run) == undisturbed


def interrupted_twice() -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    at_step(MIDDLE, twice)


def test_a_second_interruption_does_not_wait_for_a_save(bighmm, text, undisturbed, tmp_path):
    run = tmp_path / "run"
    arguments = ["train", "--data", text, *SMALL, "--out", run]
    status, said = bighmm(*arguments, sabotage=interrupted_twice)
    assert status == 130 and said.splitlines()[-1] == "bighmm: interrupted"
    assert load_checkpoint(run)[0].state["step"] == SECOND_CHECK
    assert bighmm("train", "--resume", "--out", run)[0] == 0
    assert left_by(run) == undisturbed


def no_space(size: int) -> None:
    """From now on no file can be longer; writing more fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def full_disk_at_a_checkpoint() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    write = checkpoint.write_tensors

    def write_little(path, tensors):
        if (path.parent.parent / "checkpoint.previous").exists():
            no_space(SPACE)
        write(path, tensors)

    checkpoint.write_tensors = write_little


def full_disk_at_a_model() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    save, seen = loop.Training.save_model, []

    def save_little(training):
        seen.append(training)
        if len(seen) == 3:
            no_space(2048)
        save(training)

    loop.Training.save_model = save_little


def full_disk_at_the_log() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    at_step(MIDDLE, lambda: no_space(2048))


@pytest.mark.parametrize(
    "sabotage", [full_disk_at_a_checkpoint, full_disk_at_a_model, full_disk_at_the_log]
)
def test_full_disk(bighmm, text, undisturbed, tmp_path, sabotage):
    run = tmp_path / "run"
    status, said = bighmm("train", "--data", text, *SMALL, "--out", run, sabotage=sabotage)
    assert status == 2 and "Traceback" not in said
    assert [line.startswith("bighmm: ") for line in said.splitlines()].count(True) == 1
    assert said.endswith("File too large\n")
    assert f"bighmm: {run}" in said  # which says where there was no space
    found, warning = load_checkpoint(run)
    assert found.state["step"] == SECOND_CHECK and warning is None
    assert not list(run.glob(".*"))  # nothing half written is left, and no lock
    assert bighmm("train", "--resume", "--out", run)[0] == 0
    assert left_by(run) == undisturbed
