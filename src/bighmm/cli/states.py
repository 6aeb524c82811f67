"""`bighmm tag`, `states` and `posterior`: what the states of a model stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    TopWords,
    note_unknown,
    open_corpus,
    out,
    parse,
    print_json,
    printable,
    shown_prob,
    some_text,
)

if TYPE_CHECKING:
    from bighmm.answers.objects import State, StateAt


@dataclass(frozen=True)
class TagArguments:
    """The most likely state of every word, and the likeliest words of each state."""

    model: ModelPath
    text: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT", help="The text to tag.")
    ]
    top_words: TopWords = 6
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def tag_command(argv: list[str]) -> None:
    """Print the likeliest states of a text."""
    arguments = parse(TagArguments, argv, "tag")
    some_text(arguments.text, "the text")
    from rich.table import Table

    from bighmm import answers

    lm = arguments.compute.open_hmm(arguments.model, "states")
    found = answers.tag(lm, arguments.text, arguments.top_words)
    note_unknown(lm, found["unknown"])
    if arguments.as_json:
        print_json(found)
        return
    table = Table("word", "state", "p(state | text)", "the state's words")
    for row in found["tokens"]:
        posterior = f"{row['prob']:.2f}"
        table.add_row(
            printable([row["word"]]), str(row["state"]), posterior, printable(row["words"])
        )
    out().print(table)


@dataclass(frozen=True)
class StatesArguments:
    """States by their words, their neighbours and their share of a text."""

    model: ModelPath
    state: Annotated[
        tuple[int, ...], tyro.conf.arg(help="These states; without it the first of all.")
    ] = ()
    word: Annotated[
        str | None, tyro.conf.arg(help="The states of this word, by p(state | word).")
    ] = None
    block: Annotated[int | None, tyro.conf.arg(help="The states of this block of words.")] = None
    top: Annotated[int, tyro.conf.arg(help="How many states to show.")] = 10
    sort: Annotated[
        Literal["share", "number"],
        tyro.conf.arg(help="The most used first, or as they are numbered (needs no corpus)."),
    ] = "share"
    top_words: TopWords = 6
    neighbours: Annotated[int, tyro.conf.arg(help="How many states before and after it.")] = 3
    data: Annotated[
        str | None, tyro.conf.arg(help="A corpus; without it the one the run was trained on.")
    ] = None
    split: Annotated[
        Literal["train", "valid", "test"], tyro.conf.arg(help="The part that shares are of.")
    ] = "valid"
    as_csv: Annotated[
        bool, tyro.conf.arg(name="csv", help="A table with a row for each state and word of it.")
    ] = False
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def states_command(argv: list[str]) -> None:
    """Print states by their words, neighbours and share of a text."""
    arguments = parse(StatesArguments, argv, "states")
    if arguments.as_csv and arguments.as_json:
        raise ValueError("--csv and --json are two forms of the same answer; give one of them")
    from bighmm import answers
    from bighmm.inspect.tables import check_choice

    lm, corpus = arguments.compute.open_hmm(arguments.model, "states"), None
    # A mistake is seen before the corpus is read.
    check_choice(lm, arguments.state, arguments.word, arguments.block)
    if arguments.sort == "share" or arguments.data is not None:
        corpus = open_corpus(arguments.model, arguments.data)
    found = answers.states(
        lm,
        corpus=corpus,
        split=arguments.split,
        states=arguments.state,
        word=arguments.word,
        block=arguments.block,
        top=arguments.top,
        sort=arguments.sort,
        words=arguments.top_words,
        neighbours=arguments.neighbours,
    )
    if arguments.as_json:
        print_json(found)
        return
    if arguments.as_csv:
        _print_csv(found["states"])
    else:
        _print_states(found["states"], arguments.word)


def _print_states(states: list[State], word: str | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    columns = ["state", "share", "words", "before it", "after it"]
    if word is not None:
        columns.insert(1, escape(f"p(state | {word})"))
    table = Table(*columns, show_lines=True)
    for row in states:
        cells = [
            str(row["state"]),
            "" if row["share"] is None else f"{row['share']:.2%}",
            printable([one["word"] for one in row["words"]]),
            _lines(row["previous"], 3),
            _lines(row["next"], 3),
        ]
        if row["starts_anew"]:
            cells[-1] = f"text starts anew:\n{cells[-1]}"
        if row["prob_word"] is not None:
            cells.insert(1, shown_prob(row["prob_word"]))
        table.add_row(*cells)
    out().print(table)


def _print_csv(states: list[State]) -> None:
    """One row for each word of a state, so that a spreadsheet can sort and filter them."""
    import csv
    import sys

    write = csv.writer(sys.stdout, lineterminator="\n").writerow
    columns = ("state", "block", "share", "prob_word", "prob_end", "starts_anew")
    write([*columns, "word", "prob"])
    for row in states:
        values = dict(row)
        shown = ["" if values[name] is None else values[name] for name in columns]
        for one in row["words"]:
            write([*shown, one["word"], one["prob"]])


@dataclass(frozen=True)
class PosteriorArguments:
    """How likely each state is at every word of a text, given all of it."""

    model: ModelPath
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT", help="The text.")]
    top: Annotated[int, tyro.conf.arg(help="How many states to show for a word.")] = 5
    top_words: TopWords = 3
    plot: Annotated[
        Path | None, tyro.conf.arg(help="Also draw it into this file (.png, .svg, .pdf).")
    ] = None
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def posterior_command(argv: list[str]) -> None:
    """Print the probabilities of the states at every word of a text."""
    arguments = parse(PosteriorArguments, argv, "posterior")
    some_text(arguments.text, "the text")
    from rich.table import Table

    from bighmm import answers
    from bighmm.inspect import plot_posterior

    lm = arguments.compute.open_hmm(arguments.model, "states")
    found = answers.posterior(lm, arguments.text, arguments.top, arguments.top_words)
    note_unknown(lm, found["unknown"])
    if arguments.plot is not None:
        plot_posterior(found["tokens"], arguments.plot)
    if arguments.as_json:
        print_json(found)
        return
    table = Table("word", "p(state | text)", show_lines=True)
    for row in found["tokens"]:
        table.add_row(printable([row["word"]]), _lines(row["states"], arguments.top_words))
    out().print(table)


def _lines(states: list[StateAt], words: int) -> str:
    """States with their probabilities and words, one per line."""
    return "\n".join(
        f"{found['prob']:.2f}  {found['state']}: {printable(found['words'][:words])}"
        for found in states
    )
