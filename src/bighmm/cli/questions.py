"""`bighmm score`, `next`, `sample` and `rule`: questions to a trained model."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO

import tyro

from bighmm.cli.common import (
    DEFAULT_LENGTH,
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    Length,
    ModelPath,
    NoUnk,
    Seed,
    note_absent,
    note_unknown,
    parse,
    print_json,
    shown_prob,
    some_text,
)
from bighmm.cli.rules import NO_RULE, RuleFlags

if TYPE_CHECKING:
    from bighmm.answers.objects import ScoredText

READ_AT_ONCE = 2**20  # bytes of standard input


@dataclass(frozen=True)
class ScoreArguments:
    """Log-probability in nats of a text, or of every line of standard input, with its end mark.

    Lines are answered as they come in: log-probability, number of tokens, text.
    """

    model: ModelPath
    text: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[TEXT]", help="This text instead of standard input."),
    ] = None
    words: Annotated[
        bool, tyro.conf.arg(help="Also every word: its surprisal in bits, given those before it.")
    ] = False
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def score_command(argv: list[str]) -> None:
    """Print the log-probability of every line of standard input."""
    arguments = parse(ScoreArguments, argv, "score")
    from bighmm.answers.text import scored_text
    from bighmm.lm.questions import scores

    lm = arguments.compute.open(arguments.model)
    answered: list[ScoredText] = []
    unknown: dict[str, None] = {}
    count = 0
    given = None if arguments.text is None else some_text(arguments.text, "the text")
    for lines in _lines_as_they_come(sys.stdin.buffer) if given is None else [[given]]:
        for one in scores(lm, lines, arguments.words):
            found = scored_text(one)
            unknown |= dict.fromkeys(found["unknown"])
            if arguments.as_json:
                answered.append(found)
            else:
                _print_scored(found)
        count += len(lines)
        sys.stdout.flush()
        _show_progress(count)
    note_unknown(lm, list(unknown))
    if arguments.as_json:
        print_json({"lines": answered})


def _print_scored(found: ScoredText) -> None:
    log_prob = found["log_prob"]
    number = "-inf" if log_prob is None else f"{log_prob:.4f}"
    print(f"{number}\t{found['tokens']}\t{found['text']}")
    for word in found.get("words", ()):
        bits = word["surprisal_bits"]
        print(f"  {'inf' if bits is None else f'{bits:.2f}'}\t{word['word']}")


def _show_progress(lines: int) -> None:
    """How many lines were answered, where nobody sees them being printed."""
    if sys.stderr.isatty() and not sys.stdout.isatty():
        print(f"\r{lines:,} lines", end="", file=sys.stderr, flush=True)


def _lines_as_they_come(stream: BinaryIO) -> Iterator[list[str]]:
    """The lines of a stream, those together that are there already.

    Raises ValueError for bytes that are not UTF-8, and if all lines are blank.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    read = getattr(stream, "read1", stream.read)  # read1 does not wait until all is there
    rest, before, blank = "", 0, True
    held: list[str] = []  # blank lines before the first text
    while True:
        content = read(READ_AT_ONCE)
        try:
            rest += decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            at = before - len(decoder.getstate()[0]) + error.start
            raise ValueError(f"standard input is not UTF-8 at byte {max(at, 0)}") from None
        before += len(content)
        # Not splitlines: a line may hold one of the rarer line separators of Unicode.
        *lines, rest = rest.split("\n")
        if not content and rest:
            lines.append(rest)
        held += [line.removesuffix("\r") for line in lines]
        blank = blank and not any(line.strip() for line in held)
        if held and not blank:
            yield held
            held = []
        if not content:
            break
    if blank:
        raise ValueError("standard input holds no text; give one text per line")


@dataclass(frozen=True)
class NextArguments:
    """The most likely next words after a text, or at its beginning."""

    model: ModelPath
    prefix: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[PREFIX]", help="The text so far; without it, its beginning."),
    ] = None
    rule: RuleFlags = NO_RULE
    n: Annotated[int, tyro.conf.arg(help="How many words.")] = 10
    length: Annotated[
        int | None,
        tyro.conf.arg(
            help="With a rule: tokens after the prefix at most, the end mark not counted; "
            f"{DEFAULT_LENGTH} if it is not given."
        ),
    ] = None
    no_unk: NoUnk = False
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def next_command(argv: list[str]) -> None:
    """Print the likeliest next words."""
    arguments = parse(NextArguments, argv, "next")
    if arguments.length is not None and not arguments.rule.given:
        raise ValueError(
            "--length is how long the text may become under a rule, but there is no rule; give "
            "--must, --not, --regex or another, or leave out --length"
        )
    rule = arguments.rule.asked()
    from bighmm import answers

    lm = arguments.compute.open(arguments.model)
    found = answers.next_words(
        lm, _prefix(arguments.prefix), arguments.n, rule, arguments.length, arguments.no_unk
    )
    note_unknown(lm, found["unknown"])
    note_absent(lm, rule.must_not)
    if arguments.as_json:
        print_json(found)
        return
    for word in found["next"]:
        print(f"{shown_prob(word['prob'])}\t{word['word']}")


@dataclass(frozen=True)
class SampleArguments:
    """Text drawn from a model, one text per line."""

    model: ModelPath
    n: Annotated[int, tyro.conf.arg(help="How many texts.")] = 3
    prefix: Annotated[str | None, tyro.conf.arg(help="What every text begins with.")] = None
    rule: RuleFlags = NO_RULE
    length: Length = DEFAULT_LENGTH
    temperature: Annotated[
        float, tyro.conf.arg(help="Below 1 sharper, above 1 flatter, 0 always the likeliest word.")
    ] = 1.0
    top_k: Annotated[
        int | None, tyro.conf.arg(help="Draw among so many of the likeliest words.")
    ] = None
    top_p: Annotated[
        float, tyro.conf.arg(help="Draw among the likeliest words of this probability in all.")
    ] = 1.0
    no_unk: NoUnk = False
    seed: Seed = None
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def sample_command(argv: list[str]) -> None:
    """Print texts drawn from a model."""
    arguments = parse(SampleArguments, argv, "sample")
    prefix = "" if arguments.prefix is None else some_text(arguments.prefix, "the prefix")
    rule = arguments.rule.asked()
    from bighmm import answers

    lm = arguments.compute.open(arguments.model)
    found = answers.sample(
        lm,
        arguments.n,
        prefix,
        rule,
        arguments.length,
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.no_unk,
        arguments.seed,
    )
    note_unknown(lm, found["unknown"])
    note_absent(lm, rule.must_not)
    if arguments.as_json:
        print_json(found)
        return
    for one in found["texts"]:
        print(one["text"])
    empty = sum(not one["text"] for one in found["texts"])
    if empty:
        print(f"{empty:,} of them are empty; --words 1.. asks for words", file=sys.stderr)


@dataclass(frozen=True)
class RuleArguments:
    """How likely the words after a prefix are to satisfy a rule, and why they cannot."""

    model: ModelPath
    prefix: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[PREFIX]", help="The text so far; without it, its beginning."),
    ] = None
    rule: RuleFlags = NO_RULE
    length: Length = DEFAULT_LENGTH
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def rule_command(argv: list[str]) -> None:
    """Print the probability of a rule."""
    arguments = parse(RuleArguments, argv, "rule")
    if not arguments.rule.given:
        raise ValueError("there is no rule; give --must, --not, --regex or another")
    rule = arguments.rule.asked()
    from bighmm import answers

    lm = arguments.compute.open_hmm(arguments.model, "probabilities of rules")
    found = answers.rule(lm, rule, _prefix(arguments.prefix), arguments.length)
    note_unknown(lm, found["unknown"])
    note_absent(lm, rule.must_not)
    if arguments.as_json:
        print_json(found)
        return
    print(f"{shown_prob(found['prob'])}\t{found['rule']}")
    ended = shown_prob(found["prob_ends"])
    print(f"{ended}\tthe text ends within {found['length']} tokens, with or without the rule")
    if found["why_not"] is not None:
        print(f"it cannot hold: {found['why_not']}")


def _prefix(prefix: str | None) -> str:
    """The text so far; one that is blank is the beginning of a text."""
    return "" if prefix is None or not prefix.strip() else prefix
