"""Tokenizers of the Hugging Face `tokenizers` library."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from bighmm.base.json_files import parse_json
from bighmm.data.tokenizers.growth import check_growth
from bighmm.data.tokenizers.protocol import END, UNKNOWN, checked_id, decode_lines, encode_text

MOST_GAPS = 1 << 20  # ids without a token that a vocabulary may have


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """Context in which whatever the library raises becomes a ValueError."""
    try:
        yield
    except BaseException as error:
        # It raises no narrower class, and what it did not expect is not even an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{what}: {reason}") from None


class Subwords:
    """A tokenizer of the Hugging Face `tokenizers` library.

    content: that of its file.
    end: the end mark, as a string; by default the first of the usual marks that the vocabulary has.
    name: the file's name in messages.

    Raises ValueError if the content is not a tokenizer or has no end mark, or if its steps can make
    a text very much longer (`growth`).
    """

    kind = "tokenizers"
    _ENDS = (
        END,
        "</s>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end▁of▁sentence|>",
        "<｜end▁of▁sentence｜>",
        "<end_of_text>",
        "[EOS]",
        "[SEP]",
    )
    _UNKNOWNS = (UNKNOWN, "[UNK]", "<|unk|>")

    def __init__(
        self, content: bytes, *, end: str | None = None, name: str = "tokenizer.json"
    ) -> None:
        with _refused(f"{name} is damaged or is not a file of the tokenizers library"):
            self._model = tokenizers.Tokenizer.from_str(content.decode())
        with _refused(f"the tokenizer {name} cannot be used"):
            check_growth([_described(part) for part in _parts(self._model)])
        self._model.no_truncation()
        self._model.no_padding()
        index = self._model.get_vocab(with_added_tokens=True)
        ends = self._ENDS if end is None else (end,)
        marks = [index[mark] for mark in ends if mark in index]
        if not marks:
            raise ValueError(
                f"the tokenizer {name} has no end mark; one of {', '.join(ends)} must be in its "
                "vocabulary"
            )
        self.end: int = marks[0]
        self.size = max(index.values()) + 1  # ids may have gaps
        if self.size > MOST_GAPS + 2 * len(index):
            raise ValueError(
                f"the tokenizer {name} has the id {self.size - 1} but only {len(index)} tokens"
            )
        unknowns = [index[mark] for mark in self._UNKNOWNS if mark in index]
        self.unknown: int | None = unknowns[0] if unknowns else None
        self._content = content

    @property
    def decoder_steps(self) -> list[str]:
        """The names of the steps that turn tokens into text, as in the tokenizer's file."""
        decoder = parse_json(self._content, "the tokenizer is damaged").get("decoder") or {}
        return [step["type"] for step in decoder.get("decoders", [decoder]) if "type" in step]

    @property
    def ids_without_text(self) -> set[int]:
        """The ids of special tokens, and unused ids below `size`."""
        added = self._model.get_added_tokens_decoder()
        gaps = set(range(self.size)) - set(self._model.get_vocab(with_added_tokens=True).values())
        return gaps | {id for id, token in added.items() if token.special}

    def encode(self, text: str) -> list[int]:
        return encode_text(self, text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        with _refused("the tokenizer cannot encode a text"):
            encodings = self._model.encode_batch_fast(list(lines), add_special_tokens=False)
        return [[*encoding.ids, self.end] for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        def decode_line(line: list[int]) -> str:
            with _refused("the tokenizer cannot decode tokens"):
                return self._model.decode(line, skip_special_tokens=False)

        return decode_lines(self, ids, decode_line)

    def token(self, id: int) -> str:
        return self._model.id_to_token(checked_id(id, self.size)) or f"<{id}>"

    def save(self, folder: Path) -> None:
        (Path(folder) / "tokenizer.json").write_bytes(self._content)
        config = {"kind": self.kind, "eos_token": self.token(self.end)}
        text = json.dumps(config, ensure_ascii=False, indent=1)
        (Path(folder) / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def fingerprint(self) -> str:
        mark = f"\0{self.end}".encode()
        return hashlib.sha256(self._content + mark).hexdigest()


def _parts(model: tokenizers.Tokenizer) -> list[Any]:
    """The steps that change a text, None for those that a tokenizer does not have."""
    return [model.normalizer, model.pre_tokenizer, model.decoder]


def _described(part: Any) -> Any:
    """A part of a tokenizer as it is in a file."""
    return None if part is None else json.loads(part.__getstate__())
