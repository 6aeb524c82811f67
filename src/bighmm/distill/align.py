"""A vector for every token of a corpus, from a teacher that may have another tokenizer.

If both have the same vocabulary, the teacher reads the ids of the corpus. Otherwise the tokens are
decoded to text, with the characters of each token, and the teacher divides this text into its own
pieces. The vector of a token is that of the piece with the token's last character. If no piece has
that character, as often with line breaks, it is that of the last piece before it.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bighmm.data.tokenizers import Tokenizer
from bighmm.distill.teachers import Pieces, Reading, Teacher, teacher_vectors

Pool = Literal["last", "mean"]
SPACE = "\u2581"  # stands for a space in SentencePiece tokens


def embed(
    teacher: Teacher,
    tokenizer: Tokenizer,
    ids: np.ndarray,
    reading: Reading,
    pool: Pool = "last",
) -> Tensor:
    """Vectors (N, H) float32 of the tokens `ids` (N,) of a corpus, on the teacher's device.

    pool: the vector of a token that has several pieces of the teacher: "last" for that of the last
        piece, "mean" for their mean.

    Raises ValueError if the teacher finds no pieces in the text.
    """
    if teacher.shares_vocabulary(tokenizer):
        return teacher_vectors(teacher, ids, reading)
    text, starts, ends = text_of(tokenizer, ids)
    pieces = teacher.tokenize(text)
    if len(pieces.ids) == 0:
        raise ValueError(f"the teacher finds nothing to read in the text {text[:40]!r}")
    return pooled(teacher_vectors(teacher, pieces.ids, reading), pieces, starts, ends, pool)


def text_of(tokenizer: Tokenizer, ids: np.ndarray) -> tuple[str, np.ndarray, np.ndarray]:
    """The text of ids (N,), and the first character and the end (N,) of each id in it.

    The space before a word does not belong to the word. A token that adds no character, such as one
    of the first bytes of a character, has end = start.
    """
    tokens = [int(id) for id in ids]
    if tokenizer.kind == "words":
        return _text_of_words(tokenizer, tokens)
    text: list[str] = []
    starts, ends = np.empty(len(tokens), np.int64), np.empty(len(tokens), np.int64)
    place = 0
    for i, piece in enumerate(_pieces(tokenizer, tokens)):
        text.append(piece)
        end = place + len(piece)
        without_space = len(piece.lstrip(" ")) or len(piece)
        starts[i], ends[i], place = end - without_space, end, end
    return "".join(text), starts, ends


def pooled(
    vectors: Tensor, pieces: Pieces, starts: np.ndarray, ends: np.ndarray, pool: Pool
) -> Tensor:
    """Vectors (N, H) of tokens with the characters start … end-1, from vectors (P, H) of pieces."""
    last_character = np.maximum(ends - 1, 0)
    last = np.searchsorted(pieces.starts, last_character, side="right") - 1
    last = np.maximum(last, 0)
    if pool == "last":
        return vectors[torch.from_numpy(last)]
    # The first piece that ends after the beginning of the token.
    first = np.searchsorted(np.maximum.accumulate(pieces.ends), starts, side="right")
    first = np.minimum(first, last)
    total = vectors.new_zeros(len(starts), vectors.shape[1])
    for offset in range(int((last - first).max(initial=0)) + 1):
        tokens = np.flatnonzero(first + offset <= last)
        total[torch.from_numpy(tokens)] += vectors[torch.from_numpy(first[tokens] + offset)]
    return total / torch.from_numpy(last - first + 1).unsqueeze(1).to(total)


def _text_of_words(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, np.ndarray, np.ndarray]:
    """`text_of` for a vocabulary of words: `decode` puts at most one space between words."""
    text = tokenizer.decode(ids)
    lengths = [1 if id == tokenizer.end else len(tokenizer.token(id)) for id in ids]
    starts = np.empty(len(ids), np.int64)
    place = 0
    for i, length in enumerate(lengths):
        place += text[place : place + 1] == " "
        starts[i] = place
        place += length
    assert place == len(text), "decode writes words, single spaces and line breaks"
    return text, starts, starts + np.array(lengths, np.int64)


def _pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The characters that each id adds to the text."""
    name = functools.cache(tokenizer.token)
    pieces: list[str] = []
    first = 0
    while first < len(ids):
        last = first
        while last < len(ids) and ids[last] != tokenizer.end:
            last += 1
        line = ids[first:last]
        # For most lines the tokens as strings are the text, which a single `decode` confirms.
        names = [name(id).replace(SPACE, " ") for id in line]
        names[:1] = [piece.removeprefix(" ") for piece in names[:1]]
        same = "".join(names) == tokenizer.decode(line)
        pieces += names if same else _pieces_of_line(tokenizer, line)
        if last < len(ids):
            pieces.append("\n")
        first = last + 1
    return pieces


def _pieces_of_line(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The characters that each id adds to a line, by decoding with and without it.

    Decoding from the beginning of the line for every id would take quadratic time. It is enough to
    begin with the ids that added the characters before.
    """
    pieces: list[str] = []
    first = done = 0  # ids[first:done] added the last characters
    for i in range(len(ids)):
        before = tokenizer.decode(ids[first:done])
        after = tokenizer.decode(ids[first : i + 1])
        # U+FFFD stands for a character of which some bytes are missing; it has at most a few.
        incomplete = after.endswith("\ufffd") and i - done < 8
        if incomplete or len(after) <= len(before):
            pieces.append("")
            continue
        pieces.append(after[len(before) :])
        first, done = done, i + 1
    return pieces
