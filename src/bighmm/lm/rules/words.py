"""Rules from words: phrases are tokenised with a model's tokenizer.

With a subword tokenizer phrases are whole words of the text: "cat" is in "the cat's" and not in
"catalogue" (`whole_words.py` defines words). Otherwise, and for marks such as "<unk>", phrases are
sequences of tokens; where a tokenizer writes a word in two ways, alone and after a space, both
count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add, and_, or_
from typing import Any

from bighmm.data.tokenizers import Tokenizer
from bighmm.infer.rules import rules
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
    """The rule that all of the given conditions hold for a text, without its end mark.

    must, must_not: phrases that occur, `in_order` in this order, and phrases that do not. With
        subwords, what must occur is recognised in a text as the tokenizer writes it; what must not
        occur is refused whatever tokens spell it, which `~` of a rule with `must` does not promise.
    starts, ends: what the text begins and ends with.
    regex: a regular expression over tokens (see `pattern.py`); its words are as `spellings` says.
    words: the least and the largest number of tokens, either None for no limit; or one number, for
        exactly so many.
    text, schema: a regular expression over the text itself, and a JSON schema; both need the extra
        `bighmm[outlines]`. They are about what the tokens decode to on their own, without a prefix.
    by_tokens: phrases are sequences of tokens with subwords too: "cat" may begin "catalogue".

    Raises ValueError for words that are not in the vocabulary.
    """
    asked: list[Rule] = []
    musts = _listed(must)
    of = partial(_rule_of, tokenizer, by_tokens)
    for group in [musts] if in_order and musts else [[phrase] for phrase in musts]:
        found = of(group, whole_words.occur, _contains)
        asked.append(found.called(f"must {', then '.join(map(repr, group))}"))
    for phrase in _listed(must_not):
        found = of([phrase], whole_words.may_occur, _contains)
        asked.append((~found).called(f"must not {phrase!r}"))
    if starts is not None:
        found = of([starts], whole_words.begins, rules.starts_with)
        asked.append(found.called(f"starts with {starts!r}"))
    if ends is not None:
        found = of([ends], whole_words.closes, rules.ends_with)
        asked.append(found.called(f"ends with {ends!r}"))
    if regex is not None:
        asked.append(rules.regex(regex, lambda phrase: spellings(tokenizer, phrase)))
    if words is not None:
        least, most = _bounds(words)
        asked.append(rules.length(least, most).called(_range(least, most)))
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
        for word in phrase.split():
            if not _is_known(tokenizer, word):
                raise ValueError(f"the word {word!r} of a rule is not in the model's vocabulary")
    return found[:1] if found[0] == found[1] else found


def _is_known(tokenizer: Tokenizer, word: str) -> bool:
    """Whether a word is in the vocabulary; the mark of unknown words in it is known."""
    assert tokenizer.unknown is not None
    mark = tokenizer.token(tokenizer.unknown)
    parts = word.replace(mark, f" {mark} ").split()
    if len(tokenizer.encode(word)) < len(parts):  # the mark is not seen in it
        return False
    return all(part == mark or tokenizer.unknown not in tokenizer.encode(part) for part in parts)


def _rule_of(
    tokenizer: Tokenizer,
    by_tokens: bool,
    phrases: list[str],
    as_words: Callable[..., Rule],
    as_tokens: Callable[[list[int]], Rule],
) -> Rule:
    """The rule of phrases in their order, as whole words where that is possible, else as tokens."""
    ways = [spellings(tokenizer, phrase) for phrase in phrases]  # raises if one cannot be written
    if not by_tokens and all(whole_words.is_spelled(tokenizer, phrase) for phrase in phrases):
        return as_words(tokenizer, *phrases)
    return reduce(add, (reduce(or_, map(as_tokens, each)) for each in ways))


def _contains(ids: list[int]) -> Rule:
    return rules.contains([ids])


def _listed(phrases: str | Sequence[str]) -> list[str]:
    return [phrases] if isinstance(phrases, str) else list(phrases)


def _bounds(words: Any) -> tuple[int, int | None]:
    """The least number of tokens, and the largest if there is one."""
    if isinstance(words, int):
        return words, words
    if not isinstance(words, tuple | list) or len(words) != 2:
        raise ValueError(f"`words` is a number or two, such as 5 or (3, 9), not {words!r}")
    least, most = words
    return 0 if least is None else least, most


def _range(least: int, most: int | None) -> str:
    return f"{least} words or more" if most is None else f"{least} to {most} words"
