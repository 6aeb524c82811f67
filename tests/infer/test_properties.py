"""What must hold for every model and every batch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import KINDS, ragged, random_hmm

CHEAP = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def cases(draw):
    hmm = random_hmm(
        draw(st.sampled_from([*KINDS, "per_token-table"])),
        states=draw(st.integers(1, 9)),
        vocabulary=draw(st.integers(1, 7)),
        seed=draw(st.integers(0, 1000)),
        end=draw(st.sampled_from([None, 0])),
        reset=draw(st.booleans()),
        scale=draw(st.sampled_from([0.1, 1.0, 30.0])),
    )
    lengths = draw(st.lists(st.integers(0, 6), min_size=0, max_size=4))
    return hmm, *ragged(hmm.vocabulary_size, lengths, seed=draw(st.integers(0, 1000)))


@CHEAP
@given(cases())
def test_log_prob_is_the_sum_of_next_tokens(case):
    hmm, tokens, lengths = case
    total = torch.zeros(len(tokens)).double()
    for t in range(tokens.shape[1]):
        following = hmm.next_token(tokens[:, :t], lengths.clamp(max=t))
        torch.testing.assert_close(following.logsumexp(1), torch.zeros_like(total))
        inside = t < lengths
        step = following.gather(1, tokens[:, t : t + 1].clamp(min=0)).squeeze(1)
        total += torch.where(inside, step, 0.0)
    log_prob = hmm.log_prob(tokens, lengths)
    torch.testing.assert_close(total, log_prob)
    torch.testing.assert_close(hmm.log_prob(tokens, lengths, impl="tree"), log_prob)
    assert (log_prob <= 1e-9).all()


@CHEAP
@given(cases())
def test_marginals_sum_to_one(case):
    hmm, tokens, lengths = case
    answer = hmm.posterior(tokens, lengths)
    inside = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)
    torch.testing.assert_close(answer.marginals.sum(2), inside.double())
    assert (answer.marginals >= 0).all()
    assert (answer.marginals[answer.states == -1] == 0).all()
    torch.testing.assert_close(answer.log_prob, hmm.log_prob(tokens, lengths))


@CHEAP
@given(cases())
def test_best_path_has_the_probability_it_claims(case):
    hmm, tokens, lengths = case
    answer = hmm.viterbi(tokens, lengths)
    start, transition, emission = (t.log() for t in hmm.tables())
    assert (answer.log_prob <= hmm.log_prob(tokens, lengths) + 1e-9).all()
    for b, n in enumerate(lengths.tolist()):
        joint = 0.0
        for t in range(n):
            state, token = int(answer.states[b, t]), int(tokens[b, t])
            anew = t == 0 or (hmm.reset and int(tokens[b, t - 1]) == hmm.end)
            move = start[state] if anew else transition[answer.states[b, t - 1], state]
            joint += float(move + emission[state, token])
        torch.testing.assert_close(float(answer.log_prob[b]), joint, rtol=1e-9, atol=1e-9)
        assert (answer.states[b, n:] == -1).all()
