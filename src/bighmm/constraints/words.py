"""Rules from words: phrases are tokenised with a model's tokenizer.

With a subword tokenizer phrases are whole words of the text: "cat" is in "the cat's" and not in
"catalogue" (`whole_words.py` says what a word is). Otherwise, and for marks such as "<unk>", they
are sequences of tokens; where a tokenizer writes a word in two ways, alone and after a space,
either will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add, and_, or_

from bighmm.constraints import rules, whole_words
from bighmm.constraints.rules import Rule
from bighmm.constraints.text import json_schema, text_regex
from bighmm.text import Tokenizer


def rule_from_words(
    tokenizer: Tokenizer,
    must: str | Sequence[str] = (),
    must_not: str | Sequence[str] = (),
    in_order: bool = False,
    starts: str | None = None,
    ends: str | None = None,
    regex: str | None = None,
    words: tuple[int, int | None] | None = None,
    text: str | None = None,
    schema: str | dict | None = None,
    by_tokens: bool = False,
) -> Rule:
    """All that is asked for, of the words of a text without its end mark.

    must, must_not: phrases that occur, `in_order` in this order, and phrases that do not. With
        subwords, what must occur is found in a text as the tokenizer writes it, and nothing else
        is taken for it; what must not occur is refused whatever tokens it is made of, which `~` of
        a rule with `must` does not promise.
    starts, ends: what the text begins and ends with.
    regex: a regular expression over tokens (see `pattern.py`); its words are as `spellings` says.
    words: the least and the largest number of tokens; None for no limit.
    text, schema: a regular expression over the text itself, and a JSON schema; both need the extra
        `bighmm[outlines]`.
    by_tokens: phrases are sequences of tokens with subwords too: "cat" may begin "catalogue".

    Raises ValueError for words that are not in the vocabulary.
    """
    asked: list[Rule] = []
    musts = _listed(must)
    for group in [musts] if in_order and musts else [[phrase] for phrase in musts]:
        if all([_is_words(tokenizer, phrase, by_tokens) for phrase in group]):
            found = whole_words.occur(tokenizer, group)
        else:
            each = (_any_spelling(tokenizer, phrase, rules.contains) for phrase in group)
            found = reduce(add, each)
        asked.append(found.called(f"must {', then '.join(map(repr, group))}"))
    for phrase in _listed(must_not):
        if _is_words(tokenizer, phrase, by_tokens):
            found = whole_words.may_occur(tokenizer, phrase)
        else:
            found = _any_spelling(tokenizer, phrase, rules.contains)
        asked.append((~found).called(f"must not {phrase!r}"))
    if starts is not None:
        if _is_words(tokenizer, starts, by_tokens):
            found = whole_words.begins(tokenizer, starts)
        else:
            found = _any_spelling(tokenizer, starts, lambda p: rules.starts_with(p[0]))
        asked.append(found.called(f"starts with {starts!r}"))
    if ends is not None:
        if _is_words(tokenizer, ends, by_tokens):
            found = whole_words.closes(tokenizer, ends)
        else:
            found = _any_spelling(tokenizer, ends, lambda p: rules.ends_with(p[0]))
        asked.append(found.called(f"ends with {ends!r}"))
    if regex is not None:
        asked.append(rules.regex(regex, lambda phrase: spellings(tokenizer, phrase)))
    if words is not None:
        asked.append(rules.length(*words).called(_range(*words)))
    if text is not None:
        asked.append(text_regex(text, tokenizer))
    if schema is not None:
        asked.append(json_schema(schema, tokenizer))
    return reduce(and_, asked) if asked else rules.length(0).called("anything")


def spellings(tokenizer: Tokenizer, phrase: str) -> list[list[int]]:
    """The ways to write a phrase as token ids; ValueError if it is empty or has unknown words."""
    if not phrase.strip():
        raise ValueError("a phrase of a rule is empty; give at least one word")
    if "\n" in phrase:
        raise ValueError(f"the phrase {phrase!r} of a rule must be on one line")
    found = [tokenizer.encode(phrase), tokenizer.encode(f" {phrase}")]
    if any(tokenizer.end in ids for ids in found):
        raise ValueError(f"the phrase {phrase!r} of a rule holds the end mark, which ends a text")
    if tokenizer.unknown is not None and any(tokenizer.unknown in ids for ids in found):
        mark = tokenizer.token(tokenizer.unknown)
        for word in phrase.split():
            if tokenizer.unknown in tokenizer.encode(word) and word != mark:
                raise ValueError(f"the word {word!r} of a rule is not in the model's vocabulary")
    return found[:1] if found[0] == found[1] else found


def _is_words(tokenizer: Tokenizer, phrase: str, by_tokens: bool) -> bool:
    """Whether a phrase is words of the text, not a sequence of tokens; ValueError if neither."""
    spellings(tokenizer, phrase)
    return not by_tokens and whole_words.is_spelled(tokenizer, phrase)


def _any_spelling(
    tokenizer: Tokenizer, phrase: str, rule: Callable[[list[list[int]]], Rule]
) -> Rule:
    return reduce(or_, (rule([ids]) for ids in spellings(tokenizer, phrase)))


def _listed(phrases: str | Sequence[str]) -> list[str]:
    return [phrases] if isinstance(phrases, str) else list(phrases)


def _range(least: int, most: int | None = None) -> str:
    return f"{least} words or more" if most is None else f"{least} to {most} words"
