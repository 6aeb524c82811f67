"""Opening models of every family, on a device, and the corpus of a run."""

import json

import pytest
import torch

from bighmm.data.corpus import prepare
from bighmm.lm.baselines.ngram import NgramLM, NgramOptions
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import corpus_for, find_device, find_model, open_hmm, open_model, trained_on
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.support import Dense


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c a\nb a c\n" * 30)
    return path


@pytest.fixture
def run(text, tmp_path):
    tokenizer = prepare(text).tokenizer
    options = NeuralOptions(width=4, init_scale=1.0)
    lm = HMMLM("neural", options, Dense(4, tokenizer.size), tokenizer, seed=1)
    lm.save_pretrained(tmp_path / "run" / "model")
    recipe = {"recipe": {"corpus": {"data": str(text)}}, "corpus": "hash"}
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(recipe))
    return tmp_path / "run"


def test_type_of_products(run):
    plain, rounded = open_model(run), open_model(run, "cpu", "bfloat16")
    tokens = torch.tensor([plain.encode("a b c")])
    assert isinstance(plain, HMMLM) and isinstance(rounded, HMMLM)
    expected = HMMLM.from_pretrained(run).hmm().log_prob(tokens)
    assert torch.equal(plain.hmm().log_prob(tokens), expected)
    assert not torch.equal(rounded.hmm().log_prob(tokens), expected)
    same = open_hmm(str(run), "states", torch.device("cpu"), matmul_dtype="bfloat16")
    assert torch.equal(same.hmm().log_prob(tokens), rounded.hmm().log_prob(tokens))


def test_what_is_no_hmm(text, tmp_path):
    NgramLM.fit(NgramOptions(order=2), prepare(text)).save_pretrained(tmp_path / "ngram")
    assert isinstance(open_model(tmp_path / "ngram"), NgramLM)
    with pytest.raises(ValueError, match="ngram is not a hidden Markov model, so it has no states"):
        open_hmm(tmp_path / "ngram", "states")


def test_devices(run):
    assert find_device("cpu") == torch.device("cpu") == find_device(torch.device("cpu"))
    assert find_device("auto").type in ("cpu", "cuda")
    for name in ("gpu", "mps", "cuda:x"):
        with pytest.raises(ValueError, match=f"there is no device '{name}'; use cpu, cuda or auto"):
            open_model(run, name)
    with pytest.raises(ValueError, match="there is no GPU 'cuda:99' that torch can use here"):
        open_hmm(run, "states", "cuda:99")


def test_no_model(tmp_path, run):
    with pytest.raises(ValueError, match="there is no model at"):
        find_model(tmp_path / "nowhere")
    (run / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="has not saved a model yet; resume it first"):
        open_model(run)


def test_corpus(run, text, tmp_path):
    assert corpus_for(run).fingerprint == prepare(text).fingerprint
    other = tmp_path / "other.txt"
    other.write_text("a d\nb\nc\n")
    assert corpus_for(run, str(other)).tokenizer.size == prepare(text).tokenizer.size
    with pytest.raises(ValueError, match="does not say what it was trained on; give --data"):
        corpus_for(run / "model")


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"recipe": 3}', '{"recipe": {"corpus": {}}}']
)
def test_a_damaged_recipe(run, content):
    (run / "recipe.json").write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        trained_on(run)
