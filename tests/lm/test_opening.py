"""Opening models of every family, on a device, and the corpus of a run."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import hub_mixin

from bighmm.data.corpus import prepare
from bighmm.lm.baselines import find
from bighmm.lm.baselines.ngram import NgramLM, NgramOptions
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import corpus_for, find_device, find_model, open_hmm, open_model, trained_on
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.params.scalar import ScalarOptions
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


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with what was pushed to it, in a folder."""
    place = tmp_path / "hub"

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, **_):
            shutil.copytree(folder_path, place / repo_id)

    def download(name, **_):
        if not (place / name).is_dir():
            raise OSError("Repository Not Found\nfor url")
        return str(place / name)

    monkeypatch.setattr(hub_mixin, "HfApi", Api)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    return place


FAMILIES = ["hmm", "ngram", "feed-forward", "lstm", "awd-lstm", "recurrent-hmm", "transformer"]


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_the_hub(hub, text, bighmm, family):
    corpus = prepare(text)
    words = corpus.tokenizer
    if family == "hmm":
        lm = HMMLM("scalar", ScalarOptions(), Dense(4, words.size), words, seed=1)
    elif family == "ngram":
        lm = NgramLM.fit(NgramOptions(order=2), corpus)
    else:
        kind = find(family)
        small = {"embedding": 4} if hasattr(kind.options, "embedding") else {}
        lm = kind.model(kind.options(width=8, **small), words, seed=2)
    lm.push_to_hub("someone/a-model")
    card = (hub / "someone" / "a-model" / "README.md").read_text()
    assert "library_name: bighmm" in card and "license" not in card
    wanted = lm.perplexity(corpus).perplexity
    for read in (open_model("someone/a-model"), type(lm).from_pretrained("someone/a-model")):
        assert type(read) is type(lm) and read.perplexity(corpus).perplexity == wanted
    done = bighmm("score", "someone/a-model", stdin=b"a b c\n")
    assert done.status == 0 and done.out.endswith("\ta b c\n")


def test_names_that_are_not_on_the_hub(hub, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"no such model: Repository Not Found$"):
        open_model("someone/else")
    asked = pytest.fail
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: asked(name))
    (tmp_path / "runs").mkdir()
    for name in ("runs/typo", "nothing", "a/b/c", "/a", "../a", tmp_path / "nothing"):
        with pytest.raises(ValueError, match="there is no model at"):
            open_model(name)


def test_the_current_folder_and_no_name(run, monkeypatch):
    for name in ("", " "):
        with pytest.raises(ValueError, match="the name of the model is empty; give a model's"):
            open_model(name)
    with pytest.raises(ValueError, match="there is no model at /"):
        open_model("/")
    for folder in (run, run / "model"):
        monkeypatch.chdir(folder)
        assert isinstance(open_model("."), HMMLM)


def test_a_string_and_the_home_folder(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.parent))
    for name in (str(run), "~/run", "~/run/model", run / "model"):
        assert isinstance(open_model(name), HMMLM)


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
