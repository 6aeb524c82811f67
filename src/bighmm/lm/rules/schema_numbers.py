"""Regular expressions of JSON numbers between bounds."""

from __future__ import annotations

from dataclasses import dataclass

MOST_DIGITS = 30  # of a bound

INTEGER = "-?(?:0|[1-9][0-9]*)"
NUMBER = rf"{INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{{1,2}})?"
NOTHING = r"[^\x00-\U0010FFFF]"  # matches no text

_FRACTION = r"(?:\.[0-9]+)?"
_ZERO_FRACTION = r"(?:\.0+)?"
_POSITIVE_FRACTION = r"\.[0-9]*[1-9][0-9]*"


@dataclass(frozen=True)
class Interval:
    """Numbers between two bounds, which are whole numbers; None for no bound."""

    least: int | None = None
    most: int | None = None
    open_least: bool = False  # whether `least` itself is left out
    open_most: bool = False

    def negated(self) -> Interval:
        least, most = (None if x is None else -x for x in (self.most, self.least))
        return Interval(least, most, self.open_most, self.open_least)


def integers(interval: Interval) -> str:
    """The expression of the whole numbers in an interval, without leading zeros."""
    if interval.least is None and interval.most is None:
        return INTEGER
    least = None if interval.least is None else interval.least + interval.open_least
    most = None if interval.most is None else interval.most - interval.open_most
    found = []
    if most is None or most >= 0:
        found.append(_naturals(max(0, least or 0), most))
    if least is None or least < 0:
        largest = None if least is None else -least
        found.append("-" + _naturals(max(1, 1 if most is None else -most), largest))
    return _either(found)


def numbers(interval: Interval) -> str:
    """The expression of the decimal numbers in an interval, without exponents if it has bounds."""
    if interval.least is None and interval.most is None:
        return NUMBER
    positive = _magnitudes(interval, zero=True)
    negative = _magnitudes(interval.negated(), zero=False)
    return _either([positive, f"-{negative}" if negative != NOTHING else NOTHING])


def _magnitudes(interval: Interval, zero: bool) -> str:
    """The numbers of an interval that are above 0 or, with `zero`, at least 0."""
    least, is_open = interval.least, interval.open_least
    if least is None or least < 0:
        least, is_open = 0, not zero
    elif least == 0 and not zero:
        is_open = True
    most = interval.most
    if most is not None and (most < least or (most == least and (is_open or interval.open_most))):
        return NOTHING
    if most == least:
        return f"{least}{_ZERO_FRACTION}"
    found = [f"{least}{_POSITIVE_FRACTION if is_open else _FRACTION}"]
    if most is None or most - 1 > least:
        inside = _naturals(least + 1, None if most is None else most - 1)
        found.append(f"{inside}{_FRACTION}")
    if most is not None and not interval.open_most:
        found.append(f"{most}{_ZERO_FRACTION}")
    return _either(found)


def _naturals(least: int, most: int | None) -> str:
    """The natural numbers from `least` to `most`, without leading zeros."""
    first = str(least)
    if most is None:
        longer = f"[1-9][0-9]{{{len(first)},}}"
        return _either([first[0] + _at_least(first[1:]), *_more(first), longer])
    if most < least:
        return NOTHING
    last, found = str(most), []
    for digits in range(len(first), len(last) + 1):
        low = first if digits == len(first) else "1" + "0" * (digits - 1)
        high = last if digits == len(last) else "9" * digits
        found.append(_between(low, high))
    return _either(found)


def _more(digits: str) -> list[str]:
    """Numbers of as many digits whose first digit is larger."""
    if digits[0] == "9":
        return []
    return [f"[{int(digits[0]) + 1}-9][0-9]{{{len(digits) - 1}}}"]


def _between(low: str, high: str) -> str:
    """Digits from `low` to `high`, which are equally many."""
    if not low:
        return ""
    if low[0] == high[0]:
        return low[0] + _between(low[1:], high[1:])
    found = [low[0] + _at_least(low[1:]), high[0] + _at_most(high[1:])]
    if int(high[0]) - int(low[0]) > 1:
        found.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{len(low) - 1}}}")
    return _either(found)


def _at_least(digits: str) -> str:
    """As many digits that are not below these."""
    if not digits.strip("0"):
        return f"[0-9]{{{len(digits)}}}"
    return _either([digits[0] + _at_least(digits[1:]), *_more(digits)])


def _at_most(digits: str) -> str:
    """As many digits that are not above these."""
    if not digits.strip("9"):
        return f"[0-9]{{{len(digits)}}}"
    found = [digits[0] + _at_most(digits[1:])]
    if digits[0] != "0":
        found.append(f"[0-{int(digits[0]) - 1}][0-9]{{{len(digits) - 1}}}")
    return _either(found)


def _either(patterns: list[str]) -> str:
    possible = [pattern for pattern in patterns if NOTHING not in pattern]
    if len(possible) == 1:
        return possible[0]
    return f"(?:{'|'.join(possible)})" if possible else NOTHING
