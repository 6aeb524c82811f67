"""Regular expressions over tokens, compared with Python's over digits."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm import constraints as c
from bighmm.infer.rules.pattern import UnknownWord

SEQUENCES = ["".join(s) for n in range(6) for s in itertools.product("012", repeat=n)]


def assert_same(pattern):
    automaton = c.regex(pattern).compile(3)
    plain = re.compile(pattern.replace(" ", "").replace('"', ""))
    for s in SEQUENCES:
        assert automaton.accepts(map(int, s)) == bool(plain.fullmatch(s)), s


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "0",
        "0 1 2",
        '"0 1" 2*',
        "0 | 1 2 |",
        "(0 | 1)+ 2?",
        ". .* 0",
        "[0 1]{2} [^ 0]{1,2}",
        "0{2,} 1{0,1}",
        "0{0,0} 1{0} 2",
        "(0{1,2}){2} (1*)*",
        "((0 1?)+ | 2)*",
    ],
)
def test_patterns_match_as_in_python(pattern):
    assert_same(pattern)


pieces = st.recursive(
    st.sampled_from(["0", "1", "2", ".", "[0 2]", "[^ 1]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(" ".join),
        st.tuples(inner, inner).map(lambda p: f"({p[0]} | {p[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])).map(
            lambda p: f"({p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(pieces)
def test_random_patterns_match_as_in_python(pattern):
    assert_same(pattern)


def test_words_have_the_spellings_of_the_caller():
    """A word can have several spellings; signs can be quoted or escaped."""
    ids = {"a": [[0]], "b": [[1], [2, 3]], ".": [[4]], "os.path": [[5]], "(": [[6]], "a b": [[7]]}
    rule = c.regex(r'a b+ \. os.path "." \( . "a b"', ids.__getitem__)
    assert rule.matches([0, 1, 2, 3, 4, 5, 4, 6, 9, 7])
    assert not rule.matches([0, 3, 4, 5, 4, 6, 9, 7])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(0", "a '\\)' is missing"),
        ("[0", "a '\\]' is missing"),
        ("0)", "'\\)' was not expected"),
        ("* 0", "nothing before '\\*'"),
        ("0 | +", "nothing before '\\+'"),
        ("0{2,1}", "smallest first"),
        ("0{2,0}", "smallest first"),
        ("0{2,5000}", "at most 1000"),
        ("0{5000,}", "at most 1000"),
        ("(" * 2000 + "0" + ")" * 2000, "too many signs inside one another"),
        ("0{5000}", "at most 1000"),
        ("0{x}", "'{' is out of place"),
        ('0 "1', "is out of place"),
        ("the", "'the' .* is not a token id"),
    ],
)
def test_errors_of_malformed_patterns(pattern, message):
    with pytest.raises(ValueError, match=message):
        c.regex(pattern)


def test_error_of_too_many_groups_when_it_is_compiled():
    with pytest.raises(ValueError, match="too many signs inside one another"):
        c.regex("(" * 500 + "0" + ")?" * 500).compile(3)


@pytest.mark.parametrize("pattern", ["0 .+? 1", "0 *+ 1", "0{2}{3}", "(0 1)**", "0 ? ?"])
def test_two_signs_of_repetition(pattern):
    with pytest.raises(ValueError, match="two signs of repetition follow each other"):
        c.regex(pattern)
    assert c.regex("(0{2}){2}").matches([0] * 4)


def test_groups_of_letters():
    with pytest.raises(ValueError, match=r"parentheses alone, as in \(old \| new\).*--text"):
        c.regex("0 (?:1|2)")


def test_words_that_cannot_occur():
    def spell(word):
        if word not in ("a", "b"):
            raise UnknownWord(f"no {word}")
        return [["ab".index(word)]]

    assert c.regex("a [^ zebra]", spell).matches([0, 1])
    assert not c.regex("a [^ zebra b]", spell).matches([0, 1])
    for pattern in ("[zebra a]", "a zebra"):
        with pytest.raises(ValueError, match=r"^no zebra$"):
            c.regex(pattern, spell)
    for pattern in ("a f.le", "a .*ing"):
        with pytest.raises(ValueError, match=r"^no (f.le|ing); an expression over letters.*--text"):
            c.regex(pattern, spell)


def test_the_pattern_is_shown_as_it_was_typed():
    with pytest.raises(ValueError, match=r"the pattern '\\w\+ 1' cannot be read"):
        c.regex(r"\w+ 1")


def test_square_brackets_hold_single_tokens_only():
    with pytest.raises(ValueError, match="'b' in square brackets is not a single token"):
        c.regex("[b]", {"b": [[2, 3]]}.__getitem__)


def test_error_of_a_token_that_is_not_in_the_vocabulary():
    with pytest.raises(ValueError, match="token id 9 of the rule regex"):
        c.regex("1 [^ 9]").compile(5)
