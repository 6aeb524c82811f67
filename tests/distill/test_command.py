"""`bighmm distill`: its results as text and as JSON, and its errors."""

import numpy as np
import pytest
import torch

from bighmm.data.clusters import brown_clusters
from bighmm.data.labels import open_labels
from bighmm.lm.baselines.transformer import TransformerLM, TransformerOptions
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.params import find
from bighmm.model.support import Blocked

FEW = ("--cluster-tokens", 800, "--label-tokens", 1000, "--device", "cpu")


def test_labels_of_a_random_teacher(bighmm, ask, corpus, text_file, tmp_path):
    request = ("distill", "random", "--data", text_file, "--states", 9, *FEW)
    found = ask(*request, "--out", tmp_path / "labels")
    assert found["folder"] == str(tmp_path / "labels") and found["tokens"] == 1000
    assert found["states"] == {"kind": "dense", "states": 9}
    assert found["result"]["used"] == 9 and found["result"]["clustered"] == 800
    labels = open_labels(tmp_path / "labels", corpus)
    assert np.bincount(labels.states, minlength=9).min() > 0
    shown = bighmm(*request)
    assert shown.status == 0 and shown.err == ""
    for words in ("random", "9 of 9", "% of the tokens", "inertia", "seconds", "labels: "):
        assert words in shown.out
    folder = shown.out.split("labels: ")[1].strip()
    assert np.array_equal(open_labels(folder, corpus).states, labels.states)


def test_all_tokens_and_principal_components(ask, corpus, text_file):
    found = ask("distill", "random", "--data", text_file, "--label-tokens", 0, "--pca", 5)
    assert found["tokens"] == len(corpus.split("train"))
    assert 0 < found["result"]["variance_kept"] < 1 and found["states"]["states"] == 512


def test_labels_of_a_blocked_model(ask, bighmm, corpus, text_file, tmp_path):
    request = ("distill", "random", "--data", text_file, *FEW, "--states", 12)
    found = ask(*request, "--support", "blocked", "--blocks", 4)
    classes = brown_clusters(corpus, 4).classes
    labels = open_labels(found["folder"], corpus)
    tokens = corpus.split("train")[:1000]
    assert (labels.states // 3 == classes[tokens]).all()
    labels.check_states(Blocked.of(torch.from_numpy(classes.astype(np.int64)), 12).label_key())
    paths = tmp_path / "words.paths"
    assert bighmm("cluster", "--data", text_file, "--classes", 6, "--out", paths).status == 0
    found = ask(*request, "--support", "blocked", "--paths", paths, "--blocks", 6)
    assert found["states"]["blocks"] == 6


def test_labels_for_the_states_of_a_saved_model(ask, corpus, text_file, tmp_path):
    classes = torch.arange(corpus.tokenizer.size) % 5
    options = find("scalar").options()
    lm = HMMLM("scalar", options, Blocked.of(classes, 10), corpus.tokenizer, seed=1)
    lm.save_pretrained(tmp_path / "run" / "model")
    request = ("distill", "random", "--data", text_file, *FEW, "--model", tmp_path / "run")
    found = ask(*request)
    assert found["states"]["states"] == 10 and found["states"]["blocks"] == 5
    open_labels(found["folder"], corpus).check_states(lm.params.support.label_key())


def test_a_network_as_the_teacher(ask, corpus, text_file, tmp_path):
    options = TransformerOptions(width=8, layers=1, heads=2, context=8)
    TransformerLM(options, corpus.tokenizer, seed=1).save_pretrained(tmp_path)
    request = ("distill", tmp_path, "--data", text_file, "--states", 5, *FEW)
    trained, fresh = ask(*request), ask(*request, "--random")
    assert trained["teacher"]["kind"] == "transformer" and trained["folder"] != fresh["folder"]


def test_message_of_an_interrupted_command(bighmm, text_file, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bighmm.distill.corpus_labels.make_labels", stop)
    done = bighmm("distill", "random", "--data", text_file, *FEW)
    assert (
        done.status == 130 and done.err == "bighmm: stopped; the same command goes on from here\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "there is no teacher nobody; give"),
        (["random", "--states", 0], "states must be at least 1, not 0"),
        (
            ["random", "--support", "blocked", "--states", 10, "--blocks", 4],
            "10 states cannot be shared equally by 4 blocks",
        ),
        (["random", "--blocks", "wrods"], "blocks must be a number of at least 1, or words, not"),
        (
            ["random", "--support", "blocked", "--states", 9999, "--blocks", 9999],
            "different words, which cannot fill 9,999 blocks; use fewer, or --blocks words",
        ),
        (["random", "--cluster-tokens", 100], "100 tokens cannot make 512 clusters"),
        (["random", "--cluster-tokens", 0], "cluster_tokens, label_tokens, pca and iterations"),
        (["random", "--label-tokens", -1], "must be at least 1"),
        (["random", "--pca", 65], "64 wide and have no 65 principal components"),
        (["random", "--context", 256], "not 256 of 256 tokens"),
        (["random", "--device", "gpu"], "there is no device 'gpu'"),
        (["random", "--model", "nowhere"], "there is no model at nowhere"),
        (["random", "--data", "nowhere.txt"], "nowhere.txt does not exist"),
    ],
)
def test_errors_of_wrong_arguments(bighmm, text_file, arguments, message):
    done = bighmm("distill", "--data", text_file, *arguments)
    assert done.status == 2 and done.out == "" and done.err.count("\n") == 1
    assert message in done.err


def test_error_of_a_folder_with_other_files(bighmm, text_file, tmp_path):
    (tmp_path / "file").write_text("mine")
    done = bighmm("distill", "random", "--data", text_file, *FEW, "--out", tmp_path)
    assert done.status == 2 and "already holds other labels or other files" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_error_of_a_model_with_another_vocabulary(bighmm, corpus, text_file, tmp_path):
    options = find("scalar").options()
    support = Blocked.of(torch.arange(corpus.tokenizer.size) % 5, 10)
    HMMLM("scalar", options, support, corpus.tokenizer).save_pretrained(tmp_path)
    flags = ("--data", text_file, "--lowercase", "True", "--model", tmp_path)
    done = bighmm("distill", "random", *flags, *FEW)
    assert done.status == 2 and "has another vocabulary than the corpus" in done.err
