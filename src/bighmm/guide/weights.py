"""Weights of next tokens under a rule, from an HMM with the language model's vocabulary.

A language model cannot tell how likely a rule is to hold in the end; an HMM can, exactly. Ctrl-G
(Zhang et al. 2024) multiplies the language model's next-token probabilities by the HMM's

    p(the rule will hold | text, x) / p(the rule will hold | text)

for every next token x. The denominator is the same for all x. The factors of a text multiply to
p(the rule will hold | text) / p(the rule will hold), so the scores that beam search compares are
the language model's log-probability plus the HMM's log-probability that the rule will hold.

Letters: N rows, V the HMM's vocabulary, Z its states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bighmm.infer.acceptance import AcceptanceTable
from bighmm.infer.constrained import impossible, to_satisfy
from bighmm.infer.predict import predict_states
from bighmm.infer.rules.automaton import disjoint_union
from bighmm.infer.sequences import Carry, Sequences, padded
from bighmm.lm.rules import Rule

if TYPE_CHECKING:
    from bighmm.hmm import HMM


@dataclass(frozen=True)
class _Rows:
    """The rows of the last call, with the HMM's and the automaton's states after them."""

    text: Tensor  # (N, T) what was generated
    item: Tensor  # (N,)
    carry: Carry
    states: Tensor  # (N,) of the automaton


class Guide:
    """log-weights of next tokens, for rows of texts that grow by one token at a time.

    Every item has a rule about its tokens before the end mark, which is one of at most `length`
    tokens; several rows, such as the beams of one search, may belong to one item. `prefixes` are
    tokens before the text that the HMM reads and the rules are not about.

    Raises ValueError with the reason if a rule cannot hold.
    """

    def __init__(
        self,
        hmm: HMM,
        rules: Sequence[Rule],
        length: int,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if hmm.end is None:
            raise ValueError("this HMM has no end mark, so it cannot guide texts that end")
        if length < 1:
            raise ValueError(f"a guided text has at least one token, its end mark, not {length}")
        if prefixes is not None and len(prefixes) != len(rules):
            raise ValueError(f"{len(prefixes)} prefixes were given for {len(rules)} rules")
        self.hmm, self.end, self.length, self.items = hmm, hmm.end, length, len(rules)
        different = list({id(rule): rule for rule in rules}.values())  # rules have no hash
        joint, starts = disjoint_union([to_satisfy(hmm, rule, None, length) for rule in different])
        begins = dict(zip(map(id, different), starts.tolist(), strict=True))
        device = hmm.start.device
        self._begin = torch.tensor([begins[id(rule)] for rule in rules], device=device)
        self._carry = hmm.carry_after(*padded([[]] * len(rules) if prefixes is None else prefixes))
        self._outlook = AcceptanceTable(hmm, joint, starts, length)
        self._last: _Rows | None = None
        self._check(rules)

    @torch.no_grad()
    def log_weights(self, text: Tensor, item: Tensor) -> Tensor:
        """The log of the factor above (N, V) after text (N, T) of the items (N,).

        0 for all tokens after a text that has ended, -inf where the rule can no longer hold.
        """
        text, item = text.to(self._begin.device), item.to(self._begin.device)
        to_come = self.length - text.shape[1]
        ended = (text == self.end).any(1)
        if to_come < 1 and not bool(ended.all()):
            raise ValueError(f"this guide is for texts of {self.length} tokens with their end mark")
        self._last = rows = self._follow(text, item)
        result = rows.carry.log_alpha.new_zeros(len(text), self.hmm.vocabulary_size)
        going = torch.nonzero(~ended).squeeze(1)
        if len(going):
            log_states = predict_states(self.hmm, rows.carry.rows(going))
            result[going] = self._factors(to_come, log_states, rows.states[going])
        return result

    def _factors(self, to_come: int, log_states: Tensor, states: Tensor) -> Tensor:
        holds = self._outlook.token_log_probs(to_come, log_states, states)
        expected = holds.logsumexp(1, keepdim=True)
        factors = (holds - self.hmm.support.token_log_probs(self.hmm.emissions, log_states)).clamp(
            max=0
        ) - expected
        return factors.masked_fill(holds == -torch.inf, -torch.inf)

    def _follow(self, text: Tensor, item: Tensor) -> _Rows:
        """The rows of `text` with their states, from those of the last call where possible."""
        known = self._parents(text, item)
        if known is None:
            rows = _Rows(text[:, :0], item, self._carry.rows(item), self._begin[item])
            for place in range(text.shape[1]):
                rows = self._read(rows, text[:, : place + 1])
            return rows
        last, parents = known
        parent = _Rows(last.text[parents], item, last.carry.rows(parents), last.states[parents])
        return self._read(parent, text)

    def _read(self, rows: _Rows, text: Tensor) -> _Rows:
        """The rows with one token more; after the end mark it is replaced by another end mark."""
        ended = (text == self.end).any(1)
        tokens = text[:, -1].masked_fill(ended, self.end)
        _, carry = self.hmm.advance(Sequences.single(tokens), rows.carry)
        return _Rows(text, rows.item, carry, self._outlook.after(rows.states, tokens))

    def _parents(self, text: Tensor, item: Tensor) -> tuple[_Rows, Tensor] | None:
        """The rows of the last call, and which of them each text continues; None if not all do.

        In a beam search texts change places, are dropped and duplicated.
        """
        last, before = self._last, text[:, :-1]
        if last is None or text.shape[1] != last.text.shape[1] + 1:
            return None
        if torch.equal(before, last.text) and torch.equal(item, last.item):
            return last, torch.arange(len(item), device=item.device)
        same = (before.unsqueeze(1) == last.text).all(2) & (item.unsqueeze(1) == last.item)
        if not bool(same.any(1).all()):
            return None
        return last, same.int().argmax(1)

    def _check(self, rules: Sequence[Rule]) -> None:
        if not bool(self._carry.possible.all()):
            raise ValueError("a prefix has probability zero in this HMM, so nothing follows it")
        log_states = predict_states(self.hmm, self._carry)
        hopeful = self._outlook.log_prob(log_states, self._begin) > -torch.inf
        for rule, fresh, holds in zip(rules, self._carry.fresh, hopeful.tolist(), strict=True):
            if not holds:
                raise ValueError(impossible(rule, bool(fresh)))
