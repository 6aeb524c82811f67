"""`bighmm score`, `next` and `sample`: questions to a trained model of any family."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from bighmm.cli.common import (
    DEFAULT_LENGTH,
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    Length,
    ModelPath,
    parse,
    print_json,
    some_text,
)
from bighmm.cli.rules import NO_RULE, RuleFlags


@dataclass(frozen=True)
class ScoreArguments:
    """Log-probability in nats of every line of standard input, with its end mark."""

    model: ModelPath
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def score_command(argv: list[str]) -> None:
    """Print the log-probability of every line of standard input."""
    arguments = parse(ScoreArguments, argv, "score")
    from bighmm import answers

    lm = arguments.compute.open(arguments.model)
    found = answers.score(lm, _lines(sys.stdin.buffer.read()))
    if arguments.as_json:
        print_json(found)
        return
    for line in found["lines"]:
        print(f"{_number(line['log_prob'])}\t{line['tokens']}\t{line['text']}")


def _number(log_prob: float | None) -> str:
    return "-inf" if log_prob is None else f"{log_prob:.4f}"


def _lines(content: bytes) -> list[str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise ValueError("standard input holds no text; give one text per line")
    # Not splitlines: a line may hold one of the rarer line separators of Unicode.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


@dataclass(frozen=True)
class NextArguments:
    """The most likely next words after a text, or at its beginning."""

    model: ModelPath
    prefix: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[PREFIX]", help="The text so far."),
    ] = None
    rule: RuleFlags = NO_RULE
    n: Annotated[int, tyro.conf.arg(help="How many words.")] = 10
    length: Annotated[
        int,
        tyro.conf.arg(
            help="With a rule: tokens after the prefix at most, the end mark not counted."
        ),
    ] = DEFAULT_LENGTH
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def next_command(argv: list[str]) -> None:
    """Print the likeliest next words."""
    arguments = parse(NextArguments, argv, "next")
    prefix = _prefix(arguments.prefix)
    from bighmm import answers

    lm = arguments.compute.open(arguments.model)
    rule = arguments.rule.asked()
    found = answers.next_words(lm, prefix, arguments.n, rule, arguments.length)
    if arguments.as_json:
        print_json(found)
        return
    for word in found["next"]:
        print(f"{word['prob']:.4f}\t{word['word']}")


@dataclass(frozen=True)
class SampleArguments:
    """Text drawn from a model."""

    model: ModelPath
    n: Annotated[int, tyro.conf.arg(help="How many texts.")] = 3
    prefix: Annotated[str | None, tyro.conf.arg(help="What every text begins with.")] = None
    rule: RuleFlags = NO_RULE
    length: Length = DEFAULT_LENGTH
    temperature: Annotated[
        float, tyro.conf.arg(help="Below 1 sharper, above 1 flatter, 0 always the likeliest word.")
    ] = 1.0
    seed: Annotated[int | None, tyro.conf.arg(help="The same seed, the same texts.")] = None
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def sample_command(argv: list[str]) -> None:
    """Print texts drawn from a model."""
    arguments = parse(SampleArguments, argv, "sample")
    prefix = _prefix(arguments.prefix)
    from bighmm import answers

    lm = arguments.compute.open(arguments.model)
    found = answers.sample(
        lm,
        arguments.n,
        prefix,
        arguments.rule.asked(),
        arguments.length,
        arguments.temperature,
        arguments.seed,
    )
    if arguments.as_json:
        print_json(found)
        return
    for one in found["texts"]:
        print(one["text"])


def _prefix(prefix: str | None) -> str:
    return "" if prefix is None else some_text(prefix, "the prefix")
