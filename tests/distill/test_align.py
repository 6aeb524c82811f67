"""The vector of a token is that of the teacher's piece with the token's last character."""

import lzma
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from bighmm.data.tokenizers import Subwords, Words, open_tokenizer
from bighmm.distill.align import embed, pooled, text_of
from bighmm.distill.teachers import Pieces, RandomTeacher, Reading

LINES = [
    'The cat "sat" on (the) mat.',
    "",
    "Naïve cafés cost 3.50 € in Zürich; 漢字 and 😀 don't.",
    "unheard words",
]
READING = Reading(8, 4)


def words(split):
    known = [*LINES[:3], "the"]
    return Words.build([line.replace("cost", "") for line in known], split=split)


def byte_pairs():
    """A byte-level tokenizer, so that some tokens are parts of characters."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<eos>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(LINES, trainer)
    return Subwords(model.to_str().encode())


TOKENIZERS = {
    "whitespace": words("whitespace"),
    "words": words("words"),
    "byte pairs": byte_pairs(),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


@pytest.fixture
def ids(tokenizer):
    return np.array([id for line in tokenizer.encode_lines(LINES) for id in line])


def test_text_of_ids_equals_decode(tokenizer, ids):
    text, starts, ends = text_of(tokenizer, ids)
    assert text == tokenizer.decode(ids)
    assert (starts <= ends).all() and (starts[1:] >= ends[:-1]).all()
    found = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    assert [i for i, part in enumerate(found) if part == "\n"] == (
        np.flatnonzero(ids == tokenizer.end).tolist()
    )
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize("split", ["whitespace", "words"])
def test_characters_of_words(split):
    tokenizer = TOKENIZERS[split]
    ids = np.array([id for line in tokenizer.encode_lines(LINES) for id in line])
    text, starts, ends = text_of(tokenizer, ids)
    found = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    assert found == ["\n" if id == tokenizer.end else tokenizer.token(id) for id in ids]
    assert "<unk>" in found and "漢字" in found and "Naïve" in found


def test_tokens_that_are_parts_of_a_character():
    tokenizer = TOKENIZERS["byte pairs"]
    ids = np.array(tokenizer.encode("a 😀b\n"))
    text, starts, ends = text_of(tokenizer, ids)
    assert text == "a 😀b\n"
    lengths = (ends - starts).tolist()
    assert lengths[0] == lengths[-1] == lengths[-2] == 1
    assert sum(lengths[1:-2]) in (1, 2) and lengths[1:-2].count(0) >= 1


def test_text_of_sentencepiece_ids(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("\n".join(LINES * 20), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=310,
        byte_fallback=True,
        model_type="bpe",
        character_coverage=0.98,
        minloglevel=2,
    )
    tokenizer = open_tokenizer(tmp_path / "pieces.model")
    ids = np.array([id for line in tokenizer.encode_lines(LINES) for id in line])
    text, starts, ends = text_of(tokenizer, ids)
    assert any(tokenizer.token(id).startswith("<0x") for id in ids)  # bytes of a character
    assert text == tokenizer.decode(ids) and "漢字 and 😀" in text
    assert (starts <= ends).all() and (starts[1:] >= ends[:-1]).all()


def test_vectors_from_a_teacher_of_characters(tokenizer, ids, teachers):
    """The vector of a token is that of its last character."""
    text, _, ends = text_of(tokenizer, ids)
    found = embed(teachers.characters, tokenizer, ids, READING)
    assert found[:, 0].tolist() == [ord(text[max(end - 1, 0)]) for end in ends]


def test_vectors_from_a_teacher_of_syllables(teachers):
    """Pieces: On|e |do|g  a|nd ...; a line break has the vector of the piece before it."""
    tokenizer = Words.build(["One dog and a cat"])
    ids = np.array(tokenizer.encode("One dog\nxyz a\n"))
    assert tokenizer.decode(ids) == "One dog\n<unk> a\n"
    cut = teachers.syllables.tokenize(tokenizer.decode(ids))
    assert cut.starts.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    found = embed(teachers.syllables, tokenizer, ids, READING)
    assert found[:, 0].tolist() == [1, 3, 3, 6, 7, 7]
    found = embed(teachers.syllables, tokenizer, ids, READING, "mean")
    assert found[:, 0].tolist() == [0.5, 2.5, 3, 5, 7, 7]


def test_tokens_in_one_piece_share_its_vector():
    """Pieces may be longer than tokens."""
    pieces = Pieces(np.arange(2), np.array([2, 6]), np.array([6, 9]))
    starts, ends = np.array([0, 2, 4, 5, 9]), np.array([1, 4, 5, 7, 9])
    vectors = torch.tensor([[1.0], [3.0]])
    assert pooled(vectors, pieces, starts, ends, "last").squeeze(1).tolist() == [1, 1, 1, 3, 3]
    assert pooled(vectors, pieces, starts, ends, "mean").squeeze(1).tolist() == [1, 1, 1, 2, 3]


def test_ids_of_a_shared_vocabulary_are_read_directly(tokenizer, ids, monkeypatch):
    teacher = RandomTeacher(tokenizer, device=torch.device("cpu"))
    monkeypatch.setattr(teacher, "REACH", 4)
    whole = teacher.hidden(torch.from_numpy(ids).unsqueeze(0))[0]
    torch.testing.assert_close(embed(teacher, tokenizer, ids, READING), whole)


def test_error_of_a_text_without_pieces(teachers):
    tokenizer = TOKENIZERS["words"]
    with pytest.raises(ValueError, match="finds nothing to read"):
        embed(teachers.syllables, tokenizer, np.array([tokenizer.end] * 3), READING)


def test_text_of_the_tokenizer_of_a_pretrained_model():
    """SmolLM2's tokenizer, if it is available: bytes, spaces and line breaks."""
    path = Path(__file__).parents[3] / "shared/data/tokenizers/smollm2-tokenizer.json.xz"
    if not path.is_file():
        pytest.skip("no such tokenizer here")
    tokenizer = Subwords(lzma.decompress(path.read_bytes()))
    ids = np.array([id for line in tokenizer.encode_lines(LINES) for id in line])
    text, _, ends = text_of(tokenizer, ids)
    assert text == "\n".join([*LINES, ""]) and ends[-1] == len(text)
