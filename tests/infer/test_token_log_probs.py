"""log p of every token given those before it, against the next token at every place."""

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer import filter as module
from bighmm.ops import memory
from models import KINDS, random_hmm

ROWS = [[1, 2, 0, 3, 4, 4, 1], [2], [], [3, 3, 0, 0, 1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [False, True])
def test_by_next_tokens(monkeypatch, kind, pieces):
    if pieces:
        monkeypatch.setattr(memory, "WORKING", 7)
        monkeypatch.setattr(memory, "TILE", 7)
    hmm = random_hmm(kind, end=0)
    found = hmm.token_log_probs(ROWS)
    for row, ids in enumerate(ROWS):
        wanted = [hmm.next_token([ids[:t]])[0, token] for t, token in enumerate(ids)]
        torch.testing.assert_close(found[row, : len(ids)], found.new_tensor(wanted))
        assert (found[row, len(ids) :] == 0).all()


def test_after_an_impossible_token():
    """Nothing that follows is possible, not even after an end mark."""
    emission = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    hmm = HMM.from_probs(torch.full((2,), 0.5), torch.full((2, 2), 0.5), emission, end=0)
    found = hmm.token_log_probs([[1, 2, 1, 0, 1], [1, 1, 1, 1, 1]])
    assert (found[0, 1:] == -torch.inf).all()
    torch.testing.assert_close(found[1].exp(), torch.full((5,), 0.5))


@pytest.mark.parametrize("kind", ["dense-table", "blocked-two_level"])
def test_few_windows(monkeypatch, kind):
    """A long text is not done token by token."""
    hmm, made, window = random_hmm(kind), [], module.Sequences.window
    monkeypatch.setattr(
        module.Sequences, "window", lambda *given: made.append(given[1:]) or window(*given)
    )
    hmm.token_log_probs([[1, 2, 3] * 100])
    assert len(made) == 1
