"""Pretrained models: equal to Hugging Face's own, and refused in one sentence if not understood.

Where transformers is not installed, only the refusals are tested.
"""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from bighmm.model.networks import load_hugging_face, load_own, load_pretrained

LLAMA = {
    "model_type": "llama",
    "vocab_size": 7,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 7,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
}
THEIRS = {
    "llama, shared keys": LLAMA,
    "llama, tied": {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama, slow": {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 4},
    "gpt2": GPT2,
    "gpt2, narrow": {**GPT2, "n_inner": 5},
}


@pytest.fixture
def theirs(request, tmp_path):
    """A random model of these settings as transformers makes it, and its folder."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**THEIRS[request.param])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


@pytest.mark.parametrize("theirs", THEIRS, indirect=True)
def test_equal_to_theirs(theirs):
    model, folder = theirs
    found = load_pretrained(folder)
    tokens = torch.randint(0, 7, (3, 11))
    with torch.no_grad():
        expected = model(tokens).logits
        logits = found.backbone(found.words[tokens]) @ found.head.T
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert (found.head is found.words) == model.config.tie_word_embeddings


@pytest.mark.parametrize("theirs", ["llama, shared keys", "gpt2"], indirect=True)
def test_parts_and_names_without_a_prefix(theirs):
    _, folder = theirs
    whole = load_hugging_face(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors = {
        name.removeprefix("model.").removeprefix("transformer."): tensor.half()
        for name, tensor in tensors.items()
    }
    names = sorted(tensors)
    where = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for part in set(where.values()):
        chosen = {name: tensors[name] for name in names if where[name] == part}
        save_file(chosen, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    again = load_hugging_face(folder)
    assert again.words.dtype == torch.float32
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(again.backbone(x), whole.backbone(x), rtol=1e-2, atol=1e-2)
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no part-1\.safetensors"):
        load_hugging_face(folder)


def write(folder, settings, tensors=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors or {"norm.weight": torch.ones(8)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"model_type": "bert"}, "of the type 'bert'; known are gpt2, llama, mistral"),
        ({}, "of the type None"),
        ([], "not a JSON object"),
        ({"model_type": "llama"}, "has no field 'num_attention_heads'"),
        ({**LLAMA, "attention_bias": True}, "attention_bias = True; only False is known"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3"}}, "rope_type = 'llama3'"),
        ({**LLAMA, "head_dim": 4}, "heads that do not divide its width"),
        ({**LLAMA, "num_key_value_heads": 3}, "multiple of the 3 heads"),
        ({**GPT2, "activation_function": "relu"}, "activation_function = 'relu'"),
        (LLAMA, "is not complete: it has no layers.0.input_layernorm.weight"),
    ],
)
def test_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_pretrained(write(tmp_path / "model", settings))


def test_weights_of_another_shape(tmp_path):
    tensors = {
        "embed_tokens.weight": torch.ones(7, 8),
        "lm_head.weight": torch.ones(7, 8),
        "norm.weight": torch.ones(9),
    }
    settings = {**LLAMA, "num_hidden_layers": 1}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"layers.0.{name}.weight"] = torch.ones(8)
    for name in ("q", "k", "v", "o"):
        tensors[f"layers.0.self_attn.{name}_proj.weight"] = torch.ones(4 if name in "kv" else 8, 8)
    for name in ("gate", "up", "down"):
        shape = (8, 12) if name == "down" else (12, 8)
        tensors[f"layers.0.mlp.{name}_proj.weight"] = torch.ones(shape)
    with pytest.raises(ValueError, match=r"has norm\.weight of shape \(9,\), where \(8,\) is"):
        load_hugging_face(write(tmp_path / "model", settings, tensors))
    tensors |= {"norm.weight": torch.ones(8), "lm_head.weight": torch.ones(7, 9)}
    with pytest.raises(ValueError, match="has output weights of shape"):
        load_hugging_face(write(tmp_path / "model", settings, tensors))
    tensors["lm_head.weight"] = torch.ones(7, 8)
    load_hugging_face(write(tmp_path / "model", settings, tensors))


def test_nothing_to_read(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="there is no pretrained model at"):
        load_pretrained(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="there is no model at"):
        load_own(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no config\.json and 0 \.gguf files"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is of the family unknown, not transformer"):
        load_own(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "small.gguf").write_bytes(b"nothing")
    monkeypatch.setitem(sys.modules, "gguf", None)
    for path in (tmp_path, tmp_path / "small.gguf"):
        with pytest.raises(ValueError, match="which needs the package"):
            load_pretrained(path)


def test_a_damaged_gguf_file(tmp_path):
    for name in ("gguf", "accelerate", "transformers"):
        pytest.importorskip(name)
    (tmp_path / "small.gguf").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is damaged or is not a known GGUF file"):
        load_pretrained(tmp_path)
