"""The factors of a guide against what the HMM says of whole sequences."""

import importlib
import sys

import numpy as np
import pytest
import torch

from bighmm import constraints as c
from bighmm.guide.weights import Guide
from models import KINDS, random_hmm

RULES = [
    c.contains([[1, 2]]),
    c.contains([[3], [2]]) & c.length(2, 4),
    c.excludes([[4]]) & c.ends_with([1]),
    c.starts_with([2]) + c.contains([[2]]),
]
LENGTH = 6
END = 0


def guide_of(kind, prefixes=None, **options):
    return Guide(random_hmm(kind, **options), RULES, LENGTH, prefixes)


def expected(hmm, rule, prefix, text, length=LENGTH):
    """The same from the probabilities of the rule before and after each token."""
    ended = c.until(rule, END)
    before = hmm.rule_log_prob(ended.after(text), length - len(text), [*prefix, *text])
    after = [
        hmm.rule_log_prob(ended.after([*text, x]), length - len(text) - 1, [*prefix, *text, x])
        for x in range(hmm.vocabulary_size)
    ]
    return torch.stack(after) - before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefixes", [None, [[], [3], [1, 2], [2, END, 4, 1]]])
def test_factors_are_those_of_the_rule(kind, prefixes):
    guide = guide_of(kind, prefixes)
    item = torch.arange(4)
    text = torch.empty(4, 0, dtype=torch.long)
    for _ in range(LENGTH - 1):
        weights = guide.log_weights(text, item)
        for row, rule in enumerate(RULES):
            prefix = [] if prefixes is None else prefixes[row]
            if END in text[row]:
                assert not weights[row].any()
                continue
            found = expected(guide.hmm, rule, prefix, text[row].tolist())
            assert torch.allclose(weights[row], found, atol=1e-9)
        text = torch.cat([text, weights[:, 1:].argmax(1, keepdim=True) + 1], 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_hmm_guides_itself_exactly(kind, dtype):
    """Its next-token distribution times the factors is the one under the rule, and sums to one."""
    hmm = random_hmm(kind, dtype=dtype)
    guide = Guide(hmm, RULES, LENGTH)
    for text in ([], [2], [2, 3]):
        rows = torch.tensor([text] * 4, dtype=torch.long)
        guided = hmm.next_token(rows) + guide.log_weights(rows, torch.arange(4))
        assert torch.allclose(guided.exp().sum(1), torch.ones(4, dtype=dtype), atol=1e-5)
        for row, rule in zip(guided, RULES, strict=True):
            yet = c.until(rule, END).after(text)
            exact = hmm.next_token(rows[:1], rule=yet, remaining=LENGTH - len(text))[0]
            assert torch.allclose(row.exp(), exact.exp(), atol=1e-5)


def test_factors_of_a_whole_text_make_what_the_rule_was_worth():
    guide = guide_of("dense-table")
    text = [2, 3, 2, END]
    total = torch.zeros(())
    for place, token in enumerate(text):
        rows = torch.tensor([text[:place]], dtype=torch.long)
        total = total + guide.log_weights(rows, torch.tensor([3]))[0, token]
    worth = guide.hmm.rule_log_prob(c.until(RULES[3], END), LENGTH)
    assert torch.allclose(total.double(), -worth)


@pytest.mark.parametrize("kind", ["dense-flat", "blocked-flat"])
def test_rows_may_change_places(kind):
    """As in a beam search: rows are dropped, doubled and moved, but nothing is read twice."""
    guide = guide_of(kind)
    generator = torch.Generator().manual_seed(3)
    item = torch.arange(4).repeat_interleave(3)
    text = torch.empty(12, 0, dtype=torch.long)
    for _ in range(LENGTH):
        weights = guide.log_weights(text, item)
        anew = Guide(guide.hmm, RULES, LENGTH).log_weights(text, item)
        assert torch.allclose(weights, anew)
        chosen = torch.randint(3, (12,), generator=generator) + 3 * item
        tokens = torch.randint(guide.hmm.vocabulary_size, (12, 1), generator=generator)
        text = torch.cat([text[chosen], tokens], 1)
        if text.shape[1] > 1:
            assert guide._parents(text, item) is not None


def test_texts_that_have_ended_or_failed():
    guide = guide_of("dense-table")
    text = torch.tensor([[2, END], [4, 4], [2, 2]])
    weights = guide.log_weights(text, torch.tensor([0, 2, 3]))
    assert not weights[0].any()
    assert (weights[1] == -torch.inf).all()
    assert (weights[2] > -torch.inf).any()
    tail = torch.tensor([[2, END, 9999, 9999]])  # what a language model pads with
    assert not guide.log_weights(tail, torch.tensor([0])).any()


def test_at_the_last_place_there_is_only_the_end_mark():
    guide = guide_of("dense-table")
    text = torch.tensor([[3, 3, 3, 1, 2]])
    weights = guide.log_weights(text, torch.tensor([0]))
    assert torch.allclose(weights[0, END], -guide.hmm.next_token(text)[0, END])
    assert (weights[0, 1:] == -torch.inf).all()


@pytest.mark.parametrize(
    ("rules", "options", "said"),
    [
        ([c.contains([[1, 2]])], {"length": 2}, "needs at least 2 tokens"),
        ([c.contains([[1]]) & c.excludes([[1]])], {}, "no sequence of tokens can satisfy"),
        ([c.length(0)], {"length": 0}, "at least one token"),
        ([c.length(0)], {"prefixes": [[], []]}, "2 prefixes were given for 1 rules"),
        ([c.contains([[7]])], {}, "token id 7"),
    ],
)
def test_bad_requests(rules, options, said):
    with pytest.raises(ValueError, match=said):
        Guide(random_hmm("dense-table"), rules, **{"length": LENGTH, **options})


def test_a_rule_of_probability_zero():
    emission = torch.tensor([[0.2, 0.8, 0.0], [0.3, 0.7, 0.0]])
    hmm = random_hmm("dense-table", states=2, vocabulary=3)
    made = type(hmm).from_probs(
        torch.tensor([0.5, 0.5]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]), emission, end=END
    )
    with pytest.raises(ValueError, match="probability zero in this HMM at the beginning"):
        Guide(made, [c.contains([[2]])], LENGTH)
    with pytest.raises(ValueError, match="a prefix has probability zero"):
        Guide(made, [c.contains([[1]])], LENGTH, [[2]])


def test_without_an_end_mark():
    with pytest.raises(ValueError, match="no end mark"):
        Guide(random_hmm("dense-table", end=None), RULES, LENGTH)


def test_longer_than_it_was_made_for():
    with pytest.raises(ValueError, match="texts of 6 tokens"):
        guide_of("dense-table").log_weights(torch.ones(1, 6, dtype=torch.long), torch.tensor([0]))


@pytest.mark.filterwarnings("error")
def test_prefixes_of_every_kind():
    text, item = torch.tensor([[3]] * 4), torch.arange(4)
    rows = [[1, 2], [4], [3, 3, 1], [2]]
    wanted = guide_of("dense-table", rows).log_weights(text, item)
    for kind in (np.array, torch.tensor):
        given = guide_of("dense-table", [kind(row) for row in rows])
        assert torch.equal(given.log_weights(text, item), wanted)


def test_without_the_extra(monkeypatch):
    """Importing what needs transformers says so in one sentence; the guide itself does not."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "bighmm.guide.hugging_face", raising=False)
    for imports in (
        lambda: importlib.import_module("bighmm.guide.hugging_face"),
        lambda: importlib.import_module("bighmm.guide").GuidedLogits,
    ):
        with pytest.raises(ImportError) as error:
            imports()
        assert str(error.value) == (
            'guiding a language model needs the package transformers: install "bighmm[teachers]"'
        )
        assert error.value.__suppress_context__ and isinstance(error.value, ValueError)
    assert importlib.import_module("bighmm.guide").Guide is Guide
