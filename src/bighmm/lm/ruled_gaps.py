"""The gaps of a text that is to satisfy a rule as a whole, or whose gaps may not hold some tokens.

The answers are those of `gaps`, given also that the filled text satisfies the rule. Every
combination of lengths has a table of its own (`infer.ruled_fill`), computed when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.infer import ruled_fill
from bighmm.infer.acceptance import AcceptanceTable
from bighmm.infer.rules import Rule
from bighmm.lm.gapped_text import Filled, GappedText, Lengths


class RuledGaps:
    """Questions about the gaps of one text.

    rule: what the filled text satisfies, without its end mark. not_in_gaps: tokens that no gap
    holds.
    """

    def __init__(
        self, hmm: HMM, text: GappedText, rule: Rule | None, not_in_gaps: Sequence[int]
    ) -> None:
        self.hmm, self.text, self.rule = hmm, text, rule
        self.not_in_gaps = list(not_in_gaps)
        self.tables: dict[Lengths, AcceptanceTable] = {}

    def log_probs(self) -> Tensor:
        """log p(known words, the rule) (C,) for every combination of lengths.

        Raises ValueError if all are impossible.
        """
        found = torch.stack(
            [ruled_fill.log_prob(self.hmm, self._table(lengths)) for lengths in self.text.choices]
        )
        if not bool((found > -torch.inf).any()):
            rule = "" if self.rule is None else f" so that the rule {self.rule} holds"
            raise ValueError(f"nothing fits the gaps{rule}")
        return found

    def draw(self, n: int, generator: torch.Generator | None) -> list[Filled]:
        """n exact samples: lengths, and tokens of these lengths."""
        choices, weights = self.text.choices, self.log_probs().softmax(0)
        chosen = torch.multinomial(weights, n, replacement=True, generator=generator).cpu()
        used, which, counts = chosen.unique(return_inverse=True, return_counts=True)
        rows = []
        for number, count in zip(used.tolist(), counts.tolist(), strict=True):
            table = self._table(choices[number])
            rows.append(ruled_fill.draw_rows(self.hmm, table, count, generator).tolist())
        return [self.text.filled(rows[i].pop(), choices[int(used[i])]) for i in which.tolist()]

    def best(self, k: int) -> tuple[list[Filled], list[float], bool]:
        """The k likeliest fillings over all lengths, log p of the texts, and if they are exact."""
        found: list[tuple[float, Filled]] = []
        all_exact = True
        for lengths in self.text.choices:
            row, table = self._row(lengths), self._table(lengths)
            width = max(4 * k, 128)
            filled, log_probs, exact = ruled_fill.best_rows(self.hmm, row, table, k, width)
            all_exact = all_exact and exact
            for ids, log_prob in zip(filled, log_probs, strict=True):
                found.append((log_prob, self.text.filled(ids, lengths)))
        ranked = sorted(found, key=lambda pair: -pair[0])[:k]
        return [filled for _, filled in ranked], [log_prob for log_prob, _ in ranked], all_exact

    def word_probs(self, lengths: Lengths) -> Tensor:
        """log p(word in the gap | known words, rule, lengths) (places of the gaps, V)."""
        row, table = self._row(lengths), self._table(lengths)
        return ruled_fill.gap_word_probs(self.hmm, row, table)

    def _row(self, lengths: Lengths) -> list[int]:
        tokens, sizes = self.text.tokens([lengths])
        return tokens[0, : int(sizes[0])].tolist()

    def _table(self, lengths: Lengths) -> AcceptanceTable:
        if lengths not in self.tables:
            row = self._row(lengths)
            rule = ruled_fill.row_rule(row, self.not_in_gaps, self.rule, self.text.ended)
            self.tables = {} if len(self.tables) >= MOST_TABLES else self.tables
            self.tables[lengths] = ruled_fill.row_table(self.hmm, rule, len(row))
        return self.tables[lengths]


MOST_TABLES = 8  # that are kept
