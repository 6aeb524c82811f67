"""Rules and their combinations compared with their definitions, on all short sequences."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm import constraints as c
from bighmm.infer.rules.automaton import disjoint_union, explore

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
    """Whether a sequence can be cut into a part with the property a and a part with b."""
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
# A rule together with its definition as a Python function of a sequence.
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
def test_a_rule_accepts_the_sequences_of_its_definition(case):
    rule, definition = case
    assert language(rule) == [bool(definition(s)) for s in SEQUENCES]
    assert [rule.matches(s) for s in SEQUENCES[:40]] == language(rule)[:40]


@settings(max_examples=60, deadline=None)
@given(ruled, ruled)
def test_boolean_algebra_and_equality(a, b):
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
def test_minimal_automata_are_minimal_and_unique(case):
    """No two states are equivalent, and renamed tokens give the same automaton again."""
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
def test_the_rule_after_a_prefix(case, prefix):
    rule, definition = case
    after = rule.after(prefix).compile(SIZE)
    assert all(after.accepts(s) == bool(definition(prefix + s)) for s in SEQUENCES if len(s) < 5)


@settings(max_examples=60, deadline=None)
@given(ruled)
def test_shortest_accepted_sequence_and_lengths_of_all(case):
    automaton = case[0].compile(SIZE)
    lengths = sorted({len(s) for s in SEQUENCES if automaton.accepts(s)})
    found = automaton.shortest
    assert found == (lengths[0] if lengths else None) or (not lengths and found > 5)
    assert np.flatnonzero(automaton.accepts_after(5)[:, 0]).tolist() == lengths
    assert bool(automaton.can_accept()[0]) == (found is not None)


@settings(max_examples=40, deadline=None)
@given(st.lists(ruled, min_size=1, max_size=4))
def test_disjoint_union_contains_every_automaton(cases):
    automata = [rule.compile(SIZE) for rule, _ in cases]
    union, starts = disjoint_union(automata)
    for automaton, state in zip(automata, starts.tolist(), strict=True):
        assert explore_from(union, state).key == automaton.key


def test_until_the_end_mark():
    rule = c.until(c.contains([[1]]), 0)
    for s in SEQUENCES:
        assert rule.matches(s) == (0 in s and 1 in s[: s.index(0)])


def test_repeated_is_the_kleene_star():
    automaton = c.regex("0 1 | 2").compile(SIZE).repeated()
    assert automaton.same_as(c.regex("(0 1 | 2)*").compile(SIZE))
    assert automaton.accepts([]) and automaton.accepts([0, 1, 2, 0, 1])
    assert not automaton.accepts([0, 1, 0])


def test_rules_are_equal_if_they_accept_the_same_sequences():
    assert c.contains([[1]]) == c.length(0) + c.regex("1") + c.length(0)
    assert c.contains([[1]]) | ~c.contains([[1]]) == c.length(0)
    assert c.contains([[1], [1]]) == c.contains([[1]]) != c.contains([[2]])
    assert c.in_order([]) == c.contains([]) == c.excludes([]) == c.length(0)
    assert c.contains([[0, 1], [1, 0]]) != c.in_order([[0, 1], [1, 0]])  # 0 1 0 has both
    assert c.length(1) != "length(1)"


def test_repr_is_the_name_of_a_rule():
    rule = c.contains([[5, 7], [9]]) & c.length(8, 12) & ~c.contains([[3]])
    assert repr(rule) == "((contains([[5, 7], [9]]) & length(8, 12)) & ~contains([[3]]))"
    assert repr(c.starts_with([1]) | c.ends_with([2])) == "(starts_with([1]) | ends_with([2]))"
    assert repr(c.regex("1 .*") + c.length(2)) == "(regex('1 .*') + length(2))"
    assert repr(rule.called("this")) == "this" and rule.called("this") == rule


def test_tokens_that_a_rule_does_not_distinguish_share_a_class():
    automaton = c.contains([[5, 7]]).compile(10_000)
    assert automaton.transitions.shape == (3, 3)
    assert np.unique(automaton.class_of[[0, 1, 6, 9_999]]).size == 1


def test_rule_from_the_table_of_an_automaton():
    """An even number of 1s, over tokens and over classes, with transitions that reject."""
    even = c.automaton([[0, 1, -1], [1, 0, -1]], accepting=[0])
    assert even == c.regex("(0* 1 0* 1)* 0*") & c.automaton([[0, 0, 0]], [0])
    classes = c.automaton([[0, 1], [1, 0]], accepting=[1], class_of=[0, 1, 0], start=1)
    assert classes == c.regex("[0 2]* (1 [0 2]* 1 [0 2]*)*") & c.automaton([[0] * 3], [0])
    assert classes.matches([0, 2]) and not classes.matches([1])
    assert c.automaton([[0, 0, 0]], []).compile(3).shortest is None


@pytest.mark.parametrize(
    ("make", "message"),
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
def test_errors_of_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rule_can_be_combined_with_rules_only():
    with pytest.raises(TypeError, match="with a rule only"):
        _ = c.length(1) & 3


@pytest.mark.parametrize(("least", "most"), [(0, 0), (0, 4), (2, 4), (3, 3), (0, None), (3, None)])
def test_the_automaton_of_a_length_is_built_minimal(least, most):
    automaton = c.length(least, most).compile(SIZE)
    plain = c.Automaton(automaton.transitions, automaton.accepting, automaton.class_of)
    assert automaton.is_minimal and plain.minimal().key == automaton.key


def test_rules_about_long_lengths_compile_in_linear_time():
    """With quadratic time this would not end."""
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
