"""Rules about sequences of tokens, and their combinations.

A rule becomes an automaton when it is compiled for a vocabulary. Rules are combined by `&` (and),
`|` (or), `~` (not) and `+` (a part that satisfies one rule, then a part that satisfies the other).
Two rules are equal if the same sequences satisfy both. Phrases are lists of token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import and_, index
from typing import Any

import numpy as np

from bighmm.infer.rules.automaton import Automaton, explore
from bighmm.infer.rules.pattern import Build, Spellings, balanced, parse
from bighmm.infer.rules.phrases import containing, containing_none, ending_with, exactly
from bighmm.infer.rules.phrases import in_order as phrases_in_order
from bighmm.infer.rules.work import limited

LONGEST = 10_000  # the largest number of tokens that `length` can count


class Rule:
    """A set of sequences of token ids, those that satisfy the rule.

    build: the automaton for a vocabulary of a given size; it need not be minimal.
    name: the rule in messages.
    ids: the tokens that the rule mentions.
    size: the size of the vocabulary, if the rule is for one vocabulary only.
    parts: the rules that must all hold, if the rule is a conjunction.
    """

    __hash__ = None  # type: ignore[assignment]  # equal rules can have different definitions

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
        """The minimal automaton of the rule, computed once for each size.

        Raises ValueError if the rule is for another vocabulary, mentions a token that is not in the
        vocabulary, or would have too large an automaton.
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
            with limited(self):
                self._compiled[vocabulary_size] = self._build(vocabulary_size).minimal()
        return self._compiled[vocabulary_size]

    def matches(self, tokens: Iterable[int]) -> bool:
        """Whether a sequence of token ids satisfies the rule."""
        ids = _ids(tokens, "a sequence")
        automaton = self.compile(self._sufficient_size())
        last = automaton.vocabulary_size - 1
        if self.size is not None and max(ids, default=0) > last:
            raise ValueError(
                f"token id {max(ids)} is not in the vocabulary of the rule {self}: ids go from 0 "
                f"to {last}"
            )
        # The last token of the vocabulary stands for all tokens that the rule does not mention.
        return automaton.accepts(min(i, last) for i in ids)

    def after(self, tokens: Iterable[int]) -> Rule:
        """The rule for the rest of a sequence that begins with `tokens`."""
        prefix = _ids(tokens, "a sequence")
        return Rule(
            lambda size: self.compile(size).after(prefix),
            f"{self}.after({prefix})",
            (self._largest, *prefix),
            self.size,
        )

    def called(self, name: str) -> Rule:
        """The same rule with another name in messages."""
        return Rule(self.compile, name, (self._largest,), self.size)

    def __and__(self, other: Rule) -> Rule:
        return _combined(self, other, "&", lambda a, b: a & b)

    def __or__(self, other: Rule) -> Rule:
        return _combined(self, other, "|", lambda a, b: a | b)

    def __add__(self, other: Rule) -> Rule:
        return _combined(self, other, "+", lambda a, b: a + b)

    def __invert__(self) -> Rule:
        return Rule(lambda size: ~self.compile(size), f"~{self}", (self._largest,), self.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rule):
            return NotImplemented
        size = self.size or other.size or max(self._sufficient_size(), other._sufficient_size())
        return self.compile(size).key == other.compile(size).key

    def __repr__(self) -> str:
        return self._name

    def _sufficient_size(self) -> int:
        """The size of a vocabulary that has a token which the rule does not mention."""
        return self.size or self._largest + 2


def contains(phrases: Iterable[Sequence[int]]) -> Rule:
    """Every phrase occurs, in any order; they may overlap."""
    checked = _phrases(phrases)
    return _all_of([_phrase_rule(containing, ids) for ids in checked], f"contains({checked})")


def excludes(phrases: Iterable[Sequence[int]]) -> Rule:
    """None of the phrases occurs."""
    checked = _phrases(phrases)
    every = [id for ids in checked for id in ids]
    return Rule(lambda size: containing_none(checked, size), f"excludes({checked})", every)


def in_order(phrases: Iterable[Sequence[int]]) -> Rule:
    """Every phrase occurs, each after the end of the one before it."""
    checked = _phrases(phrases)
    if not checked:
        return length(0).called("in_order([])")
    every = [id for ids in checked for id in ids]
    return Rule(lambda size: phrases_in_order(checked, size), f"in_order({checked})", every)


def starts_with(phrase: Sequence[int]) -> Rule:
    """The sequence begins with the phrase."""
    rule = _phrase_rule(exactly, _phrase(phrase)) + length(0)
    return rule.called(f"starts_with({_phrase(phrase)})")


def ends_with(phrase: Sequence[int]) -> Rule:
    """The sequence ends with the phrase."""
    return _phrase_rule(ending_with, _phrase(phrase)).called(f"ends_with({_phrase(phrase)})")


def length(least: int, most: int | None = None) -> Rule:
    """The sequence has at least `least` tokens, and at most `most` unless that is None.

    Raises ValueError for numbers below 0 or above `LONGEST`, and for `most` below `least`.
    """
    bounds = _integers([0, least] if most is None else [0, least, most])
    if bounds is None or sorted(bounds) != bounds:
        raise ValueError(f"a length goes from 0 or more to as many or more, not {least} to {most}")
    if bounds[-1] > LONGEST:
        raise ValueError(f"a rule can count to {LONGEST} tokens, not to {bounds[-1]}")

    def build(size: int) -> Automaton:
        last = least if most is None else most + 1
        states = np.arange(last + 1)
        accepting = (states >= least) & (most is None or states <= most)
        table = np.minimum(states + 1, last).reshape(-1, 1)
        return Automaton(table, accepting, np.zeros(size, dtype=np.int64), is_minimal=True)

    return Rule(build, f"length({least})" if most is None else f"length({least}, {most})")


def regex(pattern: str, spellings: Spellings | None = None) -> Rule:
    """The whole sequence matches a regular expression over tokens; see `pattern` for the syntax.

    spellings: the alternative sequences of token ids for a word of the pattern; by default the
        words are token ids.
    """
    build, ids = parse(pattern, spellings or _spelling_of_id)
    return Rule(build, f"regex({pattern!r})", ids)


def automaton(
    table: Any, accepting: Sequence[int], class_of: Sequence[int] | None = None, start: int = 0
) -> Rule:
    """A rule from the table of an automaton.

    table: `table[state][token]` is the next state, or -1 if the sequence is rejected.
    accepting: the states in which a sequence may end.
    class_of: the class (V,) of each token; with it the columns of the table are classes.
    start: the initial state.

    Raises ValueError if the table is not rectangular, or a state or class does not exist.
    """
    transitions = _integer_array(table)
    if transitions is None or transitions.ndim != 2 or transitions.size == 0:
        raise ValueError("the table of an automaton must be whole numbers, one row for each state")
    states, columns = transitions.shape
    named = _integers([start, *accepting])
    if (
        not _within(transitions, -1, states)
        or named is None
        or not _within(np.array(named), 0, states)
    ):
        raise ValueError(f"the states of an automaton with {states} rows go from 0 to {states - 1}")
    classes = np.arange(columns) if class_of is None else _integer_array(class_of)
    if classes is None or classes.ndim != 1 or not _within(classes, 0, columns):
        raise ValueError(f"the classes of {columns} columns go from 0 to {columns - 1}")
    first, final = named[0], frozenset(named[1:])
    rows = [*transitions.tolist(), [-1] * columns]  # the dead state: rows[-1] is the last row

    def build(size: int) -> Automaton:
        return explore(
            first, lambda state, letter: rows[state][letter], final.__contains__, classes
        )

    return Rule(build, f"automaton({states} states)", size=len(classes))


def until(rule: Rule, end: int) -> Rule:
    """The sequence has an end mark, and the tokens before the first one satisfy the rule.

    Any tokens may follow the mark. So a rule about a text becomes a rule about a sequence of
    tokens in which the mark `end` ends the text.
    """
    checked = _integers([end])
    if checked is None or checked[0] < 0:
        raise ValueError(f"an end mark is a token id, such as 5, not {end!r}")

    def build(size: int) -> Automaton:
        text, mark = rule.compile(size).isolate(checked[0])
        satisfied = text.num_states
        violated = satisfied + 1
        table = np.empty((satisfied + 2, text.transitions.shape[1]), dtype=np.int64)
        table[:satisfied] = text.transitions
        table[:satisfied, mark] = np.where(text.accepting, satisfied, violated)
        table[satisfied:] = [[satisfied], [violated]]
        return Automaton(table, np.arange(satisfied + 2) == satisfied, text.class_of)

    return Rule(build, f"until({rule}, {end})", (rule._largest, end), rule.size)


def why_impossible(rule: Rule, vocabulary_size: int, room: int, exact: bool) -> str | None:
    """Why no sequence of `room` tokens satisfies the rule, as one sentence; None if one does.

    exact: whether the sequence must have exactly `room` tokens; otherwise it has at most as many.
    The sentence names a part of the rule that alone cannot hold; otherwise parts that together
    cannot, none of which could be left out.
    """

    def reason(part: Rule) -> str | None:
        automaton = part.compile(vocabulary_size)
        shortest = automaton.shortest
        if shortest is None:
            if len(part.parts) > 1:
                names = " and ".join(map(str, part.parts))
                return f"no sequence of tokens can satisfy the rules {names} together"
            return f"no sequence of tokens can satisfy the rule {part}"
        if shortest > room:
            return f"the rule {part} needs at least {shortest} tokens, but {where} are asked for"
        if exact and not automaton.accepts_after(room)[room, 0]:
            return f"the rule {part} cannot hold for {where}"
        return None

    where = f"exactly {room} tokens" if exact else f"at most {room} tokens before the end mark"
    for part in rule.parts:
        if (found := reason(part)) is not None:
            return found
    found = reason(rule)
    if found is None or len(rule.parts) < 2:
        return found
    kept = list(rule.parts)
    with limited(rule):  # all these conjunctions together
        for part in rule.parts:
            others = [one for one in kept if one is not part]
            try:
                fewer = reason(balanced(and_, others))
            except ValueError:  # too large without this part
                continue
            if fewer is not None:
                kept, found = others, fewer
    return found


def _phrase_rule(build: Callable[[Sequence[int], int], Automaton], ids: list[int]) -> Rule:
    """A rule about one phrase, from the function that builds its automaton."""
    return Rule(lambda size: build(ids, size), f"{ids}", ids)


def _all_of(rules: list[Rule], name: str) -> Rule:
    """The conjunction of rules; without rules, every sequence satisfies it."""
    return balanced(and_, rules).called(name) if rules else length(0).called(name)


def _combined(
    a: Rule,
    b: Rule,
    sign: str,
    combine: Callable[[Automaton, Automaton], Automaton],
) -> Rule:
    """The rule of the combined automata; `sign` stands between the two names."""
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
    """A phrase as a list of token ids; ValueError if it is empty or has other values."""
    ids = _ids(phrase, "a phrase")
    if not ids:
        raise ValueError("a phrase of a rule must have at least one token")
    return ids


def _ids(tokens: Any, what: str) -> list[int]:
    """Token ids as a list of ints, from a list, an array or a tensor.

    Raises ValueError if they are no token ids; `what` names them in the message.
    """
    try:
        values = list(tokens)
        ids = [int(value) for value in values]
        if all(id >= 0 and id == value for id, value in zip(ids, values, strict=True)):
            return ids
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{what} is a list of token ids, such as [5, 7], not {tokens!r}")


def _integers(values: Iterable[Any]) -> list[int] | None:
    """The values as a list of ints, None if one of them is not an integer."""
    try:
        return [index(value) for value in values]
    except TypeError:
        return None


def _integer_array(values: Any) -> np.ndarray | None:
    """The values as an array of integers, None if they do not form one."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    return array if np.issubdtype(array.dtype, np.integer) else None


def _within(values: np.ndarray, least: int, limit: int) -> bool:
    """Whether least <= value < limit for all values."""
    return bool(((values >= least) & (values < limit)).all())


def _spelling_of_id(word: str) -> list[list[int]]:
    """The token ids in a word of a pattern over token ids, as the only spelling."""
    ids = word.split()
    if not ids or not all(part.isdecimal() for part in ids):
        raise ValueError(f"{word!r} in a pattern over token ids is not a token id")
    return [[int(part) for part in ids]]
