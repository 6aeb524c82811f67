"""What every tokenizer does, and the handling of end marks that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from bighmm.base.settings import shown

END = "<eos>"
UNKNOWN = "<unk>"


class Tokenizer(Protocol):
    """Text to token ids and back."""

    kind: str  # "words", "tokenizers" or "sentencepiece"
    size: int  # V; ids are 0 … V-1
    end: int  # the id of the end mark
    unknown: int | None  # the id of unknown words, if there is one

    def encode(self, text: str) -> list[int]:
        """The ids of a text; each newline becomes the end mark."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, followed by the end mark; lines must not hold newlines."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: the inverse of `encode`, except for unknown words and spacing."""

    def token(self, id: int) -> str:
        """One token as a string to show to people."""

    def save(self, folder: Path) -> None:
        """Write the files that `load_tokenizer` reads into an existing folder."""

    def fingerprint(self) -> str:
        """The SHA-256 of everything that determines how text is encoded."""


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, by way of `encode_lines`; ValueError for what is no Unicode text."""
    check_text(text)
    ids = [id for line in tokenizer.encode_lines(text.split("\n")) for id in line]
    return ids[:-1]  # no newline follows the last line


def check_text(text: str) -> None:
    """Raises ValueError for what is no string, such as token ids, and for half characters.

    These come from bytes that are no text.
    """
    if not isinstance(text, str):
        raise ValueError(
            f"a text is a string, not {shown(text)}; questions about token ids are those of "
            "`HMMLM.hmm()`, and `decode` gives the text of ids"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text is not Unicode: its character {error.start} is {text[error.start]!r}; it may "
            "come from bytes that are not UTF-8"
        ) from None


def decode_lines(
    tokenizer: Tokenizer, ids: Sequence[int], decode_line: Callable[[list[int]], str]
) -> str:
    """The text of ids, each end mark as a newline; `decode_line` decodes ids without end marks."""
    lines: list[list[int]] = [[]]
    for id in ids:
        if (id := checked_id(id, tokenizer.size)) == tokenizer.end:
            lines.append([])
        else:
            lines[-1].append(id)
    return "\n".join(decode_line(line) if line else "" for line in lines)


def checked_id(id: int, size: int) -> int:
    """`id` as an int; ValueError if it is not in a vocabulary of `size` tokens."""
    if not 0 <= id < size:
        raise ValueError(f"the token id {id} is outside the vocabulary; ids are 0 to {size - 1}")
    return int(id)
