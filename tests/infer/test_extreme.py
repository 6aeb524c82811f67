"""Near-deterministic models, exact zeros and impossible sequences, against float64 log space."""

import math

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.reference import log_prob_loop, marginals_loop, next_token_loop
from bighmm.infer.sequences import Carry, validate
from bighmm.model.support import Blocked, Dense
from bighmm.model.transitions import Table
from models import (
    KINDS,
    dense_twin,
    gradients,
    leaves,
    normalised_emission,
    ragged,
    random_hmm,
    random_support,
    rebuilt,
)

IMPLS = [(kind, "loop") for kind in KINDS] + [(kind, "tree") for kind in KINDS[2:]]
ZEROS = ["dense", "blocked", "per_token"]
LENGTHS = [9, 1, 0, 6, 9]


def rows_of(tokens, lengths):
    return [row[:n].tolist() for row, n in zip(tokens, lengths.tolist(), strict=True)]


def exact_log_prob(hmm, tokens, lengths):
    return torch.tensor([log_prob_loop(hmm, row) for row in rows_of(tokens, lengths)]).double()


def exact_gradients(hmm, tokens, lengths):
    """Of the sum of log p, by autograd through the plain recursion in float64.

    A log-probability of -inf becomes -1e30, which counts as zero but leaves no NaN behind.
    """
    parameters = leaves(hmm.to("cpu", torch.float64))
    model = dense_twin(rebuilt(hmm, *parameters))
    start, table, emission = (
        t.clamp(min=-1e30) for t in (model.start, model.transitions.table, model.emission)
    )
    table = table - table.logsumexp(1, keepdim=True)
    total = start.sum() * 0
    for row in rows_of(tokens, lengths):
        log_alpha = torch.zeros(1)
        for t, token in enumerate(row):
            anew = t == 0 or (hmm.reset and row[t - 1] == hmm.end)
            moves = start.unsqueeze(0) if anew else table
            log_alpha = (log_alpha.unsqueeze(1) + moves).logsumexp(0) + emission[token]
        total = total + log_alpha.logsumexp(0)
    return torch.autograd.grad(total, parameters)


def assert_gradients_close(got, expected, tolerance):
    for g, e in zip(got, expected, strict=True):
        assert g.isfinite().all()
        assert (g - e).abs().max() <= tolerance * max(1.0, float(e.abs().max()))


@pytest.mark.parametrize("scale", [200.0, 2000.0])
@pytest.mark.parametrize("kind, impl", IMPLS)
def test_large_logits(kind, impl, scale):
    hmm = random_hmm(kind, states=12, vocabulary=8, scale=scale, seed=1, dtype=torch.float32)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=1)
    log_prob = hmm.log_prob(tokens, lengths, impl=impl)
    expected = exact_log_prob(hmm, tokens, lengths)
    assert expected.min() < -2 * scale
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=1e-4)
    got = gradients(hmm, tokens, lengths, impl=impl)
    assert_gradients_close(got, exact_gradients(hmm, tokens, lengths), 1e-6 * scale + 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_other_questions_with_large_logits(kind):
    hmm = random_hmm(kind, states=12, vocabulary=8, scale=200.0, seed=1, dtype=torch.float32)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=1)
    posterior, best = hmm.posterior(tokens, lengths), hmm.viterbi(tokens, lengths)
    following = hmm.next_token(tokens, lengths)
    exact_best = hmm.to("cpu", torch.float64).viterbi(tokens, lengths)
    assert torch.equal(best.states, exact_best.states)
    torch.testing.assert_close(best.log_prob.double(), exact_best.log_prob, rtol=1e-5, atol=1e-4)
    for b, row in enumerate(rows_of(tokens, lengths)):
        torch.testing.assert_close(
            following[b].double(), next_token_loop(hmm, row), rtol=1e-5, atol=1e-3
        )
        if row:
            got = torch.zeros(len(row), hmm.num_states)
            ids = posterior.states[b, : len(row)].clamp(min=0)
            got.scatter_add_(1, ids, posterior.marginals[b, : len(row)])
            torch.testing.assert_close(got.double(), marginals_loop(hmm, row), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("impl", ["loop", "tree"])
@pytest.mark.parametrize("depth", [50.0, 100.0, 1000.0])
def test_mass_of_every_row_outside_the_tile(depth, impl):
    """Each block keeps to itself, but the text changes the block at every step."""
    support = Blocked.of(torch.arange(6) % 3, 6)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(6, 6, generator=generator) * 10
    block = torch.arange(6) // 2
    table = torch.where(block.unsqueeze(1) == block, table, table - depth)
    emission = normalised_emission(support, torch.randn(6, 2, generator=generator))
    hmm = HMM(torch.randn(6, generator=generator).log_softmax(0), Table(table), emission, support)
    tokens, lengths = torch.arange(17).repeat(2, 1) % 6, torch.tensor([17, 12])
    tokens[1] = 5 - tokens[1]
    log_prob = hmm.log_prob(tokens, lengths, impl=impl)
    expected = exact_log_prob(hmm, tokens, lengths)
    assert expected.max() < -8 * depth
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=0)
    got = gradients(hmm, tokens, lengths, impl=impl)
    assert_gradients_close(got, exact_gradients(hmm, tokens, lengths), 2e-3)


@pytest.mark.parametrize("kind", ["dense-table", "dense-flat"])
def test_dense_path_through_all_but_unreachable_states(kind):
    """Each state emits one token and all but never leaves itself; the text visits all of them."""
    size = 5
    width = torch.eye(size)
    operands = [width * 300] if kind.endswith("table") else [width * 300, width]
    hmm = random_hmm(kind, states=size, vocabulary=size, dtype=torch.float32, end=None)
    emission = (width * 150).log_softmax(0).contiguous()
    hmm = rebuilt(hmm, torch.zeros(size).log_softmax(0), emission, *operands)
    tokens, lengths = torch.tensor([[0, 1, 2, 3, 4, 0], [4, 4, 2, 2, 0, 0]]), torch.tensor([6, 5])
    torch.testing.assert_close(
        hmm.log_prob(tokens, lengths).double(), exact_log_prob(hmm, tokens, lengths)
    )
    got = gradients(hmm, tokens, lengths)
    assert_gradients_close(got, exact_gradients(hmm, tokens, lengths), 1e-3)


def model_with_zeros(kind, transition, dtype=torch.float64):
    """Random probabilities where `transition` (Z, Z) allows a move; no state emits every token."""
    size = len(transition)
    support = random_support(kind, size, 8, seed=3)
    generator = torch.Generator().manual_seed(3)
    table, logits, start = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((size, size), (8, support.states_per_token), (size,))
    )
    table[~transition] = -torch.inf
    if kind == "dense":
        logits[torch.arange(8).unsqueeze(1) % 3 != torch.arange(size) % 3] = -torch.inf
    start[size // 2 :] = -torch.inf
    emission = normalised_emission(support, logits)
    return HMM(start.log_softmax(0), Table(table), emission, support, end=0).to("cpu", dtype)


def zero_cases():
    left_to_right = torch.ones(6, 6).triu().bool()
    cycle = torch.eye(6).roll(1, 1).bool()
    return [(kind, m) for kind in ZEROS for m in (left_to_right, cycle)]


@pytest.mark.parametrize("impl", ["loop", "tree"])
@pytest.mark.parametrize("kind, transition", zero_cases())
def test_exact_zeros(kind, transition, impl):
    hmm = model_with_zeros(kind, transition)
    generator = torch.Generator().manual_seed(0)
    drawn = hmm.sample(6, 7, generator=generator)
    tokens = torch.cat([drawn, torch.randint(0, 8, (30, 7), generator=generator)])
    lengths = torch.tensor([7, 6, 5] * 12)
    expected = exact_log_prob(hmm, tokens, lengths)
    possible = expected > -math.inf
    assert possible[:6].all() and not possible.all()
    single = hmm.to("cpu", torch.float32)
    torch.testing.assert_close(hmm.log_prob(tokens, lengths, impl=impl), expected)
    torch.testing.assert_close(
        single.log_prob(tokens, lengths, impl=impl).double(), expected, rtol=1e-4, atol=1e-5
    )
    reference = exact_gradients(hmm, tokens[possible], lengths[possible])
    assert_gradients_close(gradients(hmm, tokens, lengths, impl=impl), reference, 1e-9)
    assert_gradients_close(gradients(single, tokens, lengths, impl=impl), reference, 1e-4)


@pytest.mark.parametrize("kind, transition", zero_cases())
def test_impossible_sequences(kind, transition):
    """log_prob and next_token are -inf, marginals 0, the path is -1: nowhere NaN."""
    hmm = model_with_zeros(kind, transition)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.cat(
        [hmm.sample(4, 6, generator=generator), torch.randint(0, 8, (20, 6), generator=generator)]
    )
    possible = hmm.log_prob(tokens) > -math.inf
    assert possible.any() and not possible.all()
    posterior, best = hmm.posterior(tokens), hmm.viterbi(tokens)
    following = hmm.next_token(tokens)
    assert (posterior.log_prob[~possible] == -math.inf).all()
    assert (posterior.marginals[~possible] == 0).all()
    torch.testing.assert_close(
        posterior.marginals.sum(2), possible.double().unsqueeze(1).expand(-1, 6)
    )
    assert (best.log_prob[~possible] == -math.inf).all()
    assert (best.states[~possible] == -1).all() and (best.states[possible] >= 0).all()
    assert (following[~possible] == -math.inf).all()
    torch.testing.assert_close(
        following[possible].logsumexp(1), torch.zeros(int(possible.sum())).double()
    )


@pytest.mark.parametrize("kind", ZEROS)
def test_impossible_stays_impossible(kind):
    """Over windows, and over an end mark: the later text is fine, the whole is not."""
    hmm = model_with_zeros(kind, torch.eye(6).roll(1, 1).bool())
    torch.manual_seed(0)
    good = hmm.sample(1, 3)
    bad = next(
        row
        for row in torch.cartesian_prod(*[torch.arange(1, 8)] * 3)
        if hmm.log_prob(row.unsqueeze(0)) == -math.inf
    )
    end = torch.tensor([[hmm.end]])
    tokens = torch.cat([bad.unsqueeze(0), end, good], dim=1)
    carry, total = Carry.at_start(hmm, 1), 0.0
    for t in range(tokens.shape[1]):
        gained, carry = hmm.advance(validate(hmm, tokens[:, t : t + 1]), carry)
        total += float(gained)
        prefix = tokens[:, : t + 1]
        torch.testing.assert_close(hmm.next_token_after(carry), hmm.next_token(prefix))
    assert total == -math.inf and not carry.possible
    assert (hmm.next_token(tokens) == -math.inf).all()
    assert (hmm.next_token(torch.cat([bad.unsqueeze(0), end], dim=1)) == -math.inf).all()
    assert (hmm.posterior(tokens).marginals == 0).all()
    for prefix in (bad, tokens[0]):
        with pytest.raises(ValueError, match="prefix has probability zero"):
            hmm.sample(2, 2, prefix=prefix)
        with pytest.raises(ValueError, match="prefix has probability zero"):
            hmm.sample(2, 2, prefix=prefix, temperature=0.5)


def test_permutation_is_followed_exactly():
    """A deterministic HMM from probabilities: one sequence, one path."""
    cycle = torch.eye(4).roll(1, 1)
    hmm = HMM.from_probs(torch.eye(4)[0], cycle, torch.eye(4))
    tokens = torch.tensor([[0, 1, 2, 3, 0], [0, 1, 2, 3, 1]])
    assert hmm.log_prob(tokens).tolist() == [0.0, -math.inf]
    assert hmm.viterbi(tokens).states.tolist() == [[0, 1, 2, 3, 0], [-1] * 5]
    assert hmm.sample(2, 6).tolist() == [[0, 1, 2, 3, 0, 1]] * 2
    assert hmm.next_token(tokens).exp().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]
    assert isinstance(hmm.support, Dense)
