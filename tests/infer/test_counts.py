"""Expected counts against enumeration of all paths."""

import pytest
import torch

from bighmm.infer.reference import Enumeration
from models import KINDS, cut_work, ragged, random_hmm

LENGTHS = [4, 1, 0, 3]


def enumerated(hmm, tokens, lengths):
    """start (Z,), transition (Z, Z), emission (V, Z) by the definition."""
    size = hmm.num_states
    start, moves = torch.zeros(size).double(), torch.zeros(size, size).double()
    emitted = torch.zeros(hmm.vocabulary_size, size).double()
    for row, n in zip(tokens, lengths, strict=True):
        ids = row[:n].tolist()
        paths = Enumeration(hmm, ids)
        for path, prob in paths.paths.items():
            share = prob / paths.prob
            for t, (state, token) in enumerate(zip(path, ids, strict=True)):
                emitted[token, state] += share
                if t == 0 or (hmm.reset and ids[t - 1] == hmm.end):
                    start[state] += share
                else:
                    moves[path[t - 1], state] += share
    return start, moves, emitted


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_against_enumeration(kind, reset, pieces, monkeypatch):
    hmm = random_hmm(kind, states=6, vocabulary=4, reset=reset, seed=3)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=3)
    tokens[0, 1] = hmm.end
    start, moves, emitted = enumerated(hmm, tokens, lengths)
    if pieces:
        cut_work(monkeypatch, 7)
    found = hmm.expected_counts(tokens, lengths)
    torch.testing.assert_close(found.log_prob, hmm.log_prob(tokens, lengths))
    torch.testing.assert_close(found.start, start)
    torch.testing.assert_close(found.transition, moves)
    states = hmm.support.states(torch.arange(hmm.vocabulary_size))
    expected = emitted.gather(1, states.clamp(min=0)).masked_fill(states < 0, 0.0)
    torch.testing.assert_close(found.emission, expected)


def test_one_pass_of_baum_welch_raises_the_likelihood():
    hmm = random_hmm("dense-table", states=5, vocabulary=6, seed=1)
    tokens, lengths = ragged(6, [9, 7, 12, 3, 10], seed=1)
    before = hmm.log_prob(tokens, lengths).sum()
    counts = hmm.expected_counts(tokens, lengths)
    better = type(hmm).from_probs(
        counts.start / counts.start.sum(),
        counts.transition / counts.transition.sum(1, keepdim=True),
        (counts.emission / counts.emission.sum(0)).T,
        end=hmm.end,
        reset=hmm.reset,
    )
    assert better.log_prob(tokens, lengths).sum() > before + 0.5


def test_a_row_of_probability_zero_adds_nothing():
    hmm = random_hmm("dense-table", states=4, vocabulary=5, seed=2)
    hmm.emission[3] = -torch.inf
    tokens = torch.tensor([[0, 1, 2], [0, 3, 2]])
    found, alone = hmm.expected_counts(tokens), hmm.expected_counts(tokens[:1])
    assert found.log_prob[1] == -torch.inf
    for both, one in zip(found[1:], alone[1:], strict=True):
        torch.testing.assert_close(both, one)
