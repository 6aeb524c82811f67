"""`bighmm tag`, `states` and `posterior`: what the states of a model stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    out,
    parse,
    print_json,
    printable,
    some_text,
)


@dataclass(frozen=True)
class TagArguments:
    """The most likely state of every word, and the likeliest words of each state."""

    model: ModelPath
    text: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT", help="The text to tag.")
    ]
    words: Annotated[int, tyro.conf.arg(help="How many words to show for a state.")] = 6
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def tag_command(argv: list[str]) -> None:
    """Print the likeliest states of a text."""
    arguments = parse(TagArguments, argv, "tag")
    some_text(arguments.text, "the text")
    from rich.table import Table

    from bighmm import answers

    lm = arguments.compute.open_hmm(arguments.model, "states")
    found = answers.tag(lm, arguments.text, arguments.words)
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
    top: Annotated[int, tyro.conf.arg(help="How many states to show.")] = 10
    sort: Annotated[
        Literal["share", "number"],
        tyro.conf.arg(help="The most used first, or as they are numbered (needs no corpus)."),
    ] = "share"
    words: Annotated[int, tyro.conf.arg(help="How many words to show for a state.")] = 6
    neighbours: Annotated[int, tyro.conf.arg(help="How many states before and after it.")] = 3
    data: Annotated[
        str | None, tyro.conf.arg(help="A corpus; without it the one the run was trained on.")
    ] = None
    split: Annotated[
        Literal["train", "valid", "test"], tyro.conf.arg(help="The part that shares are of.")
    ] = "valid"
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def states_command(argv: list[str]) -> None:
    """Print states by their words, neighbours and share of a text."""
    arguments = parse(StatesArguments, argv, "states")
    from rich.table import Table

    from bighmm import answers
    from bighmm.lm.opening import corpus_for

    lm, corpus = arguments.compute.open_hmm(arguments.model, "states"), None
    if arguments.sort == "share" or arguments.data is not None:
        corpus = corpus_for(arguments.model, arguments.data)
    found = answers.states(
        lm,
        corpus=corpus,
        split=arguments.split,
        states=arguments.state,
        top=arguments.top,
        sort=arguments.sort,
        words=arguments.words,
        neighbours=arguments.neighbours,
    )
    if arguments.as_json:
        print_json(found)
        return
    table = Table("state", "share", "words", "before it", "after it", show_lines=True)
    for row in found["states"]:
        share = "" if row["share"] is None else f"{row['share']:.2%}"
        words = printable([one["word"] for one in row["words"]])
        table.add_row(
            str(row["state"]), share, words, _lines(row["previous"], 3), _lines(row["next"], 3)
        )
    out().print(table)


@dataclass(frozen=True)
class PosteriorArguments:
    """How likely each state is at every word of a text, given all of it."""

    model: ModelPath
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT", help="The text.")]
    top: Annotated[int, tyro.conf.arg(help="How many states to show for a word.")] = 5
    words: Annotated[int, tyro.conf.arg(help="How many words to show for a state.")] = 3
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
    found = answers.posterior(lm, arguments.text, arguments.top, arguments.words)
    if arguments.plot is not None:
        plot_posterior(found["tokens"], arguments.plot)
    if arguments.as_json:
        print_json(found)
        return
    table = Table("word", "p(state | text)", show_lines=True)
    for row in found["tokens"]:
        table.add_row(printable([row["word"]]), _lines(row["states"], arguments.words))
    out().print(table)


def _lines(states: list[dict[str, Any]], words: int) -> str:
    """States with their probabilities and words, one per line."""
    return "\n".join(
        f"{found['prob']:.2f}  {found['state']}: {printable(found['words'][:words])}"
        for found in states
    )
