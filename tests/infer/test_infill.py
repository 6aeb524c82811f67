"""Gaps: samples, probabilities and best fillings against the sum over all fillings and paths."""

import dataclasses
import itertools
import math

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.reference import Enumeration, log_prob_loop
from bighmm.model.support import Dense, PerToken
from bighmm.model.transitions import Table
from bighmm.ops import memory
from infer.test_extreme import model_with_zeros
from infer.test_sampling import assert_drawn_from
from models import KINDS, cut_work, normalised_emission, random_hmm

GAP = -1
TEXTS = {
    "one": [2, GAP, 1],
    "several": [GAP, 3, GAP, 1],
    "adjacent": [1, GAP, GAP, 2],
    "outside": [GAP, 2, GAP],
    "nothing known": [GAP, GAP, GAP],
    "after an end": [1, 0, GAP, 2],
    "before an end": [3, GAP, 0, GAP],
}


def fillings(hmm, text, ends=False):
    """Every filling of a text with its probability."""
    gaps = [t for t, token in enumerate(text) if token == GAP]
    words = [x for x in range(hmm.vocabulary_size) if ends or x != hmm.end]
    found = {}
    for chosen in itertools.product(words, repeat=len(gaps)):
        filled = list(text)
        for t, x in zip(gaps, chosen, strict=True):
            filled[t] = x
        found[tuple(filled)] = Enumeration(hmm, filled).prob
    return found


def ragged_texts(texts):
    lengths = torch.tensor([len(text) for text in texts])
    longest = max(map(len, texts))
    return torch.tensor([text + [9] * (longest - len(text)) for text in texts]), lengths


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", KINDS)
class TestEnumeration:
    """All texts at once, so that every batch is ragged."""

    def case(self, kind, reset):
        hmm = random_hmm(kind, states=6, vocabulary=4, seed=2, reset=reset)
        return hmm, list(TEXTS.values())

    def test_fill_probs(self, kind, ends, reset):
        hmm, texts = self.case(kind, reset)
        tokens, lengths = ragged_texts(texts)
        answer = hmm.fill_probs(tokens, lengths, ends)
        torch.testing.assert_close(answer.log_prob, hmm.known_log_prob(tokens, lengths, ends))
        assert answer.words.shape == (len(torch.nonzero(tokens == GAP)), 4)
        torch.testing.assert_close(answer.words.logsumexp(1), answer.words.new_zeros(13))
        for row, (b, t) in zip(answer.words, torch.nonzero(tokens == GAP).tolist(), strict=True):
            found = fillings(hmm, texts[b], ends)
            total = sum(found.values())
            assert float(answer.log_prob[b]) == pytest.approx(math.log(total))
            for x in range(4):
                expected = sum(p for filled, p in found.items() if filled[t] == x) / total
                assert float(row[x].exp()) == pytest.approx(expected)

    def test_best_fill(self, kind, ends, reset):
        hmm, texts = self.case(kind, reset)
        tokens, lengths = ragged_texts(texts)
        answer = hmm.best_fill(tokens, 100, lengths, ends)  # more than there are for each row
        assert answer.exact.all()
        for b, text in enumerate(texts):
            expected = fillings(hmm, text, ends)
            found = {
                tuple(words): p
                for words, p in zip(
                    answer.words[b, :, : len(text)].tolist(),
                    answer.log_prob[b].tolist(),
                    strict=True,
                )
                if p > -math.inf
            }
            assert found == pytest.approx({w: math.log(p) for w, p in expected.items()})
            number = len(expected)
            assert list(found.values()) == sorted(found.values(), reverse=True)
            assert (answer.log_prob[b, number:] == -math.inf).all()
            assert (answer.words[b, number:] == -1).all() and (
                answer.words[b, :, len(text) :] == -1
            ).all()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    "text", [TEXTS[name] for name in ("one", "several", "adjacent", "before an end")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_samples(kind, text, ends):
    hmm = random_hmm(kind, states=6, vocabulary=4, seed=2)
    found = fillings(hmm, text, ends)
    generator = torch.Generator().manual_seed(1)
    sample = hmm.fill(torch.tensor([text]), 3000, generator, ends=ends)
    assert sample.shape == (1, 3000, len(text))
    probs = torch.tensor(list(found.values())).double()
    assert_drawn_from(sample[0], torch.tensor(list(found)), probs / probs.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_filled_each_for_itself(kind):
    hmm = random_hmm(kind, states=6, vocabulary=4, seed=4)
    texts = [TEXTS["several"], TEXTS["one"], [1, 2], []]
    tokens, lengths = ragged_texts(texts)
    sample = hmm.fill(tokens, 2000, torch.Generator().manual_seed(3), lengths)
    assert sample.shape == (4, 2000, 4)
    for b, text in enumerate(texts):
        assert (sample[b, :, len(text) :] == -1).all()
        assert (sample[b, :, : len(text)] >= 0).all()
        for t, token in enumerate(text):
            assert token == GAP or (sample[b, :, t] == token).all()
    for b in (0, 1):
        found = fillings(hmm, texts[b])
        probs = torch.tensor(list(found.values())).double()
        drawn = sample[b, :, : len(texts[b])]
        assert_drawn_from(drawn, torch.tensor(list(found)), probs / probs.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_in_small_pieces(kind, monkeypatch):
    hmm = random_hmm(kind, states=6, vocabulary=4, seed=2)
    tokens, lengths = ragged_texts(list(TEXTS.values()))
    whole = hmm.fill_probs(tokens, lengths), hmm.best_fill(tokens, 3, lengths)
    cut_work(monkeypatch, 7)
    monkeypatch.setattr(memory, "TILE", 5)
    monkeypatch.setattr(memory, "CACHED", 20)
    answer = hmm.fill_probs(tokens, lengths), hmm.best_fill(tokens, 3, lengths)
    for got, expected in zip(itertools.chain(*answer), itertools.chain(*whole), strict=True):
        torch.testing.assert_close(got, expected)
    found = fillings(hmm, TEXTS["adjacent"])
    probs = torch.tensor(list(found.values())).double()
    sample = hmm.fill([TEXTS["adjacent"]], 500, torch.Generator().manual_seed(2))
    assert_drawn_from(sample[0], torch.tensor(list(found)), probs / probs.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_large_logits(kind):
    """Near-deterministic models in float32, where products of probabilities are zero."""
    hmm = random_hmm(kind, states=12, vocabulary=8, scale=200.0, seed=1, dtype=torch.float32)
    text = [3, GAP, 5, 1, GAP, GAP, 2]
    exact = hmm.to("cpu", torch.float64)
    answer = hmm.fill_probs([text])
    expected = exact.fill_probs([text])
    torch.testing.assert_close(answer.words.double(), expected.words, rtol=1e-4, atol=2e-2)
    torch.testing.assert_close(answer.log_prob.double(), expected.log_prob, rtol=1e-5, atol=1e-2)
    best = hmm.best_fill([text], 3)
    for words, log_prob in zip(best.words[0].tolist(), best.log_prob[0].tolist(), strict=True):
        assert log_prob == pytest.approx(log_prob_loop(hmm, words), rel=1e-4)
    assert (hmm.fill([text], 20) >= 0).all()
    one = exact.fill_probs([[3, GAP, 5, 1]])
    for x in range(1, 8):
        whole = log_prob_loop(exact, [3, x, 5, 1]) - float(one.log_prob)
        assert float(one.words[0, x]) == pytest.approx(whole, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", ["dense", "blocked", "per_token"])
def test_impossible(kind):
    """What cannot be is -inf or one sentence, nowhere NaN."""
    hmm = model_with_zeros(kind, torch.eye(6).roll(1, 1).bool())
    texts = [list(text) for text in itertools.product([GAP, 1, 2, 3], repeat=3)]
    tokens = torch.tensor(texts)
    totals = [sum(fillings(hmm, text).values()) for text in texts]
    possible = torch.tensor(totals) > 0
    assert possible.any() and not possible.all()
    answer, best = hmm.fill_probs(tokens), hmm.best_fill(tokens, 2)
    torch.testing.assert_close(answer.log_prob, torch.tensor(totals).double().log())
    rows = possible[torch.nonzero(tokens == GAP)[:, 0]]
    assert (answer.words[~rows] == -math.inf).all() and not answer.words.isnan().any()
    torch.testing.assert_close(
        answer.words[rows].logsumexp(1), torch.zeros(int(rows.sum())).double()
    )
    assert (best.words[~possible] == -1).all() and (best.log_prob[~possible] == -math.inf).all()
    assert (best.log_prob[possible, 0] > -math.inf).all() and best.exact.all()
    drawn = hmm.fill(tokens[possible], 5)
    assert (hmm.log_prob(drawn.flatten(0, 1)) > -math.inf).all()
    wrong = int(torch.nonzero(~possible)[0])
    with pytest.raises(ValueError, match=f"known tokens of row {wrong} have probability zero"):
        hmm.fill(tokens)


def test_words_with_fewer_states():
    support = PerToken(torch.tensor([[0, 1, 2], [2, 3, -1], [4, 5, -1], [0, 5, 3]]), 6)
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    like = random_hmm("per_token-flat", states=6, vocabulary=4)
    hmm = dataclasses.replace(like, emissions=normalised_emission(support, logits), support=support)
    for text in ([1, GAP, 2], [GAP, 1, GAP, GAP]):
        found = fillings(hmm, text, ends=True)
        best = hmm.best_fill([text], len(found), ends=True)
        possible = {words: math.log(p) for words, p in found.items() if p > 0}
        assert dict(
            zip(map(tuple, best.words[0].tolist()), best.log_prob[0].tolist(), strict=True)
        ) == pytest.approx(possible)
        probs = torch.tensor(list(found.values())).double()
        sample = hmm.fill([text], 2000, torch.Generator().manual_seed(1), ends=True)
        assert_drawn_from(sample[0], torch.tensor(list(found)), probs / probs.sum())


def test_a_state_that_only_ends():
    """Without its end mark nothing is left of it, to the last digit."""
    start, stay = torch.tensor([0.5, 0.5]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    emission = torch.tensor([[1.0, 0.0, 0.0], [0.001, 0.999, 0.0]])
    hmm = HMM.from_probs(start, stay, emission, end=0)
    assert hmm.fill([[GAP, GAP]], 50).unique().tolist() == [1]
    assert float(hmm.known_log_prob([[GAP, GAP]]).exp()) == pytest.approx(0.25 * 0.999**2)
    assert hmm.known_log_prob([[GAP, GAP]], ends=True).tolist() == pytest.approx([0.0])
    assert hmm.fill_probs([[GAP]]).words[0].tolist() == pytest.approx([-math.inf, 0.0, -math.inf])
    with pytest.raises(ValueError, match="probability zero"):
        hmm.fill([[2, GAP]])


def test_states_that_all_but_only_end():
    """What is left is added up, since one minus what rounds to one would be zero, or not zero."""
    emission = torch.tensor([[20.7, 0.0], [0.0, 0.0]]).log_softmax(0)
    one = HMM(torch.zeros(1), Table(torch.zeros(1, 1)), emission[:, :1], Dense(1, 2), end=0)
    assert float(one.known_log_prob([[GAP]])) == pytest.approx(-20.7)
    emission[:, 0] = torch.tensor([-6e-8, -math.inf])  # as a sum over a block of one may come out
    start = torch.tensor([0.5, 0.5]).log()
    two = HMM(start, Table(torch.zeros(2, 2)), emission, Dense(2, 2), end=0)
    assert float(two.known_log_prob([[GAP]]).exp()) == 0.25
    assert two.fill([[GAP]], 20).unique().tolist() == [1]


def test_without_end_mark_every_word_may_be_drawn():
    hmm = random_hmm("blocked-flat", states=6, vocabulary=4, end=None)
    assert hmm.known_log_prob([[GAP, GAP]]).tolist() == pytest.approx([0.0])
    assert set(hmm.fill([[GAP, GAP]], 200).unique().tolist()) == {0, 1, 2, 3}


def test_a_narrow_search_knows_that_it_may_be_wrong():
    hmm = random_hmm("dense-table", states=6, vocabulary=8, seed=5)
    text = [1, GAP, 3, GAP]
    narrow, wide = hmm.best_fill([text], 2, width=2), hmm.best_fill([text], 2)
    assert bool(wide.exact) and not bool(narrow.exact)
    expected = sorted(fillings(hmm, text).values(), reverse=True)[:2]
    assert wide.log_prob[0].exp().tolist() == pytest.approx(expected)
    assert bool(hmm.best_fill([[1, GAP, 3]], 2, width=2).exact)  # one gap


@pytest.mark.parametrize("kind", KINDS)
def test_reproducible(kind):
    hmm = random_hmm(kind, seed=3)
    drawn = [
        hmm.fill([[GAP, 1, GAP, GAP, 2]], 20, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_empty(kind, shape):
    hmm = random_hmm(kind)
    tokens = torch.zeros(*shape, dtype=torch.long)
    assert hmm.fill(tokens, 2).shape == (shape[0], 2, shape[1])
    answer = hmm.fill_probs(tokens)
    assert answer.words.shape == (0, hmm.vocabulary_size)
    assert answer.log_prob.tolist() == [0.0] * shape[0]
    assert hmm.best_fill(tokens, 2).log_prob.tolist() == [[0.0, -math.inf]] * shape[0]


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda hmm: hmm.fill([[GAP, 9]]), "token id 9 in row 0, position 1"),
        (lambda hmm: hmm.fill([[-2]]), "token id -2"),
        (lambda hmm: hmm.fill([GAP, 1]), r"shape \(batch, time\)"),
        (lambda hmm: hmm.fill_probs([[0.5]]), "whole numbers"),
        (lambda hmm: hmm.fill([[GAP]], 0), "n must be at least 1, not 0"),
        (lambda hmm: hmm.best_fill([[GAP]], 0), "k must be at least 1, not 0"),
        (lambda hmm: hmm.best_fill([[GAP]], 1, width=0), "width must be at least 1, not 0"),
        (lambda hmm: hmm.fill([[GAP]], lengths=[2]), "lengths must be 1 whole numbers"),
        (lambda hmm: hmm.best_paths([[GAP]], 1), "token id -1"),
        (lambda hmm: hmm.best_paths([[1]], 0), "k must be at least 1, not 0"),
    ],
)
def test_errors(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(random_hmm("dense-table"))
