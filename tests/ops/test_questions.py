"""Whatever is asked of a model of rounded operands: with kernels as with plain torch."""

import sys
from types import SimpleNamespace

import pytest
import torch

from bighmm import constraints as c
from bighmm.data.tokenizers import Words
from bighmm.lm.evaluation import deviation_from_one, evaluate
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import NeuralOptions, ScalarOptions
from bighmm.ops import dense_chain, flat_chain, two_level_chain
from models import random_support

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WORDS = Words.build([" ".join(f"w{i}" for i in range(12))])
OPTIONS = {
    "scalar": ScalarOptions(),
    "neural": NeuralOptions(width=8, init_scale=1.0),
    "flat": NeuralOptions(width=8, init_scale=1.0, transitions="flat"),
}
COARSE = {"rtol": 1e-2, "atol": 1e-2} if DEVICE.type == "cuda" else {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(params=["scalar-dense", "neural-dense", "neural-blocked", "flat-blocked"])
def lm(request):
    options, support = request.param.split("-")
    kind = "scalar" if options == "scalar" else "neural"
    made = random_support(support, 9, WORDS.size)
    return HMMLM(kind, OPTIONS[options], made, WORDS, seed=1).to(DEVICE, "bfloat16")


@pytest.fixture
def ask(lm, monkeypatch):
    """Put a question to the model with kernels, which must be used, and without."""
    module, name = (two_level_chain, "_TwoLevelChain")
    if lm.hmm().support.is_dense:
        module, name = (dense_chain, "_DenseChain")
    elif lm.hmm().transitions.family == "flat":
        module, name = (flat_chain, "_FlatChain")
    modules = [m for name, m in sys.modules.items() if name.startswith("bighmm.")]
    used, kernels = [], getattr(module, name)

    def watched(*given):
        used.append(True)
        return kernels.apply(*given)

    def asked(question):
        answers = []
        for use in (True, False):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, SimpleNamespace(apply=watched))
                for other in (m for m in modules if hasattr(m, "use_triton")):
                    patch.setattr(other, "use_triton", lambda *_, use=use: use)
                # The models are small enough for compiled loops, which a GPU does not have.
                patch.setattr("bighmm.infer.loops.use_compiled", lambda *_: False)
                answers.append(question(lm.hmm()))
            assert bool(used) == use
            used.clear()
        return answers

    return asked


def some_text(seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(WORDS.size, (24,), generator=generator)
    tokens[[7, 12, -1]] = WORDS.end
    return tokens.numpy()


def test_what_is_kept(lm):
    """The cached HMM may use kernels as the parameters' may, and asks for no gradient."""
    assert lm.hmm().transitions.rounded and lm.params().transitions.rounded
    assert not any(t.requires_grad for t in lm.hmm().transitions.operands)
    lm.to(DEVICE, "float32")
    assert not lm.hmm().transitions.rounded and not lm.params().transitions.rounded


@pytest.mark.parametrize("convention", ["reset", "carry"])
def test_perplexity(ask, convention):
    fast, plain = ask(lambda hmm: evaluate(hmm, some_text(), convention=convention).perplexity)
    assert fast == pytest.approx(plain, rel=COARSE["rtol"])


def test_next_words_sum_to_one(ask):
    for deviation in ask(lambda hmm: deviation_from_one(hmm, some_text(), 4)):
        assert deviation < 1e-4


def test_other_questions(ask):
    rows = torch.from_numpy(some_text(3).reshape(4, 6))
    gaps = rows.clone()
    gaps[:, [2, 5]] = -1
    rule = c.contains([[1, 2], [3]]) & ~c.contains([[5]])

    def questions(hmm):
        posterior, best = hmm.posterior(rows), hmm.viterbi(rows)
        return (
            hmm.next_token(rows),
            posterior.log_prob,
            posterior.marginals,
            best.log_prob,
            hmm.best_paths(rows, 3).log_prob,
            hmm.fill_probs(gaps).words,
            hmm.rule_log_prob(rule, 9, [4]),
            hmm.next_token([[4], [2]], rule=rule, remaining=9),
            hmm.expected_counts(rows).transition,
        )

    for fast, plain in zip(*ask(questions), strict=True):
        torch.testing.assert_close(fast, plain, **COARSE)


def test_samples(ask, lm):
    rule = c.contains([[1, 2]]) & c.length(3, 9)

    def draw(hmm):
        generator = torch.Generator(DEVICE).manual_seed(0)
        filled = hmm.fill([[1, -1, 2, -1]], 4, generator=generator)
        texts = hmm.sample(6, rule=rule, max_length=12, generator=generator)
        return hmm.sample(5, length=6, prefix=[1, 2], generator=generator), filled, texts.tolist()

    for free, filled, texts in ask(draw):
        assert free.shape == (5, 6) and bool((filled[0, :, 0] == 1).all())
        assert all(rule.matches(text[: text.index(WORDS.end)]) for text in texts)
