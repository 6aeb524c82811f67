"""log p(x, z) of known states: sums to p(x), and is what enumeration says."""

import itertools

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.model.emissions import FactoredEmission
from bighmm.model.support import Dense
from bighmm.model.transitions import Flat
from models import KINDS, random_hmm


@pytest.mark.parametrize("kind", KINDS)
def test_sum_over_all_states_is_the_likelihood(kind):
    hmm = random_hmm(kind, states=6, vocabulary=4, end=0)
    tokens = torch.tensor([[1, 0, 3], [2, 2, 1]])
    paths = torch.tensor(list(itertools.product(range(6), repeat=3)))
    for row in tokens:
        joint = hmm.joint_log_prob(row.expand(len(paths), -1), paths)
        torch.testing.assert_close(joint.logsumexp(0), hmm.log_prob(row.unsqueeze(0)).squeeze(0))


@pytest.mark.parametrize("kind", KINDS)
def test_best_path_has_its_probability(kind):
    hmm = random_hmm(kind, states=6, vocabulary=4, end=0)
    tokens, lengths = torch.tensor([[1, 0, 3, 2], [2, 2, 0, 0]]), torch.tensor([4, 2])
    best = hmm.viterbi(tokens, lengths)
    torch.testing.assert_close(hmm.joint_log_prob(tokens, best.states, lengths), best.log_prob)


def test_factored_emissions():
    generator = torch.Generator().manual_seed(0)
    leaving, entering, emit, words = (
        torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (5, 5, 5, 4)
    )
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    start = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    emissions = FactoredEmission(emit, words, bias)
    hmm = HMM(start, Flat(leaving, entering), emissions, Dense(5, 4), 0)
    table = HMM(start, Flat(leaving, entering), emissions.table, Dense(5, 4), 0)
    tokens, states = torch.tensor([[1, 3, 0, 2]]), torch.tensor([[4, 0, 1, 2]])
    found = hmm.joint_log_prob(tokens, states)
    torch.testing.assert_close(found, table.joint_log_prob(tokens, states))


def test_its_gradient():
    hmm = random_hmm("dense-table", states=4, vocabulary=3, end=0)
    table = hmm.transitions.table.requires_grad_()
    hmm.joint_log_prob(torch.tensor([[1, 2]]), torch.tensor([[3, 1]])).sum().backward()
    expected = -table.detach().softmax(1)
    expected[3, 1] += 1
    torch.testing.assert_close(table.grad[3], expected[3])
    assert not hmm.posterior(torch.tensor([[1, 2]])).log_prob.requires_grad


def test_unknown_states_are_left_out():
    hmm = random_hmm("dense-table", states=5, vocabulary=4, end=0)
    start, _, emission = (t.log() for t in hmm.tables())
    found = hmm.joint_log_prob(torch.tensor([[1, 2, 3]]), torch.tensor([[2, -1, 4]]))
    torch.testing.assert_close(found, (start[2] + emission[2, 1] + emission[4, 3]).view(1))


def test_a_state_that_cannot_emit_its_word():
    hmm = random_hmm("blocked-table", states=6, vocabulary=4, end=0)
    other = hmm.support.states(torch.tensor([1]))[0]
    wrong = next(z for z in range(6) if z not in other.tolist())
    assert hmm.joint_log_prob(torch.tensor([[1]]), torch.tensor([[wrong]])) == -torch.inf


def test_errors():
    hmm = random_hmm("dense-table", states=5, vocabulary=4, end=0)
    with pytest.raises(ValueError, match="shape of the tokens"):
        hmm.joint_log_prob(torch.tensor([[1, 2]]), torch.tensor([[1]]))
    with pytest.raises(ValueError, match="states go from 0 to 4"):
        hmm.joint_log_prob(torch.tensor([[1, 2]]), torch.tensor([[1, 5]]))
