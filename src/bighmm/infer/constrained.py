"""Questions about what follows a prefix if it is to satisfy a rule.

A rule is about the tokens to come, not about the prefix. Samples are exact: states and tokens are
drawn one after the other, each in proportion to how likely the rule is to hold after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bighmm.infer.acceptance import AcceptanceTable, live_states
from bighmm.infer.filter import advance
from bighmm.infer.predict import predict_states
from bighmm.infer.rules import Rule, until
from bighmm.infer.rules.automaton import Automaton, disjoint_union
from bighmm.infer.rules.rules import length as any_length
from bighmm.infer.rules.rules import why_impossible
from bighmm.infer.sample import Sharpness, collect, log_moves
from bighmm.infer.sequences import Carry, Sequences, ends_text
from bighmm.model.model import Model
from bighmm.ops import memory
from bighmm.ops.drawing import draw
from bighmm.ops.log_matmul import finite_or_zero


def log_prob(model: Model, rule: Rule, length: int, carry: Carry) -> Tensor:
    """log p(the next `length` tokens satisfy the rule | prefix) (B,)."""
    if length < 0:
        raise ValueError(f"a rule is about 0 or more tokens to come, not {length}")
    table = _table(model, rule, length)
    return table.log_prob(predict_states(model, carry), torch.zeros_like(carry.tokens))


def next_token(model: Model, rule: Rule, remaining: int | None, carry: Carry) -> Tensor:
    """log p(next token | prefix, the next `remaining` tokens satisfy the rule) (B, V).

    -inf throughout where they cannot.
    """
    if remaining is None or remaining < 1:
        raise ValueError(
            "the next token under a rule needs `remaining`, the number of tokens that the rule "
            f"is about, which is at least 1, not {remaining}"
        )
    table = _table(model, rule, remaining)
    dfa_states = torch.zeros_like(carry.tokens)
    joint = table.token_log_probs(remaining, predict_states(model, carry), dfa_states)
    return joint - finite_or_zero(joint.logsumexp(1, keepdim=True))


def sample(
    model: Model,
    rules: Rule | Sequence[Rule],
    n: int,
    carry: Carry,
    length: int | None,
    max_length: int,
    generator: torch.Generator | None,
    sharpness: Sharpness,
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
    automata = [to_satisfy(model, rule, length, max_length) for rule in different]
    number = {id(rule): i for i, rule in enumerate(different)}
    steps = max_length if length is None else length
    stop = model.end if length is None else None
    result = carry.tokens.new_full((n, steps), 0 if stop is None else stop)
    for group in groups(model, automata, steps):
        joint, starts = disjoint_union([automata[i] for i in group])
        table = AcceptanceTable(model, joint, starts, steps)
        first = dict(zip(group, starts.tolist(), strict=True))
        rows = [row for row in range(n) if number[id(given[row])] in first]
        dfa_states = carry.tokens.new_tensor([first[number[id(given[row])]] for row in rows])
        _check_possible(table, carry, [given[row] for row in rows], dfa_states)
        sampler: RuledSampler | _Tempered
        if sharpness.is_plain:
            sampler = RuledSampler(table, carry, dfa_states, generator)
        else:
            sampler = _Tempered(table, carry, dfa_states, generator, sharpness)
        drawn = collect(sampler.step, len(rows), steps, stop, dfa_states.device)
        result[rows, : drawn.shape[1]] = drawn
    if stop is None:
        return result
    words = (result != stop).sum(1)
    return result[:, : min(steps, int(words.max()) + 1)]


class RuledSampler:
    """Draws z, then x given z, then z' given z, …, all given that the rule will hold."""

    def __init__(
        self,
        table: AcceptanceTable,
        carry: Carry,
        dfa_states: Tensor,
        generator: torch.Generator | None,
    ) -> None:
        self.table, self.model = table, table.model
        self.dfa_states, self.generator = dfa_states, generator
        self.log_first = predict_states(self.model, carry)  # (1, Z)
        self.hidden: Tensor | None = None
        self.fresh = carry.fresh.expand(len(dfa_states))

    def step(self, place: int) -> Tensor:
        to_come = self.table.length - place
        dfa_states, row = self.dfa_states.unique(return_inverse=True)
        entering = self.table.entering(to_come, dfa_states)
        every = torch.arange(len(row), device=row.device)
        chunk = memory.at_once(self.model.num_states, row.device)
        self.hidden = torch.cat(
            [
                draw(self._moves(part) + entering[row[part]], self.generator)
                for part in every.split(chunk)
            ]
        )
        ahead = self.table.continuation(to_come, self.dfa_states, self.hidden)  # (N, A)
        chunk = memory.at_once(self.model.vocabulary_size, row.device)
        tokens = torch.cat(
            [self._tokens(self.hidden[part], ahead[part]) for part in every.split(chunk)]
        )
        self.dfa_states = self.table.after(self.dfa_states, tokens)
        self.fresh = ends_text(self.model, tokens)
        return tokens

    def _moves(self, rows: Tensor) -> Tensor:
        """log p(next state) of some rows."""
        if self.hidden is None:
            return self.log_first
        return log_moves(self.model, self.hidden[rows], self.fresh[rows])

    def _tokens(self, hidden: Tensor, ahead: Tensor) -> Tensor:
        emitted = self.model.support.emission_rows(self.model.emission, hidden)
        return draw(emitted + ahead[:, self.table.class_of], self.generator)


class _Tempered:
    """Draws x from p(x | prefix, the rule will hold), sharpened."""

    def __init__(
        self,
        table: AcceptanceTable,
        carry: Carry,
        dfa_states: Tensor,
        generator: torch.Generator | None,
        sharpness: Sharpness,
    ) -> None:
        self.table, self.dfa_states = table, dfa_states
        self.generator, self.sharpness = generator, sharpness
        self.carry = carry.rows(torch.zeros_like(dfa_states))

    def step(self, place: int) -> Tensor:
        model = self.table.model
        to_come = self.table.length - place
        log_states = predict_states(model, self.carry)
        log_probs = self.table.token_log_probs(to_come, log_states, self.dfa_states)
        tokens = self.sharpness.draw(log_probs, self.generator)
        _, self.carry = advance(model, Sequences.single(tokens), self.carry)
        self.dfa_states = self.table.after(self.dfa_states, tokens)
        return tokens


def _table(model: Model, rule: Rule, length: int) -> AcceptanceTable:
    automaton = rule.compile(model.vocabulary_size)
    return AcceptanceTable(model, automaton, np.zeros(1, dtype=np.int64), length)


class Traced(NamedTuple):
    """Samples under a rule, and how likely the rule was after each of their tokens."""

    tokens: Tensor  # (n, L) token ids, filled up with the end mark
    log_prob_rule: Tensor  # () log p(rule | prefix)
    log_prob_ends: Tensor  # () log p(the text ends in time | prefix), whatever its words are
    log_probs: Tensor  # (n, L) log p(token | prefix and tokens before it), without the rule
    dfa_states: Tensor  # (n, L) the automaton's state after each token
    log_holds: Tensor  # (n, L) log p(rule | prefix and tokens up to this one)
    num_states: int  # of the automaton


def sample_traced(
    model: Model,
    rule: Rule,
    n: int,
    carry: Carry,
    max_length: int,
    generator: torch.Generator | None,
    temperature: float,
) -> Traced:
    """As `sample` without a length, with what happens to the rule on the way.

    After an end mark nothing changes any more. Raises ValueError with the reason if the rule cannot
    hold.
    """
    both = [to_satisfy(model, each, None, max_length) for each in (rule, any_length(0))]
    joint, starts = disjoint_union(both)  # a sweep for both costs little more than for one
    table = AcceptanceTable(model, joint, starts, max_length)
    dfa_states = carry.tokens.new_zeros(n)
    _check_possible(table, carry, [rule] * n, dfa_states)
    log_states = predict_states(model, carry).expand(2, -1)
    log_prob_rule, log_prob_ends = table.log_prob(
        log_states, torch.from_numpy(starts).to(dfa_states)
    )
    sampler: RuledSampler | _Tempered
    if temperature == 1:
        sampler = RuledSampler(table, carry, dfa_states, generator)
    else:
        sampler = _Tempered(table, carry, dfa_states, generator, Sharpness(temperature))
    tokens = collect(sampler.step, n, max_length, model.end, dfa_states.device)
    walked = carry.rows(torch.zeros_like(dfa_states))
    log_probs, states, holds = [], [], []
    for place, column in enumerate(tokens.unbind(1)):
        to_come = max_length - place - 1
        gained, walked = advance(model, Sequences.single(column), walked)
        dfa_states = table.after(dfa_states, column)
        hidden = model.support.valid_states(column)
        held = table.holding(to_come, dfa_states, hidden, walked.log_alpha)
        held = torch.where(walked.fresh, table.holding_anew(to_come, dfa_states), held)
        log_probs.append(gained)
        states.append(dfa_states)
        holds.append(held)
    return Traced(
        tokens,
        log_prob_rule,
        log_prob_ends,
        torch.stack(log_probs, dim=1),
        torch.stack(states, dim=1),
        torch.stack(holds, dim=1),
        both[0].num_states,
    )


def to_satisfy(model: Model, rule: Rule, length: int | None, max_length: int) -> Automaton:
    """What the tokens to come must be accepted by; ValueError if none can be."""
    room = max_length - 1 if length is None else length  # the end mark needs a place
    if (
        reason := why_impossible(rule, model.vocabulary_size, room, length is not None)
    ) is not None:
        raise ValueError(reason)
    if length is None:
        assert model.end is not None
        rule = until(rule, model.end)
    return rule.compile(model.vocabulary_size)


def _check_possible(
    table: AcceptanceTable, carry: Carry, rules: list[Rule], dfa_states: Tensor
) -> None:
    log_states = predict_states(table.model, carry)
    different, row = dfa_states.unique(return_inverse=True)
    possible = table.log_prob(log_states, different) > -torch.inf
    for rule, holds in zip(rules, possible[row].tolist(), strict=True):
        if not holds:
            raise ValueError(impossible(rule, bool(carry.fresh[0])))


def impossible(rule: Rule, at_start: bool) -> str:
    where = "at the beginning of a text" if at_start else "after this prefix"
    return f"the rule {rule} has probability zero in this HMM {where}"


def groups(model: Model, automata: list[Automaton], steps: int) -> Iterator[list[int]]:
    """Numbers of automata whose tables fit in memory together."""
    limit = memory.limit(memory.RULE_TABLES, model.start.device) // model.num_states
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
