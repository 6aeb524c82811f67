"""Rows of unequal length: as if each stood alone, whatever fills the padding."""

import pytest
import torch

from models import KINDS, gradients, ragged, random_hmm

LENGTHS = [6, 0, 1, 4]
IMPLS = [(kind, "loop") for kind in KINDS] + [("blocked-flat", "tree")]


@pytest.mark.parametrize("kind, impl", IMPLS)
def test_rows_one_by_one(kind, impl):
    hmm = random_hmm(kind, seed=6)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=6)
    together = hmm.log_prob(tokens, lengths, impl=impl)
    following = hmm.next_token(tokens, lengths)
    posterior, best = hmm.posterior(tokens, lengths), hmm.viterbi(tokens, lengths)
    summed = [torch.zeros_like(g) for g in gradients(hmm, tokens, lengths, impl=impl)]
    for b, n in enumerate(LENGTHS):
        alone = tokens[b : b + 1, :n]
        torch.testing.assert_close(hmm.log_prob(alone, impl=impl), together[b : b + 1])
        torch.testing.assert_close(hmm.next_token(alone), following[b : b + 1])
        single = hmm.posterior(alone)
        torch.testing.assert_close(single.marginals[0], posterior.marginals[b, :n])
        assert torch.equal(single.states[0], posterior.states[b, :n])
        assert torch.equal(hmm.viterbi(alone).states[0], best.states[b, :n])
        for total, g in zip(summed, gradients(hmm, alone, impl=impl), strict=True):
            total += g
    for total, g in zip(summed, gradients(hmm, tokens, lengths, impl=impl), strict=True):
        torch.testing.assert_close(g, total)


@pytest.mark.parametrize("padding", [10**9, 0, 3])
@pytest.mark.parametrize("kind, impl", IMPLS)
def test_padding_is_not_read(kind, impl, padding):
    hmm = random_hmm(kind, seed=6, dtype=torch.float32)

    def answers(fill):
        tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=6, padding=fill)
        return (
            hmm.log_prob(tokens, lengths, impl=impl),
            hmm.next_token(tokens, lengths),
            *hmm.posterior(tokens, lengths),
            *hmm.viterbi(tokens, lengths),
            *gradients(hmm, tokens, lengths, impl=impl),
        )

    for got, expected in zip(answers(padding), answers(-1), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_width_of_the_padding_does_not_matter(kind):
    hmm = random_hmm(kind, seed=6)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=6)
    wider = torch.cat([tokens, torch.full((len(tokens), 3), -7)], dim=1)
    torch.testing.assert_close(hmm.log_prob(wider, lengths), hmm.log_prob(tokens, lengths))
    torch.testing.assert_close(
        hmm.posterior(wider, lengths).marginals[:, :-3], hmm.posterior(tokens, lengths).marginals
    )
    pairs = zip(gradients(hmm, wider, lengths), gradients(hmm, tokens, lengths), strict=True)
    for got, expected in pairs:
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_empty(kind, shape):
    hmm = random_hmm(kind)
    tokens = torch.zeros(*shape, dtype=torch.long)
    assert hmm.log_prob(tokens).tolist() == [0.0] * shape[0]
    assert hmm.next_token(tokens).shape == (shape[0], hmm.vocabulary_size)
    assert hmm.posterior(tokens).marginals.shape == (*shape, hmm.support.states_per_token)
    assert hmm.viterbi(tokens).states.shape == shape
    assert all(not g.any() for g in gradients(hmm, tokens))
