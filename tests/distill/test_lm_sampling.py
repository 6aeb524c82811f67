"""Texts sampled from a language model: their distribution, interrupted requests, and errors."""

import itertools

import numpy as np
import pytest
import torch

from bighmm.base.tensor_files import write_tensors
from bighmm.data.corpus import open_corpus
from bighmm.distill import sampling
from bighmm.distill.sampling import (
    SampleSettings,
    corpus_of,
    nucleus,
    read_samples,
    sample_batch,
    sample_texts,
)
from bighmm.interop.language_model import LanguageModel
from tiny_lm import MARKS, SIZE

pytest.importorskip("transformers")
SETTINGS = SampleSettings(tokens=500, length=11, at_once=8, prompts=("the cat", "a", "big red dog"))


@pytest.fixture(scope="module")
def lm(tiny_lm):
    return LanguageModel(str(tiny_lm), torch.device("cpu"))


@pytest.fixture(scope="module")
def samples(lm, tmp_path_factory):
    return sample_texts(lm, SETTINGS, tmp_path_factory.mktemp("samples"))


def test_texts_end_or_are_cut_off(samples):
    assert len(samples.tokens) >= 500 > len(samples.tokens) - 8 * 12
    texts = samples.texts(0, len(samples))
    ended = [text[-1] == 0 for text in texts]
    assert any(ended) and not all(ended)
    for text, has_ended in zip(texts, ended, strict=True):
        assert len(text) == 12 or (has_ended and len(text) < 12)
        assert (text[:-1] >= len(MARKS)).all() and (text < SIZE).all()  # words, and no other mark


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.5, "top_p": 0.95}])
def test_log_probs_are_those_of_the_model(lm, changes):
    """Compared with the model on each text alone, without padding and cache."""
    settings = SampleSettings(length=11, **changes)
    prompts = [lm.prompt(text) for text in ("the cat", "a", "big red dog", "the") * 10]
    shard = sample_batch(lm, prompts, settings, seed=3)
    bounds = shard["bounds"].tolist()
    assert len(set(np.diff(bounds))) > 3  # rows were removed from the batch at different times
    for prompt, (first, last) in zip(prompts, itertools.pairwise(bounds), strict=True):
        text = shard["tokens"][first:last].long()
        whole = torch.tensor([[*prompt, *text]])
        with torch.no_grad():
            logits = lm.model(whole).logits[0, len(prompt) - 1 : -1]
        each = nucleus(lm.log_probs(logits, settings.temperature), settings.top_p)
        expected = each.gather(1, text.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(shard["log_probs"][first:last], expected, rtol=1e-3, atol=1e-4)


def test_frequencies_of_words_equal_their_probabilities(lm):
    settings = SampleSettings(length=0)
    shard = sample_batch(lm, [lm.beginning()] * 4000, settings, seed=1)
    ids = torch.tensor([lm.beginning()])
    logits, _ = lm.forward(ids, torch.ones_like(ids), torch.zeros_like(ids))
    expected = lm.log_probs(logits)[0, :SIZE].exp()
    found = torch.bincount(shard["tokens"].long(), minlength=SIZE) / 4000
    assert float((found - expected).detach().abs().max()) < 0.03


def test_an_interrupted_request_gives_the_same_texts(lm, samples, tmp_path, monkeypatch):
    """Interrupted between shards and within them."""
    whole, calls = sampling.sample_batch, []

    def stops(*arguments):
        calls.append(arguments)
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(sampling, "sample_batch", stops)
    found = None
    while found is None:
        try:
            found = sample_texts(lm, SETTINGS, tmp_path)
        except KeyboardInterrupt:
            (tmp_path / ".00009.safetensors.1.tmp").write_bytes(b"half")  # left by a killed process
    assert len(calls) > 5
    assert np.array_equal(found.tokens, samples.tokens)
    assert np.array_equal(found.bounds, samples.bounds)
    assert np.array_equal(found.log_probs, samples.log_probs)
    assert np.array_equal(read_samples(tmp_path).tokens, samples.tokens)


def test_seeds_give_other_texts_and_a_larger_request_continues(lm, samples, tmp_path):
    longer = sample_texts(lm, SampleSettings(**{**vars(SETTINGS), "tokens": 600}), tmp_path)
    assert np.array_equal(longer.tokens[: len(samples.tokens)], samples.tokens)
    assert len(read_samples(tmp_path, SETTINGS.tokens).tokens) == len(samples.tokens)
    other = sample_texts(lm, SampleSettings(**{**vars(SETTINGS), "seed": 2}), tmp_path / "other")
    assert not np.array_equal(other.tokens[:50], samples.tokens[:50])
    first, second = (longer.tokens[longer.bounds[8 * i] :][:20] for i in (0, 1))
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match=r"another length \(12, 13, the end mark counted\);"):
        sample_texts(lm, SampleSettings(**{**vars(SETTINGS), "length": 12}), tmp_path)
    with pytest.raises(ValueError, match="were sampled with another temperature; choose another"):
        sample_texts(lm, SampleSettings(**{**vars(SETTINGS), "temperature": 2.0}), tmp_path)


def test_progress_counts_up_to_the_number_of_tokens(lm, tmp_path):
    reports = []
    sample_texts(lm, SETTINGS, tmp_path, lambda *numbers: reports.append(numbers))
    done = [number for number, _ in reports]
    assert done == sorted(done) and done[-1] == 500 and {total for _, total in reports} == {500}


def test_a_corpus_of_sampled_texts(lm, samples, tmp_path):
    corpus = corpus_of(samples, lm, tmp_path / "corpus", {"seed": 1})
    again = open_corpus(tmp_path / "corpus", verify=True)
    assert again.tokenizer.fingerprint() == lm.tokenizer.fingerprint()
    assert again.manifest["source"]["kind"] == "samples" and again.manifest["source"]["seed"] == 1
    held = round(0.05 * len(samples))
    splits = [corpus.split(name) for name in ("train", "valid", "test")]
    assert np.array_equal(np.concatenate(splits), samples.tokens)
    sizes = [np.diff(corpus.documents(name)) for name in ("train", "valid", "test")]
    assert np.array_equal(np.concatenate(sizes), np.diff(samples.bounds))
    assert len(sizes[1]) == len(sizes[2]) == held


def test_perplexity_of_the_sampler(samples):
    first, last = samples.splits()["test"]
    logs = samples.log_probs[samples.bounds[first] :]
    assert last == len(samples)
    assert samples.perplexity(first, last) == pytest.approx(np.exp(-logs.mean()), rel=1e-5)


def test_nucleus_is_the_smallest_set_of_probability_top_p():
    p = torch.tensor([[0.1, 0.5, 0.15, 0.25]])
    assert nucleus(p.log(), 1.0)[0].exp().tolist() == pytest.approx(p[0].tolist())
    wanted = {0.4: [0, 1, 0, 0], 0.6: [0, 2 / 3, 0, 1 / 3], 0.8: [0, 5 / 9, 1.5 / 9, 2.5 / 9]}
    for top_p, expected in wanted.items():
        assert nucleus(p.log(), top_p)[0].exp().tolist() == pytest.approx(expected)
    assert nucleus(p.log(), 1e-320)[0].exp().tolist() == nucleus(p.log(), 1e-9)[0].exp().tolist()


def test_errors_of_wrong_settings(lm, tmp_path):
    for wrong in ({"tokens": 0}, {"length": -1}, {"at_once": 0}):
        with pytest.raises(ValueError, match="must be at least 1 and length at least 0, not"):
            SampleSettings(**wrong)
    for wrong in ({"temperature": 0}, {"temperature": float("nan")}):
        with pytest.raises(ValueError, match="temperature must be finite and at least 1e-06"):
            SampleSettings(**wrong)
    for wrong in ({"top_p": 0}, {"top_p": 1.5}):
        with pytest.raises(ValueError, match="top_p must be above 0 and at most 1, not"):
            SampleSettings(**wrong)
    with pytest.raises(ValueError, match=r"reads 64 tokens at most, .* has up to 65"):
        sample_texts(lm, SampleSettings(length=63), tmp_path)
    few = sample_texts(lm, SampleSettings(tokens=1, length=2, at_once=2), tmp_path)
    with pytest.raises(ValueError, match="2 sampled texts cannot be divided"):
        few.splits()


def test_a_changed_shard_is_noticed(lm, tmp_path):
    sample_texts(lm, SampleSettings(tokens=200, length=10, at_once=8), tmp_path)
    path = tmp_path / "00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"00000.safetensors is damaged: .*; delete it to sample"):
        read_samples(tmp_path)
    shard = {"tokens": torch.arange(4).int(), "log_probs": torch.zeros(4)}
    for bounds in ([0, 5], [1, 4], [0, 3, 2, 4], []):
        write_tensors(path, {**shard, "bounds": torch.tensor(bounds, dtype=torch.long)})
        with pytest.raises(ValueError, match=r"00000.safetensors is damaged"):
            read_samples(tmp_path)


def test_error_of_a_damaged_shard(lm, tmp_path):
    sample_texts(lm, SETTINGS, tmp_path)
    (tmp_path / "00001.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"00001.safetensors is damaged: .* delete it to sample"):
        sample_texts(lm, SETTINGS, tmp_path)
