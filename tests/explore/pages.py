"""What the tests of the pages share: a sentence, how it is opened, and what its numbers must be."""

from __future__ import annotations

import itertools
import math

import pytest
from browser import find_browser

from bighmm.lm.questions import score

TEXT = "w03 w21 w29 w04 w30"
ADDRESS = TEXT.replace(" ", "+")
IDLE = "document.querySelector('h1') && !document.querySelector('.working:not([hidden])')"
IN_A_BROWSER = [
    pytest.mark.skipif(find_browser() is None, reason="there is no Chromium on this machine"),
    pytest.mark.xdist_group("browser"),
]


def open_sentence(page, site) -> None:
    page.go(f"{site.url}#/sentence?text={ADDRESS}")
    page.count(".strip .bits", 6)


def expect_refusals(page) -> None:
    """Forget that the console lists answers with a status of 4xx, which the page has shown."""
    page.errors[:] = [one for one in page.errors if "status of 4" not in one]


def close(values):
    return pytest.approx(values, rel=1e-3, abs=1e-6)


def log_prob(lm, text: str) -> float:
    """log p(text with its end mark)."""
    return score(lm, [text])[0].log_prob


def surprisals(lm, text: str) -> list[float]:
    """-log2 p(word | words before it), with the end mark, from log-probabilities of beginnings."""
    ids = lm.encode(text + "\n")
    logs = [0.0, *(float(lm.hmm().log_prob([ids[: n + 1]])[0]) for n in range(len(ids)))]
    return [(before - after) / math.log(2) for before, after in itertools.pairwise(logs)]
