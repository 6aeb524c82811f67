"""Rules about sequences of tokens, and how they are combined.

A rule is a description; it becomes an automaton when it is compiled for a vocabulary. Rules are
combined by `&`, `|`, `~` (not) and `+` (one part of the sequence, then another), and two rules are
equal if the same sequences satisfy both. Phrases are lists of token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import add, and_, index
from typing import Any

import numpy as np

from bighmm.infer.rules import pattern as patterns
from bighmm.infer.rules.automaton import Automaton, explore
from bighmm.infer.rules.pattern import Build, Spellings, classes_of

LONGEST = 10_000  # tokens that a rule can count


class Rule:
    """What a sequence of tokens has to be like.

    `build` makes the automaton for a vocabulary of a given size. `ids` are the tokens that the
    rule speaks of, `size` is given if it is for one vocabulary alone, and `parts` are the rules
    that must all hold, if it says that several must.
    """

    __hash__ = None  # type: ignore[assignment]  # equality is that of languages

    def __init__(
        self,
        build: Build,
        name: str,
        ids: Iterable[int] = (),
        size: int | None = None,
        parts: tuple[Rule, ...] = (),
    ) -> None:
        self._build, self._name = build, name
        self._largest = max(ids, default=-1)
        self._compiled: dict[int, Automaton] = {}
        self.size = size
        self.parts = parts or (self,)

    def compile(self, vocabulary_size: int) -> Automaton:
        """The minimal automaton of the rule; ValueError if the vocabulary lacks one of its tokens.

        It is made once for each size.
        """
        if vocabulary_size not in self._compiled:
            if self.size not in (None, vocabulary_size):
                raise ValueError(
                    f"the rule {self} is for a vocabulary of {self.size} tokens, not of "
                    f"{vocabulary_size}"
                )
            if self._largest >= vocabulary_size:
                raise ValueError(
                    f"token id {self._largest} of the rule {self} is not in the vocabulary: ids "
                    f"go from 0 to {vocabulary_size - 1}"
                )
            self._compiled[vocabulary_size] = self._build(vocabulary_size).minimal()
        return self._compiled[vocabulary_size]

    def matches(self, tokens: Iterable[int]) -> bool:
        """Whether a sequence of token ids satisfies the rule."""
        ids = _ids(tokens, "a sequence")
        automaton = self.compile(self._enough())
        last = automaton.vocabulary_size - 1
        if self.size is not None and max(ids, default=0) > last:
            raise ValueError(
                f"token id {max(ids)} is not in the vocabulary of the rule {self}: ids go from 0 "
                f"to {last}"
            )
        # Without a vocabulary, all tokens that the rule does not speak of are as one.
        return automaton.accepts(min(i, last) for i in ids)

    def after(self, tokens: Iterable[int]) -> Rule:
        """What has yet to hold once `tokens` are there."""
        seen = _ids(tokens, "a sequence")
        return Rule(
            lambda size: self.compile(size).after(seen),
            f"{self}.after({seen})",
            (self._largest, *seen),
            self.size,
        )

    def called(self, name: str) -> Rule:
        """The same rule under another name in messages."""
        return Rule(self.compile, name, (self._largest,), self.size)

    def __and__(self, other: Rule) -> Rule:
        return _both(self, other, "&", lambda a, b: a & b)

    def __or__(self, other: Rule) -> Rule:
        return _both(self, other, "|", lambda a, b: a | b)

    def __add__(self, other: Rule) -> Rule:
        return _both(self, other, "+", lambda a, b: a + b)

    def __invert__(self) -> Rule:
        return Rule(lambda size: ~self.compile(size), f"~{self}", (self._largest,), self.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rule):
            return NotImplemented
        size = self.size or other.size or max(self._enough(), other._enough())
        return self.compile(size).key == other.compile(size).key

    def __repr__(self) -> str:
        return self._name

    def _enough(self) -> int:
        """A vocabulary with a token that the rule does not speak of."""
        return self.size or self._largest + 2


def contains(phrases: Iterable[Sequence[int]]) -> Rule:
    """Every phrase occurs, in any order; they may overlap."""
    found = _phrases(phrases)
    return _all_of([_single(_occurs, ids) for ids in found], f"contains({found})")


def excludes(phrases: Iterable[Sequence[int]]) -> Rule:
    """None of the phrases occurs."""
    found = _phrases(phrases)
    every = [id for ids in found for id in ids]
    return Rule(lambda size: _none_occurs(found, size), f"excludes({found})", every)


def in_order(phrases: Iterable[Sequence[int]]) -> Rule:
    """Every phrase occurs, each after the end of the one before it."""
    found = _phrases(phrases)
    if not found:
        return length(0).called("in_order([])")
    return reduce(add, (_single(_occurs, ids) for ids in found)).called(f"in_order({found})")


def starts_with(phrase: Sequence[int]) -> Rule:
    """The sequence begins with the phrase."""
    rule = _single(patterns.exactly, _phrase(phrase)) + length(0)
    return rule.called(f"starts_with({_phrase(phrase)})")


def ends_with(phrase: Sequence[int]) -> Rule:
    """The sequence ends with the phrase."""
    return _single(_just_seen, _phrase(phrase)).called(f"ends_with({_phrase(phrase)})")


def length(least: int, most: int | None = None) -> Rule:
    """The sequence has at least `least` tokens, and at most `most` where it is given.

    Neither may be more than `LONGEST`.
    """
    given = _whole([0, least] if most is None else [0, least, most])
    if given is None or sorted(given) != given:
        raise ValueError(f"a length goes from 0 or more to as many or more, not {least} to {most}")
    if given[-1] > LONGEST:
        raise ValueError(f"a rule can count to {LONGEST} tokens, not to {given[-1]}")

    def build(size: int) -> Automaton:
        last = least if most is None else most + 1
        states = np.arange(last + 1)
        accepting = (states >= least) & (most is None or states <= most)
        table = np.minimum(states + 1, last).reshape(-1, 1)
        return Automaton(table, accepting, np.zeros(size, dtype=np.int64), is_minimal=True)

    return Rule(build, f"length({least})" if most is None else f"length({least}, {most})")


def regex(pattern: str, spellings: Spellings | None = None) -> Rule:
    """The whole sequence matches a regular expression over tokens; `pattern.py` has the syntax.

    The words of the pattern are token ids, or what `spellings(word)` says: a list of sequences of
    token ids, any of which will do.
    """
    build, ids = patterns.parse(pattern, spellings or _number)
    return Rule(build, f"regex({pattern!r})", ids)


def automaton(
    table: Any, accepting: Sequence[int], class_of: Sequence[int] | None = None, start: int = 0
) -> Rule:
    """An automaton of your own: table[state][token] is the next state, -1 if there is none.

    accepting: the states in which a sequence may end. With `class_of`, which gives the class of
    every token, the columns of the table are classes.
    """
    given = _array(table)
    if given is None or given.ndim != 2 or given.size == 0:
        raise ValueError("the table of an automaton must be whole numbers, one row for each state")
    states, columns = given.shape
    named = _whole([start, *accepting])
    if not _within(given, -1, states) or named is None or not _within(np.array(named), 0, states):
        raise ValueError(f"the states of an automaton with {states} rows go from 0 to {states - 1}")
    classes = np.arange(columns) if class_of is None else _array(class_of)
    if classes is None or classes.ndim != 1 or not _within(classes, 0, columns):
        raise ValueError(f"the classes of {columns} columns go from 0 to {columns - 1}")
    first, final = named[0], frozenset(named[1:])
    rows = [*given.tolist(), [-1] * columns]  # -1 finds the last row

    def build(size: int) -> Automaton:
        return explore(
            first, lambda state, letter: rows[state][letter], final.__contains__, classes
        )

    return Rule(build, f"automaton({states} states)", size=len(classes))


def until(rule: Rule, end: int) -> Rule:
    """The tokens before the first `end` satisfy the rule; there is one, and what follows is free.

    This is what a rule about a text means where an end mark ends texts.
    """
    found = _whole([end])
    if found is None or found[0] < 0:
        raise ValueError(f"an end mark is a token id, such as 5, not {end!r}")

    def build(size: int) -> Automaton:
        words, mark = rule.compile(size).isolate(found[0])
        done = words.num_states
        table = np.empty((done + 2, words.transitions.shape[1]), dtype=np.int64)
        table[:done] = words.transitions
        table[:done, mark] = np.where(words.accepting, done, done + 1)
        table[done:] = [[done], [done + 1]]  # the text has ended, well or not
        return Automaton(table, np.arange(done + 2) == done, words.class_of)

    return Rule(build, f"until({rule}, {end})", (rule._largest, end), rule.size)


def why_impossible(rule: Rule, vocabulary_size: int, room: int, exact: bool) -> str | None:
    """One sentence why no sequence of `room` tokens, or of at most so many, satisfies the rule.

    It names the part of the rule that cannot hold, if one alone cannot. None if there is a
    sequence that satisfies the rule.
    """
    where = f"exactly {room} tokens" if exact else f"at most {room} tokens before the end mark"
    for part in (*rule.parts, rule):
        found = part.compile(vocabulary_size)
        if found.shortest is None:
            return f"no sequence of tokens can satisfy the rule {part}"
        if found.shortest > room:
            return (
                f"the rule {part} needs at least {found.shortest} tokens, but {where} are asked for"
            )
        if exact and not found.accepts_after(room)[room, 0]:
            return f"the rule {part} cannot hold for {where}"
    return None


def _single(build: Callable[[Sequence[int], int], Automaton], ids: list[int]) -> Rule:
    return Rule(lambda size: build(ids, size), f"{ids}", ids)


def _occurs(ids: Sequence[int], size: int) -> Automaton:
    """Accepts what has the phrase in it: once seen, it has been seen."""
    seen = _just_seen(ids, size)
    seen.transitions[-1] = len(ids)
    return seen


def _just_seen(ids: Sequence[int], size: int) -> Automaton:
    """Accepts what ends with the phrase. A state is how much of it the last tokens are.

    The automaton of Knuth, Morris and Pratt: where the next token does not fit, it goes on from
    the longest beginning of the phrase that the last tokens still are (`border`).
    """
    class_of, letters = classes_of(ids, size)
    table = np.zeros((len(ids) + 1, len(letters) + 1), dtype=np.int64)
    border = 0
    for place in range(len(ids) + 1):
        table[place] = table[border] if place else 0
        if place < len(ids):
            letter = letters[ids[place]]
            follows = int(table[border, letter]) if place else 0
            table[place, letter] = place + 1
            border = follows
    return Automaton(table, np.arange(len(ids) + 1) == len(ids), class_of)


def _none_occurs(phrases: list[list[int]], size: int) -> Automaton:
    """Accepts what has none of the phrases in it.

    The automaton of Aho and Corasick. A state is the longest beginning of any phrase that the last
    tokens are, and goes on like `border`, the next shorter one, where no phrase does. From the last
    state, in which a phrase has occurred, nothing leads back.
    """
    alone = {ids[0] for ids in phrases if len(ids) == 1}
    longer = [ids for ids in phrases if not alone.intersection(ids)]  # others cannot occur at all
    class_of, letters = classes_of([id for ids in longer for id in ids], size)
    class_of[list(alone)] = len(letters) + 1
    goes_on: list[dict[int, int]] = [{}]
    occurred: set[int] = set()
    for ids in longer:
        state = 0
        for id in ids:
            state = goes_on[state].setdefault(letters[id], len(goes_on))
            if state == len(goes_on):
                goes_on.append({})
        occurred.add(state)
    table = np.zeros((len(goes_on) + 1, len(letters) + 1 + bool(alone)), dtype=np.int64)
    border = [0] * len(goes_on)
    met = [0]
    for state in met:  # it grows meanwhile, shorter beginnings first
        table[state] = table[border[state]] if state else 0
        if border[state] in occurred:
            occurred.add(state)
        for letter, reached in goes_on[state].items():
            border[reached] = int(table[state, letter]) if state else 0
            table[state, letter] = reached
            met.append(reached)
    over = len(goes_on)
    table[np.isin(table, list(occurred))] = over
    table[:, len(letters) + 1 :] = over
    table[over] = over
    return Automaton(table, np.arange(len(table)) != over, class_of)


def _all_of(rules: list[Rule], name: str) -> Rule:
    return reduce(and_, rules).called(name) if rules else length(0).called(name)


def _both(
    a: Rule,
    b: Rule,
    sign: str,
    combine: Callable[[Automaton, Automaton], Automaton],
) -> Rule:
    if not isinstance(b, Rule):
        raise TypeError(f"a rule can be combined with a rule only, not with {b!r}")
    if None not in (a.size, b.size) and a.size != b.size:
        raise ValueError(
            f"the rules {a} and {b} are for vocabularies of {a.size} and {b.size} tokens"
        )
    return Rule(
        lambda size: combine(a.compile(size), b.compile(size)),
        f"({a} {sign} {b})",
        (a._largest, b._largest),
        a.size or b.size,
        (*a.parts, *b.parts) if sign == "&" else (),
    )


def _phrases(phrases: Iterable[Sequence[int]]) -> list[list[int]]:
    return [_phrase(phrase) for phrase in phrases]


def _phrase(phrase: Iterable[int]) -> list[int]:
    ids = _ids(phrase, "a phrase")
    if not ids:
        raise ValueError("a phrase of a rule must have at least one token")
    return ids


def _ids(tokens: Any, what: str) -> list[int]:
    """Token ids from a list, an array or a tensor; `what` they are, for the message."""
    try:
        given = list(tokens)
        ids = [int(token) for token in given]
        if all(i >= 0 and i == token for i, token in zip(ids, given, strict=True)):
            return ids
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{what} is a list of token ids, such as [5, 7], not {tokens!r}")


def _whole(values: Iterable[Any]) -> list[int] | None:
    """The values as whole numbers, None if one of them is none."""
    try:
        return [index(value) for value in values]
    except TypeError:
        return None


def _array(values: Any) -> np.ndarray | None:
    """The values as an array, None if they do not make one of whole numbers."""
    try:
        found = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    return found if np.issubdtype(found.dtype, np.integer) else None


def _within(values: np.ndarray, least: int, beyond: int) -> bool:
    return bool(((values >= least) & (values < beyond)).all())


def _number(word: str) -> list[list[int]]:
    ids = word.split()
    if not ids or not all(part.isdecimal() for part in ids):
        raise ValueError(f"{word!r} in a pattern over token ids is not a token id")
    return [[int(part) for part in ids]]
