"""The state carried from window to window: exact without dropout, restricted with it."""

import pytest
import torch

from bighmm.base import randomness
from bighmm.hmm import HMM
from bighmm.infer.sequences import Carry, validate
from bighmm.model.support import PerToken
from bighmm.model.transitions import Table
from bighmm.ops.carry import renormalise
from bighmm.train.carrying import from_carry, to_carry
from models import KINDS, ragged, random_hmm


def restricted(hmm: HMM, kept: torch.Tensor) -> HMM:
    """Enough of `hmm` over the states `kept` to carry a state onto it."""
    support = hmm.support.restrict(kept)
    emission = hmm.start.new_zeros(hmm.vocabulary_size, support.states_per_token)
    moves = Table(hmm.start.new_zeros(len(kept), len(kept)))
    return HMM(hmm.start[kept].log_softmax(0), moves, emission, support, hmm.end)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_without_dropout_are_one_long_sequence(kind):
    hmm = random_hmm(kind, states=12, vocabulary=7, seed=3)
    tokens, lengths = ragged(7, [23, 17, 9, 0], seed=4)
    whole = validate(hmm, tokens, lengths)
    total, carried = torch.zeros(4, dtype=torch.float64), None
    for first in range(0, 23, 5):
        # As in training, a window is read by itself and does not know what preceded it.
        part = tokens[:, first : first + 5]
        window = validate(hmm, part, (lengths - first).clamp(0, part.shape[1]))
        if carried is None:
            carry = Carry.at_start(hmm, 4)
        else:
            carry = to_carry(carried, hmm, None, hmm.num_states)
        log_prob, carry = hmm.advance(window, carry)
        carried = from_carry(carry, hmm, None)
        total += log_prob
    expected = hmm.advance(whole, Carry.at_start(hmm, 4))[0]
    torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_onto_a_mask_is_the_distribution_restricted_and_renormalised(kind):
    hmm = random_hmm(kind, states=12, vocabulary=7, seed=5)
    _, carry = hmm.advance(validate(hmm, *ragged(7, [6, 3, 8], seed=6)), Carry.at_start(hmm, 3))
    kept = hmm.support.draw_kept(0.5, torch.tensor(1))
    smaller = restricted(hmm, kept)
    found = to_carry(from_carry(carry, hmm, None), smaller, kept, hmm.num_states)

    assert torch.equal(found.tokens, carry.tokens) and torch.equal(found.fresh, carry.fresh)
    now = smaller.support.states(carry.tokens)
    for row, states in enumerate(hmm.support.states(carry.tokens).tolist()):
        weights = dict(zip(states, carry.log_alpha[row].exp().tolist(), strict=True))
        places = [int(kept[i]) if i >= 0 else -1 for i in now[row].tolist()]
        chosen = [weights[z] if z >= 0 else 0.0 for z in places]
        expected = torch.tensor([w / sum(chosen) for w in chosen], dtype=torch.float64)
        torch.testing.assert_close(found.log_alpha[row].exp(), expected)


def test_from_mask_to_mask():
    hmm = random_hmm("blocked-flat", states=12, vocabulary=7)  # three blocks of four states
    token = torch.tensor([1])  # of the block with the states 4 … 7
    first, second = torch.tensor([0, 1, 4, 6, 8, 9]), torch.tensor([2, 3, 6, 7, 8, 9])
    carry = Carry(token, torch.tensor([[0.25, 0.75]]).log().double(), torch.tensor([False]))
    carried = from_carry(carry, restricted(hmm, first), first)
    assert carried["states"].tolist() == [[4, 6]]
    found = to_carry(carried, restricted(hmm, second), second, 12)
    assert found.log_alpha.exp().tolist() == [[1.0, 0.0]]  # state 6 is left, state 7 had no weight
    again = to_carry(from_carry(found, restricted(hmm, second), second), hmm, None, 12)
    assert again.log_alpha.exp().tolist() == [[0.0, 0.0, 1.0, 0.0]]


def test_even_where_nothing_kept_had_weight():
    hmm = random_hmm("blocked-table", states=8, vocabulary=2)  # two blocks of four states
    first, second = torch.tensor([0, 1, 4, 5]), torch.tensor([2, 3, 6, 7])
    log_alpha = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()
    carry = Carry(torch.tensor([0, 1]), log_alpha, torch.tensor([False, True]))
    carried = from_carry(carry, restricted(hmm, first), first)
    found = to_carry(carried, restricted(hmm, second), second, 8)
    torch.testing.assert_close(found.log_alpha.exp(), torch.full((2, 2), 0.5).double())
    assert found.fresh.tolist() == [False, True]


def test_listed_states_are_even_over_what_a_token_still_has():
    table = torch.tensor([[0, 1, 2], [3, 4, 5]])
    hmm = random_hmm("per_token-flat", states=6, vocabulary=2)
    hmm = HMM(hmm.start, hmm.transitions, hmm.emission[:, :3], PerToken(table, 6), end=None)
    log_alpha = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64).log()
    carry = Carry(torch.tensor([0, 1]), log_alpha, torch.tensor([False, False]))
    carried = from_carry(carry, hmm, None)
    kept = torch.tensor([1, 2])
    found = to_carry(carried, restricted(hmm, kept), kept, 6)
    assert found.log_alpha[0].exp().tolist() == pytest.approx([0.0, 0.5, 0.5])
    # All states of token 1 are dropped: its prefix is impossible, and nothing is NaN.
    assert found.log_alpha[1].tolist() == [-torch.inf] * 3
    assert found.possible.tolist() == [True, False]


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9])
def test_kernel(rate):
    """The Triton form gives what the plain one does, also where nothing with weight is kept."""
    pytest.importorskip("triton")
    whole = random_hmm("blocked-flat", states=60, vocabulary=7, seed=3, dtype=torch.float32)
    first = whole.support.draw_kept(0.5, randomness.key(1, 0))
    then = whole.support.draw_kept(rate, randomness.key(1, 1))
    tokens = torch.tensor([0, 3, 6, 3])
    before = whole.support.restrict(first)
    states = first[before.states(tokens)]
    log_alpha = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    log_alpha[1] = -torch.inf
    log_alpha[1, 0] = 0.0
    fresh = torch.tensor([False, True, False, False])
    carried = {"tokens": tokens, "states": states, "log_alpha": log_alpha, "fresh": fresh}
    hmm = restricted(whole, then)
    plain = to_carry(carried, hmm, then, 60, impl="torch")
    fast = to_carry(carried, hmm, then, 60, impl="triton")
    torch.testing.assert_close(fast.log_alpha, plain.log_alpha)
    assert torch.equal(fast.fresh, plain.fresh)


def test_kernel_for_lists_of_unequal_length():
    pytest.importorskip("triton")
    states = torch.tensor([[3, 1, -1], [0, 2, 5], [4, -1, -1]])
    log_alpha = torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).log()
    kept = torch.tensor([[1, 2, -1, -1], [0, 2, 3, -1], [-1, -1, -1, -1]])
    plain, fast = (renormalise(states, log_alpha, kept, 6, impl) for impl in ("torch", "triton"))
    torch.testing.assert_close(fast, plain)
    assert plain.exp().tolist() == [[1, 0, 0, 0], [pytest.approx(1 / 3)] * 3 + [0], [0] * 4]
