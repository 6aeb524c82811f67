"""What the tables of a paper lack: the runs to train, and where their corpora are.

A row is one run for each seed. The row of a mixture needs the runs that it is made of, whose models
must be on the disk, and is mixed from them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bighmm.lm import baselines
from bighmm.train.recipe import read_recipe
from papers.prepare import is_there, named_in, needs, unprepared
from papers.results import Results, run_name
from papers.rows import Paper, Prepare, Row, Step, Table

DEVIATION = "largest_deviation_from_one"  # of next-word probabilities, in a record
SEEDS = range(1, 10)  # of runs that a plan names, beside those of their tables


@dataclass(frozen=True)
class Job:
    """One run to train, or one mixture of runs."""

    name: str
    row: Row
    recipe: Path
    seed: int
    evaluates_train: bool  # whether to compute perplexity on the training text too
    needs: tuple[str, ...] = ()  # folders that its recipe refers to, or that it is mixed from

    @property
    def is_mixture(self) -> bool:
        return self.row.is_mixture


@dataclass(frozen=True)
class Files:
    """Paths of corpora, and of the tokenizers of those that need one."""

    data: dict[str, str]
    tokenizers: dict[str, str]

    def flags(self, corpus: str) -> tuple[str, ...]:
        """The flags of `bighmm train` for a corpus."""
        tokenizer = self.tokenizers.get(corpus)
        return ("--data", self.data[corpus], *(("--tokenizer", tokenizer) if tokenizer else ()))


def missing(
    paper: Paper, selected: Paper, results: Results, seeds: Sequence[int] = ()
) -> list[Job]:
    """The runs that the selected rows lack, one for rows with the same recipe, corpus and seed.

    A row is run with `seeds`, else with those of its table. Where there are none, a row without any
    result is run with seed 1. The training text is evaluated if any row of the paper with that
    recipe and corpus has a figure of it.
    """
    jobs: dict[str, Job] = {}
    for table in selected.tables:
        for row in table.rows:
            for seed in _lacking(paper, results, table, row, seeds):
                for job in (*_parts(paper, row), job_of(paper, row, seed)):
                    jobs[job.name] = job
    return list(jobs.values())


def job_of(paper: Paper, row: Row, seed: int) -> Job:
    """The run of a row with a seed."""
    recipe = paper.recipe_file(row)
    train = any("train" in r.paper for r in paper.rows_of(row.known_as, row.corpus))
    folders = tuple(named_in(recipe))
    if row.is_mixture:
        folders = tuple(folder_of(paper, run_name(part, number)) for part, number in row.parts)
    return Job(run_name(row, seed), row, recipe, seed, train, folders)


def folder_of(paper: Paper, name: str) -> str:
    """The folder of a run, relative to the checkout."""
    return f"runs/{paper.name}/{name}"


def is_finished(paper: Paper, job: Job) -> bool:
    """Whether its folder is complete, whatever is stored of it."""
    return (paper.runs / job.name / "result.json").is_file()


def to_check(paper: Paper, results: Results, job: Job) -> bool:
    """Whether it is to be checked that the model of a run is normalised."""
    if not paper.check_normalised or read_recipe(job.recipe).model.family != "hmm":
        return False
    stored = results.of(job.row).get(job.seed)
    return stored is None or DEVIATION not in stored.fields


def planned(paper: Paper, results: Results) -> list[tuple[Step, Prepare | Job]]:
    """What the plan of a paper has still to make, in its order.

    A run is made again if its result is stored but its folder is gone and something else in the
    plan needs it. One that is there, but was not checked, is part of it. Raises ValueError if the
    paper has no plan, or if it names something unknown.
    """
    if not paper.plan:
        raise ValueError(f"{paper.name} has no plan; leave out --planned")
    jobs = {
        folder_of(paper, run_name(row, seed)): job_of(paper, row, seed)
        for table in paper.tables
        for row in table.rows
        if row.can_run
        for seed in ((1,) if row.is_mixture else (*SEEDS, *table.seeds))
    }
    entries = {entry.makes: entry for entry in paper.prepare}
    found: list[tuple[Step, Prepare | Job]] = []
    needed: set[str] = set()
    for step in reversed(paper.plan):
        job, entry = jobs.get(step.makes), entries.get(step.makes)
        lacks = job is not None and job.seed not in results.of(job.row)
        gone = job is not None and step.makes in needed and not is_finished(paper, job)
        there = job is not None and is_finished(paper, job)
        if job is not None and (lacks or gone or (there and to_check(paper, results, job))):
            needed |= set(job.needs)
            found.append((step, job))
        elif entry is not None and step.makes in needed and not is_there(entry, paper):
            needed |= {other.makes for other in needs(entry, paper)}
            found.append((step, entry))
        elif job is None and entry is None:
            raise ValueError(
                f"the plan of {paper.name} names {step.makes}, which is no run of its rows and "
                "nothing that it prepares"
            )
    made = {step.makes for step in paper.plan}
    for folder in sorted(needed - made):
        if not (paper.root / folder).exists():
            raise ValueError(f"the plan of {paper.name} needs {folder}, which it does not make")
    return found[::-1]


def find_files(
    data: Sequence[str], tokenizers: Sequence[str], paper: Paper, jobs: Sequence[Job]
) -> Files:
    """The corpora of arguments NAME=FOLDER and the tokenizers of arguments NAME=FILE.

    Paths become absolute, so that a run can be resumed from another folder. The corpus pydoc needs
    no argument. Raises ValueError if something is missing that the jobs need.
    """
    corpora = {row.corpus for row in paper.rows}
    used = {job.row.corpus for job in jobs}
    found = {"pydoc": "pydoc"} if "pydoc" in corpora else {}
    found |= _named_paths(data, "data", "FOLDER", corpora, paper)
    files = _named_paths(tokenizers, "tokenizer", "FILE", set(paper.tokenizers), paper)
    for flag, what, lacking in (
        ("data", "FOLDER", used - set(found)),
        ("tokenizer", "FILE", used & set(paper.tokenizers) - set(files)),
    ):
        if lacking:
            names = " and ".join(sorted(lacking))
            needed = names if flag == "data" else f"the tokenizer of {names}"
            flags = " ".join(f"--{flag} {name}={what}" for name in sorted(lacking))
            raise ValueError(f"training needs {needed}; say where with {flags}")
    return Files(found, files)


def to_prepare(paper: Paper, jobs: Sequence[Job]) -> list[Prepare]:
    """The entries of [[prepare]] to make before the jobs.

    Raises ValueError if a folder is missing that the user has to provide.
    """
    own = {folder_of(paper, job.name) for job in jobs}
    entries = unprepared(paper, (folder for job in jobs for folder in job.needs))
    return [entry for entry in entries if entry.makes not in own]


def _lacking(
    paper: Paper, results: Results, table: Table, row: Row, seeds: Sequence[int]
) -> list[int]:
    """The seeds that a row has no result of; models without training have one run."""
    if not row.can_run:
        return []
    done, wanted = results.of(row), seeds or table.seeds
    if row.is_mixture:
        return [seed for seed in (1,) if seed not in done]
    if not wanted and done:
        return []
    family = read_recipe(paper.recipe_file(row)).model.family
    if not wanted or (family != "hmm" and baselines.find(family).fit is not None):
        wanted = (1,)
    return [seed for seed in wanted if seed not in done]


def _parts(paper: Paper, row: Row) -> list[Job]:
    """The runs that a mixture is made of and that are not on the disk; none for other rows."""
    jobs = (job_of(paper, part, number) for part, number in row.parts)
    return [job for job in jobs if not is_finished(paper, job)]


def _named_paths(
    given: Sequence[str], flag: str, what: str, known: set[str], paper: Paper
) -> dict[str, str]:
    found = {}
    for word in given:
        name, equals, path = word.partition("=")
        if not (equals and path):
            raise ValueError(f"--{flag} {word} is not of the form NAME={what}")
        if name not in known:
            thing = "corpus" if flag == "data" else "tokenizer for"
            choice = f"choose from {', '.join(sorted(known))}" if known else f"leave out --{flag}"
            raise ValueError(f"{paper.name} uses no {thing} {name!r}; {choice}")
        if (flag, path) != ("data", "pydoc"):
            path = os.path.abspath(os.path.expanduser(path))
            if not os.path.exists(path):
                thing = "corpus" if flag == "data" else "tokenizer"
                raise ValueError(f"there is no {thing} {path} as --{flag} {name}=… says")
        found[name] = path
    return found
