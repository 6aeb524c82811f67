"""Hand-written backward passes: against finite differences, and against expected counts."""

import pytest
import torch

from bighmm.infer.reference import Enumeration
from bighmm.infer.sequences import Carry, validate
from bighmm.ops.chain import chain_log_sum
from models import KINDS, cut_work, gradients, leaves, ragged, random_hmm, rebuilt

LENGTHS = [4, 1, 0, 3]


def case(kind, reset=True):
    hmm = random_hmm(kind, states=6, vocabulary=4, reset=reset, seed=5)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=5)
    tokens[0, 1] = hmm.end  # a text that ends inside a row
    return hmm, tokens, lengths


@pytest.mark.parametrize("method", ["loop", "tree"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_chain(steps, method):
    generator = torch.Generator().manual_seed(steps)
    first = torch.randn(3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    tiles = torch.randn(3, steps, 2, 2, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([steps + 1, 1, max(1, steps)])
    assert torch.autograd.gradcheck(
        lambda first, tiles: chain_log_sum(first, tiles, lengths, method)[0],
        (first, tiles.requires_grad_()),
    )


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize(
    "kind, impl", [(kind, "loop") for kind in KINDS] + [(kind, "tree") for kind in KINDS[2:]]
)
def test_log_prob(kind, impl, carried):
    hmm, tokens, lengths = case(kind)
    window = validate(hmm, tokens, lengths)
    carry = Carry.at_start(hmm, len(tokens))
    if carried:
        prefix = validate(hmm, torch.tensor([[1, 2], [3, 1], [2, hmm.end], [3, 3]]))
        carry = hmm.advance(prefix, carry)[1]
        assert carry.fresh.tolist() == [False, False, True, False]
    assert torch.autograd.gradcheck(
        lambda *given: rebuilt(hmm, *given).advance(window, carry, impl)[0], leaves(hmm)
    )


@pytest.mark.parametrize("kind", ["dense-table", "dense-flat"])
@pytest.mark.parametrize("elements", [1, 15])
def test_dense_matrix_that_is_not_kept(kind, elements, monkeypatch):
    hmm, tokens, lengths = case(kind)
    whole = gradients(hmm, tokens, lengths)
    cut_work(monkeypatch, elements)
    for g, expected in zip(gradients(hmm, tokens, lengths), whole, strict=True):
        torch.testing.assert_close(g, expected)
    window, carry = validate(hmm, tokens, lengths), Carry.at_start(hmm, len(tokens))
    assert torch.autograd.gradcheck(
        lambda *given: rebuilt(hmm, *given).advance(window, carry)[0], leaves(hmm)
    )


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", ["dense-table", "blocked-table"])
def test_gradient_is_expected_counts(kind, reset):
    """With c_i the row normaliser, d log p / d s_ij = N_ij - p(j | i) Σ_j N_ij."""
    hmm, tokens, lengths = case(kind, reset)
    starts = torch.zeros(hmm.num_states).double()
    emitted = torch.zeros(hmm.vocabulary_size, hmm.num_states).double()
    moves = torch.zeros(hmm.num_states, hmm.num_states).double()
    for row, n in zip(tokens, lengths, strict=True):
        ids = row[:n].tolist()
        paths = Enumeration(hmm, ids)
        for path, prob in paths.paths.items():
            for t, (state, token) in enumerate(zip(path, ids, strict=True)):
                emitted[token, state] += prob / paths.prob
                if t == 0 or (reset and ids[t - 1] == hmm.end):
                    starts[state] += prob / paths.prob
                else:
                    moves[path[t - 1], state] += prob / paths.prob
    of_start, of_emission, of_table = gradients(hmm, tokens, lengths)
    torch.testing.assert_close(of_start, starts)
    cells = hmm.support.states(torch.arange(hmm.vocabulary_size))
    torch.testing.assert_close(of_emission, emitted.gather(1, cells))
    probs = hmm.tables()[1]
    torch.testing.assert_close(of_table, moves - probs * moves.sum(1, keepdim=True))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_without_gradient_do_not_spoil_the_gradient(kind):
    """The normaliser is kept; one that was made without gradient must not be used for training."""
    hmm, tokens, lengths = case(kind)
    parameters = leaves(hmm)
    asked_before = rebuilt(hmm, *parameters)
    for answer in (
        asked_before.next_token(tokens, lengths),
        asked_before.posterior(tokens, lengths)[1],
    ):
        assert not answer.requires_grad
    total = asked_before.log_prob(tokens, lengths).sum()
    got = torch.autograd.grad(total, parameters)
    for g, expected in zip(got, gradients(hmm, tokens, lengths), strict=True):
        torch.testing.assert_close(g, expected)


def test_normaliser_is_computed_once_for_one_gradient():
    hmm, tokens, lengths = case("dense-flat")
    parameters = leaves(hmm)
    same = rebuilt(hmm, *parameters)
    assert same.transitions.norm is same.transitions.norm
    halves = [same.log_prob(tokens[rows], lengths[rows]).sum() for rows in ([0, 1], [2, 3])]
    got = torch.autograd.grad(sum(halves), parameters)
    for g, expected in zip(got, gradients(hmm, tokens, lengths), strict=True):
        torch.testing.assert_close(g, expected)


@pytest.mark.parametrize("kind, impl", [(kind, "loop") for kind in KINDS] + [(KINDS[3], "tree")])
def test_second_derivatives_are_refused(kind, impl):
    hmm, tokens, lengths = case(kind)
    parameters = leaves(hmm)
    total = rebuilt(hmm, *parameters).log_prob(tokens, lengths, impl=impl).square().sum()
    (grad,) = torch.autograd.grad(total, parameters[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
