"""Samples of a dense model: states and tokens drawn in turn, as a compiled loop."""

from __future__ import annotations

import numpy as np

from bighmm.ops.jit import jit


@jit()
def draw_tokens(states, fresh, start, moves, words, chosen, end, tokens, path):
    """Tokens (N, L) after `states` (N,); see `table_chain.draw_tokens`. end: -1 for none.

    path (N, L): the states that emit them; or empty.
    """
    for n in range(len(states)):
        state, anew = states[n], fresh[n]
        for place in range(len(chosen)):
            state = _look_up(start[0] if anew else moves[state], chosen[place, 0, n])
            token = _look_up(words[state], chosen[place, 1, n])
            anew = token == end
            tokens[n, place] = token
            if len(path):
                path[n, place] = state
        states[n], fresh[n] = state, anew


@jit()
def _look_up(sums, chosen):
    """The first place whose sum is above `chosen` times the last sum."""
    total = sums[-1]
    wanted = min(chosen * total, np.nextafter(total, 0.0))
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        if sums[middle] > wanted:
            high = middle
        else:
            low = middle + 1
    return low
