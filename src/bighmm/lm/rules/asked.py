"""A rule about the words of a text as plain values: what flags and JSON are turned into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bighmm.base.settings import fill

if TYPE_CHECKING:
    from bighmm.data.tokenizers import Tokenizer
    from bighmm.infer.rules import Rule


MOST_SCHEMA = 1 << 20  # bytes of a JSON schema


@dataclass(frozen=True)
class AskedRule:
    """The conditions that a text must satisfy; those that are not given always hold."""

    must: Sequence[str] = ()
    """Phrases that occur, as whole words."""
    must_not: Sequence[str] = ()
    """Phrases that do not occur. Words that the model does not know cannot occur anyway."""
    in_order: bool = False
    """The phrases of `must` occur in this order."""
    starts: str | None = None
    """The phrase that the text begins with."""
    ends: str | None = None
    """The phrase that the text ends with."""
    regex: str | None = None
    """A pattern over whole words, which the whole text matches."""
    words: tuple[int | None, int | None] | None = None
    """The least and the largest number of words (tokens); None for no limit."""
    text: str | None = None
    """A regular expression over characters, which the whole text matches."""
    schema: str | dict[str, Any] | None = None
    """A JSON schema that the text, which is then JSON, satisfies; also as a string."""

    @staticmethod
    def from_json(values: Any, where: str = "the rule") -> AskedRule:
        """The rule of a JSON object; ValueError names a field that is unknown or of the wrong type.

        `must` and `must_not` may be one phrase, and `words` one number.
        """
        found = fill(_InJson, values, where)
        words = found.words
        if isinstance(words, int):
            words = [words, words]
        if words is not None and len(words) != 2:
            raise ValueError(f"{where}: words = {words} must be two numbers, such as [3, 9]")
        return AskedRule(
            must=_phrases(found.must),
            must_not=_phrases(found.must_not),
            in_order=found.in_order,
            starts=found.starts,
            ends=found.ends,
            regex=found.regex,
            words=None if words is None else (words[0], words[1]),
            text=found.text,
            schema=found.schema,
        )

    @property
    def given(self) -> bool:
        """Whether there is any condition."""
        return self != NO_RULE

    def of(self, tokenizer: Tokenizer) -> Rule | None:
        """The rule in the tokens of a model; None if there is no condition.

        Raises ValueError if a word that must occur is not in the vocabulary, a pattern or schema
        cannot be read, or `in_order` has nothing to order.
        """
        from bighmm.lm.rules.words import rule_from_words

        if not self.given:
            return None
        if self.in_order and len(self.must) < 2:
            raise ValueError(
                f"in_order puts two or more phrases that must occur in order, but there "
                f"{'is one' if self.must else 'are none'}; give more of --must"
            )
        return rule_from_words(
            tokenizer,
            must=self.must,
            must_not=self.must_not,
            in_order=self.in_order,
            starts=self.starts,
            ends=self.ends,
            regex=self.regex,
            words=self.words,
            text=self.text,
            schema=self.schema,
        )


NO_RULE = AskedRule()


@dataclass(frozen=True)
class _InJson:
    """The fields of a rule in the types that JSON has for them."""

    must: str | list[str] = ""
    must_not: str | list[str] = ""
    in_order: bool = False
    starts: str | None = None
    ends: str | None = None
    regex: str | None = None
    words: int | list[int | None] | None = None
    text: str | None = None
    schema: str | dict[str, Any] | None = None


def _phrases(given: str | list[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,) if given else ()
    return tuple(given)
