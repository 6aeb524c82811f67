"""HMM: a model, and the questions one can ask of it.

An `HMM` is a value: it lives on one device, does not change, and knows nothing of training. Its
tensors may carry gradients, and `log_prob` is differentiable with respect to them; the other
answers carry no gradient. What has probability zero is answered without NaN: `log_prob` is -inf,
so is every `next_token` after it, its marginals are 0, and its best path is -1 throughout.

Shape letters are those of `bighmm.model.model`: B batch, T time, Z states, K states per token,
M blocks, V vocabulary, H width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bighmm.base.arrays import as_tensor
from bighmm.infer import best_fill as filling
from bighmm.infer import best_paths, constrained, counts, fill, filter, joint, predict, sample
from bighmm.infer.best_fill import BestFill
from bighmm.infer.best_paths import BestPaths
from bighmm.infer.counts import Counts, check_table
from bighmm.infer.fill import FillProbs
from bighmm.infer.predict import BestNext
from bighmm.infer.rules import Rule
from bighmm.infer.sequences import Carry, Sequences, rectangular, validate
from bighmm.infer.smooth import Posterior, posterior
from bighmm.infer.viterbi import BestPath, viterbi
from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.support import Dense
from bighmm.model.transitions import Table

Impl = Literal["auto", "torch", "triton", "compiled", "loop", "tree"]

__all__ = [
    *("HMM", "BestFill", "BestNext", "BestPath", "BestPaths", "Counts", "FillProbs", "Posterior"),
]


@dataclass(frozen=True, eq=False)
class HMM(Model):
    """p(x, z) = p(z_1) p(x_1 | z_1) Π_t p(z_t | z_{t-1}) p(x_t | z_t).

    With an `end` mark and `reset`, the state after the mark is drawn from the start distribution
    again, so that texts which follow each other are independent.

    Token ids are (B, T), each row up to its own length where `lengths` (B,) are given. A list of
    rows needs no lengths; they may differ in length, and be lists, NumPy arrays or tensors. Where a
    mask of NumPy hides a token is a gap, as where it is -1, which only questions about gaps take.
    """

    def __repr__(self) -> str:
        blocks = self.support.partition
        inside = "" if blocks is None else f", {blocks.num_blocks:,} blocks"
        return f"HMM({self.num_states:,} states, {self.vocabulary_size:,} tokens{inside})"

    @staticmethod
    def of(model: Model) -> HMM:
        """The same distributions with questions."""
        fields = (field.name for field in dataclasses.fields(Model))
        return HMM(**{name: getattr(model, name) for name in fields})

    @staticmethod
    def from_probs(
        start: Tensor,
        transition: Tensor,
        emission: Tensor,
        *,
        end: int | None = None,
        reset: bool = True,
        tolerance: float = 1e-4,
    ) -> HMM:
        """An ordinary HMM from start (Z,), transition (Z, Z) and emission (Z, V) probabilities.

        Raises ValueError if shapes do not fit, or a row has a negative or NaN entry or does not
        sum to one within `tolerance`; what remains of a deviation is divided out.
        """
        given = [as_tensor(table) for table in (start, transition, emission)]
        dtype = torch.float64 if any(t.dtype == torch.float64 for t in given) else torch.float32
        start, transition, emission = (t.to(dtype) for t in given)
        size = len(start) if start.dim() == 1 else 0
        if size == 0 or transition.shape != (size, size) or emission.dim() != 2:
            raise ValueError(
                "start, transition and emission must have the shapes (Z,), (Z, Z) and (Z, V), not "
                f"{tuple(start.shape)}, {tuple(transition.shape)} and {tuple(emission.shape)}"
            )
        if len(emission) != size or emission.shape[1] == 0:
            raise ValueError(
                f"emission must have one row for each of the {size} states and at least one "
                f"column, not the shape {tuple(emission.shape)}"
            )
        vocabulary_size = emission.shape[1]
        if end is not None and not 0 <= end < vocabulary_size:
            raise ValueError(f"the end mark {end} is not in the vocabulary of {vocabulary_size}")
        checked = []
        for name, rows in (
            ("start", start.unsqueeze(0)),
            ("transition", transition),
            ("emission", emission),
        ):
            _check_rows(name, rows, tolerance)
            checked.append((rows / rows.sum(1, keepdim=True)).log())
        return HMM(
            checked[0].squeeze(0),
            Table(checked[1]),
            EmissionTable(checked[2].T.contiguous()),
            Dense(size, vocabulary_size),
            end,
            reset,
        )

    def log_prob(self, tokens: Any, lengths: Any = None, impl: Impl = "auto") -> Tensor:
        """log p(x_1 … x_T) (B,) of token ids (B, T), each row up to its own length.

        An empty sequence has log-probability 0. Without gradients the work is cut into pieces
        that fit in memory; with gradients all of it is one piece.
        """
        return filter.log_prob(self, validate(self, tokens, lengths), impl)

    def token_log_probs(self, tokens: Any, lengths: Any = None) -> Tensor:
        """log p(x_t | x_1 … x_{t-1}) (B, T) of every token of the rows; 0 in the padding."""
        return filter.token_log_probs(self, validate(self, tokens, lengths))

    @torch.no_grad()
    def next_token(
        self,
        tokens: Any,
        lengths: Any = None,
        rule: Rule | None = None,
        remaining: int | None = None,
    ) -> Tensor:
        """log p(x_{T+1} | x_1 … x_T) (B, V); a row may be empty.

        With a `rule` (see `bighmm.constraints`), given that the next `remaining` tokens, which
        begin with this one, satisfy it. Once some of them are there, `rule.after` them is what has
        yet to hold. Every token has log-probability -inf after a sequence of probability zero, and
        where the rule cannot be satisfied.
        """
        carry = self.carry_after(tokens, lengths)
        if rule is not None:
            return constrained.next_token(self, rule, remaining, carry)
        return predict.next_token(self, carry)

    @torch.no_grad()
    def best_next(self, tokens: Any, k: int = 10, lengths: Any = None) -> BestNext:
        """The k likeliest next tokens of each row, best first, with log p(token | row).

        These are the k highest of `next_token`. Models whose transitions are in two levels look
        only into those blocks that can hold one of them.
        """
        _at_least_one(k, "k")
        return predict.best_next_tokens(self, self.carry_after(tokens, lengths), k)

    @torch.no_grad()
    def rule_log_prob(
        self, rule: Rule, length: int, prefix: Tensor | Sequence[int] | None = None
    ) -> Tensor:
        """log p(the next `length` tokens satisfy the rule | prefix) (); -inf if they cannot."""
        return constrained.log_prob(self, rule, length, self._after(prefix)).squeeze(0)

    def joint_log_prob(self, tokens: Any, states: Any, lengths: Any = None) -> Tensor:
        """log p(x_1 … x_T, z_1 … z_T) (B,) of token ids and states (B, T), differentiable.

        -inf where a state cannot emit its token. A state that is not known is -1, and what depends
        on it is left out.
        """
        sequences = validate(self, tokens, lengths)
        states = as_tensor(rectangular(states, None)[0]).to(self.start.device).long()
        if states.shape != sequences.ids.shape:
            raise ValueError(
                f"states must have the shape of the tokens, {tuple(sequences.ids.shape)}, not "
                f"{tuple(states.shape)}"
            )
        if states.numel() and not -1 <= int(states.min()) <= int(states.max()) < self.num_states:
            raise ValueError(f"states go from 0 to {self.num_states - 1}, or are -1")
        before = states.new_full((len(states),), -1)
        return joint.log_joint(self, sequences, states, before).sum(1)

    def posterior(self, tokens: Any, lengths: Any = None, impl: Impl = "auto") -> Posterior:
        """p(z_t | x_1 … x_T) for the states that can be alive at each position."""
        return posterior(self, validate(self, tokens, lengths), impl)

    def viterbi(self, tokens: Any, lengths: Any = None, impl: Impl = "auto") -> BestPath:
        """The most likely state path of each row."""
        return viterbi(self, validate(self, tokens, lengths), impl)

    @torch.no_grad()
    def best_paths(
        self, tokens: Any, k: int, lengths: Any = None, impl: Impl = "auto"
    ) -> BestPaths:
        """The k most likely state paths of each row, best first."""
        _at_least_one(k, "k")
        return best_paths.best_paths(self, validate(self, tokens, lengths), k, impl)

    @torch.no_grad()
    def fill(
        self,
        tokens: Any,
        n: int = 1,
        generator: torch.Generator | None = None,
        lengths: Any = None,
        ends: bool = False,
    ) -> Tensor:
        """n exact samples (B, n, T) of rows (B, T) that have -1 in their gaps, one token each.

        They are drawn from p(gaps | everything known, left and right). A gap holds the end mark
        only if `ends` says that it may. The result is -1 in the padding. Raises ValueError if what
        is known of a row has probability zero.
        """
        _at_least_one(n, "n")
        return fill.fill(self, fill.validate_gaps(self, tokens, lengths), n, ends, generator)

    @torch.no_grad()
    def fill_probs(self, tokens: Any, lengths: Any = None, ends: bool = False) -> FillProbs:
        """log p(word in the gap | everything known) for all words of all gaps, which are -1.

        `words` (gaps, V) has them in the order of `torch.nonzero(tokens == -1)`, `log_prob` (B,) is
        log p(what is known). Both are -inf where what is known has probability zero.
        """
        return fill.fill_probs(self, fill.validate_gaps(self, tokens, lengths), ends)

    @torch.no_grad()
    def known_log_prob(self, tokens: Any, lengths: Any = None, ends: bool = False) -> Tensor:
        """log p(what is known) (B,) of rows that have -1 in their gaps, summed over all fillings.

        Without `ends` over those that have no end mark in a gap.
        """
        return fill.known_log_prob(self, fill.validate_gaps(self, tokens, lengths), ends)

    @torch.no_grad()
    def best_fill(
        self,
        tokens: Any,
        k: int = 1,
        lengths: Any = None,
        ends: bool = False,
        width: int | None = None,
    ) -> BestFill:
        """The k most likely fillings of the gaps (-1), best first, with log p(known, filling).

        To find the likeliest string of an HMM is NP-hard in general. Here the `width` likeliest
        beginnings are kept from gap to gap (if none is given 4 k, at least 128), each with its
        exact probability, and `exact` tells of each row whether nothing better can have been lost.
        With one gap nothing can.
        """
        _at_least_one(k, "k")
        width = max(4 * k, 128) if width is None else width
        _at_least_one(width, "width")
        gapped = fill.validate_gaps(self, tokens, lengths)
        return filling.best_fill(self, gapped, k, max(k, width), ends)

    def expected_counts(self, tokens: Any, lengths: Any = None, impl: Impl = "auto") -> Counts:
        """How often each start, transition and emission is expected to be used in the rows.

        This is the expectation step of Baum-Welch. The counts of transitions are a (Z, Z) tensor.
        Raises ValueError where that would be too large.
        """
        return counts.expected_counts(self, validate(self, tokens, lengths), impl)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        length: int | None = None,
        prefix: Tensor | Sequence[int] | Carry | None = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        max_length: int = 1000,
        rule: Rule | Sequence[Rule] | None = None,
        impl: Impl = "auto",
        top_k: int | None = None,
        top_p: float = 1.0,
        without: Sequence[int] = (),
    ) -> Tensor:
        """n samples of what follows `prefix`, as token ids (n, L), without the prefix.

        The prefix is token ids, or what `carry_after` has of one row. With `length` every row has
        that many tokens. Without it a row runs to the end mark, is filled up with end marks after
        it, and is cut at `max_length` tokens. At a temperature other than 1 each token is drawn
        from p(x | prefix)^(1 / temperature), at 0 the likeliest token is taken. `top_k` and `top_p`
        then cut that to the likeliest tokens, and tokens of `without` are never drawn (see
        `infer.sample.Sharpness`). Raises ValueError if the prefix has probability zero.

        With a `rule` (see `bighmm.constraints`) the samples satisfy it, and come from p(what
        follows | prefix, rule); a list of rules has one for each row. It is about the `length`
        tokens or, without a length, about those before the end mark, which is then among the
        `max_length` tokens. Raises ValueError with the reason if a rule cannot hold.
        """
        sample.check_request(n, length, max_length, temperature)
        sharpness = sample.Sharpness(temperature, top_k, top_p, tuple(without))
        if length is None and self.end is None:
            raise ValueError("this HMM has no end mark, so sampling needs a length")
        if rule is not None:
            carry = self._rows_after(prefix, 1)
            return constrained.sample(
                self, rule, n, carry, length, max_length, generator, sharpness
            )
        rows = self._rows_after(prefix, n)
        return sample.sample(self, rows, length, max_length, generator, sharpness, impl)

    @torch.no_grad()
    def sample_with_states(
        self,
        n: int,
        length: int,
        prefix: Tensor | Sequence[int] | Carry | None = None,
        generator: torch.Generator | None = None,
        impl: Impl = "auto",
    ) -> tuple[Tensor, Tensor]:
        """n samples from p(x, z | prefix): token ids (n, length) and the states that emit them.

        Raises ValueError if the prefix has probability zero.
        """
        sample.check_request(n, length, 0, 1.0)
        rows = self._rows_after(prefix, n)
        return sample.sample_with_states(self, rows, length, generator, impl)

    def advance(self, window: Sequences, carry: Carry, impl: Impl = "auto") -> tuple[Tensor, Carry]:
        """log p(window | prefix) (B,), differentiable, and the state after the window."""
        return filter.advance(self, window, carry, impl)

    def carry_after(self, tokens: Any, lengths: Any = None) -> Carry:
        """What is known after each row (B, T): where `advance` and `next_token_after` go on."""
        return filter.run_filter(self, validate(self, tokens, lengths))[1]

    @torch.no_grad()
    def next_token_after(self, carry: Carry) -> Tensor:
        """log p(next token | prefix) (B, V); -inf after a prefix of probability zero."""
        return predict.next_token(self, carry)

    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Plain probabilities: start (Z,), transition (Z, Z), emission (Z, V). For small models.

        Raises ValueError where a table would be too large.
        """
        check_table(self, self.num_states * max(self.num_states, self.vocabulary_size))
        every = torch.arange(self.num_states, device=self.start.device)
        emission = self.support.emission_rows(self.emission, every)
        return self.start.exp(), self.transitions.log_probs().exp(), emission.exp()

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> HMM:
        device = torch.device(device)
        dtype = dtype or self.start.dtype
        return HMM(
            self.start.to(device, dtype),
            self.transitions.to(device, dtype),
            self.emissions.to(device, dtype),
            self.support.to(device),
            self.end,
            self.reset,
        )

    def _rows_after(self, prefix: Tensor | Sequence[int] | Carry | None, n: int) -> Carry:
        """n times the state after one sequence; ValueError if that has probability zero."""
        if prefix is None:
            return Carry.at_start(self, n)
        carry = prefix if isinstance(prefix, Carry) else self._after(prefix)
        if len(carry.tokens) != 1:
            raise ValueError(f"a prefix is one sequence, not {len(carry.tokens)}")
        if not bool(carry.possible):
            raise ValueError("the prefix has probability zero in this HMM, so nothing follows it")
        return carry.rows(torch.zeros(n, dtype=torch.long, device=carry.tokens.device))

    def _after(self, prefix: Tensor | Sequence[int] | None) -> Carry:
        """The state after one sequence of token ids."""
        ids = as_tensor([] if prefix is None else prefix)
        if ids.dim() != 1:
            raise ValueError(f"a prefix is one sequence of token ids, not shape {tuple(ids.shape)}")
        return self.carry_after(ids.unsqueeze(0))


def _at_least_one(number: int, name: str) -> None:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")


def _check_rows(name: str, rows: Tensor, tolerance: float) -> None:
    if bool(rows.isnan().any()):
        raise ValueError(f"{name} has a NaN in row {int(rows.isnan().any(1).nonzero()[0])}")
    if bool((rows < 0).any()):
        raise ValueError(
            f"{name} has a negative entry in row {int((rows < 0).any(1).nonzero()[0])}"
        )
    wrong = (rows.sum(1) - 1).abs() > tolerance
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} of {name} sums to {float(rows[row].sum()):.6g}; every row must sum to one"
        )
