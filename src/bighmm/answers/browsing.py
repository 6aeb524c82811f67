"""Answers for a page about the states and blocks of a model.

What is computed once for a model is given to them: its `Summary`, the `Survey` of a corpus where
there is one, and the names that people gave to states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from bighmm.answers.browsing_objects import (
    BlockMoves,
    BlockPage,
    BlockPair,
    Blocks,
    PairState,
    StateContext,
    StatePage,
    StateRow,
    StatesPage,
    Weights,
)
from bighmm.answers.objects import VERSION
from bighmm.answers.plain import finite
from bighmm.inspect.blocks import between_blocks, block_moves, blocks_of, check_block
from bighmm.inspect.states import check_states
from bighmm.inspect.summary import Summary
from bighmm.inspect.survey import Survey
from bighmm.inspect.tables import state_table
from bighmm.lm.hmmlm import HMMLM

Sort = Literal["number", "share", "entropy", "block"]
SHOWN = 8  # words of a state in a table


@dataclass(frozen=True)
class Known:
    """A model with what was computed of it."""

    lm: HMMLM
    summary: Summary
    tokens: np.ndarray | None = None  # (T,) the stream that the survey is of
    survey: Survey | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    vocabulary: Sequence[str] = ()  # all words in small letters, see `small_letters`

    @property
    def shares(self) -> Tensor | None:
        return None if self.survey is None else self.survey.shares

    @property
    def weights(self) -> Weights:
        return "uniform" if self.survey is None else "share"

    def words(self, state: int, number: int) -> list[str]:
        """The likeliest words of a state."""
        ids = self.summary.tokens[state, :number].tolist()
        return [self.lm.tokenizer.token(i) for i in ids if i >= 0]


def small_letters(lm: HMMLM) -> list[str]:
    """The words of a model in small letters, among which queries are searched."""
    return [lm.tokenizer.token(i).lower() for i in range(lm.tokenizer.size)]


def state_rows(
    known: Known,
    query: str = "",
    sort: Sort = "number",
    descending: bool = False,
    block: int | None = None,
    page: int = 0,
    size: int = 50,
) -> StatesPage:
    """A page of the states that match a query.

    query: the number of a state; or parts of words that must all be among the likeliest words of a
        state, or in the name that a person gave it.
    block: only states of this block.
    """
    hmm = known.lm.hmm()
    if sort == "share" and known.shares is None:
        raise ValueError("the shares of the states are not known, so they cannot be sorted by them")
    some = _matching(known, query)
    if block is not None:
        check_block(hmm, block)
        per_block = hmm.num_states // blocks_of(hmm).num_blocks
        some = some[some // per_block == block]
    keys = {
        "number": some,
        "block": some,  # the states of a block follow each other
        "entropy": known.summary.entropy.numpy()[some],
        "share": None if known.shares is None else known.shares.numpy()[some],
    }[sort]
    assert keys is not None
    order = np.argsort(-keys if descending else keys, kind="stable")
    rows = [_row(known, state) for state in some[order][page * size : (page + 1) * size].tolist()]
    return StatesPage(
        version=VERSION,
        total=hmm.num_states,
        matching=len(some),
        page=page,
        size=size,
        sort=sort,
        order="desc" if descending else "asc",
        states=rows,
    )


def one_state(known: Known, state: int, words: int = 40, neighbours: int = 12) -> StatePage:
    """All about one state: its words, and the states before and after it."""
    return state_pages(known, [state], words, neighbours)[0]


def state_pages(
    known: Known, states: list[int], words: int = 40, neighbours: int = 12
) -> list[StatePage]:
    """All about some states; those of one block are hardly more work than one of them."""
    hmm = known.lm.hmm()
    check_states(hmm, states)
    rows = state_table(known.lm, states, words=words, neighbours=neighbours, shares=known.shares)
    found = []
    for state, row in zip(states, rows, strict=True):
        for near in (*row["next"], *row["previous"]):
            near["name"] = known.names.get(near["state"])
            near["words"] = near["words"][:SHOWN]
        page = StatePage(
            version=VERSION,
            state=state,
            block=row["block"],
            share=row["share"],
            entropy_bits=float(known.summary.entropy[state]),
            name=known.names.get(state),
            prob_end=row["prob_end"],
            starts_anew=row["starts_anew"],
            words=row["words"],
            next=row["next"],
            previous=row["previous"],
            previous_weights=known.weights,
            lower=state - 1 if state else None,
            higher=state + 1 if state + 1 < hmm.num_states else None,
        )
        found.append(finite(page))
    return found


def state_contexts(known: Known, state: int, size: int = 10, around: int = 8) -> list[StateContext]:
    """Places of the corpus at which a state is most certain, with `around` tokens on both sides."""
    check_states(known.lm.hmm(), [state])
    survey, tokens = known.survey, known.tokens
    if survey is None or tokens is None:
        raise ValueError("contexts of a state need a corpus that has been read")
    token = known.lm.tokenizer.token
    found = []
    for place, prob in survey.contexts(state)[:size]:
        begin, end = survey.sentence(place)
        before = tokens[max(begin, place - around) : place]
        after = tokens[place + 1 : min(end, place + 1 + around)]
        found.append(
            StateContext(
                before=[token(int(i)) for i in before],
                word=token(int(tokens[place])),
                after=[token(int(i)) for i in after],
                prob=prob,
            )
        )
    return found


def block_list(known: Known, words: int = 12) -> Blocks:
    """All blocks, with the first words of each."""
    hmm = known.lm.hmm()
    blocks = blocks_of(hmm)
    counts = _counts(known)
    rows: list[Any] = []
    for block in range(blocks.num_blocks):
        tokens = _tokens_of_block(known, block, counts)
        rows.append(
            {
                "block": block,
                "size": len(tokens),
                "share": None if counts is None else float(counts[tokens].sum() / counts.sum()),
                "words": [known.lm.tokenizer.token(int(i)) for i in tokens[:words]],
            }
        )
    per_block = hmm.num_states // blocks.num_blocks
    return Blocks(
        version=VERSION, number=blocks.num_blocks, states_per_block=per_block, blocks=rows
    )


def one_block(known: Known, block: int, page: int = 0, size: int = 200) -> BlockPage:
    """A block with a page of its words."""
    hmm = known.lm.hmm()
    check_block(hmm, block)
    per_block = hmm.num_states // blocks_of(hmm).num_blocks
    counts = _counts(known)
    tokens = _tokens_of_block(known, block, counts)
    total = None if counts is None else int(counts[tokens].sum())
    return BlockPage(
        version=VERSION,
        block=block,
        size=len(tokens),
        first_state=block * per_block,
        last_state=(block + 1) * per_block - 1,
        share=None if counts is None else float(counts[tokens].sum() / counts.sum()),
        page=page,
        words=[
            {
                "word": known.lm.tokenizer.token(int(i)),
                "share": float(counts[i]) / total if counts is not None and total else None,
            }
            for i in tokens[page * size : (page + 1) * size]
        ],
    )


def moves(known: Known) -> BlockMoves:
    """Moves between all blocks, see `inspect.blocks.block_moves`."""
    found = block_moves(known.lm.hmm(), known.shares).double()
    return finite(
        BlockMoves(version=VERSION, number=len(found), weights=known.weights, moves=found.tolist())
    )


def pair(known: Known, first: int, second: int, size: int = 24) -> BlockPair:
    """Moves between the states of two blocks: the heaviest of one, the most entered of the other.

    Where a block has no weight, its states count equally in that order.
    """
    hmm = known.lm.hmm()
    found = between_blocks(hmm, first, second, known.shares)
    rows = found.weights.nan_to_num().argsort(descending=True, stable=True)[:size]
    columns = found.reached.nan_to_num().argsort(descending=True, stable=True)[:size]
    per_block = len(found.weights)

    def states(block: int, some: Tensor, weights: Tensor) -> list[PairState]:
        numbers = (some + block * per_block).tolist()
        return [
            PairState(
                state=state,
                weight=weight,
                words=known.words(state, 4),
                name=known.names.get(state),
            )
            for state, weight in zip(numbers, weights[some].tolist(), strict=True)
        ]

    return finite(
        BlockPair(
            version=VERSION,
            first=first,
            second=second,
            weights=known.weights,
            prob=float(found.prob),
            rows=states(first, rows, found.weights),
            columns=states(second, columns, found.reached),
            probs=found.log_probs[rows][:, columns].exp().tolist(),
        )
    )


def _row(known: Known, state: int) -> StateRow:
    hmm = known.lm.hmm()
    blocks = hmm.support.partition
    summary, token = known.summary, known.lm.tokenizer.token
    words = zip(
        summary.tokens[state, :SHOWN].tolist(), summary.probs[state, :SHOWN].tolist(), strict=True
    )
    return StateRow(
        state=state,
        block=None if blocks is None else state * blocks.num_blocks // hmm.num_states,
        share=None if known.shares is None else float(known.shares[state]),
        entropy_bits=float(summary.entropy[state]),
        name=known.names.get(state),
        words=[{"word": token(i), "prob": prob} for i, prob in words if i >= 0],
    )


def _matching(known: Known, query: str) -> np.ndarray:
    """The numbers of states that match a query, ascending."""
    every = np.arange(known.lm.hmm().num_states)
    parts = query.lower().split()
    if not parts:
        return every
    if len(parts) == 1 and parts[0].isdecimal() and int(parts[0]) < len(every):
        return every[[int(parts[0])]]
    tokens = known.summary.tokens.numpy()
    matches = np.ones(len(every), dtype=bool)
    for part in parts:
        has = np.array([*(part in word for word in known.vocabulary), False])  # -1 finds the last
        matches &= has[tokens].any(1)
    for state, name in known.names.items():
        if state < len(every) and all(part in name.lower() for part in parts):
            matches[state] = True
    return every[matches]


def _counts(known: Known) -> np.ndarray | None:
    """How often each token occurs in the corpus (V,); None without one."""
    if known.tokens is None:
        return None
    return np.bincount(known.tokens, minlength=known.lm.tokenizer.size)


def _tokens_of_block(known: Known, block: int, counts: np.ndarray | None) -> np.ndarray:
    """The tokens of a block, the most frequent first; without counts in their order."""
    by_block = blocks_of(known.lm.hmm()).by_block
    first, last = by_block.first[block : block + 2].tolist()
    tokens = by_block.tokens[first:last].cpu().numpy().astype(np.int64)
    return tokens if counts is None else tokens[np.argsort(-counts[tokens], kind="stable")]
