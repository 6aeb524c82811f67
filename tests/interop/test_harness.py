"""The model for lm-evaluation-harness, tested with a stand-in for its base class."""

import abc
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch

from bighmm.data.tokenizers import Subwords, Words
from bighmm.interop import harness
from bighmm.lm.baselines import find
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.options import NgramOptions
from bighmm.lm.stepping import HMMStepper
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import Blocked, Dense
from models import KINDS, random_hmm

WORDS = ["<eos>", "<unk>", "a", "b", "c", "d"]


class StandIn(abc.ABC):
    """The part of `lm_eval.api.model.LM` that is used here."""

    def __init__(self) -> None:
        self.cache_hook = None

    @abc.abstractmethod
    def loglikelihood(self, requests): ...

    @abc.abstractmethod
    def loglikelihood_rolling(self, requests): ...

    @abc.abstractmethod
    def generate_until(self, requests): ...


class Model(harness.HarnessModel, StandIn):
    pass


def requests(*arguments):
    return [SimpleNamespace(args=args) for args in arguments]


@pytest.fixture(scope="module")
def lm():
    support = Blocked.of(torch.tensor([0, 0, 0, 1, 1, 1]), 8)
    return HMMLM("scalar", ScalarOptions(), support, Words(WORDS), seed=3)


@pytest.fixture
def model(lm):
    return Model(lm, batch_size=2)


def log_prob(lm, text):
    return float(lm.hmm().log_prob(torch.tensor([lm.encode(text)], dtype=torch.long)))


@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_of_continuations(kind):
    """log p(rest | context) is a difference of log-probabilities, also over end marks."""
    hmm = random_hmm(kind, states=6, vocabulary=5, seed=1, end=0)
    contexts = [[1, 2, 0, 3, 4], [], [2, 0], [1]]
    rests = [[2, 0, 1], [3, 3, 3, 3], [4], []]
    lm = SimpleNamespace(stepper=lambda: HMMStepper(hmm))
    found = harness.continuations(lm, contexts, rests)
    for context, rest, (gained, greedy) in zip(contexts, rests, found, strict=True):
        whole, before = (
            hmm.log_prob(torch.tensor([ids], dtype=torch.long)) for ids in (context + rest, context)
        )
        assert gained == pytest.approx(float(whole - before))
        best = hmm.sample(1, len(rest), context, temperature=0)[0].tolist()
        assert greedy == (best == rest)


def test_loglikelihood_of_texts(lm, model):
    pairs = [("a b", " c d"), ("", "a"), ("a b ", "c"), ("d\n", "a b"), ("a c b d", " nobody")]
    found = model.loglikelihood(requests(*pairs))
    for (context, rest), (gained, greedy) in zip(pairs, found, strict=True):
        wanted = log_prob(lm, context + rest) - log_prob(lm, context.rstrip(" "))
        assert gained == pytest.approx(wanted, abs=1e-5) and isinstance(greedy, bool)
    best = lm.hmm().next_token(torch.tensor([lm.encode("a b")])).argmax(1).tolist()
    word = " " + lm.tokenizer.token(best[0])
    assert model.loglikelihood(requests(("a b", word.replace(" <eos>", "\n"))))[0][1]
    assert model.loglikelihood(requests(("a", ""))) == [(0.0, True)]


@pytest.fixture(scope="module")
def fused():
    """A subword model in which "x." followed by "y" is the one token "x.y"."""
    vocabulary = {word: id for id, word in enumerate(["<unk>", "</s>", "x.", "x.y", "y", "a"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = Subwords(model.to_str().encode())
    return HMMLM("scalar", ScalarOptions(), Dense(4, tokenizer.size), tokenizer, seed=3)


@pytest.mark.parametrize(
    "context, rest, before",
    [
        ("x.", "y", ""),
        ("a x.", "y", "a"),
        ("a x.", "y a", "a"),
        ("a x.", " y", "a x."),
        ("a x.", "y\n", "a"),
        ("a", " ", ""),  # no new token: the last token counts as the continuation
    ],
)
def test_a_token_across_context_and_continuation(fused, context, rest, before):
    """The continuation begins at the first token that differs from those of the context."""
    ((gained, _),) = Model(fused).loglikelihood(requests((context, rest)))
    wanted = log_prob(fused, context + rest) - log_prob(fused, before)
    assert gained == pytest.approx(wanted, abs=1e-5) and gained < 0
    assert Model(fused).loglikelihood(requests((context, ""))) == [(0.0, True)]


def test_loglikelihood_rolling(lm, model):
    texts = ["a b c\nd", "", "a", "nobody knows"]
    found = model.loglikelihood_rolling(requests(*((text,) for text in texts)))
    assert found == pytest.approx([log_prob(lm, text) for text in texts], abs=1e-5)


def test_generate_until(lm, model):
    options = {"until": [], "max_gen_toks": 6}
    (text,) = model.generate_until(requests(("a b", options)))
    drawn = lm.hmm().sample(1, prefix=lm.encode("a b"), temperature=0, max_length=6)[0].tolist()
    drawn = drawn[: drawn.index(0)] if 0 in drawn else drawn
    assert text == lm.decode(drawn) and len(text.split()) <= 6
    sampled = {"do_sample": True, "max_new_tokens": 30, "until": "b"}
    found = model.generate_until(requests(*[("a", sampled)] * 20))
    assert len(set(found)) > 5 and not any("b" in text or "\n" in text for text in found)
    again = Model(lm, seed=0).generate_until(requests(*[("a", sampled)] * 20))
    assert again == found


def test_a_model_from_a_folder(lm, tmp_path):
    lm.save_pretrained(tmp_path / "run" / "model")
    for folder in (tmp_path / "run", str(tmp_path / "run" / "model")):
        model = Model(folder, batch_size="auto", device="cpu", max_batch_size=None)
        assert model.loglikelihood_rolling(requests(("a b",)))[0] == pytest.approx(
            log_prob(lm, "a b")
        )
        assert model.tokenizer_name == Model(lm).tokenizer_name


FAMILIES = ["ngram", "feed-forward", "lstm", "awd-lstm", "recurrent-hmm", "transformer"]


@pytest.mark.parametrize("family", FAMILIES)
def test_baselines(family, tmp_path):
    """Answers agree with the model's probabilities of whole texts, and with its own samples."""
    words, kind = Words(WORDS), find(family)
    if family == "ngram":
        ids = np.array([2, 3, 4, 0, 5, 2, 3, 0, 3, 3, 2, 0])
        lm = NgramLM(NgramOptions(order=3), KneserNey.fit(ids, 6, 0, 3), words)
    else:
        small = {"embedding": 4} if hasattr(kind.options, "embedding") else {}
        lm = kind.model(kind.options(width=8, **small), words, seed=2)
    lm.save_pretrained(tmp_path)
    model = Model(str(tmp_path), batch_size=3, device="cpu")

    def whole(text):
        ids = torch.tensor([lm.encode(text)], dtype=torch.long)
        return float(lm.predictor().log_prob(ids))

    pairs = [
        ("a b\nc", " c d"),
        ("", "a"),
        ("a b", " c\nd"),
        ("d\n", "a b"),
        ("a c b d", " nobody"),
    ]
    found = model.loglikelihood(requests(*pairs))
    for (context, rest), (gained, greedy) in zip(pairs, found, strict=True):
        assert gained == pytest.approx(whole(context + rest) - whole(context), abs=1e-5)
        assert isinstance(greedy, bool)
    texts = ["a b c\nd", "", "a"]
    rolled = model.loglikelihood_rolling(requests(*((text,) for text in texts)))
    assert rolled == pytest.approx([whole(text) for text in texts], abs=1e-5)
    best = lm.predictor().sample(1, 3, lm.encode("a b"), temperature=0.0)[0].tolist()
    (text,) = model.generate_until(requests(("a b", {"max_gen_toks": 3})))
    assert text == lm.decode(best[: best.index(0)] if 0 in best else best)
    likeliest = lm.decode([*lm.encode("a b"), *best]).removeprefix("a b")
    assert model.loglikelihood(requests(("a b", likeliest)))[0][1]


def test_the_default_device_without_a_gpu(lm, monkeypatch):
    """The harness asks for cuda:0 if its user asks for nothing."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert Model(lm, device="cuda:0").lm.device == torch.device("cpu")
    assert Model(lm, device="auto").lm.device == torch.device("cpu")
    with pytest.raises(ValueError, match=r"there is no GPU 'cuda:1' that torch can use here"):
        Model(lm, device="cuda:1")


def test_error_if_the_harness_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    harness.register.cache_clear()
    with pytest.raises(ValueError, match=r"lm-eval is not installed; install bighmm\[lm-eval\]"):
        harness.register()
    with pytest.raises(SystemExit, match=r"^error: lm-eval is not installed; install bighmm"):
        harness.main()


def test_the_model_is_registered_in_the_harness(lm):
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import get_model

    harness.register.cache_clear()
    kind = harness.register()
    assert issubclass(kind, LM) and get_model("bighmm") is kind
    model = kind(lm)
    instances = [Instance("loglikelihood", {}, ("a b", " c"), 0)]
    assert model.loglikelihood(instances) == Model(lm).loglikelihood(instances)
