"""The most likely fillings of a text's gaps, by their exact probabilities.

To find the likeliest string of an HMM is NP-hard in general (Lyngsø & Pedersen 2002): every word
depends on every other one through the states, which are summed over. What can be computed is

    p(known words, the first few gaps filled in), the gaps after them summed out,

and no filling is likelier than that of its beginning. So the gaps are filled from left to right and
the `width` likeliest beginnings are kept. If none that was dropped was likelier than the k-th
filling that is found, there is none better anywhere, and the answer says so: it is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.base.interrupting import report
from bighmm.infer.fill import Gapped, last_gap
from bighmm.infer.gap_sweeps import SuffixSums, gap_words, step_forward, sweep_back
from bighmm.infer.positions import GAP, PositionCache
from bighmm.model.model import Model
from bighmm.ops.log_matmul import finite_or_zero


class BestFill(NamedTuple):
    words: Tensor  # (B, k, T), best first; -1 in the padding and where there is no further filling
    log_prob: Tensor  # (B, k) log p(known words, filling), -inf where there is no further filling
    exact: Tensor  # (B,) bool: these are certainly the k best


def best_fill(model: Model, gapped: Gapped, k: int, width: int, ends: bool) -> BestFill:
    """The k most likely fillings that a beam of `width` beginnings finds."""
    batch, time = gapped.gaps.shape
    words = torch.full((batch, k, time), -1, device=gapped.gaps.device)
    log_prob = model.start.new_full((batch, k), -torch.inf)
    exact = torch.ones(batch, dtype=torch.bool, device=gapped.gaps.device)
    positions = PositionCache(model, ends)
    for b, text in enumerate(gapped.texts(range(batch))):
        swept = sweep_back(positions, [text])
        if GAP in text:
            found, filled, dropped = _search(positions, text, swept.rows[0], k, width)
        else:
            found, filled, dropped = swept.log_prob, [text], -torch.inf
        possible = int((found > -torch.inf).sum())
        for i in range(possible):
            words[b, i, : len(text)] = torch.tensor(filled[i], device=words.device)
        log_prob[b, :possible] = found[:possible]
        exact[b] = float(log_prob[b, -1]) >= dropped
    return BestFill(words, log_prob, exact)


def _search(
    positions: PositionCache, text: list[int], ahead: SuffixSums, k: int, width: int
) -> tuple[Tensor, list[list[int]], float]:
    """Log-probabilities and texts of at most k fillings, and the likeliest beginning dropped."""
    begun: list[list[int]] = [[]]
    log_alphas: list[Tensor] = []  # log p(z_t | what is begun) (K,)
    gained = positions.model.start.new_zeros(1)  # log p(what is begun)
    dropped = -torch.inf
    last = last_gap(text)
    for t, token in enumerate(text[: last + 1]):
        report(t, last + 1)
        position = positions.at(token)
        if t == 0:
            entered = [positions.start(position)]
        else:
            before = [positions.at(words[-1]) for words in begun]
            entered = step_forward(positions, before, log_alphas, [position] * len(begun))
        if token != GAP:
            begun = [[*words, token] for words in begun]
            log_alphas = [row + position.log_weight for row in entered]
        else:
            found = gap_words(positions, torch.stack(entered), ahead, t)
            found = found + (gained + ahead.factor[t]).unsqueeze(1)
            best, places, beyond = likeliest(found, k if t == last else width)
            if t == last:
                filled = [[*begun[i], x, *text[last + 1 :]] for i, x in places]
                return best, filled, dropped
            dropped = max(dropped, beyond)
            log_alphas = []
            for i, x in places:
                chosen = positions.at(x)
                log_alphas.append(entered[i][chosen.states] + chosen.log_weight)
            begun = [[*begun[i], x] for i, x in places]
            gained = gained[[i for i, _ in places]]
        tops = finite_or_zero(torch.stack([row.logsumexp(0) for row in log_alphas]))
        log_alphas = [row - top for row, top in zip(log_alphas, tops, strict=True)]
        gained = gained + tops
    raise AssertionError("the last position was a gap")


def likeliest(found: Tensor, number: int) -> tuple[Tensor, list[tuple[int, int]], float]:
    """The largest of found (R, V), where they are, and the largest that is left out.

    What is impossible counts as absent, but for one that stands for all where nothing is possible.
    """
    best = found.reshape(-1).topk(min(number + 1, found.numel()))
    possible = max(1, int((best.values > -torch.inf).sum()))
    kept = min(number, possible)
    beyond = float(best.values[number]) if possible > number else -torch.inf
    places = [divmod(i, found.shape[1]) for i in best.indices[:kept].tolist()]
    return best.values[:kept], places, beyond
