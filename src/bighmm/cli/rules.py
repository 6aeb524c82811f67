"""The flags of commands that take a rule about the words after a prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from bighmm.lm.rules.asked import AskedRule

Phrases = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class RuleFlags:
    """A rule about the words after the prefix, where the text ends; of `fill`, about all words."""

    must: Annotated[
        Phrases, tyro.conf.arg(metavar="PHRASE", help="It occurs, as whole words.")
    ] = ()
    must_not: Annotated[
        Phrases, tyro.conf.arg(name="not", metavar="PHRASE", help="It does not occur.")
    ] = ()
    in_order: Annotated[bool, tyro.conf.arg(help="What must occur does so in this order.")] = False
    starts: Annotated[str | None, tyro.conf.arg(help="What they begin with.")] = None
    ends: Annotated[str | None, tyro.conf.arg(help="What they end with.")] = None
    regex: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="PATTERN",
            help="A pattern over whole words that all of it matches, with spaces between words and "
            "signs, such as 'the (old | new) .* file'. The signs: . any word; x* any number of x; "
            "x+ one or more; x? at most one; x{2,5} two to five; x | y one of both; ( ) a group; "
            '[a b] one of these words; [^ a b] any other; "a b" words as they are. For letters: '
            "--text.",
        ),
    ] = None
    words: Annotated[
        str | None,
        tyro.conf.arg(metavar="8..12", help="How many words (tokens); also 8.. and ..12 and 8."),
    ] = None
    text: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="EXPRESSION",
            help="A regular expression over letters that all of it matches, as in Python's re: "
            r"'\w+ file'. For whole words: --regex.",
        ),
    ] = None
    schema: Annotated[
        Path | None,
        tyro.conf.arg(help="A file with a JSON schema, of all of it."),
    ] = None

    @property
    def given(self) -> bool:
        """Whether there is any rule."""
        return self != NO_RULE

    def asked(self) -> AskedRule:
        """The rule as plain values; ValueError for a number of words or a file that is none."""
        from bighmm.lm.rules.asked import AskedRule

        return AskedRule(
            must=self.must,
            must_not=self.must_not,
            in_order=self.in_order,
            starts=self.starts,
            ends=self.ends,
            regex=self.regex,
            words=None if self.words is None else _range(self.words),
            text=self.text,
            schema=None if self.schema is None else _read(self.schema),
        )


NO_RULE = RuleFlags()


def _read(schema: Path) -> str:
    from bighmm.base.reading import read_bytes
    from bighmm.lm.rules.asked import MOST_SCHEMA

    try:
        return read_bytes(schema, MOST_SCHEMA, pipes=True).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the schema {schema} is not UTF-8 at byte {error.start}") from None


def _range(text: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(?P<least>\d*)(?P<dots>\.\.)?(?P<most>\d*)", text.strip())
    if found is None or not (found["least"] or found["most"]):
        raise ValueError(f"--words is {text!r}; it must be like 8..12, 8.., ..12 or 8")
    least = int(found["least"] or 0)
    most = int(found["most"]) if found["most"] else None if found["dots"] else least
    if most is not None and most < least:
        raise ValueError(f"--words is {text!r}; the smaller number comes first")
    return least, most
