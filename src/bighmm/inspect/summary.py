"""All states of a model at a glance: their likeliest words, entropies and blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bighmm.base.interrupting import report
from bighmm.hmm import HMM
from bighmm.ops import memory


@dataclass(frozen=True)
class Summary:
    """The words of every state (Z,), and how sharp it is."""

    tokens: Tensor  # (Z, k) the likeliest first; -1 where the probability is zero
    probs: Tensor  # (Z, k)
    entropy: Tensor  # (Z,) of p(word | state), in bits


@torch.no_grad()
def summarise_states(hmm: HMM, words: int = 20) -> Summary:
    """The `words` likeliest words of every state and the entropy of its words.

    It tells how many states it has done (`base.interrupting`).
    """
    device, count = hmm.start.device, hmm.num_states
    number = min(words, hmm.vocabulary_size)
    tokens = torch.full((count, number), -1)
    probs, entropy = torch.zeros(count, number), torch.zeros(count)
    every = torch.arange(count, device=device)
    for part in memory.pieces(count, hmm.vocabulary_size, device, memory.STREAMED):
        of_state, log_probs = hmm.support.emitted_tokens(hmm.emission, every[part])  # (N, W)
        terms = torch.where(log_probs > -torch.inf, -log_probs * log_probs.exp(), 0.0)
        entropy[part] = (terms.sum(1) / math.log(2)).clamp(min=0).cpu()
        best = log_probs.topk(min(number, log_probs.shape[1]))
        found = of_state.gather(1, best.indices)
        here = slice(0, best.values.shape[1])
        tokens[part, here] = found.masked_fill(best.values == -torch.inf, -1).cpu()
        probs[part, here] = best.values.exp().cpu()
        report(part.stop, count)
    return Summary(tokens, probs, entropy)
