"""Inequalities between names."""

import pytest

from papers.inequality import parse

FIGURES = {"a-b": 10.0, "b": 20.0, "c_2": 40.0, "b:spread": 3.0}


def lookup(term):
    return FIGURES.get(f"{term.name}:{term.figure}" if term.figure else term.name)


@pytest.mark.parametrize(
    ("text", "written", "holds"),
    [
        ("a-b < b", "10.0 < 20.0", True),
        ("a-b >= b", "10.0 >= 20.0", False),
        ("2 * a-b <= b", "20.0 <= 20.0", True),
        ("2 * a-b < b < c_2", "20.0 < 20.0 < 40.0", False),
        ("c_2 - b + 0.5 * a-b > 24.5", "25.0 > 24.5", True),
        ("b:spread < a-b", "3.0 < 10.0", True),
        ("a-b < nobody", "10.0 < –", None),
        ("a-b > b > nobody", "10.0 > 20.0 > –", False),
        ("a-b < b < nobody", "10.0 < 20.0 < –", None),
        ("a-b < nobody < b", "10.0 < – < 20.0", None),
        ("b or a-b or nobody <= 10", "10.0 <= 10.0", True),
        ("c_2 - b or 3 * a-b < 20", "20.0 < 20.0", False),
        ("nobody or no-one < 20", "– < 20.0", None),
    ],
)
def test_values(text, written, holds):
    inequality = parse(text)
    values = inequality.values(lookup)
    assert inequality.written(values) == written and inequality.holds(values) is holds


def test_names():
    assert parse("0.9 * a-b <= c:test <= 1.1 * a-b + 3").names == ["a-b", "c"]
    assert parse("a-b or b + c <= 3").names == ["a-b", "b", "c"]


@pytest.mark.parametrize(
    "text", ["", "a", "a<b", "a = b", "a < ", "a < b c", "a < b * 2", "< a", "a or < b"]
)
def test_what_is_none(text):
    with pytest.raises(ValueError, match=r"compares nothing|is neither a name"):
        parse(text)
