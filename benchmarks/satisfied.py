"""Random rules for a trained model, and a check that all sampled texts satisfy them.

    python benchmarks/satisfied.py runs/pydoc-4096

Every text has its own rule: one to three keywords in any order or in a given order, a word that
must not occur, a number of words, a first or last word, or a pattern. Words of rules are drawn with
their probabilities in the model. Texts are checked without automata, by lists of words and Python's
regular expressions.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import find_device, open_hmm
from bighmm.lm.rules import Rule
from record import save, surroundings

ROOM = 20  # the most words of a text


@dataclass(frozen=True)
class Arguments:
    model: Annotated[Path, tyro.conf.Positional]
    texts: int = 1000
    seed: int = 0
    device: str = "cpu"
    out: str = "bench/satisfied.json"
    """File for the figures, under results/."""


@dataclass(frozen=True)
class Asked:
    kind: str
    rule: Rule
    holds: Callable[[list[str]], bool]  # whether the words of a text satisfy it


def main(arguments: Arguments) -> None:
    lm = open_hmm(arguments.model, "texts under a rule").to(find_device(arguments.device))
    if lm.tokenizer.kind != "words":
        sys.exit("this needs a model whose tokens are words")
    chance = random.Random(arguments.seed)
    draw = _word_source(lm, chance)
    asked = [_ask(lm, chance, draw) for _ in range(arguments.texts)]
    generator = torch.Generator(lm.device).manual_seed(arguments.seed)
    began = time.perf_counter()
    drawn = lm.hmm().sample(
        len(asked), max_length=ROOM + 1, rule=[one.rule for one in asked], generator=generator
    )
    seconds = time.perf_counter() - began
    words = [_words(lm, row) for row in drawn.tolist()]
    kept: Counter[str] = Counter()
    for one, text in zip(asked, words, strict=True):
        kept[one.kind] += one.holds(text)
    kinds = Counter(one.kind for one in asked)
    for kind in sorted(kinds):
        print(f"{kind}: {kept[kind]} of {kinds[kind]}")
    print(f"{kept.total()} of {len(asked)} texts keep their rule; {seconds:.1f} s")
    measured: dict[str, Any] = {
        "operation": "texts, each under a random rule",
        "texts": len(asked),
        "satisfied": kept.total(),
        "kinds": {kind: [kept[kind], kinds[kind]] for kind in sorted(kinds)},
        "states": lm.hmm().num_states,
        "words": lm.tokenizer.size,
        "seed": arguments.seed,
        "seconds": seconds,
        **surroundings(),
    }
    print(f"saved to {save(arguments.out, measured)}")
    if kept.total() < len(asked):
        sys.exit(1)


def _word_source(lm: HMMLM, chance: random.Random) -> Callable[[], str]:
    """A source of words of letters, drawn with their probabilities in the model."""
    generator = torch.Generator(lm.device).manual_seed(chance.getrandbits(31))
    stream = lm.hmm().sample(1, 20_000, generator=generator)[0].tolist()
    seen = [lm.tokenizer.token(i) for i in stream]
    letters = [word for word in seen if word.isalpha()]
    return lambda: chance.choice(letters)


def _ask(lm: HMMLM, chance: random.Random, draw: Callable[[], str]) -> Asked:
    kind = chance.choice(("keywords", "in order", "without", "begins and ends", "pattern"))
    least = chance.randint(4, 8)
    most = chance.randint(least + 4, ROOM)

    def fits(text: list[str]) -> bool:
        return least <= len(text) <= most

    if kind == "pattern":
        first, either, other, last = (draw() for _ in range(4))
        pattern = f"{first} .{{1,5}} ({either} | {other})+ .* {last}"
        same = re.compile(rf"{first}( \S+){{1,5}}( ({either}|{other}))+( \S+)* {last}")
        return Asked(
            kind,
            lm.rule(regex=pattern),
            lambda text: same.fullmatch(" ".join(text)) is not None,
        )
    words = [draw() for _ in range(chance.randint(1, 3))]
    size = (least, most)
    if kind == "keywords":
        rule = lm.rule(must=words, words=size)
        return Asked(kind, rule, lambda text: fits(text) and all(w in text for w in words))
    if kind == "in order":
        rule = lm.rule(must=words, in_order=True, words=size)
        return Asked(kind, rule, lambda text: fits(text) and _in_order(words, text))
    if kind == "without":
        avoided = chance.choice([w for w in ("the", "a", "of", "is") if w not in words])
        rule = lm.rule(must=words, must_not=[avoided], words=size)
        return Asked(
            kind,
            rule,
            lambda text: fits(text) and all(w in text for w in words) and avoided not in text,
        )
    first, last = draw(), draw()
    rule = lm.rule(starts=first, ends=last, words=size)
    return Asked(kind, rule, lambda text: fits(text) and (text[0], text[-1]) == (first, last))


def _in_order(words: list[str], text: list[str]) -> bool:
    rest = iter(text)
    return all(word in rest for word in words)


def _words(lm: HMMLM, row: list[int]) -> list[str]:
    """The words of a text up to its end mark, which it must have."""
    end = lm.tokenizer.end
    if end not in row:
        return []
    return [lm.tokenizer.token(i) for i in row[: row.index(end)]]


if __name__ == "__main__":
    main(tyro.cli(Arguments))
