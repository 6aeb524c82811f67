"""Folders of baselines: whatever is changed in one is said in one sentence."""

import json

import numpy as np
import pytest
import torch

from bighmm.base.files import sha256_of, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.tensor_files import read_tensors, write_tensors
from bighmm.data.tokenizers import Words
from bighmm.lm.baselines import find
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.opening import open_model
from bighmm.lm.options import NgramOptions
from bighmm.model.networks.pretrained import load_own

FAMILIES = ["feed-forward", "lstm", "transformer", "ngram"]
IDS = np.array([2, 3, 0, 3, 2, 2, 0, 1, 3, 0])


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    words = Words(["<eos>", "<unk>", "a", "b"])
    kind = find(request.param)
    if request.param == "ngram":
        lm = NgramLM(NgramOptions(order=3), KneserNey.fit(IDS, 4, 0, order=3), words)
    else:
        lm = kind.model(kind.options(width=8), words, 1)
    lm.save_pretrained(tmp_path)
    return tmp_path


def refused(folder, *parts):
    with pytest.raises(ValueError) as error:
        open_model(folder)
    said = str(error.value)
    assert str(folder) in said and "\n" not in said
    for part in parts:
        assert part in said


def change(folder, **changes):
    config = read_object(folder / "config.json") | changes
    write_sealed(folder / "config.json", {k: v for k, v in config.items() if v is not None})


def test_every_changed_byte_of_the_configuration_is_noticed(folder):
    content = (folder / "config.json").read_bytes()
    for place in range(0, len(content), 7):
        other = bytes([content[place] ^ 1])
        (folder / "config.json").write_bytes(content[:place] + other + content[place + 1 :])
        if content[place : place + 1] not in b" \n":
            refused(folder)
    (folder / "config.json").write_bytes(content)
    open_model(folder)


@pytest.mark.parametrize("field", ["format", "family", "options", "vocabulary"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"width": "wide"}, {"other": 1}], ids=str)
def test_other_values_of_the_configuration(folder, field, value):
    if field == "options" and value in ({}, None):
        value = 7
    change(folder, **{field: value})
    refused(folder)


@pytest.mark.parametrize("name", ["layers", "width", "order", "heads", "context", "dropout"])
@pytest.mark.parametrize("value", [-1, 0, 10**9, 10**30, "4", True, [4]], ids=str)
def test_other_options(folder, name, value):
    options = read_object(folder / "config.json")["options"]
    if name in options and not (name == "dropout" and value == 0):
        change(folder, options=options | {name: value})
        refused(folder)


@pytest.mark.parametrize("files", [None, 3, {}, {"model.safetensors": 3}, {"/etc/passwd": "x"}])
def test_other_lists_of_files(folder, files):
    if files is None and read_object(folder / "config.json")["family"] == "ngram":
        change(folder, files=None)  # as the first version wrote it
        open_model(folder)
    else:
        change(folder, files=files)
        refused(folder)


def test_a_configuration_that_is_no_object(folder):
    for content in ("3", "[]", "[" * 10**5, "", '{"family": "ngram"}', '{"family": []}'):
        (folder / "config.json").write_text(content)
        refused(folder)


def test_options_of_a_pretrained_transformer(tmp_path):
    kind = find("transformer")
    kind.model(kind.options(width=8, heads=2), Words(["<eos>", "<unk>"]), 1).save_pretrained(
        tmp_path
    )
    load_own(tmp_path)
    options = read_object(tmp_path / "config.json")["options"]
    for value in (3, [], {}, options | {"layers": 10**9}, options | {"style": 3}):
        change(tmp_path, options=value)
        with pytest.raises(ValueError, match=r"config\.json is damaged: options|256 layers"):
            load_own(tmp_path)
    change(tmp_path, options=options, files=3)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_own(tmp_path)


@pytest.mark.parametrize("family", ["lstm", "ngram"])
def test_saving(tmp_path, family):
    """Over an earlier model of another tokenizer, but never over other files."""
    kind, words = find(family), Words(["<eos>", "<unk>", "a", "b"])
    if family == "ngram":
        other = NgramLM(NgramOptions(order=3), KneserNey.fit(IDS, 4, 0, order=3), words)
    else:
        other = kind.model(kind.options(width=8), words, 1)
    other.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")  # as of a model with pieces of words
    other.save_pretrained(tmp_path / "model")
    assert open_model(tmp_path / "model").tokenizer.fingerprint() == words.fingerprint()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="not of an earlier model of this library"):
        other.save_pretrained(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "config.json").read_text() == '{"model_type": "gpt2"}'


class TestTables:
    """Those of an n-gram model, with hashes that fit."""

    @pytest.fixture
    def folder(self, tmp_path):
        KneserNey.fit(IDS, 4, 0, order=3).save(tmp_path / "ngrams")
        return tmp_path / "ngrams"

    def refused(self, folder):
        with pytest.raises(ValueError) as error:
            KneserNey.load(folder)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        "change",
        [
            {"order": 2},
            {"order": 10**9},
            {"order": "3"},
            {"vocabulary_size": 10**9},
            {"vocabulary_size": 3},
            {"end": 4},
            {"end": -1},
            {"format": 2},
            {"more": 1},
        ],
        ids=str,
    )
    def test_settings(self, folder, change):
        write_sealed(folder / "ngrams.json", read_object(folder / "ngrams.json") | change)
        self.refused(folder)
        (folder / "ngrams.json").write_text(json.dumps(3))
        self.refused(folder)

    @pytest.mark.parametrize(
        ("name", "make"),
        [
            ("0.keys", lambda t: t[1:]),
            ("1.keys", lambda t: t.flip(0)),
            ("1.keys", lambda t: t + 1000),
            ("1.keys", lambda t: t - 1000),
            ("2.keys", lambda t: t.double()),
            ("1.log_probs", lambda t: t[1:]),
            ("1.log_probs", lambda t: t.float()),
            ("2.log_backoffs", lambda t: t + torch.nan),
            ("2.log_backoffs", lambda t: t[None]),
        ],
    )
    def test_tensors(self, folder, name, make):
        path = folder / "ngrams.safetensors"
        tensors = {n: t.clone() for n, t in read_tensors(path).items()}
        tensors[name] = make(tensors[name])
        write_tensors(path, tensors)
        settings = read_object(folder / "ngrams.json")
        write_sealed(folder / "ngrams.json", settings | {"files": {path.name: sha256_of(path)}})
        self.refused(folder)


@pytest.mark.parametrize(
    ("family", "value", "said"),
    [
        ("lstm", float("nan"), "holds NaN or infinity"),
        ("transformer", float("-inf"), "holds NaN or infinity"),
        ("feed-forward", 3e38, "so large that they give no probabilities"),
    ],
)
def test_parameters_that_give_no_probabilities(tmp_path, family, value, said):
    kind = find(family)
    lm = kind.model(kind.options(width=8), Words(["<eos>", "<unk>", "a", "b"]), 1)
    with torch.no_grad():
        lm.params.words[2:].fill_(value)
        lm.params.words[:2].fill_(abs(value))
    lm.save_pretrained(tmp_path)
    refused(tmp_path, said)


@pytest.mark.filterwarnings("error")
def test_rows_of_every_kind(folder):
    """Lists of arrays or tensors of different lengths, as for HMMs, without a warning of torch."""
    predictor = open_model(folder).predictor()
    wanted = [predictor.log_prob(torch.tensor([row])) for row in ([2, 3, 0, 3], [1, 2])]
    following = [predictor.next_token(torch.tensor([row])) for row in ([2, 3, 0, 3], [1, 2])]
    for rows in (
        [[2, 3, 0, 3], [1, 2]],
        [np.array([2, 3, 0, 3]), np.array([1, 2])],
        [torch.tensor([2, 3, 0, 3]), torch.tensor([1, 2])],
    ):
        torch.testing.assert_close(predictor.log_prob(rows), torch.cat(wanted))
        torch.testing.assert_close(predictor.next_token(rows), torch.cat(following))
        assert predictor.sample(2, 3, rows[0]).shape == (2, 3)
        text = open_model(folder).perplexity([*rows, []], convention="reset")
        assert text.tokens == 6 and text.log_prob < 0
    sentences = [predictor.log_prob(torch.tensor([row])) for row in ([2, 3, 0], [3], [1, 2])]
    assert text.log_prob == pytest.approx(float(sum(sentences)), rel=1e-5)
