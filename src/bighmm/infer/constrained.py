"""Questions about what follows a prefix if it is to satisfy a rule.

A rule speaks of the tokens that are to come, not of the prefix. Samples are exact: states and
tokens are drawn one after the other, each in proportion to how likely the rule is to hold after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bighmm.infer.inputs import CHUNK_ELEMENTS, Carry, Sequences, ends_text
from bighmm.infer.numerics import finite_or_zero
from bighmm.infer.predict import predict_states
from bighmm.infer.product import Outlook, live_states
from bighmm.infer.rules import Rule, until
from bighmm.infer.rules.automaton import Automaton, side_by_side
from bighmm.infer.rules.rules import why_impossible
from bighmm.infer.sampling import collect, draw, draw_token, log_moves
from bighmm.ops import at_once

if TYPE_CHECKING:
    from bighmm.hmm import HMM

TABLE_ELEMENTS = 2**26  # what the tables of the rules worked on together may hold


def log_prob(hmm: HMM, rule: Rule, length: int, carry: Carry) -> Tensor:
    """log p(the next `length` tokens satisfy the rule | prefix) (B,)."""
    if length < 0:
        raise ValueError(f"a rule is about 0 or more tokens to come, not {length}")
    outlook = _outlook(hmm, rule, length)
    return outlook.log_prob(predict_states(hmm, carry), torch.zeros_like(carry.tokens))


def next_token(hmm: HMM, rule: Rule, remaining: int | None, carry: Carry) -> Tensor:
    """log p(next token | prefix, the next `remaining` tokens satisfy the rule) (B, V).

    -inf throughout where they cannot.
    """
    if remaining is None or remaining < 1:
        raise ValueError(
            "the next token under a rule needs `remaining`, the number of tokens that the rule "
            f"is about, which is at least 1, not {remaining}"
        )
    outlook = _outlook(hmm, rule, remaining)
    states = torch.zeros_like(carry.tokens)
    joint = outlook.token_log_probs(remaining, predict_states(hmm, carry), states)
    return joint - finite_or_zero(joint.logsumexp(1, keepdim=True))


def sample(
    hmm: HMM,
    rules: Rule | Sequence[Rule],
    n: int,
    carry: Carry,
    length: int | None,
    max_length: int,
    generator: torch.Generator | None,
    temperature: float,
) -> Tensor:
    """n samples of what follows the prefix of `carry`, which has one row: token ids (n, L).

    With `length`, so many tokens that satisfy the rule. Without it, texts whose tokens before the
    end mark do, the mark being one of at most `max_length` tokens; they are filled up with it.
    Raises ValueError with the reason if a rule cannot hold.
    """
    given = [rules] * n if isinstance(rules, Rule) else list(rules)
    if wrong := [rule for rule in given if not isinstance(rule, Rule)]:
        raise ValueError(f"{wrong[0]!r} is not a rule; `bighmm.constraints` makes them")
    if len(given) != n:
        raise ValueError(f"{len(given)} rules were given for {n} samples; give one for each")
    different = list({id(rule): rule for rule in given}.values())  # rules have no hash
    automata = [to_satisfy(hmm, rule, length, max_length) for rule in different]
    number = {id(rule): i for i, rule in enumerate(different)}
    steps = max_length if length is None else length
    stop = hmm.end if length is None else None
    result = carry.tokens.new_full((n, steps), 0 if stop is None else stop)
    for group in groups(hmm, automata, steps):
        joint, starts = side_by_side([automata[i] for i in group])
        outlook = Outlook(hmm, joint, starts, steps)
        first = dict(zip(group, starts.tolist(), strict=True))
        rows = [row for row in range(n) if number[id(given[row])] in first]
        states = carry.tokens.new_tensor([first[number[id(given[row])]] for row in rows])
        _check_possible(outlook, carry, [given[row] for row in rows], states)
        sampler: _Ancestral | _Tempered
        if temperature == 1:
            sampler = _Ancestral(outlook, carry, states, generator)
        else:
            sampler = _Tempered(outlook, carry, states, generator, temperature)
        drawn = collect(sampler.step, len(rows), steps, stop, states.device)
        result[rows, : drawn.shape[1]] = drawn
    if stop is None:
        return result
    words = (result != stop).sum(1)
    return result[:, : min(steps, int(words.max()) + 1)]


class _Ancestral:
    """Draws z, then x given z, then z' given z, …, all given that the rule will hold."""

    def __init__(
        self, outlook: Outlook, carry: Carry, states: Tensor, generator: torch.Generator | None
    ) -> None:
        self.outlook, self.hmm = outlook, outlook.hmm
        self.states, self.generator = states, generator
        self.log_first = predict_states(self.hmm, carry)  # (1, Z)
        self.hidden: Tensor | None = None
        self.fresh = carry.fresh.expand(len(states))

    def step(self, place: int) -> Tensor:
        to_come = self.outlook.length - place
        states, row = self.states.unique(return_inverse=True)
        entering = self.outlook.entering(to_come, states)
        every = torch.arange(len(row), device=row.device)
        chunk = max(1, CHUNK_ELEMENTS // self.hmm.num_states)
        self.hidden = torch.cat(
            [
                draw(self._moves(part) + entering[row[part]], self.generator)
                for part in every.split(chunk)
            ]
        )
        ahead = self.outlook.continuation(to_come, self.states, self.hidden)  # (N, A)
        chunk = max(1, CHUNK_ELEMENTS // self.hmm.vocabulary_size)
        tokens = torch.cat(
            [self._tokens(self.hidden[part], ahead[part]) for part in every.split(chunk)]
        )
        self.states = self.outlook.after(self.states, tokens)
        self.fresh = ends_text(self.hmm, tokens)
        return tokens

    def _moves(self, rows: Tensor) -> Tensor:
        """log p(next state) of some rows."""
        if self.hidden is None:
            return self.log_first
        return log_moves(self.hmm, self.hidden[rows], self.fresh[rows])

    def _tokens(self, hidden: Tensor, ahead: Tensor) -> Tensor:
        emitted = self.hmm.support.emission_rows(self.hmm.emission, hidden)
        return draw(emitted + ahead[:, self.outlook.class_of], self.generator)


class _Tempered:
    """Draws x from p(x | prefix, the rule will hold)^(1 / temperature)."""

    def __init__(
        self,
        outlook: Outlook,
        carry: Carry,
        states: Tensor,
        generator: torch.Generator | None,
        temperature: float,
    ) -> None:
        self.outlook, self.states = outlook, states
        self.generator, self.temperature = generator, temperature
        self.carry = carry.rows(torch.zeros_like(states))

    def step(self, place: int) -> Tensor:
        hmm = self.outlook.hmm
        to_come = self.outlook.length - place
        log_states = predict_states(hmm, self.carry)
        log_probs = self.outlook.token_log_probs(to_come, log_states, self.states)
        tokens = draw_token(log_probs, self.temperature, self.generator)
        _, self.carry = hmm.advance(Sequences.single(tokens), self.carry)
        self.states = self.outlook.after(self.states, tokens)
        return tokens


def _outlook(hmm: HMM, rule: Rule, length: int) -> Outlook:
    automaton = rule.compile(hmm.vocabulary_size)
    return Outlook(hmm, automaton, np.zeros(1, dtype=np.int64), length)


def to_satisfy(hmm: HMM, rule: Rule, length: int | None, max_length: int) -> Automaton:
    """What the tokens to come must be accepted by; ValueError if none can be."""
    room = max_length - 1 if length is None else length  # the end mark needs a place
    if (reason := why_impossible(rule, hmm.vocabulary_size, room, length is not None)) is not None:
        raise ValueError(reason)
    if length is None:
        assert hmm.end is not None
        rule = until(rule, hmm.end)
    return rule.compile(hmm.vocabulary_size)


def _check_possible(outlook: Outlook, carry: Carry, rules: list[Rule], states: Tensor) -> None:
    log_states = predict_states(outlook.hmm, carry)
    different, row = states.unique(return_inverse=True)
    possible = outlook.log_prob(log_states, different) > -torch.inf
    for rule, holds in zip(rules, possible[row].tolist(), strict=True):
        if not holds:
            raise ValueError(impossible(rule, bool(carry.fresh[0])))


def impossible(rule: Rule, at_start: bool) -> str:
    where = "at the beginning of a text" if at_start else "after this prefix"
    return f"the rule {rule} has probability zero in this HMM {where}"


def groups(hmm: HMM, automata: list[Automaton], steps: int) -> Iterator[list[int]]:
    """Numbers of automata whose tables fit in memory together."""
    limit = at_once(TABLE_ELEMENTS, hmm.start.device) // hmm.num_states
    group: list[int] = []
    rows = 0
    start = np.zeros(1, dtype=np.int64)
    for number, automaton in enumerate(automata):
        needed = int(live_states(automaton, start, steps).sum())
        if group and rows + needed > limit:
            yield group
            group, rows = [], 0
        group.append(number)
        rows += needed
    if group:
        yield group
