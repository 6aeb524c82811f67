"""`bighmm fill`: what stands in the gaps of a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    NoUnk,
    Seed,
    err,
    note_absent,
    note_unknown,
    parse,
    print_json,
    shown_prob,
    some_text,
)
from bighmm.cli.rules import NO_RULE, RuleFlags

_RANGE = re.compile(r"___\d+-\d+")  # a gap of open length


@dataclass(frozen=True)
class FillArguments:
    """Fill the gaps of a text: ___ is one word, ___3 three words, ___1-4 one to four.

    Texts are drawn with their exact probabilities given all that is known, left and right. A rule
    is about the whole filled text.
    """

    model: ModelPath
    text: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT", help="A text with gaps.")
    ]
    rule: RuleFlags = NO_RULE
    n: Annotated[int, tyro.conf.arg(help="How many texts, or with --probs words.")] = 5
    best: Annotated[bool, tyro.conf.arg(help="The likeliest texts instead, with p(filling).")] = (
        False
    )
    probs: Annotated[bool, tyro.conf.arg(help="The likeliest words of every gap instead.")] = False
    open_end: Annotated[bool, tyro.conf.arg(help="The text may go on after its last word.")] = False
    no_unk: NoUnk = False
    seed: Seed = None
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def fill_command(argv: list[str]) -> None:
    """Print samples, the likeliest fillings or word probabilities of the gaps in a text."""
    arguments = parse(FillArguments, argv, "fill")
    # The gapped text is positional; a rule's --text is another, so both have their own place.
    some_text(arguments.text, "the text")
    if arguments.best and arguments.probs:
        raise ValueError("--best and --probs are two questions; ask one of them")
    rule = arguments.rule.asked()
    from bighmm import answers

    lm = arguments.compute.open_hmm(arguments.model, "fillings")
    kind: Literal["samples", "best", "probs"] = "samples"
    if arguments.best or arguments.probs:
        kind = "best" if arguments.best else "probs"
    found = answers.fill(
        lm,
        arguments.text,
        kind,
        arguments.n,
        arguments.open_end,
        rule,
        arguments.no_unk,
        arguments.seed,
    )
    note_unknown(lm, found["unknown"])
    note_absent(lm, rule.must_not)
    if arguments.as_json:
        print_json(found)
        return
    for filling in found.get("fillings", ()):
        line = [filling["text"]]
        if kind == "best":
            line = [shown_prob(filling["prob"]), filling["text"]]
            if _RANGE.search(arguments.text):  # the same text may fit the gaps in several ways
                line.append(" | ".join(" ".join(words) for words in filling["words"]))
        print("\t".join(line))
    if not found.get("exact", True):
        err().print("these are the best that were found; likelier ones may have been missed")
    for row in found.get("lengths", ()):
        print(f"lengths {' '.join(map(str, row['lengths']))}\t{shown_prob(row['prob'])}")
    for place in found.get("gaps", ()):
        for word in place["words"]:
            print(f"gap {place['gap']}.{place['word']}\t{shown_prob(word['prob'])}\t{word['word']}")
