"""Rules about the words of a text, for a given tokenizer.

With a subword tokenizer, phrases are whole words of the text: "cat" occurs in "the cat's" but not
in "catalogue" (`whole_words` has the definition). With other tokenizers, and for marks such as
"<unk>", phrases are sequences of tokens. If a tokenizer encodes a word in two ways, alone and after
a space, both count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import add, and_, or_
from typing import Any

from bighmm.base.settings import shown
from bighmm.data.tokenizers import Tokenizer, unknown_words
from bighmm.infer.rules import rules
from bighmm.infer.rules.pattern import UnknownWord, balanced
from bighmm.infer.rules.rules import Rule
from bighmm.lm.rules import whole_words
from bighmm.lm.rules.text import json_schema, text_regex


def rule_from_words(
    tokenizer: Tokenizer,
    must: str | Sequence[str] = (),
    must_not: str | Sequence[str] = (),
    in_order: bool = False,
    starts: str | None = None,
    ends: str | None = None,
    regex: str | None = None,
    words: int | tuple[int | None, int | None] | None = None,
    text: str | None = None,
    schema: str | dict | None = None,
    by_tokens: bool = False,
) -> Rule:
    """The rule that all given conditions hold for a text, which is without its end mark.

    must: phrases that must occur; with `in_order`, one after the other in this order. With
        subwords, an occurrence counts if it is divided into tokens as the tokenizer does.
    must_not: phrases that must not occur. With subwords, every occurrence counts, however it is
        divided into tokens. So this is stronger than `~` of a rule with `must`. A phrase with a
        word that is not in the vocabulary cannot occur, so it is no condition.
    starts, ends: phrases that the text begins and ends with.
    regex: a regular expression over tokens (see `infer.rules.pattern`); a word of it stands for any
        of its `spellings`.
    words: the least and the largest number of tokens, None for no limit; or one number for both.
    text: a regular expression over the characters of the text.
    schema: a JSON schema for the text. This and `text` are about the text that the tokens decode
        to, without a prefix before them.
    by_tokens: whether phrases are sequences of tokens also with subwords, so that "cat" may be the
        beginning of "catalogue".

    Raises ValueError for other words that are not in the vocabulary.
    """
    conditions: list[Rule] = []
    required = _as_list(must)
    rule_of = partial(_phrase_rule, tokenizer, by_tokens)
    for group in [required] if in_order and required else [[phrase] for phrase in required]:
        rule = rule_of(group, whole_words.contains, _contains)
        conditions.append(rule.called(f"must {', then '.join(map(repr, group))}"))
    by_ids: list[str] = []  # forbidden phrases that are sequences of tokens
    for phrase in _as_list(must_not):
        if unknown_words(tokenizer, phrase):
            conditions.append(rules.length(0).called(f"must not {phrase!r}"))
        elif by_tokens or not whole_words.can_be_spelled(tokenizer, phrase):
            by_ids.append(phrase)
        else:
            rule = rule_of([phrase], whole_words.may_contain, _contains)
            conditions.append((~rule).called(f"must not {phrase!r}"))
    if by_ids:
        every = [ids for phrase in by_ids for ids in spellings(tokenizer, phrase)]
        conditions.append(rules.excludes(every).called(f"must not {', '.join(map(repr, by_ids))}"))
    if starts is not None:
        rule = rule_of([starts], whole_words.starts_with, rules.starts_with)
        conditions.append(rule.called(f"starts with {starts!r}"))
    if ends is not None:
        rule = rule_of([ends], whole_words.ends_with, rules.ends_with)
        conditions.append(rule.called(f"ends with {ends!r}"))
    if regex is not None:
        conditions.append(rules.regex(regex, lambda phrase: spellings(tokenizer, phrase)))
    if words is not None:
        least, most = _bounds(words)
        conditions.append(rules.length(least, most).called(_range(least, most)))
    if text is not None:
        conditions.append(text_regex(text, tokenizer))
    if schema is not None:
        conditions.append(json_schema(schema, tokenizer))
    return balanced(and_, conditions) if conditions else rules.length(0).called("anything")


def spellings(tokenizer: Tokenizer, phrase: str) -> list[list[int]]:
    """The token ids of a phrase alone and, if they differ, those of the phrase after a space.

    Raises ValueError if the phrase is empty, or has several lines, an end mark or unknown words.
    """
    if not phrase.strip():
        raise ValueError("a phrase of a rule is empty; give at least one word")
    if "\n" in phrase:
        raise ValueError(f"the phrase {phrase!r} of a rule must be on one line")
    encoded = [tokenizer.encode(phrase), tokenizer.encode(f" {phrase}")]
    if any(tokenizer.end in ids for ids in encoded):
        raise ValueError(f"the phrase {phrase!r} of a rule holds the end mark, which ends a text")
    if tokenizer.unknown is not None and any(tokenizer.unknown in ids for ids in encoded):
        for word in phrase.split():
            if not _is_known(tokenizer, word):
                raise UnknownWord(f"the word {word!r} of a rule is not in the model's vocabulary")
    return encoded[:1] if encoded[0] == encoded[1] else encoded


def _is_known(tokenizer: Tokenizer, word: str) -> bool:
    """Whether a word has no unknown parts; the mark "<unk>" itself counts as known."""
    assert tokenizer.unknown is not None
    mark = tokenizer.token(tokenizer.unknown)
    parts = word.replace(mark, f" {mark} ").split()
    if len(tokenizer.encode(word)) < len(parts):  # the tokenizer does not see the mark in the word
        return False
    return all(part == mark or tokenizer.unknown not in tokenizer.encode(part) for part in parts)


def _phrase_rule(
    tokenizer: Tokenizer,
    by_tokens: bool,
    phrases: list[str],
    as_words: Callable[..., Rule],
    as_tokens: Callable[[list[int]], Rule],
) -> Rule:
    """The rule of phrases in this order: `as_words` if that is possible for all, else `as_tokens`.

    as_words: the rule from the tokenizer and the phrases.
    as_tokens: the rule from the token ids of one phrase.
    """
    encoded = [spellings(tokenizer, phrase) for phrase in phrases]  # raises for unknown words
    if not by_tokens and all(whole_words.can_be_spelled(tokenizer, phrase) for phrase in phrases):
        return as_words(tokenizer, *phrases)
    if as_tokens is _contains and all(len(each) == 1 for each in encoded):
        return rules.in_order([each[0] for each in encoded])
    return balanced(add, [balanced(or_, list(map(as_tokens, each))) for each in encoded])


def _contains(ids: list[int]) -> Rule:
    return rules.contains([ids])


def _as_list(phrases: str | Sequence[str]) -> list[str]:
    if isinstance(phrases, str):
        return [phrases]
    if not isinstance(phrases, Iterable) or not all(isinstance(each, str) for each in phrases):
        raise ValueError(f"phrases of a rule are strings, not {shown(phrases)}")
    return list(phrases)


def _bounds(words: Any) -> tuple[int, int | None]:
    """The least and the largest number of tokens, None for no limit."""
    if isinstance(words, int):
        return words, words
    if not isinstance(words, tuple | list) or len(words) != 2:
        raise ValueError(f"`words` is a number or two, such as 5 or (3, 9), not {words!r}")
    least, most = words
    return 0 if least is None else least, most


def _range(least: int, most: int | None) -> str:
    return f"{least} words or more" if most is None else f"{least} to {most} words"
