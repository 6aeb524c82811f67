"""A tiny language model, guided by tiny HMMs."""

import itertools

import pytest
import torch

from bighmm import constraints as c
from models import random_hmm

transformers = pytest.importorskip("transformers")
hugging_face = pytest.importorskip("bighmm.guide.hugging_face")

END, WORDS, SPARE = 0, 6, 3  # the language model has tokens that the HMM does not have
LENGTH = 5
PROMPTS = [[1], [2, 3, 4], [5, 1], [4]]
RULES = [
    c.contains([[1, 2]]),
    c.contains([[3], [2]]),
    c.excludes([[4]]) & c.ends_with([1]) & c.length(2),
    c.starts_with([2]) + c.contains([[2]]),
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=WORDS + SPARE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.8,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=END,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def absolute():
    """A model whose positions are counted from the beginning, so that padding must not count."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=WORDS + SPARE,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        initializer_range=0.8,
        bos_token_id=1,
        eos_token_id=END,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def hmm_of(kind="dense-table"):
    return random_hmm(kind, vocabulary=WORDS, dtype=torch.float32)


def log_prob_of(model, prompt, text):
    """Token by token, without batches or padding."""
    total = 0.0
    for place, token in enumerate(text):
        ids = torch.tensor([[*prompt, *text[:place]]])
        with torch.no_grad():
            total += float(model(input_ids=ids).logits[0, -1].log_softmax(0)[token])
    return total


@pytest.mark.parametrize("kind", ["dense-table", "blocked-flat"])
@pytest.mark.parametrize("name", ["model", "absolute"])
def test_sampled_texts_satisfy_their_rules(name, kind, request):
    model = request.getfixturevalue(name)
    torch.manual_seed(2)
    found = hugging_face.generate(model, hmm_of(kind), PROMPTS, RULES, LENGTH, n=8)
    assert [len(texts) for texts in found] == [8] * 4
    for texts, rule, prompt in zip(found, RULES, PROMPTS, strict=True):
        assert len({tuple(text.ids) for text in texts}) > 1
        for text in texts:
            assert rule.matches(text.ids)
            assert END not in text.ids
            assert len(text.ids) < LENGTH
            whole = [*text.ids, END]
            assert text.log_prob == pytest.approx(log_prob_of(model, prompt, whole), abs=1e-4)


def test_a_wide_beam_search_finds_the_likeliest_text(model):
    found = hugging_face.generate(
        model, hmm_of(), PROMPTS, RULES, 4, num_beams=80, length_penalty=0.0, do_sample=False
    )
    texts = [list(t) for n in range(4) for t in itertools.product(range(1, WORDS), repeat=n)]
    for prompt, rule, (best,) in zip(PROMPTS, RULES, found, strict=True):
        fitting = [text for text in texts if rule.matches(text)]
        worth = {tuple(t): log_prob_of(model, prompt, [*t, END]) for t in fitting}
        assert tuple(best.ids) == max(worth, key=worth.__getitem__)


def test_more_beams_than_texts(model):
    """The beams that remain without a text are not passed off as texts."""
    only = c.regex("2 (3 | 4)")
    (texts,) = hugging_face.generate(model, hmm_of(), [[1]], [only], 4, n=6, num_beams=6)
    assert sorted(text.ids for text in texts) == [[2, 3], [2, 4]]


def test_batches_and_progress(model):
    seen = []
    rules = RULES * 5
    found = hugging_face.generate(
        model, hmm_of(), PROMPTS * 5, rules, LENGTH, batch=6, progress=seen.append
    )
    assert seen == [6, 12, 18, 20]
    assert all(rule.matches(texts[0].ids) for rule, texts in zip(rules, found, strict=True))


def test_samples_are_of_the_product(model):
    """One token to choose: p(x | prompt) of the language model times p(rule | x) of the HMM."""
    hmm, rule, prompt = hmm_of(), c.regex("(1 | 2 | 3) 2?"), [4, 2]
    torch.manual_seed(3)
    (texts,) = hugging_face.generate(model, hmm, [prompt], [rule], 3, n=4000, batch=4000)
    first = torch.bincount(torch.tensor([text.ids[0] for text in texts]), minlength=WORDS)
    ended = c.until(rule, END)
    with torch.no_grad():
        language = model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(0)
    weights = [float(hmm.rule_log_prob(ended.after([x]), 2, [x]).exp()) for x in (1, 2, 3)]
    exact = language[1:4] * torch.tensor(weights)
    exact /= exact.sum()
    drawn = first[1:4] / 4000
    assert torch.allclose(drawn, exact, atol=4 * (0.25 / 4000) ** 0.5)


def test_what_the_hmm_has_read(model):
    """A prefix belongs to the text for both, and the rule is about what follows."""
    rule = c.contains([[2, 3]])
    torch.manual_seed(4)
    (texts,) = hugging_face.generate(
        model, hmm_of(), [[1]], [rule], LENGTH, prefixes=[[2]], n=20, batch=20
    )
    assert all(rule.matches(text.ids) for text in texts)
    whole = [*texts[0].ids, END]
    assert texts[0].log_prob == pytest.approx(log_prob_of(model, [1, 2], whole), abs=1e-4)


def test_refusals(model):
    hmm = hmm_of()
    with pytest.raises(ValueError, match="needs at least 3 tokens"):
        hugging_face.generate(model, hmm, [[1]], [c.length(3)], 3)
    with pytest.raises(ValueError, match="give one of each"):
        hugging_face.generate(model, hmm, [[1], [2]], [c.length(0)], 3)
    large = random_hmm("dense-table", vocabulary=WORDS + SPARE + 1, dtype=torch.float32)
    with pytest.raises(ValueError, match="has 9 tokens and the HMM 10"):
        hugging_face.generate(model, large, [[1]], [c.length(0)], 3)
