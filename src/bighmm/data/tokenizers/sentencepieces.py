"""Tokenizers of SentencePiece models; they need the extra `bighmm[sentencepiece]`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from bighmm.data.tokenizers.protocol import checked_id, decode_lines, encode_text


class SentencePieces:
    """A SentencePiece model; the end mark is the model's own.

    content: that of its file.
    name: the file's name in messages.

    Raises ValueError if the content is not a model or has no end mark, or if the package
    sentencepiece is not installed.
    """

    kind = "sentencepiece"

    def __init__(self, content: bytes, *, name: str = "tokenizer.model") -> None:
        try:
            import sentencepiece
        except ImportError:
            raise ValueError(
                f"{name} is a SentencePiece model, which needs the package sentencepiece: "
                'install "bighmm[sentencepiece]"'
            ) from None
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(content)
        except Exception:  # the library raises no narrower class
            raise ValueError(f"{name} is damaged or is not a SentencePiece model") from None
        self.size: int = self._model.get_piece_size()
        self.end: int = self._model.eos_id()
        if self.end < 0:
            raise ValueError(f"the SentencePiece model {name} has no end mark (eos); it needs one")
        unknown = self._model.unk_id()
        self.unknown: int | None = unknown if unknown >= 0 else None
        self._content = content

    def encode(self, text: str) -> list[int]:
        return encode_text(self, text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return [[*ids, self.end] for ids in self._model.encode(list(lines), out_type=int)]

    def decode(self, ids: Sequence[int]) -> str:
        return decode_lines(self, ids, self._model.decode)

    def token(self, id: int) -> str:
        return self._model.id_to_piece(checked_id(id, self.size))

    def save(self, folder: Path) -> None:
        (Path(folder) / "tokenizer.model").write_bytes(self._content)

    def fingerprint(self) -> str:
        return hashlib.sha256(self._content).hexdigest()
