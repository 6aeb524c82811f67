"""Perplexity against the plain recursion, its conventions, and the check that it is one."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bighmm.data.corpus import prepare
from bighmm.hmm import HMM
from bighmm.infer.reference import log_prob_loop
from bighmm.lm import evaluation as module
from bighmm.lm.baselines.neural import LSTMLM, LSTMOptions
from bighmm.lm.evaluation import (
    TOLERANCE,
    deviation_from_one,
    evaluate,
    evaluate_corpus,
    unigram_perplexity,
)
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import Dense
from bighmm.model.transitions import Table
from models import KINDS, random_hmm

STREAM = [1, 2, 0, 3, 0, 0, 4, 1, 1, 2, 3, 0, 2, 4]


def plain_perplexity(hmm, tokens, convention):
    exact = dataclasses.replace(hmm, reset=convention == "reset")
    return math.exp(-log_prob_loop(exact, tokens) / len(tokens))


@pytest.mark.parametrize("tokens", [STREAM, STREAM[:12], [0], [3], [0, 0]], ids=str)
@pytest.mark.parametrize("convention", ["reset", "carry"])
@pytest.mark.parametrize("kind", KINDS)
def test_perplexity_is_the_plain_one(kind, convention, tokens):
    for reset in (True, False):
        hmm = random_hmm(kind, seed=4, reset=reset)
        found = evaluate(hmm, np.array(tokens), convention=convention)
        expected = plain_perplexity(hmm, tokens, convention)
        assert found.perplexity == pytest.approx(expected, rel=1e-9)
        assert found.log_prob == pytest.approx(-len(tokens) * math.log(expected), rel=1e-9)
        assert found.tokens == len(tokens) and found.convention == convention


@pytest.mark.parametrize("convention", ["reset", "carry"])
def test_single_precision(convention):
    hmm = random_hmm("blocked-flat", states=12, seed=4, dtype=torch.float32)
    tokens = np.random.default_rng(0).integers(0, 5, 1000)
    found = evaluate(hmm, tokens, convention=convention).perplexity
    assert found == pytest.approx(plain_perplexity(hmm, tokens.tolist(), convention), rel=1e-5)


def test_conventions_differ_only_with_an_end_mark():
    tokens = np.array(STREAM)
    hmm = random_hmm("dense-table", seed=4)
    assert evaluate(hmm, tokens).perplexity != pytest.approx(
        evaluate(hmm, tokens, convention="carry").perplexity, rel=1e-3
    )
    endless = random_hmm("dense-table", seed=4, end=None)
    reset, carry = (evaluate(endless, tokens, convention=c).log_prob for c in ("reset", "carry"))
    assert reset == carry == pytest.approx(log_prob_loop(endless, STREAM))


@pytest.mark.parametrize("at_once", [1, 3])
def test_sentences_at_once_make_no_difference(monkeypatch, at_once):
    hmm = random_hmm("blocked-flat", seed=4)
    expected = evaluate(hmm, np.array(STREAM)).log_prob
    monkeypatch.setattr(module, "SENTENCES_AT_ONCE", at_once)
    assert evaluate(hmm, np.array(STREAM)).log_prob == pytest.approx(expected)


def test_documents_without_end_marks_are_apart():
    hmm = random_hmm("dense-table", seed=4)
    apart = [[1, 2, 0, 3], [4, 0], [2, 2]]
    tokens, documents = np.concatenate(apart), np.array([0, 4, 6, 8])
    found = evaluate(hmm, tokens, documents=documents)
    expected = sum(log_prob_loop(dataclasses.replace(hmm, reset=True), text) for text in apart)
    assert found.log_prob == pytest.approx(expected)
    assert evaluate(hmm, tokens).log_prob != pytest.approx(expected, rel=1e-4)


def test_small_integers_and_names():
    hmm = random_hmm("blocked-table")
    found = evaluate(hmm, np.array(STREAM, dtype=np.uint16), vocabulary="abc", split="valid")
    assert (found.vocabulary, found.split) == ("abc", "valid")
    assert found.perplexity == evaluate(hmm, np.array(STREAM)).perplexity


def test_impossible_text_has_infinite_perplexity():
    emission = torch.tensor([[0.5, 0.5, 0.0]])
    hmm = HMM.from_probs(torch.ones(1), torch.ones(1, 1), emission, end=0)
    assert evaluate(hmm, np.array([1, 0])).perplexity == pytest.approx(2)
    for convention in ("reset", "carry"):
        found = evaluate(hmm, np.array([1, 2, 0]), convention=convention)
        assert found.perplexity == math.inf and found.log_prob == -math.inf


@pytest.mark.parametrize("convention", ["reset", "carry"])
def test_no_gradient_is_kept(monkeypatch, convention):
    hmm = random_hmm("dense-table")
    hmm.start.requires_grad_()
    asked = []

    def log_prob(self, *rest):
        asked.append(torch.is_grad_enabled())
        return torch.zeros(len(rest[0]))

    monkeypatch.setattr(HMM, "log_prob", log_prob)
    evaluate(hmm, np.array(STREAM), convention=convention)
    assert asked == [False]


def test_empty_input():
    hmm = random_hmm("dense-table")
    for tokens in (np.array([], dtype=np.int64), np.zeros((2, 2), dtype=np.int64), np.array(1)):
        for ask in (evaluate, deviation_from_one):
            with pytest.raises(ValueError, match="at least one token, not shape"):
                ask(hmm, tokens)
        with pytest.raises(ValueError, match="at least one token, not shape"):
            unigram_perplexity(np.array([1]), tokens, 2)


def test_unigram_by_hand():
    # counts 3, 1, 0, 0 and one more each: 4/8, 2/8, 1/8, 1/8
    train = np.array([0, 0, 1, 0], dtype=np.uint16)
    assert unigram_perplexity(train, np.array([0]), 4) == pytest.approx(2)
    assert unigram_perplexity(train, np.array([0, 1, 3]), 4) == pytest.approx(64 ** (1 / 3))
    assert unigram_perplexity(np.array([], dtype=np.int64), np.array([2]), 4) == pytest.approx(4)


@pytest.mark.parametrize("end", [0, None])
@pytest.mark.parametrize("kind", KINDS)
def test_right_models_sum_to_one(kind, end):
    hmm = random_hmm(kind, seed=4, end=end, dtype=torch.float32)
    assert deviation_from_one(hmm, np.array(STREAM)) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [0.01, -0.01, 3.0])
def test_shifted_emissions_are_detected(kind, shift):
    hmm = random_hmm(kind, seed=4)
    shifted = dataclasses.replace(hmm, emissions=hmm.emission + shift)
    found = deviation_from_one(shifted, np.array(STREAM))
    assert found == pytest.approx(abs(math.exp(shift) - 1)) and found > TOLERANCE


def test_shifted_start_is_detected():
    hmm = random_hmm("dense-table", seed=4)
    shifted = dataclasses.replace(hmm, start=hmm.start + 0.01)
    assert deviation_from_one(shifted, np.array(STREAM)) > TOLERANCE


def test_one_wrong_state_is_detected_once_it_is_reached():
    hmm = random_hmm("dense-table", seed=4)
    emission = hmm.emission.clone()
    emission[:, 2] += 0.5
    unreached = Table(hmm.transitions.table.index_fill(1, torch.tensor([2]), -torch.inf))
    start = hmm.start.index_fill(0, torch.tensor([2]), -torch.inf).log_softmax(0)
    wrong = dataclasses.replace(hmm, emissions=emission)
    assert deviation_from_one(wrong, np.array(STREAM)) > TOLERANCE
    hidden = dataclasses.replace(wrong, transitions=unreached, start=start)
    assert deviation_from_one(hidden, np.array(STREAM)) < TOLERANCE


def test_not_a_number_is_a_deviation():
    hmm = random_hmm("dense-table")
    emission = hmm.emission.clone()
    emission[1, 1] = torch.nan
    wrong = dataclasses.replace(hmm, emissions=emission)
    assert deviation_from_one(wrong, np.array(STREAM)) == math.inf


def test_contexts_are_beginnings_of_sentences(monkeypatch):
    asked = []

    def next_token(self, tokens):
        asked.append(tuple(tokens[0].tolist()))
        return torch.zeros(1, 1)

    monkeypatch.setattr(HMM, "next_token", next_token)
    hmm = random_hmm("dense-table")
    assert deviation_from_one(hmm, np.array(STREAM), contexts=300) == 0
    sentences = [[1, 2, 0], [3, 0], [0], [4, 1, 1, 2, 3, 0], [2, 4]]
    assert set(asked) == {tuple(s[:n]) for s in sentences for n in range(len(s))}
    first, asked[:] = asked[:], []
    deviation_from_one(hmm, np.array(STREAM), contexts=300)
    assert asked == first
    asked.clear()
    deviation_from_one(hmm, np.array(STREAM), contexts=300, seed=1)
    assert asked != first


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c a\nb a c\nc c b\n" * 40)
    return prepare(path)


@pytest.mark.parametrize("family, convention", [("hmm", "reset"), ("lstm", "carry")])
def test_evaluation_of_a_corpus(family, convention, corpus):
    tokenizer = corpus.tokenizer
    lm = (
        HMMLM("scalar", ScalarOptions(), Dense(4, tokenizer.size), tokenizer, seed=1)
        if family == "hmm"
        else LSTMLM(LSTMOptions(width=4), tokenizer, seed=1)
    )
    found = evaluate_corpus(lm, corpus)
    plain = lm.perplexity(corpus, split="test", convention=convention)
    assert found.convention == convention and found.split == "test"
    assert found.perplexity == plain.perplexity and found.log_prob == plain.log_prob
    assert found.largest_deviation_from_one is None
    train, valid = corpus.split("train"), corpus.split("valid")
    other = evaluate_corpus(lm, corpus, "valid", convention="reset", check_normalised=True)
    assert other.convention == "reset" and other.tokens == len(valid)
    assert other.unigram_perplexity == unigram_perplexity(train, valid, tokenizer.size)
    assert other.largest_deviation_from_one == deviation_from_one(lm.predictor(), valid, 32)
    with pytest.raises(ValueError, match="contexts must be at least 1, not 0"):
        evaluate_corpus(lm, corpus, contexts=0)


def test_a_model_that_is_not_normalised(corpus, monkeypatch):
    lm = HMMLM("scalar", ScalarOptions(), Dense(4, corpus.tokenizer.size), corpus.tokenizer)
    wrong = dataclasses.replace(lm.hmm(), emissions=lm.hmm().emission + 0.01)
    monkeypatch.setattr(lm, "_hmm", wrong)
    with pytest.raises(ValueError, match=r"the model is not normalised: .* only within 0\.01"):
        evaluate_corpus(lm, corpus, check_normalised=True)
    assert evaluate_corpus(lm, corpus).perplexity > 0


@pytest.mark.parametrize("convention", ["reset", "carry"])
@pytest.mark.parametrize("size", [1, 4, 1024])
def test_unknown_words_of_long_sentences(monkeypatch, convention, size):
    """By the next token at every place; neighbours are worked on together."""
    hmm, unknown = random_hmm("dense", end=0), 3
    tokens = np.array([1, 3, 3, 3, 2, 3, 0, 3, 3, 1, 2, 0, 1, 2, 3])
    one = hmm if convention == "reset" else dataclasses.replace(hmm, reset=False)
    expected = sum(
        float(one.next_token([tokens[:t]])[0, unknown]) for t in np.flatnonzero(tokens == unknown)
    )
    monkeypatch.setattr(module, "WINDOW", size)
    found = module.unknown_log_prob(hmm, tokens, None, unknown, convention)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_text_of_unknown_words_is_done_in_windows(monkeypatch):
    hmm, calls, advance = random_hmm("dense", end=0), [], HMM.advance
    monkeypatch.setattr(HMM, "advance", lambda *given: calls.append(1) or advance(*given))
    module.unknown_log_prob(hmm, np.full(3 * module.WINDOW, 3), None, 3, "reset")
    assert len(calls) == 3
