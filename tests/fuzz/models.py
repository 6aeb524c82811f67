"""Attack: random HMMs of every family and support against the sum over all state paths.

The probabilities are computed here, in float64, from the numbers that a model is made of, with a
mapping between tokens and states of its own, so that nothing of the library is trusted.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import Blocked, Dense, PerToken, Support
from bighmm.model.transitions import Flat, Table, Transitions, TwoLevel
from bighmm.model.transitions.two_level_table import TwoLevelTable
from bighmm.ops import memory

from .originals import Originals
from .outcome import Case, Failure, Say

Array = np.ndarray
MOST_PATHS = 1000  # of a row


@dataclass(frozen=True)
class Tables:
    """Probabilities in float64: start (Z,), moves (Z, Z), emissions (Z, V)."""

    start: Array
    moves: Array
    emissions: Array
    end: int | None
    reset: bool

    def paths(self, tokens: list[int]) -> dict[tuple[int, ...], float]:
        """p(tokens, path) of every path."""
        found = {(): 1.0}
        for t, token in enumerate(tokens):
            anew = t == 0 or (self.reset and self.end is not None and tokens[t - 1] == self.end)
            found = {
                (*path, z): prob * (self.start if anew else self.moves[path[-1]])[z] * emission
                for path, prob in found.items()
                for z, emission in enumerate(self.emissions[:, token])
                if emission > 0
            }
        return found

    def prob(self, tokens: list[int]) -> float:
        return math.fsum(self.paths(tokens).values())


def attack(originals: Originals, case: Case, draw: random.Random, place: Path, say: Say) -> str:
    """Ask every question of a random model and of its tables."""
    hmm, tables, scale = random_model(draw, say)
    states, vocabulary = tables.emissions.shape
    longest = max(1, min(4, int(math.log(MOST_PATHS, max(2, states)))))
    rows = [
        [draw.randrange(vocabulary) for _ in range(draw.randint(0, longest))]
        for _ in range(draw.randint(1, 3))
    ]
    say(f"rows {rows}")
    if draw.random() < 0.3:  # cut all work into pieces
        elements = draw.choice((1, 7, 50))
        say(f"pieces of {elements}")
        memory.WORKING = memory.STREAMED = memory.TILE = elements
        memory.CACHED = 0
    tolerance = 1e-8 if hmm.start.dtype == torch.float64 else 2e-4
    check = _Check(hmm, tables, rows, tolerance * (1 + scale))
    check.log_prob()
    check.posterior()
    check.viterbi()
    check.next_token()
    check.gaps(draw, say)
    return "same"


class _Check:
    def __init__(self, hmm: HMM, tables: Tables, rows: list[list[int]], tolerance: float) -> None:
        self.hmm, self.tables, self.rows, self.tolerance = hmm, tables, rows, tolerance
        self.paths = [tables.paths(row) for row in rows]

    def close(self, what: str, found: float, expected: float) -> None:
        """Compare two probabilities."""
        if not abs(found - expected) <= self.tolerance:
            raise Failure(f"{what} is {found}, not {expected}")

    def close_logs(self, what: str, found: float, expected: float) -> None:
        """Compare a log-probability with a probability."""
        log = math.log(expected) if expected > 0 else -math.inf
        if found == log or abs(found - log) <= self.tolerance * (1 + abs(log)):
            return
        if expected < 1e-280:
            return  # the sum here has lost it
        raise Failure(f"log p of {what} is {found}, not {log}")

    def log_prob(self) -> None:
        for impl in ("auto", "loop", "tree"):
            found = self.hmm.log_prob(self.rows, impl=impl).tolist()
            for row, log_prob, paths in zip(self.rows, found, self.paths, strict=True):
                self.close_logs(f"{row} ({impl})", log_prob, math.fsum(paths.values()))

    def posterior(self) -> None:
        found = self.hmm.posterior(self.rows)
        for b, (row, paths) in enumerate(zip(self.rows, self.paths, strict=True)):
            total = math.fsum(paths.values())
            for t in range(len(row)):
                every = np.zeros(len(self.tables.start))
                for state, prob in zip(
                    found.states[b, t].tolist(), found.marginals[b, t].tolist(), strict=True
                ):
                    if state >= 0:
                        every[state] += prob
                for z, prob in enumerate(every):
                    here = math.fsum(p for path, p in paths.items() if path[t] == z)
                    if total > 1e-280:
                        self.close(f"p(state {z} at {t} | {row})", prob, here / total)

    def viterbi(self) -> None:
        found = self.hmm.viterbi(self.rows)
        for b, (row, paths) in enumerate(zip(self.rows, self.paths, strict=True)):
            best = max(paths.values(), default=0.0)
            path = tuple(found.states[b, : len(row)].tolist())
            if best < 1e-280:
                continue
            self.close_logs(f"the best path of {row}", float(found.log_prob[b]), best)
            self.close_logs(
                f"the path {path} of {row}", float(found.log_prob[b]), paths.get(path, 0.0)
            )

    def next_token(self) -> None:
        found = self.hmm.next_token(self.rows).double()
        for row, log_probs, paths in zip(self.rows, found, self.paths, strict=True):
            total = math.fsum(paths.values())
            if total < 1e-280:
                continue
            self.close(f"the sum over next tokens after {row}", float(log_probs.exp().sum()), 1.0)
            for token, log_prob in enumerate(log_probs.tolist()):
                expected = self.tables.prob([*row, token]) / total
                self.close(f"p({token} | {row})", math.exp(log_prob), expected)
        best = self.hmm.best_next(self.rows, 2)
        values = found.topk(min(2, found.shape[1])).values
        if not torch.allclose(best.log_prob.double(), values, atol=self.tolerance, equal_nan=True):
            raise Failure(f"the best next tokens have {best.log_prob.tolist()}")

    def gaps(self, draw: random.Random, say: Say) -> None:
        row = max(self.rows, key=len)
        if not row:
            return
        gapped = [-1 if draw.random() < 0.5 else token for token in row]
        ends = draw.random() < 0.5
        say(f"gaps {gapped}, ends {ends}")
        vocabulary = self.tables.emissions.shape[1]
        allowed = [x for x in range(vocabulary) if ends or x != self.tables.end]
        places = [t for t, token in enumerate(gapped) if token < 0]
        fillings: dict[tuple[int, ...], float] = {}
        for words in itertools.product(allowed, repeat=len(places)):
            filled = list(gapped)
            for t, word in zip(places, words, strict=True):
                filled[t] = word
            fillings[words] = self.tables.prob(filled)
        total = math.fsum(fillings.values())
        found = self.hmm.fill_probs([gapped], ends=ends)
        if total < 1e-200:
            return
        self.close_logs(f"{gapped}", float(found.log_prob[0]), total)
        for place in range(len(places)):
            for x in range(vocabulary):
                here = math.fsum(p for words, p in fillings.items() if words[place] == x)
                prob = math.exp(float(found.words[place, x]))
                self.close(f"p({x} in gap {place} of {gapped})", prob, here / total)
        best = self.hmm.best_fill([gapped], 1, ends=ends)
        if bool(best.exact[0]):
            self.close_logs("the best filling", float(best.log_prob[0, 0]), max(fillings.values()))


def random_model(draw: random.Random, say: Say) -> tuple[HMM, Tables, float]:
    """A model of a random family and support, its tables, and the scale of its logits."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    scale = draw.choice((0.0, 1.0, 1.0, 1.0, 10.0, 100.0))
    kind = draw.choice(("dense", "blocked", "blocked", "per-token"))
    vocabulary = draw.randint(1, 6)
    blocks = draw.randint(1, vocabulary)
    states = blocks * draw.randint(1, 3) if kind == "blocked" else draw.randint(1, 7)
    if kind == "per-token" and vocabulary * states < states:
        kind = "dense"
    may = np.ones((states, vocabulary), dtype=bool)  # whether state z may emit token x
    support: Support = Dense(states, vocabulary)
    if kind == "blocked":
        block_of = [*range(blocks), *(draw.randrange(blocks) for _ in range(vocabulary - blocks))]
        draw.shuffle(block_of)
        support = Blocked.of(torch.tensor(block_of), states)
        size = states // blocks
        may = np.array(
            [[z // size == block_of[x] for x in range(vocabulary)] for z in range(states)]
        )
    elif kind == "per-token":
        least = -(-states // vocabulary)
        support = PerToken.random(
            vocabulary, states, draw.randint(least, states), draw.randrange(99)
        )
        may = np.zeros((states, vocabulary), dtype=bool)
        for x, row in enumerate(support.table.tolist()):  # type: ignore[attr-defined]
            may[row, x] = True

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    families = ["table", "flat"] + ["two-level", "two-level-table"] * (kind == "blocked")
    family = draw.choice(families)
    zeros = draw.random() < 0.2 and scale > 0

    def some_never(logits: Tensor) -> Tensor:
        """Some of each row are -inf, but never all."""
        if not zeros:
            return logits
        never = torch.rand(logits.shape, generator=generator) < 0.4
        one = torch.randint(logits.shape[-1], (*logits.shape[:-1], 1), generator=generator)
        return logits.masked_fill(never.scatter(-1, one, False), -math.inf)

    transitions, moves = _transitions(family, states, blocks, normal, some_never)
    every = normal(states, vocabulary)
    if zeros:  # some words that a state may emit it never does
        never = torch.rand(states, vocabulary, generator=generator) < 0.3
        keeps = (torch.from_numpy(may) & ~never).any(1, keepdim=True)
        every = every.masked_fill(never & keeps, -math.inf)
    logits = every.masked_fill(~torch.from_numpy(may), -math.inf)
    log_emission = logits.log_softmax(1)  # (Z, V)
    of_token = support.states(torch.arange(vocabulary))  # (V, K)
    cells = log_emission.T.gather(1, of_token.clamp(min=0)).masked_fill(of_token < 0, -math.inf)
    _check_mapping(of_token, may)
    start = some_never(normal(states)).log_softmax(0)
    end = draw.choice((None, 0, vocabulary - 1))
    reset = draw.random() < 0.5
    dtype = draw.choice((torch.float64, torch.float64, torch.float32))
    say(
        f"{kind} {family}: {states} states, {blocks} blocks, {vocabulary} tokens, scale {scale}, "
        f"end {end}, reset {reset}, zeros {zeros}, {dtype}"
    )
    hmm = HMM(start, transitions, EmissionTable(cells.contiguous()), support, end, reset)
    tables = Tables(
        start.exp().numpy(), moves.exp().numpy(), log_emission.exp().numpy(), end, reset
    )
    return hmm.to("cpu", dtype), tables, scale


def _check_mapping(of_token: Tensor, may: Array) -> None:
    """Each token must be emitted by exactly the states that may emit it."""
    for x, row in enumerate(of_token.tolist()):
        found = sorted(z for z in row if z >= 0)
        if found != np.flatnonzero(may[:, x]).tolist():
            raise Failure(f"token {x} has the states {found}")


def _transitions(
    family: str, states: int, blocks: int, normal, some_never
) -> tuple[Transitions, Tensor]:
    """Transitions, and log p(j | i) (Z, Z) computed here."""
    size, width = states // blocks, 3
    if family == "table":
        logits = some_never(normal(states, states))
        return Table(logits), logits.log_softmax(1)
    if family == "flat":
        leaving, entering = normal(states, width), normal(states, width).sign()
        return Flat(leaving, entering), (leaving @ entering.T).log_softmax(1)
    if family == "two-level":
        leaving, entering = normal(states, width), normal(states, width).sign()
        choosing, chosen, bias = normal(states, 2), normal(blocks, 2).sign(), normal(blocks)
        transitions: Transitions = TwoLevel(leaving, entering, choosing, chosen, bias)
        choice, inner = choosing @ chosen.T + bias, leaving @ entering.T
    else:
        choice, inner = normal(states, blocks), normal(states, states)
        transitions = TwoLevelTable(choice, inner)
    log_choice = choice.log_softmax(1)
    moves = torch.empty(states, states, dtype=torch.float64)
    for j in range(states):
        block = j // size
        group = inner[:, block * size : (block + 1) * size]
        moves[:, j] = log_choice[:, block] + inner[:, j] - group.logsumexp(1)
    return transitions, moves
