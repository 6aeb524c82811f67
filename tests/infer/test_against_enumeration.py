"""Every question, every kind of model, against the sum over all state paths."""

import math

import pytest
import torch

from bighmm.infer.reference import (
    Enumeration,
    log_prob_loop,
    marginals_loop,
    next_token_loop,
)
from models import KINDS, ragged, random_hmm

LENGTHS = [4, 1, 0, 3]


def rows_of(tokens, lengths):
    return [row[:n].tolist() for row, n in zip(tokens, lengths.tolist(), strict=True)]


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", KINDS)
class TestEnumeration:
    def case(self, kind, reset, seed=3):
        hmm = random_hmm(kind, reset=reset, seed=seed)
        tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=seed)
        tokens[0, 1] = hmm.end  # a text that ends inside a row
        return hmm, tokens, lengths

    @pytest.mark.parametrize("impl", ["loop", "tree"])
    def test_log_prob(self, kind, reset, impl):
        hmm, tokens, lengths = self.case(kind, reset)
        expected = [math.log(Enumeration(hmm, row).prob) for row in rows_of(tokens, lengths)]
        torch.testing.assert_close(
            hmm.log_prob(tokens, lengths, impl=impl), torch.tensor(expected).double()
        )

    def test_reference_loop(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        for row in rows_of(tokens, lengths):
            assert log_prob_loop(hmm, row) == pytest.approx(math.log(Enumeration(hmm, row).prob))
            if row:
                expected = Enumeration(hmm, row).marginals()
                torch.testing.assert_close(marginals_loop(hmm, row), expected)

    def test_best_next(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        for k in (1, 3, 2 * hmm.vocabulary_size):
            found = hmm.best_next(tokens, k, lengths)
            expected = hmm.next_token(tokens, lengths).topk(min(k, hmm.vocabulary_size))
            assert torch.equal(found.tokens, expected.indices)
            torch.testing.assert_close(found.log_prob, expected.values)
        with pytest.raises(ValueError, match="k must be at least 1"):
            hmm.best_next(tokens, 0, lengths)

    def test_posterior(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        answer = hmm.posterior(tokens, lengths)
        torch.testing.assert_close(answer.log_prob, hmm.log_prob(tokens, lengths))
        for b, row in enumerate(rows_of(tokens, lengths)):
            expected = Enumeration(hmm, row).marginals()
            got = torch.zeros_like(expected)
            n = len(row)
            got.scatter_add_(1, answer.states[b, :n].clamp(min=0), answer.marginals[b, :n])
            torch.testing.assert_close(got, expected)
            assert (answer.states[b, n:] == -1).all()
            assert (answer.marginals[b, n:] == 0).all()

    def test_viterbi(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        answer = hmm.viterbi(tokens, lengths)
        for b, row in enumerate(rows_of(tokens, lengths)):
            path, prob = Enumeration(hmm, row).best()
            assert tuple(answer.states[b, : len(row)].tolist()) == path
            assert float(answer.log_prob[b]) == pytest.approx(math.log(prob))
            assert (answer.states[b, len(row) :] == -1).all()

    def test_next_token(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        answer = hmm.next_token(tokens, lengths)
        torch.testing.assert_close(answer.logsumexp(1), torch.zeros(len(answer)).double())
        for b, row in enumerate(rows_of(tokens, lengths)):
            torch.testing.assert_close(answer[b].exp(), Enumeration(hmm, row).next_token())
            torch.testing.assert_close(answer[b], next_token_loop(hmm, row))


def test_empty_batch_and_empty_rows():
    hmm = random_hmm("blocked-flat")
    assert hmm.log_prob(torch.zeros(0, 3, dtype=torch.long)).shape == (0,)
    assert hmm.log_prob(torch.zeros(2, 0, dtype=torch.long)).tolist() == [0.0, 0.0]
    assert hmm.posterior(torch.zeros(2, 0, dtype=torch.long)).marginals.shape == (2, 0, 2)
    assert hmm.viterbi(torch.zeros(2, 0, dtype=torch.long)).states.shape == (2, 0)
