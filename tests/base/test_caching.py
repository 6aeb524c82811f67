"""Cached values can be used again, whether or not they were computed in inference mode."""

import copy
import pickle
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from bighmm.base.caching import cached, cached_object, is_cached
from bighmm.data.tokenizers import Words
from bighmm.hmm import HMM
from bighmm.infer.predict import predict_states
from bighmm.infer.sequences import Carry, unchecked
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import NeuralOptions, ScalarOptions
from bighmm.model.transitions import EVERY
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
    lm.params.matmul_dtype = operands
    return lm


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_same_inside_and_outside_inference_mode(kind):
    used, unused = random_hmm(kind), random_hmm(kind)
    with torch.inference_mode():
        first = used.fill_probs(GAPS)
        used.log_prob(TEXT)
    for hmm in (used, unused):
        again = hmm.fill_probs(GAPS)
        torch.testing.assert_close(again[0], first[0].clone())
        hmm.expected_counts(TEXT)


@pytest.mark.parametrize("support", ["dense", "blocked", "per_token"])
@pytest.mark.parametrize("options", MODELS)
def test_a_model_used_in_inference_mode_can_be_trained(options, support):
    lm = model(options, support)
    with torch.inference_mode():
        lm.hmm().log_prob(TEXT)
    HMM.of(lm.params()).log_prob(TEXT).sum().backward()
    assert all(p.grad is not None for p in lm.params.parameters())
    lm.hmm().expected_counts(TEXT)


@pytest.mark.parametrize("support", ["dense", "blocked", "per_token"])
@pytest.mark.parametrize("options", MODELS)
def test_the_hmm_of_a_model_requires_no_gradient(options, support):
    hmm = model(options, support).hmm()
    assert not any(x.requires_grad for x in (hmm.start, *hmm.emissions.operands, hmm.emission))
    assert not hmm.log_prob(TEXT).requires_grad


def test_a_value_without_gradient_is_computed_again_where_one_is_needed():
    holder, x, calls = SimpleNamespace(), torch.ones(2, requires_grad=True), []

    def compute():
        calls.append(None)
        return 2 * x

    with torch.no_grad():
        assert not cached(holder, "_y", (x,), compute).requires_grad
        assert is_cached(holder, "_y") and not is_cached(holder, "_z")
        assert cached(holder, "_y", (x,), compute) is holder._cached["_y"] and len(calls) == 1
    assert cached(holder, "_y", (x,), compute).requires_grad and len(calls) == 2
    assert cached(holder, "_y", (x,), compute) is holder._cached["_y"] and len(calls) == 2


def test_pickles_and_copies_have_no_cached_values():
    holder = SimpleNamespace(x=1)
    assert cached_object(holder, "_lock", threading.Lock) is holder._cached["_lock"]
    for again in (pickle.loads(pickle.dumps(holder)), copy.deepcopy(holder)):
        assert again.x == 1 and not is_cached(again, "_lock")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_can_be_pickled_after_every_question(kind):
    hmm = random_hmm(kind)
    asked = [hmm.log_prob(TEXT), hmm.next_token(TEXT), hmm.fill_probs(GAPS).words]
    hmm.sample(3, 4)
    for again in (pickle.loads(pickle.dumps(hmm)), copy.deepcopy(hmm)):
        assert not is_cached(again.transitions, "_product")
        found = again.log_prob(TEXT), again.next_token(TEXT), again.fill_probs(GAPS).words
        for before, after in zip(asked, found, strict=True):
            assert torch.equal(before, after)


@pytest.mark.parametrize("kind", ["dense-table", "dense-flat"])
def test_stepping_token_by_token_computes_the_transition_matrix_once(kind, monkeypatch):
    hmm, calls = random_hmm(kind), []
    log_probs = type(hmm.transitions).log_probs

    def count_calls(self, rows=EVERY, columns=EVERY, into=None):
        calls.extend([None] * (rows == columns == slice(0, hmm.num_states)))
        return log_probs(self, rows, columns, into)

    monkeypatch.setattr(type(hmm.transitions), "log_probs", count_calls)
    carry = Carry.at_start(hmm, 1)
    for token in TEXT[0]:
        _, carry = hmm.advance(unchecked(hmm, token.view(1, 1), torch.ones(1).long()), carry)
        predict_states(hmm, carry)
    assert len(calls) == 1


def test_the_cached_matrix_makes_no_reference_cycle():
    hmm = random_hmm("dense-table")
    hmm.next_token(TEXT)
    transitions = weakref.ref(hmm.transitions)
    del hmm
    assert transitions() is None  # freed at once, without the garbage collector
