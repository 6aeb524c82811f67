"""Attack: random rules, compared with predicates on all short sequences of a tiny vocabulary.

The predicates are written here from what the rules' documentation says, without automata.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bighmm import constraints as c
from bighmm.hmm import HMM
from bighmm.infer.rules import Rule

from .originals import Originals
from .outcome import Case, Failure, Say

Text = tuple[int, ...]
LONGEST = 5


@dataclass(frozen=True)
class Checked:
    """A rule with its predicate."""

    rule: Rule
    holds: Callable[[Text], bool]


def attack(originals: Originals, case: Case, draw: random.Random, place: Path, say: Say) -> str:
    """Compare a random rule with its predicate, and its probability under an HMM with a sum."""
    vocabulary = draw.randint(1, 3)
    checked = random_rule(draw, vocabulary, draw.randint(0, 3))
    say(f"vocabulary {vocabulary}: {checked.rule}")
    texts = [t for n in range(LONGEST + 1) for t in itertools.product(range(vocabulary), repeat=n)]
    compiled = checked.rule.compile(vocabulary)
    for text in texts:
        if compiled.accepts(text) != checked.holds(text):
            raise Failure(f"{text}: the rule says {compiled.accepts(text)}")
        if checked.rule.matches(text) != checked.holds(text):
            raise Failure(f"{text}: without a vocabulary it is {not checked.holds(text)}")
    prefix = tuple(draw.randrange(vocabulary) for _ in range(draw.randint(0, 2)))
    rest = checked.rule.after(prefix).compile(vocabulary)
    for text in texts:
        if len(text) + len(prefix) <= LONGEST and rest.accepts(text) != checked.holds(
            prefix + text
        ):
            raise Failure(f"{text} after {prefix}: the rule says {rest.accepts(text)}")
    _check_probability(draw, checked, vocabulary, texts, say)
    return "same"


def _check_probability(
    draw: random.Random, checked: Checked, vocabulary: int, texts: list[Text], say: Say
) -> None:
    """p(rule), the next token under it, and samples that satisfy it."""
    generator = torch.Generator().manual_seed(draw.randrange(10**6))
    tables = [
        torch.rand(shape, generator=generator).double() for shape in ((2,), (2, 2), (2, vocabulary))
    ]
    hmm = HMM.from_probs(*[table / table.sum(-1, keepdim=True) for table in tables])
    length = draw.randint(0, 4)
    good = [text for text in texts if len(text) == length and checked.holds(text)]
    say(f"{len(good)} of {vocabulary**length} texts of {length} tokens")
    expected = sum(_probability(tables, text) for text in good)
    found = float(hmm.rule_log_prob(checked.rule, length).exp())
    if abs(found - expected) > 1e-9:
        raise Failure(f"p(rule) is {found}, not {expected}")
    if not good:
        try:
            hmm.sample(1, length, rule=checked.rule, generator=generator)
        except ValueError:
            return
        raise Failure("there are samples of an impossible rule")
    for row in hmm.sample(5, length, rule=checked.rule, generator=generator).tolist():
        if not checked.holds(tuple(row)):
            raise Failure(f"the sample {row} does not satisfy the rule")
    if length:
        following = hmm.next_token([[]], rule=checked.rule, remaining=length).exp()[0]
        for token in range(vocabulary):
            some = sum(_probability(tables, text) for text in good if text[0] == token)
            if abs(float(following[token]) - some / expected) > 1e-9:
                raise Failure(
                    f"p({token} | rule) is {float(following[token])}, not {some / expected}"
                )


def _probability(tables: list[torch.Tensor], text: Text) -> float:
    """p(text) by the sum over all state paths."""
    start, move, emit = ((t / t.sum(-1, keepdim=True)).tolist() for t in tables)
    total = 0.0
    for path in itertools.product(range(len(start)), repeat=len(text)):
        prob = 1.0
        for t, (state, token) in enumerate(zip(path, text, strict=True)):
            prob *= (start[state] if t == 0 else move[path[t - 1]][state]) * emit[state][token]
        total += prob
    return total if text else 1.0


def random_rule(draw: random.Random, vocabulary: int, depth: int) -> Checked:
    """A rule of nested operations, with its predicate."""
    if depth > 0:
        a, b = (random_rule(draw, vocabulary, depth - 1) for _ in range(2))
        match draw.randrange(4):
            case 0:
                return Checked(a.rule & b.rule, lambda t: a.holds(t) and b.holds(t))
            case 1:
                return Checked(a.rule | b.rule, lambda t: a.holds(t) or b.holds(t))
            case 2:
                return Checked(~a.rule, lambda t: not a.holds(t))
            case _:
                return Checked(
                    a.rule + b.rule,
                    lambda t: any(a.holds(t[:i]) and b.holds(t[i:]) for i in range(len(t) + 1)),
                )
    phrases = [
        [draw.randrange(vocabulary) for _ in range(draw.randint(1, 3))]
        for _ in range(draw.randint(1, 2))
    ]
    phrase = phrases[0]
    match draw.randrange(8):
        case 0:
            return Checked(c.contains(phrases), lambda t: all(_find(p, t) >= 0 for p in phrases))
        case 1:
            return Checked(c.excludes(phrases), lambda t: all(_find(p, t) < 0 for p in phrases))
        case 2:
            return Checked(c.in_order(phrases), lambda t: _in_order(phrases, t))
        case 3:
            return Checked(c.starts_with(phrase), lambda t: list(t[: len(phrase)]) == phrase)
        case 4:
            return Checked(
                c.ends_with(phrase),
                lambda t: len(t) >= len(phrase) and list(t[len(t) - len(phrase) :]) == phrase,
            )
        case 5:
            least = draw.randint(0, 3)
            most = draw.choice((None, least, least + 1))
            return Checked(
                c.length(least, most),
                lambda t: least <= len(t) and (most is None or len(t) <= most),
            )
        case 6:
            end = draw.randrange(vocabulary)
            inner = random_rule(draw, vocabulary, 0)
            return Checked(
                c.until(inner.rule, end), lambda t: end in t and inner.holds(t[: t.index(end)])
            )
        case _:
            pattern, matches = random_pattern(draw, vocabulary, draw.randint(0, 3))
            return Checked(c.regex(pattern), lambda t: len(t) in matches(t, 0))


Ends = Callable[[Text, int], set[int]]  # where a match that begins at a place may end


def random_pattern(draw: random.Random, vocabulary: int, depth: int) -> tuple[str, Ends]:
    """A pattern over token ids, and a matcher that tries all ways."""
    if depth == 0:
        token = draw.randrange(vocabulary)
        members = {draw.randrange(vocabulary) for _ in range(2)}
        inside = " ".join(map(str, sorted(members)))
        return draw.choice(
            (
                (f"{token}", lambda t, i: {i + 1} if t[i : i + 1] == (token,) else set()),
                (".", lambda t, i: {i + 1} if i < len(t) else set()),
                (f"[{inside}]", lambda t, i: {i + 1} if {*t[i : i + 1]} & members else set()),
                (
                    f"[^ {inside}]",
                    lambda t, i: {i + 1} if i < len(t) and t[i] not in members else set(),
                ),
                (
                    f'"{token} {token}"',
                    lambda t, i: {i + 2} if t[i : i + 2] == (token,) * 2 else set(),
                ),
            )
        )
    (one, first), (other, second) = (random_pattern(draw, vocabulary, depth - 1) for _ in range(2))
    match draw.randrange(3):
        case 0:
            return f"({one} | {other})", lambda t, i: first(t, i) | second(t, i)
        case 1:
            return f"({one}) ({other})", lambda t, i: {k for j in first(t, i) for k in second(t, j)}
    sign, least, most = draw.choice(
        (
            ("*", 0, None),
            ("+", 1, None),
            ("?", 0, 1),
            ("{2}", 2, 2),
            ("{1,2}", 1, 2),
            ("{1,}", 1, None),
        )
    )
    return f"({one}){sign}", lambda t, i: _repeated(first, t, i, least, most)


def _repeated(part: Ends, text: Text, begin: int, least: int, most: int | None) -> set[int]:
    reached, found = {begin}, {begin} if least == 0 else set()
    for times in range(1, (len(text) + least + 1 if most is None else most) + 1):
        reached = {end for place in reached for end in part(text, place)}
        if times >= least:
            found |= reached
    return found


def _find(phrase: Sequence[int], text: Text, begin: int = 0) -> int:
    for place in range(begin, len(text) - len(phrase) + 1):
        if list(text[place : place + len(phrase)]) == list(phrase):
            return place
    return -1


def _in_order(phrases: Sequence[Sequence[int]], text: Text) -> bool:
    place = 0
    for phrase in phrases:
        found = _find(phrase, text, place)
        if found < 0:
            return False
        place = found + len(phrase)
    return True
