"""What is kept serves whoever asks next, whatever mode the first one asked in."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from bighmm.base.caching import cached
from bighmm.data.tokenizers import Words
from bighmm.infer.dense import Move
from bighmm.infer.inputs import Carry, trusted
from bighmm.infer.predict import predict_states
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.params.scalar import ScalarOptions
from models import KINDS, random_hmm, random_support

GAPS = torch.tensor([[1, -1, 2, -1]])
TEXT = torch.tensor([[1, 2, 0, 1]])
NEURAL = NeuralOptions(width=4, init_scale=1.0)
MODELS = {
    "scalar": ("scalar", ScalarOptions(), "float32"),
    "neural": ("neural", NEURAL, "float32"),
    "rounded": ("neural", NEURAL, "bfloat16"),
}


def model(options, support):
    tokenizer = Words.build(["a b c d e", "b d a"])
    kind, chosen, operands = MODELS[options]
    lm = HMMLM(kind, chosen, random_support(support, 6, tokenizer.size), tokenizer, seed=1)
    lm.params.operands = operands
    return lm


@pytest.mark.parametrize("kind", KINDS)
def test_questions_in_inference_mode_and_then_outside(kind):
    asked, other = random_hmm(kind), random_hmm(kind)
    with torch.inference_mode():
        first = asked.fill_probs(GAPS)
        asked.log_prob(TEXT)
    for hmm in (asked, other):
        again = hmm.fill_probs(GAPS)
        torch.testing.assert_close(again[0], first[0].clone())
        hmm.expected_counts(TEXT)


@pytest.mark.parametrize("support", ["dense", "blocked", "free"])
@pytest.mark.parametrize("options", MODELS)
def test_a_model_seen_in_inference_mode_can_be_trained(options, support):
    lm = model(options, support)
    with torch.inference_mode():
        lm.hmm().log_prob(TEXT)
    lm.params().log_prob(TEXT).sum().backward()
    assert all(p.grad is not None for p in lm.params.parameters())
    lm.hmm().expected_counts(TEXT)


@pytest.mark.parametrize("support", ["dense", "blocked", "free"])
@pytest.mark.parametrize("options", MODELS)
def test_a_models_hmm_asks_for_no_gradient(options, support):
    hmm = model(options, support).hmm()
    assert not any(x.requires_grad for x in (hmm.start, *hmm.emissions.operands, hmm.emission))
    assert not hmm.log_prob(TEXT).requires_grad


def test_a_value_without_gradient_is_made_again_where_one_is_due():
    holder, x, made = SimpleNamespace(), torch.ones(2, requires_grad=True), []

    def compute():
        made.append(None)
        return 2 * x

    with torch.no_grad():
        assert not cached(holder, "_y", (x,), compute).requires_grad
        assert cached(holder, "_y", (x,), compute) is holder._y and len(made) == 1
    assert cached(holder, "_y", (x,), compute).requires_grad and len(made) == 2
    assert cached(holder, "_y", (x,), compute) is holder._y and len(made) == 2


@pytest.mark.parametrize("kind", ["dense-table", "dense-factored"])
def test_word_by_word_the_matrix_is_made_once(kind, monkeypatch):
    hmm, made = random_hmm(kind), []
    probs = Move._probs
    monkeypatch.setattr(Move, "_probs", lambda self: made.append(None) or probs(self))
    carry = Carry.at_start(hmm, 1)
    for token in TEXT[0]:
        _, carry = hmm.advance(trusted(hmm, token.view(1, 1), torch.ones(1).long()), carry)
        predict_states(hmm, carry)
    hmm.sample(3, length=4)
    assert len(made) == 1


def test_the_matrix_goes_with_its_transitions():
    hmm = random_hmm("dense-table")
    hmm.next_token(TEXT)
    kept_by = weakref.ref(hmm.transitions)
    del hmm
    assert kept_by() is None  # without waiting for the garbage collector
