"""The symbols of a model: whole numbers from 0 on, or strings that stand for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from bighmm.sequences.reading import Given, Sequence
from bighmm.sequences.rows import Rows
from bighmm.sequences.settings import check_count

MOST_SYMBOLS = 1 << 27  # that are numbers; each state has a probability for every one


@dataclass(frozen=True)
class Alphabet:
    size: int
    names: tuple[str, ...] | None = None  # None where symbols are numbers

    @staticmethod
    def asked_for(n_symbols: int | None, symbols: Iterable[str] | None) -> Alphabet | None:
        """The symbols of these settings; None where both are None.

        Raises ValueError if both are given and do not agree, and for names that are not strings,
        occur twice, or can be read only once.
        """
        if n_symbols is not None:
            check_count("n_symbols", n_symbols)
        if symbols is None:
            return None if n_symbols is None else Alphabet(int(n_symbols))
        if isinstance(symbols, Iterator):
            raise ValueError(f"symbols must be a list of strings, not a {type(symbols).__name__}")
        names = tuple(symbols)
        if not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
            raise ValueError("symbols must be strings of which no two are the same")
        if n_symbols not in (None, len(names)):
            raise ValueError(f"n_symbols is {n_symbols}, but there are {len(names)} symbols")
        return Alphabet(len(names), names)

    @staticmethod
    def of(given: Given, n_symbols: int | None, symbols: Iterable[str] | None) -> Alphabet:
        """The symbols that are asked for, or else those that the sequences have.

        Raises ValueError if sequences that have no symbol are all there is, and as `asked_for`.
        """
        if not any((~sequence.missing).any() for sequence in given.sequences):
            raise ValueError("the sequences hold no symbols, so there is nothing to fit")
        asked = Alphabet.asked_for(n_symbols, symbols)
        if asked is not None and asked.names is not None:
            return asked
        present = [s.values[~s.missing] for s in given.sequences if not s.missing.all()]
        if given.kind == "strings":
            found = tuple(sorted(set().union(*present)))
            if n_symbols not in (None, len(found)):
                raise ValueError(
                    f"the sequences have {len(found)} different strings, not the n_symbols="
                    f"{n_symbols}; give the strings as `symbols`"
                )
            return Alphabet(len(found), found)
        numbers = asked or Alphabet(max(int(values.max()) for values in present) + 1)
        if numbers.size > MOST_SYMBOLS:
            raise ValueError(
                f"symbols from 0 to {numbers.size - 1} are too many; number those that occur from "
                f"0 on, at most {MOST_SYMBOLS}, or give strings"
            )
        return numbers

    def rows(self, given: Given, unseen: Literal["error", "smooth", "fitting"] = "fitting") -> Rows:
        """The sequences in numbers.

        unseen: with "smooth" symbols that are not known have a number, too. Otherwise they raise
            ValueError, which says what helps when a model is fitted or asked.
        """
        expected = "numbers" if self.names is None else "strings"
        if given.kind not in (expected, "unknown"):
            raise ValueError(f"the symbols of this model are {expected}, not {given.kind}")
        numbered = [
            self._numbers(sequence, number, unseen)
            for number, sequence in enumerate(given.sequences)
        ]
        return Rows(numbered, self.size, given.joined)

    def symbols(self, numbers: np.ndarray) -> np.ndarray:
        """The symbols of these numbers, in the same shape."""
        return numbers if self.names is None else np.array(self.names, dtype=object)[numbers]

    def name(self, number: int) -> str:
        return str(number) if self.names is None else self.names[number]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names or ())}

    def _numbers(self, sequence: Sequence, number: int, choice: str) -> np.ndarray:
        missing, unseen = self.size, self.size + 1
        values = sequence.values
        if sequence.kind == "strings":
            places = self._places
            values = np.array([places.get(value, unseen) for value in values], np.int64)
        if sequence.kind == "unknown":
            return np.full(len(values), missing, np.int64)
        if not sequence.missing.any() and int(values.max(initial=0)) < self.size:
            return values
        unknown = ~sequence.missing & (values >= self.size)
        if unknown.any() and choice != "smooth":
            place = int(np.flatnonzero(unknown)[0])
            helps = "" if choice == "fitting" else ", or set unseen='smooth'"
            raise ValueError(
                f"symbol {sequence.values[place]} in sequence {number} at position {place} is not "
                f"known: {self._known()}{helps}"
            )
        return np.where(sequence.missing, missing, np.where(unknown, unseen, values))

    def _known(self) -> str:
        if self.names is None:
            return f"symbols go from 0 to {self.size - 1}; give a larger n_symbols before fitting"
        return "it is not among the strings of this model; give them as `symbols` before fitting"
