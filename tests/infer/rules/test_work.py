"""Large rules: those that compile quickly, and the limit on those that do not."""

import itertools
from functools import reduce
from operator import add, or_

import pytest

from bighmm import constraints as c
from bighmm.data.tokenizers import Words
from bighmm.infer.rules import phrases, work
from bighmm.lm.rules.words import rule_from_words

WORDS = Words([*(f"w{i}" for i in range(4000)), "<eos>", "<unk>"])
CHOSEN = [f"w{(7 * i) % 3001}" for i in range(3000)]


@pytest.mark.parametrize(
    ("rule", "states"),
    [
        (lambda: {"regex": " | ".join(CHOSEN)}, 3),
        (lambda: {"regex": "(" + " | ".join(CHOSEN) + ") w5"}, 4),
        (lambda: {"must_not": CHOSEN}, 2),
        (lambda: {"must": CHOSEN[:1000], "in_order": True}, 1001),
        (lambda: {"regex": " ".join(CHOSEN[:1000])}, 1002),
        (lambda: {"text": "|".join(CHOSEN)}, 3),
    ],
)
def test_rules_of_many_words_compile(rule, states):
    """Far below the limit, so in seconds."""
    compiled = rule_from_words(WORDS, **rule())
    with work.limited("all"):
        assert compiled.compile(WORDS.size).num_states == states
        assert work._left.get()[0] > work.LIMIT // 2


@pytest.mark.parametrize(
    "rule",
    [
        lambda: rule_from_words(WORDS, must=CHOSEN[:40]),
        lambda: c.regex(".* 1 .{40}"),
        lambda: c.regex("((1 .{1000}){1000}){1000}"),
        lambda: c.contains([[i] for i in range(40)]) | c.length(3),
        lambda: rule_from_words(WORDS, text="(a.{1000}){1000}"),
        lambda: rule_from_words(WORDS, text="(((a{1000}){1000}){1000}){1000}"),
        lambda: c.excludes([[i, i + 1, i + 2] for i in range(0, 3900, 3)] * 3),
    ],
)
def test_rules_that_are_too_large(rule, monkeypatch):
    monkeypatch.setattr(work, "LIMIT", work.LIMIT // 64)
    with pytest.raises(
        ValueError, match=r"^the rule .* is too large: its automaton would"
    ) as error:
        rule().compile(WORDS.size)
    assert len(str(error.value)) < 300


def test_the_limit_is_for_each_rule_alone():
    """One that fails leaves nothing behind."""
    with pytest.raises(ValueError, match="is too large"), work.limited("x"):
        work.spend(work.LIMIT + 1)
    assert work._left.get() is None
    work.spend(work.LIMIT + 1)  # outside of rules nothing is limited
    assert c.length(3).compile(5).num_states == 4


def test_any_of_sequences():
    sequences = [[1, 2], [1, 3], [2, 2], [], [3], [1, 2, 3], [1, 2]]
    found = phrases.any_of(sequences, 5)
    for n in range(5):
        for ids in itertools.product(range(5), repeat=n):
            assert found.accepts(ids) == (list(ids) in sequences)
    one_by_one = reduce(or_, (phrases.exactly(ids, 5) for ids in sequences))
    assert found.same_as(one_by_one)


def test_phrases_in_order():
    for given in ([[1]], [[1, 1], [1]], [[1, 2, 1], [1, 2], [3, 1]], [[2], [2], [2, 2]]):
        one_by_one = reduce(add, (phrases.containing(ids, 5) for ids in given))
        assert phrases.in_order(given, 5).same_as(one_by_one)


def test_concatenation_with_one_end():
    """Nothing can follow what the first part accepts, so both are joined without subsets."""
    parts = [phrases.any_of(ids, 4) for ids in ([[]], [[1], [2, 1]], [[3]], [[1, 1]])]
    for a, b in itertools.product(
        [*parts, ~parts[0] & parts[0]], [*parts, phrases.containing([1], 4)]
    ):
        joined = a + b
        for n in range(5):
            for ids in itertools.product(range(4), repeat=n):
                ways = any(a.accepts(ids[:k]) and b.accepts(ids[k:]) for k in range(n + 1))
                assert joined.accepts(ids) == ways
