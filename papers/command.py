"""`bighmm reproduce`: a paper's tables with our figures beside them, and the runs they lack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.markup import escape

from bighmm.base import launch
from bighmm.cli.common import AsJson, at_least_one, err, out, parse, print_json
from papers.plots import find_matplotlib, write_plots
from papers.report import (
    as_grid,
    as_markdown,
    as_objects,
    check_marks,
    claims_as_grid,
    claims_as_markdown,
    heading_of,
    write_docs,
)
from papers.results import Results, read_results
from papers.rows import Paper, papers_in, read_paper

CHECKOUT = Path(__file__).resolve().parent.parent
WIDTH = 120  # of tables that are not printed on a terminal


@dataclass(frozen=True)
class ReproduceArguments:
    """A paper's tables with our figures beside them, from a checkout of bighmm."""

    paper: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="PAPER[/TABLE]", help="Without it, the papers there are."),
    ] = None
    root: Annotated[
        Path | None,
        tyro.conf.arg(help="Another checkout, whose papers/PAPER/ is read instead of this one's."),
    ] = None
    results: Annotated[
        Path | None,
        tyro.conf.arg(help="Another folder for results: FOLDER/PAPER/TABLE.jsonl."),
    ] = None
    only: Annotated[
        str | None, tyro.conf.arg(help="Only rows with this in the name of their recipe.")
    ] = None
    run: Annotated[bool, tyro.conf.arg(help="Train what has no result yet.")] = False
    data: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="NAME=FOLDER", help="Where a corpus is, once for each."),
    ] = ()
    tokenizer: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="NAME=FILE", help="The tokenizer of a corpus that needs one."),
    ] = ()
    seeds: Annotated[
        str | None,
        tyro.conf.arg(help="Train with each of these, as in 1,2,3; without it, the paper's, or 1."),
    ] = None
    jobs: Annotated[int, tyro.conf.arg(help="Runs at the same time.")] = 1
    planned: Annotated[
        bool,
        tyro.conf.arg(
            help="Train what the plan of the paper names, in its order and side by side."
        ),
    ] = False
    seconds: Annotated[
        float | None,
        tyro.conf.arg(help="With --planned: then all runs save themselves and stop."),
    ] = None
    keep: Annotated[
        Path | None,
        tyro.conf.arg(help="Afterwards, a folder for results and the models the plan keeps."),
    ] = None
    restore: Annotated[
        Path | None, tyro.conf.arg(help="First put back what --keep has written to a folder.")
    ] = None
    markdown: Annotated[bool, tyro.conf.arg(help="Tables as Markdown.")] = False
    write_docs: Annotated[
        Path | None, tyro.conf.arg(help="Put the tables between their marks in this file.")
    ] = None
    plots: Annotated[
        Path | None, tyro.conf.arg(help="Draw the paper's charts into this folder.")
    ] = None
    as_json: AsJson = False


def reproduce_command(argv: list[str]) -> None:
    """Print the tables of a paper, and with --run train what they lack first."""
    arguments = parse(ReproduceArguments, argv, "reproduce")
    _check(arguments)
    if arguments.paper is None:
        _list_papers(arguments)
        return
    name, _, table = arguments.paper.partition("/")
    paper = selected = read_paper(_root(arguments), name, arguments.results)
    if table:
        selected = selected.only_table(table)
    if arguments.only is not None:
        selected = selected.only_recipes(arguments.only)
    if arguments.restore is not None:
        from papers.keeping import restore  # with torch

        restore(paper, arguments.restore, _say)
    # Mistakes are reported before hours of training, not after.
    results = read_results(paper)
    if arguments.write_docs is not None:
        check_marks(selected, arguments.write_docs)
    if arguments.plots is not None:
        find_matplotlib()
    failed = []
    if arguments.run:
        failed = (_run_plan if arguments.planned else _run)(paper, selected, results, arguments)
        results = read_results(paper)
    if not launch.is_first():  # which writes and speaks
        sys.exit(1 if failed else 0)
    if arguments.keep is not None:
        from papers.keeping import keep

        keep(paper, arguments.keep, _say)

    if arguments.write_docs is not None:
        write_docs(selected, results, arguments.write_docs)
        _say(f"wrote {arguments.write_docs}")
    if arguments.plots is not None:
        drawn = write_plots(selected, results, arguments.plots)
        _say(f"wrote {', '.join(map(str, drawn))}" if drawn else "there is nothing to draw yet")
    _show(selected, results, arguments)
    if failed:
        _say(f"bighmm: {len(failed)} of the runs failed: {', '.join(failed)}")
        sys.exit(1)


def _check(arguments: ReproduceArguments) -> None:
    at_least_one(arguments.jobs, "jobs")
    if arguments.as_json and arguments.markdown:
        raise ValueError("--json and --markdown exclude each other; give at most one")
    if arguments.only is not None and (arguments.write_docs or arguments.plots):
        raise ValueError("--write-docs and --plots take whole tables; leave out --only")
    if launch.asked_for() and (arguments.planned or arguments.restore):
        raise ValueError("--planned and --restore are for one process; start it without torchrun")
    if arguments.planned and not arguments.run:
        raise ValueError("--planned says what --run trains; give both")
    given = arguments.only or arguments.seeds or arguments.jobs != 1
    if arguments.planned and (given or (arguments.paper or "").count("/")):
        raise ValueError(
            "the plan says what is trained; leave out --only, --seeds, --jobs and /TABLE"
        )
    if arguments.seconds is not None and not (arguments.planned and arguments.seconds > 0):
        raise ValueError("--seconds is a number above 0, and goes with --planned")
    moved = arguments.keep or arguments.restore
    doing = arguments.run or arguments.write_docs or arguments.plots or moved
    if arguments.paper is None and doing:
        raise ValueError("name a paper first; bighmm reproduce lists those that there are")


def _root(arguments: ReproduceArguments) -> Path:
    """The checkout whose papers are read, relative where it is the current folder."""
    if arguments.root is not None:
        return arguments.root
    return Path() if Path.cwd() == CHECKOUT else CHECKOUT


def _run(
    paper: Paper, selected: Paper, results: Results, arguments: ReproduceArguments
) -> list[str]:
    """Train what the selected rows lack and return the names of runs that failed."""
    from bighmm.base import processes  # with torch
    from papers.jobs import find_files, missing, to_prepare
    from papers.runs import reserved, run_jobs

    jobs = missing(paper, selected, results, _seeds(arguments.seeds))
    waiting = (f"{r.row} is left out: {r.not_yet}" for r in selected.rows if r.not_yet)
    for sentence in dict.fromkeys(waiting):
        _say(sentence)
    files = find_files(arguments.data, arguments.tokenizer, paper, jobs)
    with reserved(paper, jobs):
        if entries := to_prepare(paper, jobs):
            _say(f"to prepare: {', '.join(entry.makes for entry in entries)}")
        at_once = max(arguments.jobs, processes.current().count)
        _say(f"{len(jobs)} to train, {at_once} at a time" if jobs else "nothing is missing")
        with _interruptible():
            return run_jobs(paper, jobs, files, arguments.jobs, _say)


def _run_plan(
    paper: Paper, selected: Paper, results: Results, arguments: ReproduceArguments
) -> list[str]:
    """Train what the plan has still to make and return the names of runs that failed."""
    from papers.jobs import Job, find_files, planned  # with torch
    from papers.runs import reserved_plan, run_plan

    plan = planned(paper, results)
    jobs = [what for _, what in plan if isinstance(what, Job)]
    files = find_files(arguments.data, arguments.tokenizer, paper, jobs)
    with reserved_plan(paper, plan), _interruptible():
        _say(f"to make: {', '.join(step.makes for step, _ in plan) or 'nothing'}")
        return run_plan(paper, plan, results, files, _say, arguments.seconds)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Context in which Ctrl-C ends the program with a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        _say("bighmm: stopped; the same command goes on where the runs were saved")
        sys.exit(130)


def _seeds(text: str | None) -> list[int]:
    if text is None:
        return []
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ValueError(f"--seeds takes whole numbers as in 1,2,3, not {text!r}")
    return [int(word) for word in words]


def _list_papers(arguments: ReproduceArguments) -> None:
    root = _root(arguments)
    papers = [read_paper(root, name) for name in papers_in(root)]
    if arguments.as_json:
        rows = [
            {
                "paper": paper.name,
                "title": paper.title,
                "tables": [{"table": table.name, "title": table.title} for table in paper.tables],
            }
            for paper in papers
        ]
        print_json({"papers": rows})
        return
    for paper in papers:
        print(f"{paper.name}: {paper.title}")
        for table in paper.tables:
            print(f"  {paper.name}/{table.name}: {table.title}")


def _show(paper: Paper, results: Results, arguments: ReproduceArguments) -> None:
    if arguments.as_json:
        print_json(as_objects(paper, results))
        return
    if arguments.markdown:
        texts = [as_markdown(paper, results, table) for table in paper.tables]
        if paper.claims:
            texts.append(claims_as_markdown(paper, results))
        print("\n".join(texts), end="")
        return
    console = out()
    if not console.is_terminal:
        console.width = WIDTH
    grids = [as_grid(paper, results, table) for table in paper.tables]
    console.print(paper.title, markup=False)
    for table, grid in zip(paper.tables, grids, strict=True):
        console.print(f"\n[bold]{escape(heading_of(table))}[/]")
        console.print(grid)
    if paper.claims:
        console.print(f"\n[bold]{escape(paper.about_claims or 'What the paper says')}[/]")
        console.print(claims_as_grid(paper, results))


def _say(sentence: str) -> None:
    err().print(sentence, markup=False)
