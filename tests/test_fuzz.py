"""The fuzzer: a slice of its cases, and that it notices what it is made for."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro

from bighmm.cli.main import COMMANDS
from tests.fuzz import __main__ as fuzz_main
from tests.fuzz import files, mutations, outcome, working
from tests.fuzz.arguments import every_command
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.outcome import Case, Failure, Refused, run_cases

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")


def fuzz(*arguments, folder):
    """The fuzzer in a process of its own, as it forks, which threads of this one might not like."""
    out = folder / "result.json"
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done, json.loads(out.read_text())


def test_a_slice(tmp_path):
    done, found = fuzz("--cases", 150, "--seed", 1, folder=tmp_path)
    assert found["failures"] == [], done.stdout
    assert done.returncode == 0, done.stderr
    assert set(found["outcomes"]) == set(ATTACKS)
    assert found["configuration"]["seed"] == 1 and {"commit", "device"} <= set(found)


def outcome_of(work, tmp_path, number=0):
    (one,) = run_cases([Case("toy", 1, number)], work, tmp_path)
    return one[1]


def raising(error):
    def work(case, draw, place, say):
        say("something")
        raise error

    return work


class TestOutcomes:
    def test_an_answer(self, tmp_path):
        found = outcome_of(lambda case, draw, place, say: "same", tmp_path)
        assert (found.status, found.failed) == ("same", False)
        assert not any(tmp_path.iterdir())

    @pytest.mark.parametrize("error", [ValueError("a sentence"), Refused("a sentence")])
    def test_a_sentence(self, tmp_path, error):
        found = outcome_of(raising(error), tmp_path)
        assert (found.status, found.said, found.doing) == ("refused", "a sentence", "something")

    @pytest.mark.parametrize(
        "error",
        [
            *(KeyError("x"), RecursionError(), MemoryError(), SystemExit(2), Failure("different")),
            *(ValueError(""), ValueError("two\nlines"), Refused("x" * 10_000)),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_anything_else(self, tmp_path, error):
        found = outcome_of(raising(error), tmp_path)
        assert found.failed and found.said and "raising" not in found.doing

    def test_a_crash(self, tmp_path):
        def crash(case, draw, place, say):
            say("a crash")
            os.kill(os.getpid(), signal.SIGSEGV)

        found = outcome_of(crash, tmp_path)
        assert found.failed and found.doing == "a crash" and "SIGSEGV" in found.said
        assert "test_fuzz.py" in found.where

    def test_a_hang(self, tmp_path, monkeypatch):
        monkeypatch.setattr(outcome, "SECONDS", 0.2)

        def hang(case, draw, place, say):
            while True:
                pass

        found = outcome_of(hang, tmp_path)
        assert found.failed and "of processor time" in found.said and "hang" in found.where

    def test_waiting(self, tmp_path, monkeypatch):
        monkeypatch.setattr(outcome, "WAITING", 0.2)

        def wait(case, draw, place, say):
            os.mkfifo("pipe")
            Path("pipe").read_bytes()

        found = outcome_of(wait, tmp_path)
        assert found.failed and "it slept" in found.said

    def test_time_in_which_all_is_stopped_is_no_waiting(self, tmp_path, monkeypatch):
        """The clock goes on while a machine is suspended, or a batch system stops a job."""
        clock = iter(range(0, 10**9, 1000))
        monkeypatch.setattr(outcome.time, "monotonic", lambda: float(next(clock)))
        monkeypatch.setattr(outcome, "TICK", 0.01)
        found = outcome_of(lambda case, draw, place, say: time.sleep(0.1) or "same", tmp_path)
        assert found.status == "same"

    def test_exhaustion(self, tmp_path):
        found = outcome_of(lambda case, draw, place, say: str(len(bytes(1 << 31))), tmp_path)
        assert found.failed and "MemoryError" in found.said

    def test_what_a_case_leaves_running_is_ended(self, tmp_path):
        pid = tmp_path / "pid"

        def leave(case, draw, place, say):
            pid.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            return "same"

        assert outcome_of(leave, tmp_path).status == "same"
        state = Path(f"/proc/{pid.read_text()}/stat")
        for _ in range(500):  # it ends as soon as the system gets to it
            if not state.exists() or ") Z " in state.read_text():
                return
            time.sleep(0.01)
        pytest.fail("it still runs")


def test_a_case_is_always_the_same():
    case = Case("files", 3, 7)
    assert case.random().random() == Case("files", 3, 7).random().random()
    assert case.random().random() != Case("files", 3, 8).random().random()
    assert case.command() == "python -m tests.fuzz --only files --seed 3 --case 7"


def test_stored_figures_name_no_machine():
    """Of the run that is in the repository, and of what a failure says."""
    text = (ROOT / "results" / "fuzz.json").read_text()
    frames = [f for failure in json.loads(text)["failures"] for f in failure["where"].split(" < ")]
    assert str(ROOT) not in text and not any(frame.startswith("/") for frame in frames)
    assert outcome._short(str(ROOT / "tests" / "fuzz" / "files.py")) == "tests/fuzz/files.py"
    assert outcome._short(str(ROOT / "src" / "bighmm" / "hmm.py")) == "bighmm/hmm.py"


class TestOtherAnswers:
    """An answer that is neither the same nor refused has a reason, or is a failure."""

    def test_in_silence(self):
        with pytest.raises(Failure, match="in silence: /a is 2, not 1"):
            files.judge({"a": 2}, {"a": 1}, None)

    @pytest.mark.parametrize("other", outcome.DIFFERENT)
    def test_with_a_reason(self, other):
        assert files.judge({"a": 1}, {"a": 1}, other) == "same"
        assert files.judge({"a": 2}, {"a": 1}, other) == other
        with pytest.raises(Failure, match="NaN"):
            files.judge({"a": float("nan")}, {"a": 1}, other)

    def test_files_of_others(self):
        before = {"a/config.json": "1", "b": "2"}
        assert fuzz_main._changed(before, dict(before), 1) == []
        ((_, found),) = fuzz_main._changed(before, {"b": "2"}, 1)
        assert found.failed and "a/config.json" in found.said


class TestCommands:
    """New commands are attacked without a word here."""

    class Known:
        text = Path("text.txt")

        def path(self, name):
            return Path(name)

    def test_every_command_has_arguments(self):
        attacked = {command.name for command in every_command()}
        assert attacked == set(COMMANDS) - set(working.SERVERS)
        for name in attacked:
            for number in range(5):
                draw = Case("arguments", 1, number).random()
                assert all(
                    isinstance(w, str) for w in working.working_arguments(name, self.Known(), draw)
                )

    @pytest.mark.parametrize("name", ["score", "mix", "arpa", "tag", "write", "fill"])
    def test_found_from_the_dataclass(self, name):
        """As those in the table: what the parser asks for is there, and of the right kind."""
        module = importlib.import_module(COMMANDS[name][0])
        kind = getattr(module, f"{name.title()}Arguments")
        for number in range(10):
            draw = Case("arguments", 1, number).random()
            words = working.found_arguments(name, self.Known(), draw)
            tyro.cli(kind, args=[word for word in words if "\0" not in word], config=())


class TestMutations:
    CONFIG = {"kind": "x", "sizes": [1, 2], "files": {"a.bin": "0" * 64}, "seal": "1" * 64}  # noqa: RUF012

    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "a.bin").write_bytes(bytes(range(100)))
        (tmp_path / "words.txt").write_text("one two\nthree\n")
        (tmp_path / "config.json").write_text(json.dumps(self.CONFIG))
        return tmp_path

    @pytest.mark.parametrize("name", ["a.bin", "config.json", "words.txt"])
    def test_almost_all_change_something(self, folder, name):
        path, other, changed = folder / name, folder / "other", 0
        other.write_bytes(b"other")
        before = path.read_bytes()
        for number in range(100):
            said = mutations.mutate(Case("files", 1, number).random(), path, [other])
            assert said.startswith(f"{name}: ")
            is_file = path.is_file() and not path.is_symlink()
            changed += not is_file or path.read_bytes() != before
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(before)
        assert changed > 85

    @pytest.mark.parametrize("sealed", [True, False])
    def test_hashes_are_corrected(self, folder, sealed):
        mutations.refit_hashes(folder, sealed=sealed)
        found = json.loads((folder / "config.json").read_text())
        assert found["files"]["a.bin"] == mutations._digest(folder / "a.bin")
        assert ("seal" in found) is sealed and found.get("seal") != "1" * 64
