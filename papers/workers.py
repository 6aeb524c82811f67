"""The work behind a run: commands of bighmm in processes of their own, and what they leave behind.

The run NAME is trained in runs/PAPER/NAME with its output in NAME.log. An interrupted run is
resumed; a finished one is not trained again, only its result is stored.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bighmm.base.files import write_json
from bighmm.base.json_files import read_json
from bighmm.train.recipe import differences, from_saved, located, read_recipe
from papers.jobs import DEVIATION, Files, Job, folder_of
from papers.prepare import needs
from papers.record import record_of
from papers.results import read_results, store_result
from papers.rows import Paper, Prepare
from papers.several import environment

# With -P nothing is imported from the folder in which the process runs.
BIGHMM = (sys.executable, "-P", "-c", "from bighmm.cli.main import main; main()")

Say = Callable[[str], None]


class Failed(Exception):
    """A run has no result; the message says why, or which log says it."""


class Stopping(Exception):
    """The program is to end."""


def log_name(entry: Prepare) -> str:
    """What the log and the lock of an entry are called."""
    return entry.makes.replace("/", "-")


class Workers:
    """The work of the threads, and the state that they share."""

    def __init__(self, paper: Paper, files: Files, say: Say) -> None:
        self.paper, self.files, self.say = paper, files, say
        self.not_made: set[str] = set()  # folders that could not be made
        self.lock = threading.Lock()
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.stopping = False

    def prepare(self, entry: Prepare) -> bool:
        """Make the folder of an entry; whether it succeeded."""
        folder, log = self.paper.root / entry.makes, self.paper.runs / f"{log_name(entry)}.log"
        words = shlex.split(entry.command or "")
        if entry.corpus is not None:
            words += self.files.flags(entry.corpus)
        if (folder / "recipe.json").exists():  # a run that was interrupted
            words.append("--resume")
        try:
            self._require(other.makes for other in needs(entry, self.paper))
            self.say(f"{entry.makes}: being made")
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._call((*words, "--out", folder.absolute()), log)
        except Stopping:
            return False
        except (Failed, OSError) as error:
            self.not_made.add(entry.makes)
            self.say(f"{entry.makes}: failed; {error}")
            return False
        self.say(f"{entry.makes}: made")
        return True

    def make(self, job: Job, at_once: int = 1) -> bool:
        """Train or mix a run and store its result; whether it succeeded.

        at_once: how many there are at the same time, which make each other slower.
        """
        if self.stopping:
            return False
        run, log = self.paper.runs / job.name, self.paper.runs / f"{job.name}.log"
        try:
            self._require(job.needs)
            (self._mix if job.is_mixture else self._train)(job, run, log)
            result = record_of(run)
            result["recipe"]["corpus"]["data"] = job.row.corpus
            result["at_once"] = at_once
            if job.evaluates_train:
                result["train"] = self._evaluate_train(job, run, log)
            store_result(self.paper, job.row, job.seed, result)
        except Stopping:
            return False
        except (Failed, OSError, ValueError) as error:
            self.not_made.add(folder_of(self.paper, job.name))
            self.say(f"{job.name}: failed; {error}")
            return False
        figures = [f"{split} {result[split]['perplexity']:.1f}" for split in ("valid", "test")]
        self.say(f"{job.name}: finished; {', '.join(figures)}, {result['seconds']:,.1f} s")
        return True

    def check(self, job: Job) -> bool:
        """Check that the model of a finished run is normalised, and add that to its result."""
        run, log = self.paper.runs / job.name, self.paper.runs / f"{job.name}.log"
        try:
            self._require([folder_of(self.paper, job.name)])
            found = self._evaluate(job, run, log, "valid", "--check-normalised")
            stored = read_results(self.paper).of(job.row)[job.seed].fields
            record = {key: stored[key] for key in stored if key not in ("corpus", "seed")}
            record["recipe"] = record.pop("settings")
            store_result(self.paper, job.row, job.seed, {**record, DEVIATION: found[DEVIATION]})
        except Stopping:
            return False
        except (Failed, OSError, ValueError, KeyError) as error:
            self.say(f"{job.name}: its normalisation was not checked; {error}")
            return False
        self.say(f"{job.name}: next-word probabilities sum to one within {found[DEVIATION]:.1e}")
        return True

    def stop(self) -> None:
        """Ask all processes to end, and start no others."""
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.terminate()

    def _require(self, folders: Iterable[str]) -> None:
        for folder in folders:
            if folder in self.not_made:
                raise Failed(f"it needs {folder}, which could not be made")

    def _train(self, job: Job, run: Path, log: Path) -> None:
        settings = (*self.files.flags(job.row.corpus), "--seed", job.seed)
        paths = ("--recipe", job.recipe.absolute(), "--out", run.absolute())
        command = ("train", *paths, *settings)
        if (run / "result.json").exists():
            _check_same(job, run, self.paper.root)
            self.say(f"{job.name}: was trained before")
        elif (run / "recipe.json").exists():
            self.say(f"{job.name}: goes on")
            self._call((*command, "--resume"), log)
        else:
            self.say(f"{job.name}: started")
            self._call(command, log)

    def _mix(self, job: Job, run: Path, log: Path) -> None:
        """Mix the runs of a job, with weights from the validation text, and evaluate the mixture.

        Its folder is like that of a run; the seconds of its training are those of all runs.
        """
        folders = [self.paper.root / folder for folder in job.needs]
        parts = [read_json(folder / "result.json") for folder in folders]
        if (run / "result.json").exists():
            self.say(f"{job.name}: was mixed before")
            return
        self.say(f"{job.name}: is being mixed")
        if not (run / "model").exists():
            data = ("--data", self.files.data[job.row.corpus], "--device", parts[0]["device"])
            models = [folder.absolute() for folder in folders]
            self._call(("mix", *models, *data, "--out", (run / "model").absolute()), log)
        totals = {key: sum(part[key] for part in parts) for key in ("steps", "seconds")}
        parameters = sum(part["num_parameters"] for part in parts) + len(parts)  # and the weights
        result = {
            **parts[0],
            **totals,
            "num_parameters": parameters,
            "mixture": len(parts),
            "samples": [],
        }
        write_json(run / "parts.json", result)
        for split in ("valid", "test"):
            result[split] = self._evaluate(job, run, log, split)
        write_json(run / "result.json", result)

    def _evaluate_train(self, job: Job, run: Path, log: Path) -> dict[str, Any]:
        """Perplexity of the best model on the training text."""
        return self._evaluate(job, run, log, "train")

    def _evaluate(self, job: Job, run: Path, log: Path, split: str, *flags: str) -> dict[str, Any]:
        """What `bighmm eval` says of the best model, on the device of its training."""
        result = run / "result.json"
        trained = read_json(result if result.exists() else run / "parts.json")
        matmul_dtype = trained["recipe"]["training"]["matmul_dtype"]
        what = ("--data", self.files.data[job.row.corpus], "--split", split, *flags)
        where = ("--device", trained["device"], "--matmul-dtype", matmul_dtype)
        return json.loads(self._call(("eval", run.absolute(), *what, *where, "--json"), log))

    def _call(self, arguments: Sequence[object], log: Path) -> bytes:
        """Run a command of bighmm and return its JSON; all other output goes to the log."""
        words = [str(word) for word in arguments]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ bighmm {shlex.join(words)}\n".encode())
            file.flush()
            with self.lock:
                if self.stopping:
                    raise Stopping
                # In its own group the process gets our signal, and not the terminal's Ctrl-C too.
                process = subprocess.Popen(
                    [*BIGHMM, *words],
                    cwd=self.paper.root,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if "--json" in words else file,
                    stderr=file,
                    process_group=0,
                    env=environment(),
                )
                self.processes.add(process)
            try:
                printed, _ = process.communicate()
            finally:
                with self.lock:
                    self.processes.discard(process)
        if process.returncode and self.stopping:
            raise Stopping
        if process.returncode:
            raise Failed(f"status {process.returncode}, read {log}{_last_sentence(log)}")
        return printed


def _check_same(job: Job, run: Path, root: Path) -> None:
    """Raises ValueError if a finished run has other settings than the recipe of the job.

    root: the checkout, in which it was trained.
    """
    path = run / "result.json"
    made = located(from_saved(read_json(path)["recipe"], str(path)), root)
    recipe = read_recipe(job.recipe)
    asked = dataclasses.replace(
        recipe,
        corpus=dataclasses.replace(
            recipe.corpus,
            data=made.corpus.data,
            tokenizer=recipe.corpus.tokenizer or made.corpus.tokenizer,
        ),
        training=dataclasses.replace(recipe.training, seed=job.seed),
    )
    if changed := differences(made, located(asked, root)):
        raise ValueError(
            f"{run} holds a run with another configuration: {', '.join(changed)}; move it away to "
            "train anew"
        )


def _last_sentence(log: Path) -> str:
    """The error message of a command in its log, in brackets; empty if it printed none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return f" ({lines[-1]})" if lines and lines[-1].startswith("bighmm: ") else ""
