"""Tiny Hugging Face models as teachers."""

import shutil
import sys

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from bighmm.data.tokenizers import Subwords, Words
from bighmm.distill.align import embed
from bighmm.distill.hugging_face import HuggingFaceTeacher
from bighmm.distill.teachers import Reading, open_teacher
from bighmm.interop.hugging_face import find_model

transformers = pytest.importorskip("transformers")

TEXT = ["the cat sat on the mat", "a naïve dog saw the café"]
READING = Reading(8, 4)


def subwords(marks):
    """A byte-pair tokenizer; with `marks` it puts special tokens around a text."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<eos>", "<s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(TEXT, trainer)
    if marks:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A <eos>", special_tokens=[("<s>", 1), ("<eos>", 0)]
        )
    return model


def save(folder, marks, network):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=subwords(marks))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    folder = tmp_path_factory.mktemp("causal")
    return save(folder, False, transformers.LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def bidirectional(tmp_path_factory):
    config = transformers.BertConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=12,
        initializer_range=0.5,
    )
    return save(tmp_path_factory.mktemp("both"), True, transformers.BertModel(config))


def test_vectors_of_a_causal_model(causal):
    teacher = open_teacher(str(causal), Words.build(TEXT), layer=-1)
    assert isinstance(teacher, HuggingFaceTeacher) and teacher.causal and teacher.width == 16
    ids = torch.tensor([[5, 6, 7, 8]])
    model = transformers.AutoModel.from_pretrained(causal)
    with torch.no_grad():
        made = model(ids, output_hidden_states=True)
    torch.testing.assert_close(teacher.hidden(ids), made.last_hidden_state)
    lower = open_teacher(str(causal), Words.build(TEXT), layer=1)
    torch.testing.assert_close(lower.hidden(ids), made.hidden_states[1])
    assert lower.description() != teacher.description()
    last = open_teacher(str(causal), Words.build(TEXT), layer=2)
    torch.testing.assert_close(last.hidden(ids), made.last_hidden_state)
    assert last.description() == teacher.description()
    usual = open_teacher(str(causal), Words.build(TEXT))  # two thirds of two layers
    assert usual.description() == lower.description()
    for layer in (3, -4):
        with pytest.raises(ValueError, match=f"has no layer {layer}; it has 0"):
            open_teacher(str(causal), Words.build(TEXT), layer=layer)


def test_vectors_of_a_bidirectional_model(bidirectional):
    teacher = open_teacher(str(bidirectional), Words.build(TEXT))
    assert not teacher.causal
    ids = torch.tensor([[5, 6, 7]])
    model = transformers.AutoModel.from_pretrained(bidirectional)
    with torch.no_grad():
        wanted = model(torch.tensor([[1, 5, 6, 7, 0]])).last_hidden_state[:, 1:-1]
    torch.testing.assert_close(teacher.hidden(ids), wanted)
    with pytest.raises(ValueError, match=r"reads 12 tokens at most, .* a window of 11 is too long"):
        teacher.hidden(torch.zeros(1, 11, dtype=torch.long))


def test_vectors_of_words_are_those_of_their_last_piece(causal):
    """The pieces are those of the text of all words."""
    tokenizer = Words.build(TEXT)
    teacher = open_teacher(str(causal), tokenizer)
    assert not teacher.shares_vocabulary(tokenizer)
    ids = np.array(tokenizer.encode("a naïve cat\nxyz café"))
    found = embed(teacher, tokenizer, ids, Reading())
    made = subwords(False).encode("a naïve cat\n<unk> café")
    with torch.no_grad():
        every = teacher.hidden(torch.tensor([made.ids]))[0]
    ends = [1, 7, 11, 12, 17, 22]
    wanted = [max(i for i, (a, _) in enumerate(made.offsets) if a < end) for end in ends]
    torch.testing.assert_close(found, every[wanted])


def test_ids_of_a_shared_vocabulary_are_read_directly(causal, bidirectional, monkeypatch):
    tokenizer = Subwords(subwords(False).to_str().encode())
    ids = np.array(tokenizer.encode("the cat\nthe naïve dog\n"))
    for folder in (causal, bidirectional):
        teacher = open_teacher(str(folder), tokenizer)
        assert teacher.shares_vocabulary(tokenizer)
        monkeypatch.setattr(teacher, "tokenize", None)  # must not be called
        assert embed(teacher, tokenizer, ids, READING).shape == (len(ids), 16)
    changed = subwords(False).to_str().replace('"<s>"', '"<t>"')
    assert not teacher.shares_vocabulary(Subwords(changed.encode()))


def test_fresh_weights_depend_on_the_seed(causal):
    tokenizer, ids = Words.build(TEXT), torch.tensor([[5, 6, 7]])
    trained = open_teacher(str(causal), tokenizer)
    fresh = [open_teacher(str(causal), tokenizer, fresh=True, seed=s) for s in (1, 1, 2)]
    first, same, other = (teacher.hidden(ids) for teacher in fresh)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert not torch.equal(first, trained.hidden(ids))
    assert fresh[0].description() != trained.description()


def test_a_downloaded_model_of_the_hub(causal, tmp_path, monkeypatch):
    kept = tmp_path / "models--someone--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(causal, kept / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    teacher = open_teacher("someone/tiny", Words.build(TEXT))
    assert teacher.description()["name"] == "someone/tiny"
    same = open_teacher(str(causal), Words.build(TEXT)).description()
    assert teacher.description() == {**same, "name": "someone/tiny"}
    with pytest.raises(ValueError, match="there is no teacher someone/else; give"):
        open_teacher("someone/else", Words.build(TEXT))


def test_hashes_depend_on_the_files(causal, tmp_path):
    before = find_model(str(causal)).hashes()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(before)
    (tmp_path / "config.json").write_bytes((causal / "config.json").read_bytes() + b" ")
    assert find_model(str(tmp_path)).hashes()["config.json"] != before["config.json"]


def test_errors_of_damaged_models(causal, tmp_path):
    tokenizer = Words.build(TEXT)
    (tmp_path / "broken.gguf").write_bytes(b"nothing")
    for name in (tmp_path, tmp_path / "broken.gguf"):
        with pytest.raises(ValueError, match="cannot be opened: "):
            open_teacher(str(name), tokenizer)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be opened: ") as error:
        open_teacher(str(tmp_path), tokenizer)
    assert "\n" not in str(error.value)


def test_error_of_missing_weights(causal, tmp_path):
    """transformers alone would use random weights instead."""
    shutil.copytree(causal, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    save_file({n: t for n, t in tensors.items() if "layers.1.mlp" not in n}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"not complete: it has no .*layers\.1\.mlp\.down_proj"):
        open_teacher(str(tmp_path / "model"), Words.build(TEXT))


def test_error_if_transformers_is_not_installed(causal, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r'needs the package transformers: install "bighmm\[teach'):
        open_teacher(str(causal), Words.build(TEXT))
