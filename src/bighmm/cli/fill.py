"""`bighmm fill`: what stands in the gaps of a text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    err,
    parse,
    print_json,
    some_text,
)


@dataclass(frozen=True)
class FillArguments:
    """Fill the gaps of a text: ___ is one word, ___3 three words, ___1-4 one to four.

    Texts are drawn with their exact probabilities given all that is known, left and right.
    """

    model: ModelPath
    text: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT", help="A text with gaps.")
    ]
    n: Annotated[int, tyro.conf.arg(help="How many texts, or with --probs words.")] = 5
    best: Annotated[bool, tyro.conf.arg(help="The likeliest texts instead, with p(filling).")] = (
        False
    )
    probs: Annotated[bool, tyro.conf.arg(help="The likeliest words of every gap instead.")] = False
    open_end: Annotated[bool, tyro.conf.arg(help="The text may go on after its last word.")] = False
    seed: Annotated[int | None, tyro.conf.arg(help="The same seed, the same texts.")] = None
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def fill_command(argv: list[str]) -> None:
    """Print samples, the likeliest fillings or word probabilities of the gaps in a text."""
    arguments = parse(FillArguments, argv, "fill")
    some_text(arguments.text, "the text")
    if arguments.best and arguments.probs:
        raise ValueError("--best and --probs are two questions; ask one of them")
    if arguments.probs:
        _words(arguments)
    elif arguments.best:
        _best(arguments)
    else:
        _sample(arguments)


def _sample(arguments: FillArguments) -> None:
    from bighmm.lm.gaps import sample_fillings

    lm = arguments.compute.open_hmm(arguments.model, "fillings")
    found = sample_fillings(
        lm, arguments.text, arguments.n, open_end=arguments.open_end, seed=arguments.seed
    )
    if arguments.as_json:
        rows = [asdict(filling) for filling in found]
        print_json({"text": arguments.text, "fillings": rows})
        return
    for filling in found:
        print(filling.text)


def _best(arguments: FillArguments) -> None:
    from bighmm.lm.gaps import best_fillings

    lm = arguments.compute.open_hmm(arguments.model, "fillings")
    found = best_fillings(lm, arguments.text, arguments.n, open_end=arguments.open_end)
    if arguments.as_json:
        rows = [asdict(filling) for filling in found.fillings]
        print_json({"text": arguments.text, "fillings": rows, "exact": found.exact})
        return
    for filling in found.fillings:
        line = [f"{filling.prob:.4f}", filling.text]
        if found.open_lengths:  # the same text may fit the gaps in several ways
            line.append(" | ".join(" ".join(words) for words in filling.words))
        print("\t".join(line))
    if not found.exact:
        err().print("these are the best that were found; likelier ones may have been missed")


def _words(arguments: FillArguments) -> None:
    from bighmm.lm.gaps import gap_words

    lm = arguments.compute.open_hmm(arguments.model, "fillings")
    found = gap_words(lm, arguments.text, arguments.n, open_end=arguments.open_end)
    if arguments.as_json:
        answer = {name: value for name, value in asdict(found).items() if value is not None}
        print_json({"text": arguments.text, **answer})
        return
    for row in found.lengths or []:
        print(f"lengths {' '.join(map(str, row.lengths))}\t{row.prob:.4f}")
    for place in found.gaps:
        for word in place.words:
            print(f"gap {place.gap}.{place.word}\t{word.prob:.4f}\t{word.word}")
