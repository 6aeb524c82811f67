"""The answer to `compare`: several models on the same lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bighmm.answers.browsing_objects import Compared, ComparedLine, ComparedWord
from bighmm.answers.objects import VERSION
from bighmm.answers.plain import finite
from bighmm.lm import comparing
from bighmm.lm.protocol import LM


def compare(models: Sequence[LM], names: Sequence[str], text: str) -> Compared:
    """The surprisal of every word of each line of a text in each model; names are theirs."""
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    found = comparing.compare(models, lines)
    words = sum(len(line.words) for line in found)
    bits = [
        math.fsum(word.bits[number] for line in found for word in line.words)
        for number in range(len(models))
    ]
    return finite(
        Compared(
            version=VERSION,
            models=list(names),
            lines=[_line(line) for line in found],
            total={
                "bits": [*bits],
                "words": words,
                "perplexity_per_word": [_perplexity(each / words) for each in bits],
            },
        )
    )


def _line(line: comparing.ComparedLine) -> ComparedLine:
    return ComparedLine(
        text=line.text,
        log_prob=[*line.log_prob],
        tokens=line.tokens,
        words=[
            ComparedWord(
                word=word.word,
                bits=[*word.bits],
                difference=word.bits[1] - word.bits[0] if len(word.bits) > 1 else None,
                is_unknown=word.is_unknown,
            )
            for word in line.words
        ],
    )


def _perplexity(bits: float) -> float:
    return 2**bits if bits < 1000 else math.inf
