"""Rules about word boundaries, compared with Python's `re` on the whole text."""

import itertools
import re

import pytest
from test_whole_words import BYTES, FALLBACK, METASPACE

from bighmm.data.tokenizers import Words
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.rules.boundaries import (
    begins_outside_word,
    begins_with_word,
    ends_in_word,
    ends_outside_word,
)
from bighmm.lm.rules.spelling import symbols_of
from bighmm.lm.rules.words import rule_from_words
from bighmm.model.params import find
from bighmm.model.support import Dense

TOKENIZERS = [BYTES, METASPACE, FALLBACK]


def texts(tokenizer, longest=3):
    """All short sequences of tokens that are text."""
    marks = {tokenizer.end, tokenizer.unknown}
    ids = [i for i in range(tokenizer.size) if i not in marks]
    for length in range(longest + 1):
        yield from itertools.product(ids, repeat=length)


def decoded(tokenizer, ids):
    contents = symbols_of(tokenizer).contents
    return b"".join(contents[i] or b"" for i in ids).decode(errors="replace")


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["bytes", "metaspace", "fallback"])
def test_beginning_and_end_outside_of_words(tokenizer):
    first, last = (
        begins_outside_word(tokenizer),
        ends_outside_word(tokenizer, False),
    )
    after_word = ends_outside_word(tokenizer, True)
    for ids in texts(tokenizer, 2):
        text = decoded(tokenizer, ids)
        if "\N{REPLACEMENT CHARACTER}" in text:
            continue
        assert first.matches(ids) == (re.match(r"\w", text) is None)
        assert last.matches(ids) == (re.search(r"\w\Z", text) is None)
        assert after_word.matches(ids) == (re.search(r"\w\Z", f"x{text}") is None)
        assert begins_with_word(tokenizer, ids) == (re.match(r"\w", text) is not None)


def test_vocabularies_of_words_need_no_rule():
    tokenizer = Words.build(["the cat"])
    assert begins_outside_word(tokenizer) is None and ends_outside_word(tokenizer, True) is None
    assert not begins_with_word(tokenizer, tokenizer.encode("cat"))
    assert ends_in_word("the big") and not ends_in_word("the big ") and not ends_in_word("")


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["bytes", "metaspace", "fallback"])
@pytest.mark.parametrize("prefix", ["", "at", "at "])
def test_a_word_after_a_prefix_is_a_word_of_the_whole_text(tokenizer, prefix):
    rule = rule_from_words(tokenizer, must=["cat"])
    if ends_in_word(prefix):
        rule = rule & begins_outside_word(tokenizer)
    for ids in texts(tokenizer):
        if rule.matches(ids):
            assert re.search(r"(?<!\w)cat(?!\w)", prefix + decoded(tokenizer, ids))


@pytest.mark.parametrize("prefix", ["", "cat", "cat."])
@pytest.mark.parametrize("suffix", ["", "cat", ".cat"])
def test_texts_between_a_prefix_and_a_suffix(prefix, suffix):
    pytest.importorskip("transformers")
    from bighmm.guide.texts import _between

    options = find("ablation-b").options(width=8)
    lm = HMMLM("ablation-b", options, Dense(6, BYTES.size), BYTES, seed=1)
    (rule,) = _between([lm.rule(must=["cat"])], prefix, suffix, lm)
    found = 0
    for ids in filter(rule.matches, texts(BYTES, 3)):
        found += 1
        whole = prefix + decoded(BYTES, ids)
        last = len(whole) - len(suffix)
        assert whole.endswith(suffix)
        assert re.search(r"(?<!\w)cat(?!\w)", whole[len(prefix) : last])
        for place in (len(prefix), last):
            assert not re.match(r"\w\w", whole[max(0, place - 1) : place + 1])
    assert found > 0
