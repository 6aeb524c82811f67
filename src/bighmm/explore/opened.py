"""Models that a server has opened, with what is computed once of each and kept."""

from __future__ import annotations

import string
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NotYet
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from bighmm.answers.browsing import Known, moves, small_letters
from bighmm.answers.browsing_objects import BlockMoves, SurveyProgress
from bighmm.base.interrupting import Interrupted, check
from bighmm.base.json_files import read_object
from bighmm.data.corpus import Corpus
from bighmm.explore.jobs import Job, Jobs
from bighmm.explore.names import Names
from bighmm.explore.settings import UNAVAILABLE, VERSION, Limits, Refused
from bighmm.inspect.summary import Summary, summarise_states
from bighmm.inspect.survey import Survey, survey_corpus
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import corpus_for, find_model, open_model, trained_on
from bighmm.lm.protocol import LM, MatmulDtype
from bighmm.train.curves import has_log

T = TypeVar("T")
MOST_MODELS = 8


class Later(Generic[T]):
    """A value that a job computes in the background, once somebody asks for it or has it begin."""

    def __init__(self, question: str, compute: Callable[[], T]) -> None:
        self.question, self.compute = question, compute
        self.job: Job | None = None
        self.lock = threading.Lock()

    def begin(self, jobs: Jobs) -> Job:
        """The job that computes the value; one that was cancelled or failed is begun anew."""
        with self.lock:
            if self.job is None or self.job.state in ("cancelled", "failed"):
                self.job = jobs.start(self.question, self.compute, background=True)
            return self.job

    def value(self) -> T | None:
        """The value, None if it is not there yet."""
        job = self.job
        return job.future.result() if job is not None and job.state == "done" else None

    def wait(self, jobs: Jobs) -> T:
        """The value, as soon as it is there; meanwhile the caller can be interrupted."""
        job = self.begin(jobs)
        while True:
            check()
            try:
                return job.future.result(timeout=0.05)
            except NotYet:
                continue
            except Interrupted:
                raise Refused(UNAVAILABLE, f"{self.question} was cancelled") from None


class Opened:
    """A model, the corpus it was trained on if that is there, and what is known of its states."""

    def __init__(
        self,
        key: str,
        run: str | Path,
        device: str = "cpu",
        matmul_dtype: MatmulDtype = "auto",
        data: str | None = None,
        split: str = "valid",
        read_corpus: bool = True,
    ) -> None:
        """key: its name in addresses. data, split: the corpus that shares are of."""
        self.key, self.run = key, Path(run).expanduser()
        self.folder = find_model(run)
        self.name = self.run.resolve().name or str(run)
        self.lm: LM = open_model(run, device, matmul_dtype)
        self.lm.predictor()  # computes what every question needs
        self.family = str(read_object(self.folder / "config.json").get("family", "hmm"))
        self.split, self.data = split, data
        self.corpus, self.why_no_corpus = self._open_corpus() if read_corpus else (None, "")
        self.names = Names(self.run, self.folder, self.num_states)
        self.summary: Later[Summary] = Later("the words of all states", self._summarise)
        self.survey: Later[Survey] = Later("the survey of the corpus", self._survey)
        self._moves: dict[str, BlockMoves] = {}  # by the weights of states

    @property
    def hmm_lm(self) -> HMMLM:
        """The model, for questions about states; Refused if it has none."""
        if not isinstance(self.lm, HMMLM):
            raise Refused(
                UNAVAILABLE,
                f"{self.name} is a model of the family {self.family}, which has no states",
            )
        return self.lm

    def prepare(self, jobs: Jobs) -> None:
        """Begin to compute in the background what pages need."""
        if isinstance(self.lm, HMMLM):
            self.summary.begin(jobs)
            if self.corpus is not None:
                self.survey.begin(jobs)

    def known(self, jobs: Jobs) -> Known:
        """What the answers about states need; waits for the words of all states."""
        lm = self.hmm_lm
        tokens = self._tokens() if self.corpus is not None else None
        summary, survey = self.summary.wait(jobs), self.survey.value()
        names = dict(self.names.by_state)
        return Known(lm, summary, tokens, survey, names, self.vocabulary)

    @cached_property
    def vocabulary(self) -> list[str]:
        """All words in small letters."""
        return small_letters(self.hmm_lm)

    def moves(self, jobs: Jobs) -> dict[str, Any]:
        """Moves between all blocks, computed once for each kind of weights."""
        known = self.known(jobs)
        if known.weights not in self._moves:
            self._moves[known.weights] = moves(known)
        return dict(self._moves[known.weights])

    def survey_progress(self) -> SurveyProgress:
        """How far the corpus has been read."""
        job = self.survey.job
        if job is None:
            return SurveyProgress(
                state="none", done=None, total=None, fraction=None, message=self.why_no_corpus
            )
        told = job.described()
        message = None
        if job.state == "failed":
            message = str(job.future.exception())
        return SurveyProgress(
            state=told["state"],
            done=told["done"],
            total=told["total"],
            fraction=told["fraction"],
            message=message,
        )

    def facts(self, limits: Limits) -> dict[str, Any]:
        """What is known about the model itself."""
        lm = self.lm
        facts: dict[str, Any] = {
            "version": VERSION,
            "model": self.key,
            "name": self.name,
            "family": self.family,
            "parameterisation": None,
            "transitions": None,
            "support": None,
            "states": None,
            "blocks": None,
            "states_per_block": None,
            "vocabulary": lm.tokenizer.size,
            "tokenizer": lm.tokenizer.kind,
            "parameters": lm.num_parameters,
            "convention": lm.convention,
            "device": str(lm.device),
            "has_states": False,
            "has_blocks": False,
            "run": has_log(self.run),
            "corpus": self._corpus_facts(),
            "survey": self.survey_progress(),
            "limits": {
                name: getattr(limits, name)
                for name in ("text", "texts", "all_text", "rule", "number", "length", "states")
            },
        }
        if isinstance(lm, HMMLM):
            hmm = lm.hmm()
            blocks = hmm.support.partition
            facts |= {
                "parameterisation": lm.parameterisation,
                "transitions": hmm.transitions.family,
                "support": hmm.support.kind,
                "states": hmm.num_states,
                "has_states": True,
            }
            if blocks is not None:
                facts |= {
                    "blocks": blocks.num_blocks,
                    "states_per_block": hmm.num_states // blocks.num_blocks,
                    "has_blocks": True,
                }
        return facts

    @property
    def num_states(self) -> int:
        """States of the model; 0 if it has none."""
        return self.lm.hmm().num_states if isinstance(self.lm, HMMLM) else 0

    def _open_corpus(self) -> tuple[Corpus | None, str]:
        """The corpus in the tokens of the model, or why there is none."""
        try:
            return corpus_for(self.run, self.data), ""
        except (ValueError, OSError):
            if self.data is not None:  # it was asked for
                raise
            why = (
                f"the corpus of {self.name} is not here; start again with --data and its name or "
                "file for the shares of states and their contexts"
            )
            return None, why

    def _corpus_facts(self) -> dict[str, Any]:
        if self.corpus is None:
            return {"present": False, "why": self.why_no_corpus}
        name = self.data or trained_on(self.run)
        return {
            "present": True,
            "name": Path(name).name,
            "split": self.split,
            "tokens": len(self._tokens()),
        }

    def _tokens(self) -> np.ndarray:
        assert self.corpus is not None
        return self.corpus.split(self.split)

    def _summarise(self) -> Summary:
        return summarise_states(self.hmm_lm.hmm())

    def _survey(self) -> Survey:
        assert self.corpus is not None
        return survey_corpus(self.hmm_lm.hmm(), self._tokens(), self.corpus.documents(self.split))


def open_all(
    runs: Sequence[str | Path],
    device: str = "cpu",
    matmul_dtype: MatmulDtype = "auto",
    data: str | None = None,
    split: str = "valid",
) -> list[Opened]:
    """The models of some runs, which addresses call a, b, c, …; `data` is for the first."""
    if not 1 <= len(runs) <= MOST_MODELS:
        raise ValueError(f"a server has 1 to {MOST_MODELS} models, not {len(runs)}")
    return [
        Opened(key, run, device, matmul_dtype, data if number == 0 else None, split)
        for number, (key, run) in enumerate(zip(string.ascii_lowercase, runs, strict=False))
    ]
