"""Models that must agree: blocked and free with a dense twin, tree with loop."""

import pytest
import torch

from models import dense_twin, gradients, leaves, ragged, random_hmm, rebuilt

SPARSE = ["blocked-table", "blocked-flat", "per_token-flat"]
LENGTHS = [7, 1, 0, 4]


def over_all_states(hmm, answer):
    """Marginals (B, T, K) of a sparse model as (B, T, Z)."""
    result = torch.zeros(*answer.states.shape[:2], hmm.num_states, dtype=answer.marginals.dtype)
    return result.scatter_add(2, answer.states.clamp(min=0), answer.marginals)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", SPARSE)
class TestDenseTwin:
    def case(self, kind, reset):
        hmm = random_hmm(kind, states=12, vocabulary=9, reset=reset, seed=2)
        tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=2)
        tokens[0, 2] = hmm.end
        return hmm, tokens, lengths

    def test_answers(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        twin = dense_twin(hmm)
        torch.testing.assert_close(hmm.log_prob(tokens, lengths), twin.log_prob(tokens, lengths))
        torch.testing.assert_close(
            hmm.next_token(tokens, lengths), twin.next_token(tokens, lengths)
        )
        posterior = hmm.posterior(tokens, lengths)
        torch.testing.assert_close(
            over_all_states(hmm, posterior), twin.posterior(tokens, lengths).marginals
        )
        best, expected = hmm.viterbi(tokens, lengths), twin.viterbi(tokens, lengths)
        assert torch.equal(best.states, expected.states)
        torch.testing.assert_close(best.log_prob, expected.log_prob)
        for one, other in zip(hmm.tables(), twin.tables(), strict=True):
            torch.testing.assert_close(one, other)

    def test_gradients(self, kind, reset):
        hmm, tokens, lengths = self.case(kind, reset)
        parameters = leaves(hmm)
        total = dense_twin(rebuilt(hmm, *parameters)).log_prob(tokens, lengths).sum()
        expected = torch.autograd.grad(total, parameters)
        for g, e in zip(gradients(hmm, tokens, lengths), expected, strict=True):
            torch.testing.assert_close(g, e)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alive", [1, 3, 7])
@pytest.mark.parametrize("time", [1, 2, 3, 5, 17, 33])
def test_tree_equals_loop(time, alive, dtype):
    hmm = random_hmm("blocked-flat", states=3 * alive, vocabulary=11, dtype=dtype, seed=time)
    tokens, lengths = ragged(hmm.vocabulary_size, [time, time // 2, 0, 1], seed=time)
    torch.testing.assert_close(
        hmm.log_prob(tokens, lengths, impl="tree"), hmm.log_prob(tokens, lengths, impl="loop")
    )
    trees = gradients(hmm, tokens, lengths, impl="tree")
    loops = gradients(hmm, tokens, lengths, impl="loop")
    for tree, loop in zip(trees, loops, strict=True):
        torch.testing.assert_close(tree, loop, rtol=1e-4, atol=1e-5)


def test_table_need_not_be_contiguous():
    hmm = random_hmm("blocked-table")
    start, emission, table = leaves(hmm)
    strided = rebuilt(hmm, start, emission, table.detach().T.contiguous().T)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS)
    torch.testing.assert_close(
        strided.log_prob(tokens, lengths).detach(), hmm.log_prob(tokens, lengths)
    )
