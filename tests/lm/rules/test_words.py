"""Rules about words, and models under such rules."""

import itertools
import math

import pytest
import torch

from bighmm import constraints as c
from bighmm.data.tokenizers import Words, open_tokenizer
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.rules.words import rule_from_words, spellings
from bighmm.model.params.scalar import ScalarOptions
from models import random_support
from tokenizer_files import bpe, sentencepiece_model

WORDS = ("cat", "dog", "sat", "a")


@pytest.fixture(scope="module")
def lm():
    """Six tokens: four words and the two marks."""
    words = Words.build([" ".join(WORDS)])
    return HMMLM("scalar", ScalarOptions(), random_support("blocked", 6, 6), words, seed=3)


def words_of(lm, ids):
    return [lm.tokenizer.token(i) for i in ids]


@pytest.mark.parametrize(
    ("conditions", "definition"),
    [
        ({"must": ["cat"]}, lambda w: "cat" in w),
        ({"must": "cat sat"}, lambda w: "cat sat" in " ".join(w)),
        ({"must": ["sat", "a"]}, lambda w: {"sat", "a"} <= set(w)),
        (
            {"must": ["sat", "a"], "in_order": True},
            lambda w: "a" in w[[*w, "sat"].index("sat") :],
        ),
        ({"must_not": ["cat", "a"]}, lambda w: not {"cat", "a"} & set(w)),
        ({"starts": "a dog"}, lambda w: w[:2] == ["a", "dog"]),
        ({"ends": "sat"}, lambda w: w[-1:] == ["sat"]),
        ({"regex": "a [cat dog] .*"}, lambda w: w[:1] == ["a"] and w[1:2] in (["cat"], ["dog"])),
        ({"words": (1, 2)}, lambda w: 1 <= len(w) <= 2),
        ({"words": (None, 2)}, lambda w: len(w) <= 2),
        ({"words": (None, None)}, lambda w: True),
        ({"words": 2}, lambda w: len(w) == 2),
        ({"words": (2, None), "must": "dog"}, lambda w: len(w) >= 2 and "dog" in w),
        ({"must": "<unk>"}, lambda w: "<unk>" in w),
        ({}, lambda w: True),
    ],
)
def test_rules_match_their_definition(lm, conditions, definition):
    rule = lm.rule(**conditions)
    for n in range(4):
        for ids in itertools.product(range(6), repeat=n):
            if lm.tokenizer.end not in ids:
                assert rule.matches(ids) == definition(words_of(lm, ids)), words_of(lm, ids)


def test_names_of_rules_in_messages(lm):
    rule = lm.rule(must=["cat", "a dog"], must_not="sat", starts="a", ends="dog", words=(3, 9))
    assert [repr(part) for part in rule.parts] == [
        *("must 'cat'", "must 'a dog'", "must not 'sat'"),
        *("starts with 'a'", "ends with 'dog'", "3 to 9 words"),
    ]
    assert repr(lm.rule(must=["cat", "a"], in_order=True)) == "must 'cat', then 'a'"
    assert repr(lm.rule(words=(3, None))) == "3 words or more"
    assert repr(lm.rule(regex="a .*")) == "regex('a .*')"


@pytest.mark.parametrize("prefix", ["", "a cat", "a cat\n"])
def test_probabilities_under_a_rule_equal_enumeration(lm, prefix):
    """Over all texts of at most three words that satisfy the rule and end."""
    rule, end = lm.rule(must="cat", must_not="sat"), lm.tokenizer.end
    before = lm.encode(prefix)
    given = lm.hmm().log_prob(torch.tensor([before]).long())
    total, first = 0.0, torch.zeros(6)
    for n in range(4):
        for ids in itertools.product([i for i in range(6) if i != end], repeat=n):
            if rule.matches(ids):
                whole = lm.hmm().log_prob(torch.tensor([[*before, *ids, end]]))
                p = float((whole - given).exp())
                total += p
                first[[*ids, end][0]] += p
    assert lm.rule_log_prob(rule, 3, prefix) == pytest.approx(math.log(total), rel=1e-4)
    following = lm.next_token(prefix, rule, 3)
    torch.testing.assert_close(following.exp(), first / total, rtol=1e-4, atol=1e-6)
    plain = lm.hmm().next_token(torch.tensor([before]).long())[0]
    torch.testing.assert_close(lm.next_token(prefix), plain)


def test_sampled_texts_satisfy_the_rule(lm):
    generator = torch.Generator().manual_seed(1)
    rule = lm.rule(must=["cat", "dog sat"], ends="a", words=(5, 8))
    for text in lm.sample(50, 12, "dog", rule, generator):
        words = text.split()
        assert words.pop(0) == "dog" and 5 <= len(words) <= 8 and words[-1] == "a"
        assert "cat" in words and "dog sat" in " ".join(words)
    rules = [lm.rule(starts=word, words=(1, 3)) for word in WORDS]
    texts = lm.sample(4, rule=rules, generator=generator)
    assert [text.split()[0] for text in texts] == list(WORDS)
    texts = lm.sample(30, 3, generator=generator)
    assert all(len(text.split()) <= 3 for text in texts) and len(set(texts)) > 5
    one = lm.sample(1, 3, rule=lm.rule(words=(0, 0)))
    assert one == [""]


def test_errors_of_rules_that_cannot_hold(lm):
    with pytest.raises(ValueError, match="the rule must 'cat sat' needs at least 2 tokens, but at"):
        lm.sample(1, 1, rule=lm.rule(must=["cat sat", "a"]))
    with pytest.raises(ValueError, match="the rule 9 words or more needs at least 9 tokens, but"):
        lm.sample(1, 8, rule=lm.rule(words=(9, None)))
    with pytest.raises(ValueError, match="no sequence of tokens can satisfy the rule"):
        lm.sample(1, 8, rule=lm.rule(must="cat", must_not="cat"))
    everything = "[^ cat dog sat a <unk>]"
    with pytest.raises(ValueError, match="probability zero"):
        lm.sample(1, 8, rule=lm.rule(regex=everything))
    assert lm.rule_log_prob(lm.rule(words=(9, None)), 3) == -math.inf
    with pytest.raises(ValueError, match="at least 0 tokens after its prefix, not -1"):
        lm.next_token("", lm.rule(must="cat"), -1)
    torch.testing.assert_close(
        lm.next_token("", lm.rule(must="cat")), lm.next_token("", lm.rule(must="cat"), 100)
    )


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"must": "cat bird"}, "the word 'bird' of a rule is not in the model's vocabulary"),
        ({"regex": "a (bird | cat)"}, "the word 'bird' of a rule"),
        ({"starts": " "}, "a phrase of a rule is empty"),
        ({"ends": "a\nb"}, "must be on one line"),
        ({"must": "a <eos>"}, "holds the end mark"),
        ({"must": "<unk>cat"}, "the word '<unk>cat' of a rule is not in the model's vocabulary"),
        ({"words": "2..3"}, "`words` is a number or two, such as 5 or \\(3, 9\\), not '2..3'"),
        ({"words": (1, 2, 3)}, "`words` is a number or two"),
        ({"words": (1.5, 2)}, "a length goes from 0 or more"),
    ],
)
def test_errors_of_wrong_conditions(lm, conditions, message):
    with pytest.raises(ValueError, match=message):
        lm.rule(**conditions)


def test_a_phrase_may_have_the_mark_of_unknown_words():
    """If the tokenizer finds the mark beside punctuation, it counts as a word."""
    words = Words.build(["a cat ,"], split="words")
    rule = rule_from_words(words, must="<unk>, a")
    assert rule.matches(words.encode("cat <unk> , a")) and not rule.matches(words.encode("cat, a"))
    with pytest.raises(ValueError, match="the word '<unk>;' of a rule is not in the model's"):
        rule_from_words(words, must="<unk>; a")


@pytest.mark.parametrize("make", [bpe, sentencepiece_model])
def test_phrases_of_subwords(make, tmp_path):
    """A word is found at the beginning of a text and inside it."""
    name = "tiny.json" if make is bpe else "tiny.model"
    tokenizer = open_tokenizer(make(tmp_path / name))
    ways = spellings(tokenizer, "cat")
    assert len(ways) == (2 if make is bpe else 1)
    rule = rule_from_words(tokenizer, must="cat", must_not="dog", regex='.* "cat" .*')
    assert rule.matches(tokenizer.encode("cat sat")) and rule.matches(tokenizer.encode("the cat"))
    assert not rule.matches(tokenizer.encode("the mat"))
    assert not rule.matches(tokenizer.encode("the cat and the dog"))


def test_until_the_end_mark(lm):
    rule = c.until(lm.rule(must="cat"), lm.tokenizer.end)
    assert rule.matches(lm.encode("a cat\nsat")) and not rule.matches(lm.encode("a\ncat\n"))
