"""Gaps in a text that is to satisfy a rule as a whole: exact samples, probabilities, best fillings.

A row of token ids with gaps is itself an automaton: one state per position, where a known token is
the only way on and a gap lets all tokens pass but those that it may not hold. Its product with the
rule's automaton is the rule that the whole row satisfies, and `acceptance` has how likely it is to
hold from every state and position on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bighmm.infer.acceptance import AcceptanceTable
from bighmm.infer.best_fill import likeliest
from bighmm.infer.constrained import RuledSampler
from bighmm.infer.filter import advance
from bighmm.infer.positions import GAP
from bighmm.infer.predict import predict_states
from bighmm.infer.rules import Rule
from bighmm.infer.rules.automaton import Automaton
from bighmm.infer.sample import collect
from bighmm.infer.sequences import Carry, Sequences
from bighmm.model.model import Model
from bighmm.ops.log_matmul import finite_or_zero


def row_rule(
    row: Sequence[int], not_in_gaps: Sequence[int], rule: Rule | None, ended: bool
) -> Rule:
    """The rule that a sequence is `row`, with anything but `not_in_gaps` in its gaps (-1).

    rule: what the sequence also satisfies; if `ended`, without its last token, the end mark.
    """
    text = list(row[:-1]) if ended else list(row)
    made = _template(text, not_in_gaps)
    if rule is not None:
        made = made & rule
    return made + _template(row[-1:], ()) if ended else made


def row_table(model: Model, rule: Rule, length: int) -> AcceptanceTable:
    """How likely the rule of a row of `length` tokens is to hold, from all places on."""
    automaton = rule.compile(model.vocabulary_size)
    return AcceptanceTable(model, automaton, np.zeros(1, dtype=np.int64), length)


@torch.no_grad()
def log_prob(model: Model, table: AcceptanceTable) -> Tensor:
    """log p(a sequence satisfies the rule of the table) ()."""
    first = torch.zeros(1, dtype=torch.long, device=model.start.device)
    return table.log_prob(model.start.unsqueeze(0), first).squeeze(0)


@torch.no_grad()
def draw_rows(
    model: Model, table: AcceptanceTable, n: int, generator: torch.Generator | None
) -> Tensor:
    """n exact samples (n, T) of what satisfies the rule of the table, which must be possible."""
    dfa_states = torch.zeros(n, dtype=torch.long, device=model.start.device)
    sampler = RuledSampler(table, Carry.at_start(model, 1), dfa_states, generator)
    return collect(sampler.step, n, table.length, None, dfa_states.device)


@torch.no_grad()
def gap_word_probs(model: Model, row: Sequence[int], table: AcceptanceTable) -> Tensor:
    """log p(word in the gap | known words, rule) (gaps, V), by a sweep from left to right.

    -inf throughout if the rule cannot hold.
    """
    dfa_states = torch.zeros(1, dtype=torch.long, device=model.start.device)
    log_states = model.start.unsqueeze(0)  # (R, Z), one row for each automaton state
    found = []
    for place, token in enumerate(row):
        to_come = len(row) - place
        if token == GAP:
            words = table.token_log_probs(to_come, log_states, dfa_states).logsumexp(0)
            found.append(words - finite_or_zero(words.logsumexp(0)))
        if to_come > 1:
            log_states, dfa_states = table.step_forward(to_come, log_states, dfa_states)
            log_states = log_states - finite_or_zero(log_states.amax())
    return torch.stack(found) if found else model.start.new_zeros(0, model.vocabulary_size)


@torch.no_grad()
def best_rows(
    model: Model, row: Sequence[int], table: AcceptanceTable, k: int, width: int
) -> tuple[list[list[int]], list[float], bool]:
    """At most k rows that satisfy the rule, best first, with log p of each; and if they are exact.

    As in `best_fill`: beginnings are kept by log p(beginning, and the rule will hold), which no row
    that begins so exceeds. They are the k best for certain if none that was dropped is likelier.
    """
    carry = Carry.at_start(model, 1)
    dfa_states = torch.zeros(1, dtype=torch.long, device=model.start.device)
    gained = model.start.new_zeros(1)  # log p of each beginning
    begun: list[list[int]] = [[]]
    dropped = -torch.inf
    for place in range(len(row)):
        joint = table.token_log_probs(
            len(row) - place, predict_states(model, carry), dfa_states
        ) + gained.unsqueeze(1)
        best, places, beyond = likeliest(joint, width)
        dropped = max(dropped, beyond)
        if not bool(best[0] > -torch.inf):
            return [], [], True
        source = torch.tensor([i for i, _ in places], device=joint.device)
        tokens = torch.tensor([x for _, x in places], device=joint.device)
        log_probs, carry = advance(model, Sequences.single(tokens), carry.rows(source))
        gained = gained[source] + log_probs
        dfa_states = table.after(dfa_states[source], tokens)
        begun = [[*begun[i], x] for i, x in places]
    order = gained.argsort(descending=True, stable=True)[:k].tolist()
    found = gained[order].tolist()
    lowest = found[-1] if len(order) == k else -torch.inf
    return [begun[i] for i in order], found, lowest >= dropped


def _template(row: Sequence[int], not_in_gaps: Sequence[int]) -> Rule:
    """The rule that a sequence is `row`, with anything but `not_in_gaps` in its gaps (-1)."""
    named = sorted({*(token for token in row if token != GAP), *not_in_gaps})

    def build(size: int) -> Automaton:
        class_of = np.full(size, len(named))  # the last class is of all tokens that are not named
        class_of[named] = np.arange(len(named))
        last = len(row)
        table = np.full((last + 2, len(named) + 1), last + 1)  # the last state is dead
        passing = [number for number, token in enumerate(named) if token not in not_in_gaps]
        for place, token in enumerate(row):
            letters = [*passing, len(named)] if token == GAP else [named.index(token)]
            table[place, letters] = place + 1
        accepting = np.arange(last + 2) == last
        return Automaton(table, accepting, class_of)

    return Rule(build, "the text around the gaps", named)
