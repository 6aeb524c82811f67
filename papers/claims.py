"""The claims of a paper, judged by its figures and by ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from papers.inequality import Term, Values
from papers.results import Results
from papers.rows import Claim, Paper

Verdict = Literal["holds", "does not hold", "not measured"]
VERDICTS: dict[bool | None, Verdict] = {
    True: "holds",
    False: "does not hold",
    None: "not measured",
}


@dataclass(frozen=True)
class Judged:
    claim: Claim
    paper: Values  # sides of the inequality by the figures that the paper printed
    ours: Values
    verdict: Verdict


def judge(paper: Paper, results: Results, claim: Claim) -> Judged:
    """A claim with the values of its sides, and whether it holds for ours.

    A figure is the mean over all runs; "spread" is the highest minus the lowest.
    """
    inequality = claim.inequality
    printed = inequality.values(lambda term: _printed(paper, claim, term))
    measured = inequality.values(lambda term: _measured(paper, results, claim, term))
    return Judged(claim, printed, measured, VERDICTS[inequality.holds(measured)])


def _printed(paper: Paper, claim: Claim, term: Term) -> float | None:
    for row in paper.rows_of(term.name or "", claim.corpus):
        figure = term.figure or claim.figure
        if figure == "spread" and row.range:
            return row.range[1] - row.range[0]
        if figure in row.paper:
            return row.paper[figure]
    return None


def _measured(paper: Paper, results: Results, claim: Claim, term: Term) -> float | None:
    found = results.figures(paper.rows_of(term.name or "", claim.corpus)[0])
    figure = term.figure or claim.figure
    if found is None:
        return None
    if figure == "spread":
        lowest, highest = found.get("spread", {}).get(paper.figure, (None, None))
        return None if lowest is None else highest - lowest
    return found.get(figure)
