"""Hugging Face language models: ids, probabilities of next tokens, prompts, and errors."""

import json
import shutil

import pytest
import torch

from bighmm.interop.language_model import LanguageModel, prompts_of
from tiny_lm import COLUMNS, MARKS, SIZE, save_language_model

transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lm(tiny_lm):
    return LanguageModel(str(tiny_lm), CPU)


def changed(tiny_lm, folder, file, **values):
    shutil.copytree(tiny_lm, folder, dirs_exist_ok=True)
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return str(folder)


def test_the_tokenizer_has_the_ids_of_the_model(lm):
    assert lm.tokenizer.size == SIZE and lm.tokenizer.end == 0
    theirs = transformers.AutoTokenizer.from_pretrained(lm.place.folder)
    text = "the cat saw a dog ."
    assert lm.tokenizer.encode(text) == theirs(text)["input_ids"]


def test_only_words_and_the_end_mark_have_positive_probability(lm):
    ids = torch.tensor([[1, 7, 8]])
    logits, _ = lm.forward(ids, torch.ones_like(ids), torch.arange(3).unsqueeze(0))
    assert logits.shape == (1, COLUMNS)
    model = transformers.AutoModelForCausalLM.from_pretrained(lm.place.folder)
    with torch.no_grad():
        torch.testing.assert_close(logits, model(ids).logits[:, -1])
    found = lm.log_probs(logits, temperature=2.0)[0]
    possible = [0, *range(len(MARKS), SIZE)]
    assert torch.isfinite(found).nonzero().squeeze(1).tolist() == possible
    torch.testing.assert_close(found[possible], (logits[0, possible] / 2).log_softmax(0))


def test_all_marks_that_end_a_text_count_as_the_end_mark(tiny_lm, lm, tmp_path):
    """The probability of a mark that ends a turn is added to that of the end mark."""
    name = changed(tiny_lm, tmp_path, "generation_config.json", eos_token_id=[0, 4])
    other = LanguageModel(name, CPU)
    logits = torch.randn(3, COLUMNS)
    found = other.log_probs(logits).exp()
    assert (found[:, 4] == 0).all() and (found[:, [1, 2, 3]] == 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(3))
    both = logits[:, [0, 4, *range(len(MARKS), SIZE)]].softmax(1)
    torch.testing.assert_close(found[:, 0], both[:, :2].sum(1))


def test_ids_of_prompts(lm):
    the, cat = lm.tokenizer.encode("the cat")
    assert prompts_of(lm, (), False) == [[1]]
    assert prompts_of(lm, ("the cat", "the"), False) == [[the, cat], [the]]
    assert prompts_of(lm, ("the cat",), True) == [[3, the, cat, 4]]
    with pytest.raises(ValueError, match="give --prompt too"):
        prompts_of(lm, (), True)
    with pytest.raises(ValueError, match="the prompt ' ' holds no token"):
        prompts_of(lm, (" ",), False)


def test_error_without_a_chat_template(tmp_path):
    lm = LanguageModel(str(save_language_model(tmp_path, template=None)), CPU)
    with pytest.raises(ValueError, match="has no chat template; leave out --chat"):
        lm.chat_prompts(["the cat"])


def test_error_without_an_end_mark(tmp_path):
    with pytest.raises(ValueError, match=r"has no end mark \(eos_token in"):
        LanguageModel(str(save_language_model(tmp_path, eos=None)), CPU)


def test_error_of_a_model_that_is_not_causal(tiny_lm, tmp_path):
    shutil.copytree(tiny_lm, tmp_path, dirs_exist_ok=True)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.BertConfig(
        vocab_size=COLUMNS, num_attention_heads=2, initializer_range=0.5, **sizes
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is not causal"):
        LanguageModel(str(tmp_path), CPU)


def test_errors_of_models_that_cannot_be_opened(tiny_lm, tmp_path):
    with pytest.raises(ValueError, match="there is no language model nobody; give the folder of"):
        LanguageModel("nobody", CPU)
    with pytest.raises(ValueError, match=r"the language model .* is a folder without a model"):
        LanguageModel(str(tmp_path), CPU)
    for kind in ("t5", "unheard-of"):
        name = changed(tiny_lm, tmp_path / kind, "config.json", model_type=kind)
        with pytest.raises(ValueError, match=r"the language model .* cannot be opened: ") as error:
            LanguageModel(name, CPU)
        assert "\n" not in str(error.value)
