"""Folders of models that try to run code, and chat templates that never end."""

import io
import json

import pytest
import torch

from bighmm.data.tokenizers import Words
from bighmm.distill.teachers import open_teacher
from bighmm.interop import chat_template
from bighmm.interop.language_model import LanguageModel
from tiny_lm import save_language_model

CPU = torch.device("cpu")
CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
Path({marker!r}).touch()
from transformers import LlamaConfig as Own, LlamaForCausalLM as OwnModel
from transformers import PreTrainedTokenizerFast as OwnTokenizer
"""
REFUSED = r"needs Python code of its own .* is never run"
MAP = {
    "AutoConfig": "own.Own",
    "AutoModel": "own.OwnModel",
    "AutoModelForCausalLM": "own.OwnModel",
    "AutoTokenizer": [None, "own.OwnTokenizer"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model with code in it; whoever is asked says yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    made = save_language_model(tmp_path / "model")
    (made / "own.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    return made


def change(path, **values):
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps(content))


def ways_to_open(folder):
    words = Words.build(["the cat"])
    yield lambda: LanguageModel(str(folder), CPU)
    yield lambda: open_teacher(str(folder), words)
    yield lambda: open_teacher(str(folder), words, fresh=True)


def test_code_of_a_model_is_refused(folder, tmp_path, capsys):
    change(folder / "config.json", model_type="own", auto_map=MAP)
    change(folder / "tokenizer_config.json", auto_map=MAP)
    for opened in ways_to_open(folder):
        with pytest.raises(ValueError, match=REFUSED) as error:
            opened()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()
    assert "[y/N]" not in capsys.readouterr().out


def test_code_of_a_tokenizer_is_refused(folder, tmp_path, capsys):
    """The configuration is of a known kind without a tokenizer of its own."""
    change(folder / "config.json", model_type="timesfm")
    change(folder / "tokenizer_config.json", auto_map=MAP, tokenizer_class="Own")
    for opened in ways_to_open(folder):
        with pytest.raises(ValueError, match=REFUSED):
            opened()
    assert not (tmp_path / "ran").exists()
    assert "[y/N]" not in capsys.readouterr().out


def test_code_beside_a_known_model_is_ignored(folder, tmp_path):
    change(folder / "config.json", auto_map=MAP)
    change(folder / "tokenizer_config.json", auto_map=MAP)
    (folder / "custom_generate").mkdir()
    (folder / "own.py").rename(folder / "custom_generate" / "generate.py")
    for opened in ways_to_open(folder):
        opened()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": {"": "someone/kernel"}},
        {"text_config": {"attn_implementation": "someone/kernel:name"}},
    ],
)
def test_kernels_of_the_hub_are_refused(folder, values):
    change(folder / "config.json", **values)
    for opened in ways_to_open(folder):
        with pytest.raises(ValueError, match=r"names the kernel someone/kernel.* is never run"):
            opened()


def test_pickled_weights_are_refused(folder):
    weights = folder / "model.safetensors"
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    LanguageModel(str(folder), CPU)  # the safetensors beside it are read
    weights.unlink()
    for opened in ways_to_open(folder):
        with pytest.raises(ValueError, match=r"weights are pickled \(pytorch_model\.bin\)"):
            opened()


def test_generation_settings_of_a_model_are_not_used(folder):
    """Contrastive search would be code from the hub."""
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [0, 3], "penalty_alpha": 0.5, "top_k": 4, "max_time": 1e-9})
    )
    lm = LanguageModel(str(folder), CPU)
    assert lm.never_written == [1, 2, 3, 4]  # 3 ends a text
    assert lm.model.generation_config.penalty_alpha is None
    assert lm.model.generation_config.max_time is None


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (LOOP, "computes for more than 1 seconds"),
        ("{{ 10 ** (10 ** 9) }}", "computes for more than 1 seconds|needs more than"),
        ("{{ 'x' * 10 ** 11 }}", "needs more than 1024 MiB"),
        ("{{ 'x' * 2000000 }}", "writes more than 1,000,000 characters"),
        ("{{ raise_exception('no users\\nhere') }}", "no users$"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_templates_that_fail_or_never_end(template, reason, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    with pytest.raises(ValueError, match=reason) as error:
        chat_template.user_turns(template, ["hello"], {})
    assert "\n" not in str(error.value)


def test_error_of_a_chat_template(tmp_path):
    folder = save_language_model(tmp_path / "model", template="{{ raise_exception('no users') }}")
    lm = LanguageModel(str(folder), CPU)
    with pytest.raises(ValueError, match=r"the chat template of .*model cannot be used: no users"):
        lm.chat_prompts(["the cat"])
