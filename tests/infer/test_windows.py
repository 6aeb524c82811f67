"""Work that is cut: a carried state equals one long sequence, small pieces equal the whole."""

import pytest
import torch

from bighmm.infer.sequences import Carry, batches_by_length, validate, windows
from bighmm.ops import memory
from models import KINDS, cut_work, ragged, random_hmm

LENGTHS = [9, 1, 0, 5, 8]


def case(kind, reset=True, dtype=torch.float64):
    hmm = random_hmm(kind, states=12, vocabulary=7, reset=reset, seed=4, dtype=dtype)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=4)
    tokens[0, 2] = hmm.end  # the end mark closes a window of three
    tokens[3, 3] = hmm.end  # and opens one
    return hmm, tokens, lengths


@pytest.mark.parametrize("impl", ["loop", "tree"])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_carried_state(kind, reset, impl):
    hmm, tokens, lengths = case(kind, reset)
    sequences = validate(hmm, tokens, lengths)
    for step in (1, 3, 4):
        carry = Carry.at_start(hmm, len(tokens))
        total = torch.zeros(len(tokens)).double()
        for first in range(0, tokens.shape[1], step):
            gained, carry = hmm.advance(sequences.window(first, first + step), carry, impl)
            total += gained
        torch.testing.assert_close(total, hmm.log_prob(tokens, lengths))
        torch.testing.assert_close(hmm.next_token_after(carry), hmm.next_token(tokens, lengths))
        torch.testing.assert_close(carry.log_alpha.logsumexp(1), torch.zeros_like(total))


@pytest.mark.parametrize("elements", [1, 40, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_small_pieces(kind, elements, monkeypatch):
    hmm, tokens, lengths = case(kind)

    def answers():
        posterior, best = hmm.posterior(tokens, lengths), hmm.viterbi(tokens, lengths)
        paths = hmm.log_prob(tokens, lengths), hmm.log_prob(tokens, lengths, impl="tree")
        return *paths, hmm.next_token(tokens, lengths), *posterior, *best

    whole = answers()
    cut_work(monkeypatch, elements)
    assert len(windows(hmm, 5, 9)) > 1
    for got, expected in zip(answers(), whole, strict=True):
        torch.testing.assert_close(got, expected)


def test_groups_cover_every_row_once():
    lengths = torch.tensor([3, 0, 7, 7, 1, 2])
    groups = batches_by_length(lengths, 2**21)  # 8 positions at once
    assert [lengths[g].tolist() for g in groups] == [[7], [7], [3, 2], [1, 0]]
    assert sorted(torch.cat(groups).tolist()) == list(range(6))


def test_windows_cover_every_position_once(monkeypatch):
    hmm = random_hmm("dense-table", states=6)
    monkeypatch.setattr(memory, "WORKING", 24)
    assert windows(hmm, 2, 7) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert windows(hmm, 2, 0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequence_keeps_its_precision(kind):
    """In float32, and as one window: the sums must not grow with the length."""
    hmm = random_hmm(kind, states=12, vocabulary=7, dtype=torch.float32, end=None)
    tokens, _ = ragged(hmm.vocabulary_size, [1500])
    exact = hmm.to("cpu", torch.float64).posterior(tokens)
    answer = hmm.posterior(tokens)
    torch.testing.assert_close(answer.log_prob.double(), exact.log_prob, rtol=1e-6, atol=0)
    torch.testing.assert_close(answer.marginals.double(), exact.marginals, rtol=0, atol=5e-6)
