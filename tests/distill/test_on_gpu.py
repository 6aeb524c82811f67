"""Distillation on a GPU gives the results of the CPU; skipped without a GPU."""

import numpy as np
import pytest
import torch

from bighmm.distill.kmeans import kmeans
from bighmm.distill.labelling import LabelSettings, make_labels
from bighmm.distill.sampling import SampleSettings, sample_batch
from bighmm.distill.teachers import RandomTeacher, open_teacher
from bighmm.lm.baselines.transformer import TransformerLM, TransformerOptions
from bighmm.model.support import Blocked

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_inertia_of_clusters():
    draw = np.random.default_rng(0)
    points = (
        draw.normal(size=(5000, 16)) + 6 * draw.normal(size=(20, 16))[draw.integers(20, size=5000)]
    )
    cpu, gpu = (kmeans(points.astype(np.float32), 20, seed=1, device=on) for on in (CPU, GPU))
    assert gpu.centroids.device.type == "cuda" and int(gpu.counts.sum()) == 5000
    assert gpu.inertia == pytest.approx(cpu.inertia, rel=0.02)


@pytest.mark.parametrize("pca", [None, 4])
def test_labels_are_almost_equal(corpus, tmp_path, pca):
    support = Blocked.of(torch.arange(corpus.tokenizer.size) % 5, 20)
    settings = LabelSettings(pca=pca, cluster_tokens=900, label_tokens=2000)
    cpu, gpu = (
        make_labels(
            corpus,
            RandomTeacher(corpus.tokenizer, 8, device=on),
            support,
            settings,
            out=tmp_path / on.type,
            device=on,
        )
        for on in (CPU, GPU)
    )
    assert np.mean(np.asarray(cpu.states) == np.asarray(gpu.states)) > 0.9


def test_vectors_of_a_teacher(corpus, tmp_path):
    TransformerLM(
        TransformerOptions(width=8, layers=1, heads=2), corpus.tokenizer, 1
    ).save_pretrained(tmp_path)
    ids = torch.arange(10).unsqueeze(0)
    cpu, gpu = (open_teacher(str(tmp_path), corpus.tokenizer, device=on) for on in (CPU, GPU))
    torch.testing.assert_close(gpu.hidden(ids.to(GPU)).cpu(), cpu.hidden(ids), atol=1e-3, rtol=1e-3)


def test_sampled_texts_are_deterministic_and_equally_likely(tiny_lm):
    """Equal for equal seeds, with the mean log-probability of the CPU."""
    from bighmm.interop.language_model import LanguageModel

    settings = SampleSettings(length=12)
    means = []
    for device in (CPU, GPU):
        lm = LanguageModel(str(tiny_lm), device)
        prompts = [lm.prompt(text) for text in ("the cat", "a", "big red dog") * 100]
        first, again = (sample_batch(lm, prompts, settings, seed=1) for _ in range(2))
        assert all(torch.equal(first[name], again[name]) for name in first)
        means.append(float(first["log_probs"].mean()))
    assert means[0] == pytest.approx(means[1], abs=0.15)


def test_an_hmm_of_a_language_model(ask, tiny_lm, tmp_path):
    sample = ("--tokens", 3000, "--length", 12, "--at-once", 40)
    train = ("--states", 64, "--width", 64, "--epochs", 4, "--batch", 16, "--device", "cuda")
    found = ask("distill-lm", tiny_lm, "--out", tmp_path / "run", *sample, *train)
    assert found["device"].startswith("cuda")
    bound = found["language_model"]["test"]["perplexity"]
    assert bound < found["test"]["perplexity"] < 17
