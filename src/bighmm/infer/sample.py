"""Exact samples from an HMM, with or without a prefix.

At temperature 1 the states are drawn along with the tokens, which needs one row of the transition
matrix per token, or less where the family of transitions draws in steps. At temperature 0 it is the
likeliest token. At any other temperature the exact next-token distribution p(x | prefix) is
sharpened or flattened, p^(1/temperature) renormalised, as language models are usually sampled.

Small dense models on a CPU are sampled in the compiled loop of `ops.table_chain`, which draws the
same states and tokens from the same random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from bighmm.base.caching import cached_object
from bighmm.base.interrupting import check
from bighmm.base.settings import check_whole
from bighmm.infer.filter import advance
from bighmm.infer.loops import can_loop
from bighmm.infer.predict import best_next_tokens, next_token
from bighmm.infer.sequences import Carry, Sequences, ends_text
from bighmm.model.model import Model
from bighmm.model.support import States
from bighmm.model.transitions import EVERY
from bighmm.ops import memory
from bighmm.ops.drawing import draw
from bighmm.ops.log_matmul import finite_or_zero
from bighmm.ops.table_chain import compiled

AT_ONCE = 64  # places for which the loop draws before it asks whether all rows have ended
COLDEST = 1e-30  # as 0, but for ties: any difference is then larger than float32 can tell apart


def check_request(n: int, length: int | None, max_length: int, temperature: float) -> None:
    """Raises ValueError for a number, length or temperature that cannot be sampled."""
    check_whole(n, "n", 1)
    check_whole(length or 0, "length")
    check_whole(max_length, "max_length")
    if not isinstance(temperature, Real) or not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be finite and at least 0, not {temperature!r}")


@dataclass(frozen=True)
class Sharpness:
    """How a token is drawn from p(x | prefix).

    Tokens of `without` are left out; then p^(1 / temperature) is cut to the `top_k` likeliest
    tokens, and to the likeliest of probability `top_p` in all. At temperature 0 the likeliest token
    is taken. Raises ValueError for a top_k or top_p that leaves nothing.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    without: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.top_k is not None:
            check_whole(self.top_k, "top_k", 1)
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p!r}")

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from p(x | prefix) as it is."""
        return self == Sharpness()

    def draw(self, log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
        """One token per row (N,) of log p (N, V), which need not be normalised."""
        if self.without:
            log_probs = without_tokens(log_probs, list(self.without))
        if self.temperature == 0 or (self.top_k is None and self.top_p == 1):
            return draw_token(log_probs, self.temperature, generator)
        log_probs = (log_probs / max(self.temperature, COLDEST)).log_softmax(1)
        if self.top_k is not None and self.top_k < log_probs.shape[1]:
            best = log_probs.topk(self.top_k)
            kept = torch.full_like(log_probs, -torch.inf).scatter_(1, best.indices, best.values)
            log_probs = kept.log_softmax(1)
        return draw(nucleus(log_probs, self.top_p), generator)


AS_IT_IS = Sharpness()


def sample(
    model: Model,
    carry: Carry,
    length: int | None,
    max_length: int,
    generator: torch.Generator | None,
    sharpness: Sharpness = AS_IT_IS,
    impl: str = "auto",
) -> Tensor:
    """Continue each row of `carry` (N rows): token ids (N, L), filled up with the end mark."""
    plain = sharpness.is_plain
    if plain and can_loop(model, impl) and _tables_pay(model, len(carry.tokens)):
        return _sample_in_loops(model, carry, length, max_length, generator)
    stop = model.end if length is None else None
    steps = max_length if length is None else length
    rows, device = len(carry.tokens), carry.tokens.device
    sampler = AncestralSampler(model, carry) if plain else _TokenSampler(model, carry, sharpness)
    return collect(lambda _: sampler.step(generator), rows, steps, stop, device)


def sample_with_states(
    model: Model,
    carry: Carry,
    length: int,
    generator: torch.Generator | None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """As `sample` at temperature 1: token ids (N, L), and the states (N, L) that emit them."""
    if can_loop(model, impl) and _tables_pay(model, len(carry.tokens)):
        return _draw_in_loops(model, carry, length, None, generator, with_states=True)
    sampler, states = AncestralSampler(model, carry), []

    def step(place: int) -> Tensor:
        tokens = sampler.step(generator)
        states.append(sampler.state)
        return tokens

    tokens = collect(step, len(carry.tokens), length, None, carry.tokens.device)
    return tokens, torch.stack(states, dim=1) if states else torch.zeros_like(tokens)


def collect(
    step: Callable[[int], Tensor], rows: int, steps: int, stop: int | None, device: torch.device
) -> Tensor:
    """Tokens (rows, L) from at most `steps` calls of `step(place)`, each of which gives (rows,).

    A row that has reached the token `stop` is filled up with it. Ends as soon as all rows have.
    """
    finished = torch.zeros(rows, dtype=torch.bool, device=device)
    columns: list[Tensor] = []
    for place in range(steps):
        check()
        tokens = step(place)
        if stop is not None:
            tokens = tokens.masked_fill(finished, stop)
            finished = finished | (tokens == stop)
        columns.append(tokens)
        if bool(finished.all()):
            break
    empty = torch.zeros(len(finished), 0, dtype=torch.long, device=finished.device)
    return torch.stack(columns, dim=1) if columns else empty


def _tables_pay(model: Model, rows: int) -> bool:
    """Whether to sum up the emissions of all states, rather than those of `rows` at every place."""
    cells = model.num_states * model.vocabulary_size
    return cells <= (memory.WORKING if rows * AT_ONCE > model.num_states else memory.STREAMED)


def _sample_in_loops(
    model: Model,
    carry: Carry,
    length: int | None,
    max_length: int,
    generator: torch.Generator | None,
) -> Tensor:
    """As `AncestralSampler`, with compiled loops."""
    steps, stop = (max_length, model.end) if length is None else (length, None)
    tokens, _ = _draw_in_loops(model, carry, steps, stop, generator)
    if stop is None:
        return tokens
    ended = (tokens == stop).cumsum(1) > 0
    last = int((~ended).sum(1).max()) + 1
    return tokens.masked_fill(ended, stop)[:, :last]


def _draw_in_loops(
    model: Model,
    carry: Carry,
    steps: int,
    stop: int | None,
    generator: torch.Generator | None,
    with_states: bool = False,
) -> tuple[Tensor, Tensor]:
    """Tokens (N, L), and the states (N, L) that emit them; ends when all rows have had `stop`."""
    start, moves, words = model.start, model.transitions, model.emissions
    tables = (
        cached_object(model, "_summed", lambda: compiled().cumulated(start.unsqueeze(0))),
        cached_object(moves, "_summed", lambda: compiled().cumulated(moves.log_probs())),
        cached_object(words, "_summed", lambda: compiled().cumulated(words.table.T)),
    )
    rows, device = len(carry.tokens), start.device
    each = AT_ONCE if stop is not None else memory.at_once(2 * rows, device)
    end = model.end if model.reset else None
    last = draw(carry.log_alpha, generator) if steps else torch.zeros_like(carry.tokens)
    fresh, tokens = carry.fresh.clone(), [torch.zeros(rows, 0, dtype=torch.long)]
    states = [tokens[0]] if with_states else [tokens[0][:0]]
    for first in range(0, steps, each):
        shape = (min(each, steps - first), 2, rows)
        chosen = torch.rand(shape, generator=generator, dtype=torch.float64)
        drawn = compiled().draw_tokens(last, fresh, tables, chosen, end, with_states)
        for parts, part in zip((tokens, states), drawn, strict=True):
            parts.append(part)
        if stop is not None and bool((tokens[-1] == stop).any(1).all()):
            break
    return torch.cat(tokens, dim=1), torch.cat(states, dim=1)


class AncestralSampler:
    """Draws z, then x given z, then z' given z, …"""

    def __init__(self, model: Model, carry: Carry) -> None:
        self.model = model
        self.carry: Carry | None = carry
        self.state = torch.zeros_like(carry.tokens)
        self.fresh = carry.fresh

    def step(self, generator: torch.Generator | None) -> Tensor:
        if self.carry is not None:  # the state of the prefix's last token
            within = draw(self.carry.log_alpha, generator)
            states = self.model.support.states(self.carry.tokens)
            self.state = states.gather(1, within.unsqueeze(1)).squeeze(1).clamp(min=0)
            self.carry = None
        transitions, start = self.model.transitions, self.model.start
        self.state = transitions.draw(self.state, self.fresh, start, generator)
        chunk = memory.at_once(self.model.vocabulary_size, self.state.device)
        parts = [self._draw_tokens(some, generator) for some in self.state.split(chunk)]
        tokens = torch.cat(parts)
        self.fresh = ends_text(self.model, tokens)
        return tokens

    def _draw_tokens(self, states: Tensor, generator: torch.Generator | None) -> Tensor:
        tokens, log_probs = self.model.support.emitted_tokens(self.model.emission, states)
        return tokens.gather(1, draw(log_probs, generator).unsqueeze(1)).squeeze(1)


class _TokenSampler:
    """Draws x from the next-token distribution and filters the state through it."""

    def __init__(self, model: Model, carry: Carry, sharpness: Sharpness) -> None:
        self.model, self.carry, self.sharpness = model, carry, sharpness

    def step(self, generator: torch.Generator | None) -> Tensor:
        if self.sharpness.temperature == 0 and not self.sharpness.without:
            tokens = best_next_tokens(self.model, self.carry, 1).tokens.squeeze(1)
        else:
            tokens = self.sharpness.draw(next_token(self.model, self.carry), generator)
        _, self.carry = advance(self.model, Sequences.single(tokens), self.carry)
        return tokens


def log_moves(model: Model, states: Tensor, fresh: Tensor, columns: States = EVERY) -> Tensor:
    """log p(next state) (N, C) after `states` (N,); the start distribution in `fresh` rows (N,)."""
    moves = model.transitions.log_probs(states, columns)
    return torch.where(fresh.unsqueeze(1), model.start[columns], moves)


def draw_token(log_probs: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One token per row (N,) from p^(1 / temperature); at 0 the likeliest."""
    if temperature == 0:
        return log_probs.argmax(1)
    below_best = log_probs - log_probs.amax(1, keepdim=True)
    return draw(below_best / max(temperature, COLDEST), generator)


def without_tokens(log_probs: Tensor, ids: list[int]) -> Tensor:
    """log p (B, V) given that it is none of some tokens; -inf throughout if nothing else can be."""
    kept = log_probs.index_fill(
        1, torch.tensor(ids, dtype=torch.long).to(log_probs.device), -torch.inf
    )
    return kept - finite_or_zero(kept.logsumexp(1, keepdim=True))


def nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """log p (B, V) restricted to the smallest set of likeliest tokens with probability `top_p`.

    The likeliest token is always among them, also if `top_p` is rounded to zero.
    """
    if top_p == 1:
        return log_probs
    ordered, order = log_probs.sort(dim=1, descending=True)
    beyond = ordered.exp().cumsum(1) - ordered.exp() >= top_p
    beyond[:, 0] = False
    kept = ordered.masked_fill(beyond, -torch.inf)
    return torch.empty_like(kept).scatter_(1, order, kept).log_softmax(1)
