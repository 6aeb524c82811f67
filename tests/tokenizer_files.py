"""Tiny tokenizer files of two kinds, for tests."""

import io

import pytest
import tokenizers

LINES = ["the cat sat", "the dog sat", "a cat <unk> the mat"]


def bpe(path, end="</s>", extra=("<unk>",)):
    """A tiny byte-pair tokenizer file."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[*extra, end],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(LINES * 3, trainer)
    model.enable_truncation(2)  # must have no effect on a corpus
    model.save(str(path))
    return path


def sentencepiece_model(path):
    sentencepiece = pytest.importorskip("sentencepiece")
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 5),
        model_writer=content,
        vocab_size=30,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    path.write_bytes(content.getvalue())
    return path
