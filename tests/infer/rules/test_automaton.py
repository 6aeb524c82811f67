"""The algebra of rules, against what they mean, on all short sequences of three tokens."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm import constraints as c
from bighmm.infer.rules.automaton import explore, side_by_side

SIZE = 3
SEQUENCES = [s for n in range(6) for s in itertools.product(range(SIZE), repeat=n)]


def occurs(phrase, sequence):
    return any(sequence[i : i + len(phrase)] == phrase for i in range(len(sequence) + 1))


def occur_in_order(phrases, sequence):
    if not phrases:
        return True
    first, *others = phrases
    return any(
        sequence[i : i + len(first)] == first and occur_in_order(others, sequence[i + len(first) :])
        for i in range(len(sequence))
    )


def cut(a, b):
    return lambda s: any(a(s[:i]) and b(s[i:]) for i in range(len(s) + 1))


phrase = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=3).map(tuple)
phrases = st.lists(phrase, max_size=2)
simple = st.one_of(
    phrases.map(lambda p: (c.contains(p), lambda s: all(occurs(x, s) for x in p))),
    phrases.map(lambda p: (c.excludes(p), lambda s: not any(occurs(x, s) for x in p))),
    phrases.map(lambda p: (c.in_order(p), lambda s: occur_in_order(p, s))),
    phrase.map(lambda p: (c.starts_with(p), lambda s: s[: len(p)] == p)),
    phrase.map(lambda p: (c.ends_with(p), lambda s: s[max(0, len(s) - len(p)) :] == p)),
    st.tuples(st.integers(0, 3), st.none() | st.integers(0, 2)).map(
        lambda r: (
            c.length(r[0], None if r[1] is None else r[0] + r[1]),
            lambda s: len(s) >= r[0] and (r[1] is None or len(s) <= r[0] + r[1]),
        )
    ),
)
# A rule together with what it means.
ruled = st.recursive(
    simple,
    lambda inner: st.one_of(
        inner.map(lambda a: (~a[0], lambda s: not a[1](s))),
        st.tuples(inner, inner).map(lambda p: (p[0][0] & p[1][0], _all(p))),
        st.tuples(inner, inner).map(lambda p: (p[0][0] | p[1][0], _any(p))),
        st.tuples(inner, inner).map(lambda p: (p[0][0] + p[1][0], cut(p[0][1], p[1][1]))),
    ),
    max_leaves=4,
)


def _all(pair):
    return lambda s: pair[0][1](s) and pair[1][1](s)


def _any(pair):
    return lambda s: pair[0][1](s) or pair[1][1](s)


def language(rule):
    automaton = rule.compile(SIZE)
    return [automaton.accepts(s) for s in SEQUENCES]


@settings(max_examples=300, deadline=None)
@given(ruled)
def test_a_rule_means_what_it_says(case):
    rule, meaning = case
    assert language(rule) == [bool(meaning(s)) for s in SEQUENCES]
    assert [rule.matches(s) for s in SEQUENCES[:40]] == language(rule)[:40]


@settings(max_examples=60, deadline=None)
@given(ruled, ruled)
def test_algebra(a, b):
    a, b = a[0], b[0]
    assert ~(a & b) == ~a | ~b
    assert ~(a | b) == ~a & ~b
    assert ~~a == a
    assert a & b == b & a
    assert (a + b) + a == a + (b + a)
    assert a & (a | b) == a
    differ = ((a & ~b) | (~a & b)).compile(SIZE).shortest
    assert (a == b) == (differ is None)
    assert (language(a) == language(b)) == (differ is None or differ > 5)


@settings(max_examples=60, deadline=None)
@given(ruled)
def test_minimal(case):
    """No two states of a minimal automaton accept the same sequences, and it is found again."""
    automaton = case[0].compile(SIZE)
    states = range(automaton.num_states)
    ahead = [explore_from(automaton, state) for state in states]
    for one, other in itertools.combinations(states, 2):
        assert not ahead[one].same_as(ahead[other])
    shuffled = np.random.default_rng(0).permutation(SIZE)
    renamed = c.Automaton(
        automaton.transitions, automaton.accepting, automaton.class_of[shuffled]
    ).minimal()
    again = c.Automaton(
        renamed.transitions, renamed.accepting, renamed.class_of[np.argsort(shuffled)]
    )
    assert again.minimal().key == automaton.key


def explore_from(automaton, state):
    return explore(
        state,
        lambda q, letter: int(automaton.transitions[q, letter]),
        lambda q: bool(automaton.accepting[q]),
        automaton.class_of,
    )


@settings(max_examples=60, deadline=None)
@given(ruled, st.lists(st.integers(0, SIZE - 1), max_size=3).map(tuple))
def test_what_has_yet_to_hold(case, seen):
    rule, meaning = case
    after = rule.after(seen).compile(SIZE)
    assert all(after.accepts(s) == bool(meaning(seen + s)) for s in SEQUENCES if len(s) < 5)


@settings(max_examples=60, deadline=None)
@given(ruled)
def test_shortest_and_lengths(case):
    automaton = case[0].compile(SIZE)
    lengths = sorted({len(s) for s in SEQUENCES if automaton.accepts(s)})
    found = automaton.shortest
    assert found == (lengths[0] if lengths else None) or (not lengths and found > 5)
    assert np.flatnonzero(automaton.accepts_after(5)[:, 0]).tolist() == lengths
    assert bool(automaton.hopeful()[0]) == (found is not None)


@settings(max_examples=40, deadline=None)
@given(st.lists(ruled, min_size=1, max_size=4))
def test_side_by_side(cases):
    automata = [rule.compile(SIZE) for rule, _ in cases]
    together, starts = side_by_side(automata)
    for automaton, state in zip(automata, starts.tolist(), strict=True):
        assert explore_from(together, state).key == automaton.key


def test_until():
    rule = c.until(c.contains([[1]]), 0)
    for s in SEQUENCES:
        assert rule.matches(s) == (0 in s and 1 in s[: s.index(0)])


def test_repeated():
    automaton = c.regex("0 1 | 2").compile(SIZE).repeated()
    assert automaton.same_as(c.regex("(0 1 | 2)*").compile(SIZE))
    assert automaton.accepts([]) and automaton.accepts([0, 1, 2, 0, 1])
    assert not automaton.accepts([0, 1, 0])


def test_equal_rules():
    assert c.contains([[1]]) == c.length(0) + c.regex("1") + c.length(0)
    assert c.contains([[1]]) | ~c.contains([[1]]) == c.length(0)
    assert c.contains([[1], [1]]) == c.contains([[1]]) != c.contains([[2]])
    assert c.in_order([]) == c.contains([]) == c.excludes([]) == c.length(0)
    assert c.contains([[0, 1], [1, 0]]) != c.in_order([[0, 1], [1, 0]])  # 0 1 0 has both
    assert c.length(1) != "length(1)"


def test_names():
    rule = c.contains([[5, 7], [9]]) & c.length(8, 12) & ~c.contains([[3]])
    assert repr(rule) == "((contains([[5, 7], [9]]) & length(8, 12)) & ~contains([[3]]))"
    assert repr(c.starts_with([1]) | c.ends_with([2])) == "(starts_with([1]) | ends_with([2]))"
    assert repr(c.regex("1 .*") + c.length(2)) == "(regex('1 .*') + length(2))"
    assert repr(rule.called("this")) == "this" and rule.called("this") == rule


def test_tokens_that_mean_the_same_share_a_class():
    automaton = c.contains([[5, 7]]).compile(10_000)
    assert automaton.transitions.shape == (3, 3)
    assert np.unique(automaton.class_of[[0, 1, 6, 9_999]]).size == 1


def test_automaton_of_ones_own():
    """An even number of 1s, over tokens and over classes, with a step that leads nowhere."""
    even = c.automaton([[0, 1, -1], [1, 0, -1]], accepting=[0])
    assert even == c.regex("(0* 1 0* 1)* 0*") & c.automaton([[0, 0, 0]], [0])
    classes = c.automaton([[0, 1], [1, 0]], accepting=[1], class_of=[0, 1, 0], start=1)
    assert classes == c.regex("[0 2]* (1 [0 2]* 1 [0 2]*)*") & c.automaton([[0] * 3], [0])
    assert classes.matches([0, 2]) and not classes.matches([1])
    assert c.automaton([[0, 0, 0]], []).compile(3).shortest is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: c.contains([5, 7]), "a phrase is a list of token ids"),
        (lambda: c.contains([[]]), "at least one token"),
        (lambda: c.contains([[-1]]), "a phrase is a list of token ids"),
        (lambda: c.contains([["5"]]), "a phrase is a list of token ids"),
        (lambda: c.contains([[1.5]]), "a phrase is a list of token ids"),
        (lambda: c.starts_with([]), "at least one token"),
        (lambda: c.length(-1), "a length goes from"),
        (lambda: c.length(3, 2), "not 3 to 2"),
        (lambda: c.length(1.5), "not 1.5 to None"),
        (lambda: c.length(0, "3"), "not 0 to 3"),
        (lambda: c.length(None, 3), "not None to 3"),
        (lambda: c.length(0, 10**11), "a rule can count to 10000 tokens, not to 100000000000"),
        (lambda: c.length(10_001), "a rule can count to 10000 tokens, not to 10001"),
        (lambda: c.contains([[1]]).matches([-1, 1]), "a sequence is a list of token ids"),
        (lambda: c.contains([[1]]).matches([1.5]), "a sequence is a list of token ids"),
        (lambda: c.contains([[1]]).matches([float("inf")]), "a sequence is a list of token ids"),
        (lambda: c.automaton([[0, 0]], [0]).matches([0, 2]), "token id 2 is not in the vocabulary"),
        (lambda: c.contains([[1]]).after([-1]), "a sequence is a list of token ids"),
        (lambda: c.until(c.contains([[1]]), -1), "an end mark is a token id, such as 5, not -1"),
        (lambda: c.until(c.contains([[1]]), 0.5), "an end mark is a token id, such as 5, not 0.5"),
        (lambda: c.contains([[1, 7]]).compile(7), "token id 7 of the rule .* 0 to 6"),
        (lambda: c.automaton([0, 1], [0]), "one row for each state"),
        (lambda: c.automaton([[0, 2]], [0]), "go from 0 to 0"),
        (lambda: c.automaton([[0, 0]], [1]), "go from 0 to 0"),
        (lambda: c.automaton([[0, 0]], [0.5]), "go from 0 to 0"),
        (lambda: c.automaton([[0, 0]], [0], start=0.5), "go from 0 to 0"),
        (lambda: c.automaton([[0, 1], [0]], [0]), "one row for each state"),
        (lambda: c.automaton([[0, 0]], [0], class_of=[0.0, 1.0]), "go from 0 to 1"),
        (lambda: c.automaton([[0, 0]], [0], class_of=[0, 2]), "go from 0 to 1"),
        (lambda: c.automaton([[0, 0]], [0]).compile(3), "vocabulary of 2 tokens, not of 3"),
        (lambda: c.automaton([[0]], [0]) & c.automaton([[0, 0]], [0]), "of 1 and 2 tokens"),
        (lambda: c.length(1).compile(2) & c.length(1).compile(3), "the same vocabulary"),
    ],
)
def test_errors(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_rule_is_combined_with_a_rule():
    with pytest.raises(TypeError, match="with a rule only"):
        _ = c.length(1) & 3


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 4), (2, 4), (3, 3), (0, None), (3, None)])
def test_a_length_is_minimal_as_it_is_made(least, most):
    made = c.length(least, most).compile(SIZE)
    plain = c.Automaton(made.transitions, made.accepting, made.class_of)
    assert made.is_minimal and plain.minimal().key == made.key


def test_long_lengths():
    """Time grows with the length, and not with its square."""
    rule = c.until(c.contains([[1, 2]]) & c.length(5, 10_000), 0)
    found = rule.compile(SIZE)
    assert found.num_states == 29_999 and found.shortest == 6
    assert found.accepts([*[1] * 9_998, 1, 2, 0]) and not found.accepts([*[1] * 9_999, 1, 2, 0])
    assert c.length(0, 10_000).matches([1] * 10_000) and not c.length(10_000).matches([1] * 9_999)


def test_excludes_of_thousands_of_tokens():
    rule = c.excludes([[i] for i in range(0, 6000, 2)] + [[1, 3], [5, 4]])
    found = rule.compile(10_000)
    assert found.num_states == 3 and found.accepts([1, 5, 3, 1, 7])
    assert not found.accepts([1, 1, 3]) and not found.accepts([7, 4]) and not found.accepts([5, 4])
