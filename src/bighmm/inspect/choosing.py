"""Which states to look at: the most used, those of a word, those of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.inspect.states import token_probs
from bighmm.lm.hmmlm import HMMLM

Order = Literal["share", "number"]
MOSTLY = 0.5  # a state that emits marks more often than this has hardly any content


def choose_states(
    lm: HMMLM,
    *,
    states: Sequence[int] = (),
    word: str | None = None,
    block: int | None = None,
    top: int = 10,
    sort: Order = "share",
    shares: Tensor | None = None,
) -> list[int]:
    """The numbers of the first `top` states of a word, of a block or of all; or `states` as given.

    Those of a word come by p(state | word), see `probs_given_word`. The others by their `shares`
    (Z,) of a text, or by their numbers. By shares, states that mostly emit the end mark or the mark
    of unknown words come last: they are the most used and say the least. Raises
    ValueError for a word or block that is not there, and where more than one of them is asked for.
    """
    hmm = lm.hmm()
    asked = [name for name, on in _asked(states, word, block).items() if on]
    if len(asked) > 1:
        raise ValueError(f"{' and '.join(asked)} choose states in different ways; give one of them")
    if states:
        return list(states)
    if word is not None:
        probs = probs_given_word(hmm, word_id(lm, word), shares)
        found = probs.argsort(descending=True, stable=True)[:top]
        return found[probs[found] > 0].tolist()
    every = torch.arange(hmm.num_states) if block is None else _of_block(hmm, block)
    if sort == "number":
        return every[:top].tolist()
    if shares is None:
        raise ValueError("states are sorted by their share of a corpus; give one, or sort=number")
    marks = token_probs(hmm, hmm.end) + token_probs(hmm, lm.tokenizer.unknown)
    content = (marks.cpu() <= MOSTLY).double()
    order = (content + shares.double().cpu())[every].argsort(descending=True, stable=True)
    return every[order][:top].tolist()


def probs_given_word(hmm: HMM, token: int, shares: Tensor | None = None) -> Tensor:
    """p(z | x) (Z,) of the states that may emit a token x, in proportion to share_z p(x | z).

    shares: those of a text (Z,); without them, or where none of these states has any, equal ones.
    """
    ids = torch.tensor([token], device=hmm.start.device)
    states, log_probs = hmm.support.states(ids)[0], hmm.emissions.of(ids)[0]
    emitted = torch.zeros(hmm.num_states, dtype=torch.float64)
    there = (states >= 0).cpu()
    emitted[states.cpu()[there]] = log_probs.cpu()[there].double().exp()
    joint = emitted if shares is None else emitted * shares.double().cpu()
    if not bool(joint.sum() > 0):
        joint = emitted
    return joint / joint.sum().clamp(min=torch.finfo(torch.float64).tiny)


def word_id(lm: HMMLM, word: str) -> int:
    """The token of a word; ValueError if it is not in the vocabulary or is several tokens."""
    marks = {
        lm.tokenizer.token(i): i for i in (lm.tokenizer.end, lm.tokenizer.unknown) if i is not None
    }
    if word in marks:
        return marks[word]
    spelled = [lm.encode(word), lm.encode(f" {word}")]
    for ids in spelled:
        if len(ids) == 1 and ids[0] != lm.tokenizer.unknown:
            return ids[0]
    if spelled[0] and lm.tokenizer.unknown in spelled[0]:
        raise ValueError(f"the word {word!r} is not in the model's vocabulary")
    tokens = ", ".join(repr(lm.tokenizer.token(i)) for i in spelled[0])
    raise ValueError(
        f"{word!r} is {len(spelled[0])} tokens of the model ({tokens}), and states emit one; give "
        "one of them"
    )


def block_of_states(hmm: HMM) -> Tensor | None:
    """The block (Z,) of every state; None for a model without blocks."""
    blocks = hmm.support.partition
    if blocks is None:
        return None
    return torch.arange(hmm.num_states) // (hmm.num_states // blocks.num_blocks)


def _asked(states: Sequence[int], word: str | None, block: int | None) -> dict[str, bool]:
    return {
        "states by number": bool(states),
        "those of a word": word is not None,
        "those of a block": block is not None,
    }


def _of_block(hmm: HMM, block: int) -> Tensor:
    blocks = block_of_states(hmm)
    if blocks is None:
        raise ValueError("the states of this model are not in blocks; leave out the block")
    last = int(blocks[-1])
    if not 0 <= block <= last:
        raise ValueError(f"there is no block {block}: blocks go from 0 to {last}")
    return torch.nonzero(blocks == block).squeeze(1)
