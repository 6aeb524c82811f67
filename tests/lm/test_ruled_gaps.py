"""Gaps under a rule, against the enumeration of all fillings."""

import itertools
import math
from collections import Counter

import pytest
import torch

from bighmm.data.tokenizers import Words
from bighmm.lm.gaps import best_fillings, gap_words, sample_fillings
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.rules import rule_from_words
from bighmm.model.options import ScalarOptions
from bighmm.model.support import Blocked, Dense

WORDS = ["<eos>", "<unk>", "a", "b", "c"]
TEXT = "a ___1-2 b ___"


@pytest.fixture(params=["dense", "blocked", "carry"])
def lm(request):
    tokenizer = Words(WORDS)
    support = Dense(4, 5) if request.param != "blocked" else Blocked.of(torch.arange(5) % 2, 6)
    lm = HMMLM("scalar", ScalarOptions(init_scale=1.5), support, tokenizer, seed=3)
    lm.params.double()
    if request.param == "carry":
        lm.convention = "carry"
    return lm


def fillings(lm, rule, open_end, no_unk):
    """Every text of the gaps of TEXT that satisfies the rule: its words, gaps and probability."""
    found = {}
    inside = [2, 3, 4] if no_unk else [1, 2, 3, 4]
    for count in (1, 2):
        for words in itertools.product(inside, repeat=count + 1):
            ids = [2, *words[:count], 3, words[count]]
            if rule is not None and not rule.matches(ids):
                continue
            row = ids if open_end else [*ids, 0]
            gaps = (words[:count], words[count:])
            found[gaps] = math.exp(float(lm.hmm().log_prob([row])))
    total = sum(found.values())
    return {gaps: prob / total for gaps, prob in found.items()}, found


@pytest.mark.parametrize("open_end", [False, True])
@pytest.mark.parametrize(
    "asked, no_unk",
    [
        ({"must": ["c"]}, False),
        ({"must_not": ["c"], "words": (5, 5)}, True),
        ({"ends": "c", "must": ["b b"]}, False),
        ({}, True),
    ],
)
def test_against_enumeration(lm, asked, no_unk, open_end):
    rule = rule_from_words(lm.tokenizer, **asked) if asked else None
    probs, joint = fillings(lm, rule, open_end, no_unk)
    best = best_fillings(lm, TEXT, 99, open_end=open_end, rule=rule, no_unk=no_unk)
    ids = {word: i for i, word in enumerate(WORDS)}
    assert best.exact and len(best.fillings) == len(probs)
    for one in best.fillings:
        gaps = tuple(tuple(ids[word] for word in gap) for gap in one.words)
        assert one.prob == pytest.approx(probs[gaps])
        assert one.log_prob == pytest.approx(math.log(joint[gaps]))
    wanted = sorted(probs.values(), reverse=True)
    assert [one.prob for one in best.fillings] == pytest.approx(wanted)

    found = gap_words(lm, TEXT, 9, open_end=open_end, rule=rule, no_unk=no_unk)
    for row in found.lengths:
        wanted = sum(p for gaps, p in probs.items() if len(gaps[0]) == row.lengths[0])
        assert row.prob == pytest.approx(wanted)
    longest = found.lengths[0].lengths[0]
    given = {gaps: p for gaps, p in probs.items() if len(gaps[0]) == longest}
    for place in found.gaps:
        wanted = Counter()
        for gaps, prob in given.items():
            wanted[WORDS[gaps[place.gap - 1][place.word - 1]]] += prob / sum(given.values())
        assert {word.word: word.prob for word in place.words} == pytest.approx(dict(wanted))

    drawn = sample_fillings(lm, TEXT, 4000, open_end=open_end, seed=1, rule=rule, no_unk=no_unk)
    counts = Counter(tuple(tuple(ids[word] for word in gap) for gap in one.words) for one in drawn)
    assert set(counts) <= set(probs)
    for gaps, prob in probs.items():
        assert abs(counts[gaps] / 4000 - prob) < 5 * math.sqrt(prob / 4000) + 1e-3


def test_what_cannot_hold(lm):
    for asked, reason in (
        ({"starts": "b"}, "nothing fits the gaps so that the rule starts with 'b' holds"),
        ({"words": (9, None)}, "nothing fits the gaps so that the rule 9 words or more holds"),
    ):
        rule = rule_from_words(lm.tokenizer, **asked)
        for ask in (best_fillings, gap_words, sample_fillings):
            with pytest.raises(ValueError, match=reason):
                ask(lm, TEXT, 2, rule=rule)
    with pytest.raises(ValueError, match="under a rule a gap holds no end mark"):
        sample_fillings(lm, TEXT, no_unk=True, ends=True)


def test_a_beam_that_may_have_missed_a_filling_says_so(lm, monkeypatch):
    """With a width of one beginning the likeliest word is taken in every gap."""
    from bighmm.infer import ruled_fill

    asked = ruled_fill.best_rows
    monkeypatch.setattr(
        ruled_fill, "best_rows", lambda model, row, table, k, width: asked(model, row, table, k, 1)
    )
    found = best_fillings(lm, "a ___3", 3, no_unk=True)
    assert not found.exact and len(found.fillings) == 1
