"""`bighmm fill`: what stands in the gaps of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from torch import Tensor

from bighmm.cli.common import (
    AsJson,
    ModelPath,
    at_least_one,
    err,
    parse,
    print_json,
    some_text,
)
from bighmm.lm import gaps
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import generator_for, open_hmm


@dataclass(frozen=True)
class FillArguments:
    """Fill the gaps of a text: ___ is one word, ___3 three words, ___1-4 one to four.

    Texts are drawn with their exact probabilities given all that is known, left and right.
    """

    model: ModelPath
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="A text with gaps.")]
    n: Annotated[int, tyro.conf.arg(help="How many texts, or with --probs words.")] = 5
    best: Annotated[bool, tyro.conf.arg(help="The likeliest texts instead, with p(filling).")] = (
        False
    )
    probs: Annotated[bool, tyro.conf.arg(help="The likeliest words of every gap instead.")] = False
    open_end: Annotated[bool, tyro.conf.arg(help="The text may go on after its last word.")] = False
    seed: Annotated[int | None, tyro.conf.arg(help="The same seed, the same texts.")] = None
    as_json: AsJson = False


def fill_command(argv: list[str]) -> None:
    arguments = parse(FillArguments, argv, "fill")
    some_text(arguments.text, "the text")
    at_least_one(arguments.n, "n")
    if arguments.best and arguments.probs:
        raise ValueError("--best and --probs are two questions; ask one of them")
    lm = open_hmm(arguments.model, "fillings")
    text = gaps.GappedText.read(arguments.text, lm.tokenizer, arguments.open_end)
    if arguments.probs:
        answer = _probs(lm, text, arguments.n)
    elif arguments.best:
        answer = _best(lm, text, arguments.n)
    else:
        answer = _draw(lm, text, arguments.n, arguments.seed)
    if arguments.as_json:
        print_json({"text": arguments.text, **answer})
        return
    for filled in answer.get("fillings", []):
        line = [f"{filled['prob']:.4f}"] if arguments.best else []
        line.append(filled["text"])
        if arguments.best and len(text.choices) > 1:  # a text may fit the gaps in several ways
            line.append(" | ".join(" ".join(words) for words in filled["words"]))
        print("\t".join(line))
    for row in answer.get("lengths", []):
        print(f"lengths {' '.join(map(str, row['lengths']))}\t{row['prob']:.4f}")
    for place in answer.get("gaps", []):
        for row in place["words"]:
            print(f"gap {place['gap']}.{place['word']}\t{row['prob']:.4f}\t{row['word']}")
    if not answer.get("exact", True):
        err().print("these are the best that were found; likelier ones may have been missed")


def _draw(lm: HMMLM, text: gaps.GappedText, n: int, seed: int | None) -> dict[str, Any]:
    drawn = gaps.draw(lm.hmm(), text, n, generator_for(lm.device, seed), ends=False)
    return {"fillings": [_filling(lm, filled) for filled in drawn]}


def _best(lm: HMMLM, text: gaps.GappedText, n: int) -> dict[str, Any]:
    """With p(filling | all that is known)."""
    found = gaps.best(lm.hmm(), text, n, ends=False)
    tokens, sizes = text.tokens(text.choices)
    known = float(lm.hmm().known_log_prob(tokens, sizes).logsumexp(0))
    if not found.filled:
        raise ValueError("the known words have probability zero, so nothing fits the gaps")
    rows = [
        {**_filling(lm, filled), "log_prob": log_prob, "prob": math.exp(log_prob - known)}
        for filled, log_prob in zip(found.filled, found.log_probs, strict=True)
    ]
    return {"fillings": rows, "exact": found.exact}


def _probs(lm: HMMLM, text: gaps.GappedText, n: int) -> dict[str, Any]:
    """The likeliest words at every position of the gaps; of the likeliest lengths, if several."""
    answer: dict[str, Any] = {}
    if len(text.choices) > 1:
        lengths = gaps.length_probs(lm.hmm(), text, ends=False)
        ranked = sorted(lengths.items(), key=lambda pair: -pair[1])
        answer["lengths"] = [{"lengths": list(which), "prob": p} for which, p in ranked[:n]]
        text = text.of_lengths(ranked[0][0])
    places = [
        (gap, word) for gap, (size, _) in enumerate(text.ranges, 1) for word in range(1, size + 1)
    ]
    found = gaps.word_probs(lm.hmm(), text, ends=False).words
    answer["gaps"] = [
        {"gap": gap, "word": word, "words": _likeliest(lm, row, n)}
        for (gap, word), row in zip(places, found, strict=True)
    ]
    return answer


def _likeliest(lm: HMMLM, log_probs: Tensor, n: int) -> list[dict[str, Any]]:
    top = log_probs.topk(min(n, len(log_probs)))
    return [
        {"word": lm.tokenizer.token(i), "prob": math.exp(p), "log_prob": p}
        for i, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        if p > -math.inf
    ]


def _filling(lm: HMMLM, filled: gaps.Filled) -> dict[str, Any]:
    words = [[lm.tokenizer.token(i) for i in gap] for gap in filled.words]
    return {"text": lm.decode(filled.ids), "words": words}
