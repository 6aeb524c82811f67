"""Regular expressions over characters, compared with Python's `re`."""

import random
import re
import sys

import pytest

from bighmm.lm.rules.characters import utf8
from bighmm.lm.rules.expression import byte_automaton

PATTERNS = [
    *("", "a", "abc|abd|", "(a|bc)*", "a{2,4}b{0,2}", "(ab?){3}", "a+?b*", "[a-c]+", "[^a]", "."),
    *(r"\d+", r"\w\s\W", r"[^\w\s]*", "é+", "[à-ü€]*", "^ab$", "^a|b$", r"\x00|\n", "(?:a|(b))"),
    *("(a{0,3}){0,3}", "((a|b)?c)*", "[^\\n]*", "(ab|c){0,30}", r"\S\D"),
]
CHARACTERS = ["a", "b", "c", "d", "é", "ü", "€", "1", "_", " ", "\n", "\x00", "\U0001f600", "٣"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_expressions_match_as_in_python(pattern):
    found, plain, generator = byte_automaton(pattern), re.compile(pattern), random.Random(1)
    texts = ["", *CHARACTERS, *(a + b for a in CHARACTERS for b in CHARACTERS)]
    few = [c for c in CHARACTERS if plain.search(c)] or CHARACTERS
    for length in range(3, 9):
        texts += ["".join(generator.choices([*few, "a"], k=length)) for _ in range(60)]
    for text in texts:
        assert found.accepts(text.encode()) == bool(plain.fullmatch(text)), text


def test_bytes_of_ranges():
    """Every character of a range has exactly one sequence, and no other has one."""
    generator = random.Random(2)
    ends = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, sys.maxunicode]
    for _ in range(60):
        first, last = sorted(
            generator.choice(ends)
            if generator.random() < 0.5
            else generator.randrange(sys.maxunicode)
            for _ in range(2)
        )
        sequences = utf8(first, last)
        near = [first - 1, first, first + 1, last - 1, last, last + 1, *ends]
        near += [generator.randrange(sys.maxunicode) for _ in range(50)]
        for number in near:
            if not 0 <= number <= sys.maxunicode or 0xD800 <= number <= 0xDFFF:
                continue
            own = chr(number).encode()
            fitting = [
                s
                for s in sequences
                if len(s) == len(own) and all(a <= x <= b for x, (a, b) in zip(own, s, strict=True))
            ]
            assert len(fitting) == (first <= number <= last)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        ("a(?=b)", "kind assert, which is not supported"),
        (r"(a)\1", "kind groupref"),
        (r"\bcat\b", "an anchor elsewhere than at its ends"),
        ("a^b", "an anchor elsewhere"),
        ("(?i)a", "flags are not supported"),
        ("(?i:a)", "kind subpattern, which"),
        ("a++", "kind possessive_repeat"),
        ("(?>a)", "kind atomic_group"),
        ("(" * 5000 + ")" * 5000, "nested too deeply"),
    ],
)
def test_errors_of_expressions(pattern, reason):
    with pytest.raises(ValueError, match=reason) as error:
        byte_automaton(pattern)
    assert len(str(error.value)) < 300
