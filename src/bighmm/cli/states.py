"""`bighmm states` and `posterior`: what the states of a model stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from bighmm.cli.common import (
    AsJson,
    ModelPath,
    at_least_one,
    out,
    parse,
    print_json,
    some_text,
    trained_on,
)
from bighmm.data.corpus import prepare
from bighmm.inspect import plot_posterior, posterior_table, state_shares, state_table
from bighmm.lm.opening import find_model, open_hmm


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
    as_json: AsJson = False


def states_command(argv: list[str]) -> None:
    arguments = parse(StatesArguments, argv, "states")
    for name in ("top", "words", "neighbours"):
        at_least_one(getattr(arguments, name), name)
    lm = open_hmm(arguments.model, "states")
    shares = None
    if arguments.sort == "share" or arguments.data is not None:
        data = arguments.data or trained_on(arguments.model)
        corpus = prepare(data, tokenizer=find_model(arguments.model))
        tokens, documents = corpus.split(arguments.split), corpus.documents(arguments.split)
        shares = state_shares(lm.hmm(), tokens, documents)
    order: list[int] = list(arguments.state) or list(range(lm.hmm().num_states))
    if arguments.sort == "share" and shares is not None and not arguments.state:
        order = shares.argsort(descending=True, stable=True).tolist()
    if not arguments.state:
        order = order[: arguments.top]
    rows = state_table(
        lm, order, words=arguments.words, neighbours=arguments.neighbours, shares=shares
    )
    if arguments.as_json:
        split = arguments.split if shares is not None else None
        print_json({"num_states": lm.hmm().num_states, "split": split, "states": rows})
        return
    table = Table("state", "share", "words", "before it", "after it", show_lines=True)
    for row in rows:
        share = "" if row["share"] is None else f"{row['share']:.2%}"
        words = _line([found["word"] for found in row["words"]])
        table.add_row(
            str(row["state"]), share, words, _lines(row["previous"], 3), _lines(row["next"], 3)
        )
    out().print(table)


@dataclass(frozen=True)
class PosteriorArguments:
    """How likely each state is at every word of a text, given all of it."""

    model: ModelPath
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="The text.")]
    top: Annotated[int, tyro.conf.arg(help="How many states to show for a word.")] = 5
    words: Annotated[int, tyro.conf.arg(help="How many words to show for a state.")] = 3
    plot: Annotated[
        Path | None, tyro.conf.arg(help="Also draw it into this file (.png, .svg, .pdf).")
    ] = None
    as_json: AsJson = False


def posterior_command(argv: list[str]) -> None:
    arguments = parse(PosteriorArguments, argv, "posterior")
    some_text(arguments.text, "the text")
    at_least_one(arguments.top, "top")
    at_least_one(arguments.words, "words")
    lm = open_hmm(arguments.model, "states")
    log_prob, rows = posterior_table(lm, arguments.text, top=arguments.top, words=arguments.words)
    if arguments.plot is not None:
        plot_posterior(rows, arguments.plot)
    if arguments.as_json:
        print_json({"log_prob": log_prob, "tokens": rows})
        return
    table = Table("word", "p(state | text)", show_lines=True)
    for row in rows:
        table.add_row(_line([row["word"]]), _lines(row["states"], arguments.words))
    out().print(table)


def _lines(states: list[dict[str, Any]], words: int) -> str:
    """States with their probabilities and words, one per line."""
    return "\n".join(
        f"{found['prob']:.2f}  {found['state']}: {_line(found['words'][:words])}"
        for found in states
    )


def _line(words: list[str]) -> str:
    return escape("  ".join(repr(word)[1:-1] for word in words))
