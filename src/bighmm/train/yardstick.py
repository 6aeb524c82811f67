"""What is said of a run at its end: an n-gram model beside it, and what helps one that is worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bighmm.data.corpus import Corpus
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.train.logs import read_log

ORDER = 5
MOST_TOKENS = 10_000_000  # of a training text that is counted: seconds, and some GiB
LOOKED_AT = 10_000  # tokens in which words to try next are looked for
SHORT = 20_000  # tokens of a text that is too short for much


def kneser_ney_perplexities(corpus: Corpus) -> dict[str, float] | None:
    """Perplexities on valid and test of a Kneser-Ney model of the training text.

    None for a text that is too long to be counted by the way.
    """
    train = corpus.split("train")
    if len(train) > MOST_TOKENS:
        return None
    tokenizer = corpus.tokenizer
    documents = corpus.documents("train")
    model = KneserNey.fit(train, tokenizer.size, tokenizer.end, ORDER, documents=documents)
    return {
        split: model.perplexity(corpus.split(split), corpus.documents(split))
        for split in ("valid", "test")
    }


def verdict_of(run: Path, result: dict[str, Any]) -> list[str]:
    """Sentences about a finished run that Kneser-Ney is better than; none where it is not."""
    log = read_log(run)
    last = log.steps[-1] if log.steps else None
    tokens = round(last["tokens"] / last["epoch"]) if last and last["epoch"] else 0
    return verdict(result, log.curve(), tokens)


def opening_words(corpus: Corpus, number: int = 4) -> str:
    """The first words of a line of the held-out text, none of which is unknown where that can be.

    The first line that begins with `number` words of letters; without one, as many words as any
    line begins with.
    """
    tokenizer, test = corpus.tokenizer, corpus.split("test")
    best, found = test[:1].tolist(), False
    opening: list[int] | None = []  # of the line; None once it is over
    for token in test[:LOOKED_AT].tolist():
        if token == tokenizer.end:
            opening = []
        elif token == tokenizer.unknown:
            opening = None
        elif opening is not None:
            opening = [*opening, token]
            if len(opening) > len(best) or not found:
                best, found = opening, True
            if len(opening) == number:
                if _has_letters_only(tokenizer.decode(opening)):
                    best = opening
                    break
                opening = None
    words = tokenizer.decode(best).strip()
    return words.splitlines()[0] if words else ""


def _has_letters_only(text: str) -> bool:
    return all(word.isalpha() for word in text.split())


def verdict(result: dict[str, Any], checks: list[tuple[float, float]], tokens: int) -> list[str]:
    """Sentences about a finished run that Kneser-Ney is better than; none where it is not.

    result: the contents of result.json.
    checks: epoch and perplexity of each validation.
    tokens: of the training text.
    """
    test, other = result["test"], result.get("kneser_ney")
    counted = None if other is None else other["test"]
    if counted is None or test["perplexity"] <= counted:
        return []
    run, recipe = result["run"], result["recipe"]
    said = [
        f"A Kneser-Ney {ORDER}-gram of the same text is better: {counted:.2f} on test, against "
        f"{test['perplexity']:.2f}."
    ]
    epochs = recipe["training"]["epochs"]
    best = min(checks, key=lambda check: check[1])[0] if checks else epochs
    improving = not checks or best >= checks[-1][0]
    if tokens < SHORT:
        said.append(f"{tokens:,} training tokens are few: what would help is more text.")
    elif improving:
        said.append(
            "Validation was still improving, so training longer would help: "
            f"bighmm train --resume --out {run} --epochs {2 * epochs:g}"
        )
    else:
        said.append(
            f"Validation was best at epoch {best:.2g} of {epochs:g}, so what would help is more "
            "text, a higher --state-dropout, or fewer states."
        )
    states = recipe["model"]["states"]
    if recipe["model"]["family"] == "hmm" and tokens >= max(SHORT, 16 * states):
        said.append(
            "So may more states that begin as these: "
            f"bighmm train --init-from {run} --states {2 * states} --out {run}-{2 * states}"
        )
    return said
