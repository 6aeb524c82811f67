"""Scores, next words and samples of models of every family, against their predictors."""

import itertools
import math

import numpy as np
import pytest
import torch

import bighmm.lm
from bighmm.data.corpus import prepare
from bighmm.lm import questions
from bighmm.lm.baselines.neural import LSTMLM, LSTMOptions
from bighmm.lm.baselines.ngram import NgramLM, NgramOptions
from bighmm.lm.baselines.transformer import TransformerLM, TransformerOptions
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.questions import DEFAULT_LENGTH, Sample, next_words, sample, score
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import Blocked, Dense

PREFIX = "w1 w2"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    generator = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(8)])
    lines = [" ".join(generator.choice(words, size=n)) for n in generator.integers(1, 9, size=200)]
    path = tmp_path_factory.mktemp("questions") / "text.txt"
    path.write_text("\n".join(lines))
    return prepare(path)


def hmm_lm(corpus, support=None):
    tokenizer = corpus.tokenizer
    support = support or Dense(5, tokenizer.size)
    return HMMLM("scalar", ScalarOptions(init_scale=1.0), support, tokenizer, seed=1)


MAKE = {
    "dense": hmm_lm,
    "blocked": lambda corpus: hmm_lm(
        corpus, Blocked.of(torch.arange(corpus.tokenizer.size) % 3, 6)
    ),
    "ngram": lambda corpus: NgramLM.fit(NgramOptions(order=3), corpus),
    "lstm": lambda corpus: LSTMLM(LSTMOptions(width=8), corpus.tokenizer, seed=1),
    "transformer": lambda corpus: TransformerLM(
        TransformerOptions(width=8, layers=1, heads=2, context=8), corpus.tokenizer, seed=1
    ),
}


@pytest.fixture(params=MAKE)
def lm(request, corpus):
    return MAKE[request.param](corpus)


@pytest.fixture
def hmm(corpus):
    return hmm_lm(corpus)


def test_names_of_the_package():
    for name in bighmm.lm.__all__:
        assert getattr(bighmm.lm, name) is not None
    assert bighmm.lm.HMMLM is HMMLM and bighmm.lm.sample is sample
    with pytest.raises(AttributeError, match=r"'bighmm\.lm' has no attribute 'nothing'"):
        _ = bighmm.lm.nothing


def test_every_family_has_what_the_protocol_asks_for(lm, tmp_path):
    assert lm.num_parameters > 0 and lm.device.type == "cpu"
    assert lm.to("cpu", "float32") is lm and lm.to("cpu", matmul_dtype="auto") is lm
    assert lm.decode(lm.encode(PREFIX)) == PREFIX
    assert lm.convention in ("reset", "carry")
    lm.save_pretrained(tmp_path / "model")
    again = bighmm.lm.open_model(tmp_path / "model")
    assert type(again) is type(lm) and again.num_parameters == lm.num_parameters


@pytest.mark.parametrize("at_once, tokens", [(512, 2**14), (2, 2**14), (512, 7), (512, 1)])
def test_score(lm, monkeypatch, at_once, tokens):
    monkeypatch.setattr(questions, "LINES_AT_ONCE", at_once)
    monkeypatch.setattr(questions, "TOKENS_AT_ONCE", tokens)
    texts = ["w1 w2 w3", "", "w4", "never w5 w6 w7 w0", "w1"]
    found = score(lm, texts)
    assert [line.text for line in found] == texts
    for line in found:
        ids = torch.tensor([lm.encode(line.text + "\n")])
        assert line.tokens == ids.shape[1] and int(ids[0, -1]) == lm.tokenizer.end
        assert line.log_prob == pytest.approx(float(lm.predictor().log_prob(ids)), rel=1e-5)
        assert line.perplexity == pytest.approx(math.exp(-line.log_prob / line.tokens))
    assert score(lm, []) == []


@pytest.mark.parametrize("rows", [[3], [1, 1, 1], [5, 1, 1, 9, 2, 2, 2, 2], [0, 0]])
def test_lines_are_scored_in_order_and_once(monkeypatch, hmm, rows):
    monkeypatch.setattr(questions, "LINES_AT_ONCE", 3)
    monkeypatch.setattr(questions, "TOKENS_AT_ONCE", 6)
    texts = [" ".join(["w1"] * (row - 1)) for row in rows]
    found = list(questions._batches(hmm, texts))
    assert [text for some in found for text, _ in some] == texts
    for some in found:
        assert len(some) <= 3
        assert len(some) == 1 or len(some) * max(len(ids) for _, ids in some) <= 6


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_next_words(lm, prefix):
    ids = torch.tensor([lm.encode(prefix)], dtype=torch.long)
    expected = lm.predictor().next_token(ids)[0]
    found = next_words(lm, prefix, 1000)
    assert len(found) == lm.tokenizer.size and sum(w.prob for w in found) == pytest.approx(1)
    for word in found:
        place = [lm.tokenizer.token(i) for i in range(lm.tokenizer.size)].index(word.word)
        assert word.log_prob_next == pytest.approx(float(expected[place]))
        assert word.prob == pytest.approx(math.exp(word.log_prob_next))
    assert [w.prob for w in found] == sorted((w.prob for w in found), reverse=True)
    assert next_words(lm, prefix, 3) == found[:3] and len(next_words(lm, prefix)) == 10
    with pytest.raises(ValueError, match="n must be at least 1, not 0"):
        next_words(lm, prefix, 0)


def test_next_words_under_a_rule(hmm):
    rule = hmm.rule(must="w3", must_not="w4")
    found = next_words(hmm, PREFIX, 1000, rule, 4)
    expected = hmm.next_token(PREFIX, rule, 4)
    assert sum(word.prob for word in found) == pytest.approx(1, abs=1e-5)
    assert {word.word for word in found} == {f"w{i}" for i in range(8) if i != 4} | {"<unk>"}
    assert found[0].log_prob_next == pytest.approx(float(expected.max()))
    assert next_words(hmm, PREFIX, 5, rule) == next_words(hmm, PREFIX, 5, rule, DEFAULT_LENGTH)
    (only,) = next_words(hmm, "", rule=rule, length=1)
    assert only.word == "w3" and only.prob == pytest.approx(1)
    with pytest.raises(ValueError, match="needs at least 1 token"):
        next_words(hmm, "", rule=rule, length=0)
    with pytest.raises(ValueError, match="no sequence of tokens can satisfy"):
        next_words(hmm, "", rule=hmm.rule(must="w3", must_not="w3"))


def of(drawn, length):
    """What is true of every sample that may have so many tokens."""
    for text in drawn:
        assert isinstance(text, Sample) and len(text.ids) <= length
        assert text.ended or len(text.ids) == length
    return drawn


@pytest.mark.parametrize("length", [0, 1, 3, 12])
def test_samples_end_or_are_cut(lm, length):
    drawn = of(sample(lm, 60, PREFIX, length, seed=3), length)
    for text in drawn:
        assert lm.tokenizer.end not in text.ids
        assert text.text == lm.decode([*lm.encode(PREFIX), *text.ids])
    if length == 3:
        assert any(text.ended for text in drawn) and not all(text.ended for text in drawn)
    again = sample(lm, 60, PREFIX, length, generator=torch.Generator().manual_seed(3))
    assert again == drawn


def test_samples_are_those_of_the_predictor(lm):
    generator = torch.Generator().manual_seed(5)
    rows = lm.predictor().sample(20, None, lm.encode(PREFIX), generator, max_length=100).tolist()
    end = lm.tokenizer.end
    expected = [row[: row.index(end)] if end in row else row for row in rows]
    drawn = sample(lm, 20, PREFIX, seed=5)
    assert [text.ids for text in drawn] == expected
    assert sample(lm, 20, PREFIX, DEFAULT_LENGTH, seed=5) == drawn
    assert len({text.text for text in drawn}) > 5


def test_samples_differ_without_a_seed(lm):
    assert sample(lm, 20) != sample(lm, 20)
    greedy = sample(lm, 3, PREFIX, 5, temperature=0)
    assert greedy[0] == greedy[1] == greedy[2]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_under_a_rule_always_end(hmm, temperature):
    rule = hmm.rule(must="w3", words=(2, 5))
    drawn = of(sample(hmm, 50, PREFIX, 5, rule, temperature, 1), 5)
    for text in drawn:
        assert text.ended and rule.matches(text.ids)
    full = sample(hmm, 5, PREFIX, 5, hmm.rule(words=5), temperature)
    assert all(len(text.ids) == 5 and text.ended for text in full)  # the end mark does not count
    generator = torch.Generator().manual_seed(1)
    texts = hmm.sample(50, 5, PREFIX, rule, generator, temperature)
    assert texts == [text.text for text in drawn]
    each = [hmm.rule(starts=word) for word in ("w1", "w2", "w3")]
    assert [text.text[:2] for text in sample(hmm, 3, rule=each)] == ["w1", "w2", "w3"]


def test_a_model_samples_the_same_text_with_its_own_method(hmm):
    for length in (0, 4, None):
        drawn = sample(hmm, 10, PREFIX, length, generator=torch.Generator().manual_seed(7))
        texts = hmm.sample(10, length, PREFIX, generator=torch.Generator().manual_seed(7))
        assert texts == [text.text for text in drawn]


def test_all_short_texts_have_their_probabilities(hmm):
    """p(cut or ended text) sums to one, and samples are drawn with it."""
    probs = {}
    end = hmm.tokenizer.end
    for ids in itertools.product(range(hmm.tokenizer.size), repeat=2):
        if ids[0] == end:
            continue
        key = ids[:1] if ids[1] == end else ids
        p = float(hmm.hmm().log_prob(torch.tensor([ids])).exp())
        probs[key] = probs.get(key, 0.0) + p
    probs[()] = float(hmm.hmm().next_token(torch.zeros(1, 0).long())[0, end].exp())
    assert sum(probs.values()) == pytest.approx(1, abs=1e-5)
    drawn = sample(hmm, 4000, length=2, seed=2)
    for key, p in probs.items():
        count = sum(tuple(text.ids) == key for text in drawn)
        assert abs(count / 4000 - p) < 5 * math.sqrt(p * (1 - p) / 4000) + 1e-3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"n": 0}, "n must be at least 1, not 0"),
        ({"temperature": -1.0}, "temperature must be finite and at least 0, not -1.0"),
        ({"length": -1}, "a text has at least 0 tokens after its prefix, not -1"),
        ({"seed": -1}, "a seed is a number from 0 to"),
        ({"seed": 1, "generator": torch.Generator()}, "a seed or a generator; give only one"),
    ],
)
def test_samples_that_cannot_be(lm, asked, said):
    with pytest.raises(ValueError, match=said):
        sample(lm, **{"n": 1, **asked})


def test_samples_among_the_likeliest_of_every_family(lm):
    coldest = sample(lm, 2, PREFIX, 6, temperature=0)
    assert sample(lm, 2, PREFIX, 6, top_k=1, seed=1) == coldest
    assert sample(lm, 2, PREFIX, 6, top_p=1e-6, seed=1) == coldest
    ids = torch.tensor([lm.encode(PREFIX)])
    probs = lm.predictor().next_token(ids)[0].exp()
    drawn = sample(lm, 400, PREFIX, 1, top_k=2, seed=1, no_unk=True)
    known = [i for i in probs.argsort(descending=True).tolist() if i != lm.tokenizer.unknown]
    first = [lm.tokenizer.end if not one.ids else one.ids[0] for one in drawn]
    assert set(first) == set(known[:2])
    share = float(probs[known[0]] / probs[known[:2]].sum())
    assert first.count(known[0]) / 400 == pytest.approx(share, abs=0.1)


def test_under_a_rule_a_length_has_a_limit(hmm):
    rule = hmm.rule(must="w3")
    for ask in (
        lambda: sample(hmm, 1, length=10_001, rule=rule),
        lambda: next_words(hmm, length=10_001, rule=rule),
        lambda: hmm.rule_log_prob(rule, 10_001),
    ):
        with pytest.raises(ValueError, match="at most 10000 tokens after its prefix, not 10001"):
            ask()


@pytest.mark.parametrize("family", ["ngram", "lstm"])
def test_rules_need_an_hmm(family, corpus, hmm):
    lm, rule = MAKE[family](corpus), hmm.rule(must="w3")
    with pytest.raises(ValueError, match="not a hidden Markov model, so it has no samples under"):
        sample(lm, 1, rule=rule)
    with pytest.raises(ValueError, match="not a hidden Markov model, so it has no answers under"):
        next_words(lm, rule=rule)
