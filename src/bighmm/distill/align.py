"""A vector for every token of a corpus, from a teacher that may cut the text differently.

Where both have the same vocabulary the teacher reads the corpus' ids. Otherwise the text of the
tokens is made again, with the characters each of them stands for; the teacher cuts that text in its
own way; and a token has the vector of the teacher's piece that covers its last character, or, where
the teacher has no piece for that character (line breaks, often), of the last one before it.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bighmm.data.tokenizers import Tokenizer
from bighmm.distill.teachers import Pieces, Reading, Teacher, read

Pool = Literal["last", "mean"]
SPACE = "\u2581"  # as SentencePiece writes it in the names of tokens


def embed(
    teacher: Teacher,
    tokenizer: Tokenizer,
    ids: np.ndarray,
    reading: Reading,
    pool: Pool = "last",
) -> Tensor:
    """Vectors (N, H) float32 of the tokens `ids` (N,) of a corpus, on the teacher's device.

    pool: of several pieces of the teacher that stand for one token, the last, or their mean.
    """
    if teacher.shares(tokenizer):
        return read(teacher, ids, reading)
    text, starts, ends = text_of(tokenizer, ids)
    pieces = teacher.cut(text)
    if len(pieces.ids) == 0:
        raise ValueError(f"the teacher finds nothing to read in the text {text[:40]!r}")
    return pooled(read(teacher, pieces.ids, reading), pieces, starts, ends, pool)


def text_of(tokenizer: Tokenizer, ids: np.ndarray) -> tuple[str, np.ndarray, np.ndarray]:
    """The text of ids, and the characters start … end-1 (N,) that each of them stands for.

    The space before a word is not part of it. A token that adds no character, for instance one of
    the bytes that make one, has end = start.
    """
    tokens = [int(id) for id in ids]
    if tokenizer.kind == "words":
        return _text_of_words(tokenizer, tokens)
    text: list[str] = []
    starts, ends = np.empty(len(tokens), np.int64), np.empty(len(tokens), np.int64)
    place = 0
    for i, piece in enumerate(_pieces(tokenizer, tokens)):
        text.append(piece)
        last = place + len(piece)
        bare = len(piece.lstrip(" ")) or len(piece)
        starts[i], ends[i], place = last - bare, last, last
    return "".join(text), starts, ends


def pooled(
    vectors: Tensor, pieces: Pieces, starts: np.ndarray, ends: np.ndarray, pool: Pool
) -> Tensor:
    """Vectors (N, H) of tokens that stand for start … end-1, from those of the pieces (P, H)."""
    last_character = np.maximum(ends - 1, 0)
    last = np.searchsorted(pieces.starts, last_character, side="right") - 1
    last = np.maximum(last, 0)
    if pool == "last":
        return vectors[torch.from_numpy(last)]
    # The first piece that ends after the token's beginning; ends never fall, as starts do not.
    first = np.searchsorted(np.maximum.accumulate(pieces.ends), starts, side="right")
    first = np.minimum(first, last)
    total = vectors.new_zeros(len(starts), vectors.shape[1])
    for further in range(int((last - first).max(initial=0)) + 1):
        here = np.flatnonzero(first + further <= last)
        total[torch.from_numpy(here)] += vectors[torch.from_numpy(first[here] + further)]
    return total / torch.from_numpy(last - first + 1).unsqueeze(1).to(total)


def _text_of_words(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, np.ndarray, np.ndarray]:
    """As `decode` writes words: some are set apart by a space, and an end mark is a line break."""
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
    """What each id adds to the text."""
    name = functools.cache(tokenizer.token)
    pieces: list[str] = []
    first = 0
    while first < len(ids):
        last = first
        while last < len(ids) and ids[last] != tokenizer.end:
            last += 1
        line = ids[first:last]
        # Mostly a token's name is its text, which one look at the whole line can show.
        named = [name(id).replace(SPACE, " ") for id in line]
        named[:1] = [piece.removeprefix(" ") for piece in named[:1]]
        same = "".join(named) == tokenizer.decode(line)
        pieces += named if same else _pieces_of_line(tokenizer, line)
        if last < len(ids):
            pieces.append("\n")
        first = last + 1
    return pieces


def _pieces_of_line(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each id adds to the text, seen from the ids before it.

    Decoding from the beginning for every id would take the square of the length; the text that an
    id adds shows already next to those that the last addition came from.
    """
    pieces: list[str] = []
    known = done = 0  # ids[known:done] is what the next addition is seen next to
    for i in range(len(ids)):
        before = tokenizer.decode(ids[known:done])
        after = tokenizer.decode(ids[known : i + 1])
        # A character whose bytes are not all there; there are never more than a few.
        unfinished = after.endswith("\ufffd") and i - done < 8
        if unfinished or len(after) <= len(before):
            pieces.append("")
            continue
        pieces.append(after[len(before) :])
        known, done = done, i + 1
    return pieces
