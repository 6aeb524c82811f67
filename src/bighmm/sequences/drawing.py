"""A fitted model as a drawing for notebooks: states on a circle, moves as arrows."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

import numpy as np
import torch

from bighmm.hmm import HMM
from bighmm.sequences.criteria import stationary

MOST_STATES = 12  # in a drawing
MOST_SYMBOLS = 4  # of a state
LEAST_MOVE = 0.05  # less likely moves are left out
CIRCLE, RADIUS, MARGIN = 120.0, 26.0, 96.0
COLOUR = "#3f51b5"


def drawing(hmm: HMM, name: Callable[[int], str], title: str) -> str:
    """HTML with an SVG of the model; of a large one, of the states that are used most."""
    weights = stationary(hmm)
    shown = np.sort(np.argsort(-weights, kind="stable")[:MOST_STATES])
    moves = hmm.transitions.log_probs(torch.from_numpy(shown))[:, shown].exp().numpy()
    places = [_place(number, len(shown)) for number in range(len(shown))]
    size = 2 * (CIRCLE + MARGIN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size:.0f} {size:.0f}" '
        f'width="{size:.0f}" height="{size:.0f}" font-family="sans-serif" font-size="11">',
        '<defs><marker id="bighmm-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" '
        f'markerHeight="5" orient="auto"><path d="M0 0L8 4L0 8z" fill="{COLOUR}"/></marker></defs>',
    ]
    for i, source in enumerate(places):
        for j, target in enumerate(places):
            if moves[i, j] >= LEAST_MOVE:
                parts.append(_arrow(source, target, float(moves[i, j])))
    for state, place in zip(shown, places, strict=True):
        parts.append(_state(hmm, int(state), place, float(weights[state]), name))
    parts.append("</svg>")
    note = "" if len(shown) == hmm.num_states else f"; the {len(shown)} most used are drawn"
    caption = (
        f"{hmm.num_states} states, {hmm.vocabulary_size} symbols{note}; shares are those of the "
        f"long run, moves below {LEAST_MOVE:g} are left out"
    )
    return (
        f"<figure><code>{escape(title)}</code><br>{''.join(parts)}"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def words(text: str) -> str:
    """HTML of a model that cannot be drawn."""
    return f"<code>{escape(text)}</code>"


def _place(number: int, count: int) -> tuple[float, float]:
    middle = CIRCLE + MARGIN
    if count == 1:
        return middle, middle
    angle = 2 * math.pi * number / count - math.pi / 2
    return middle + CIRCLE * math.cos(angle), middle + CIRCLE * math.sin(angle)


def _arrow(source: tuple[float, float], target: tuple[float, float], prob: float) -> str:
    (x, y), (u, v) = source, target
    style = f'fill="none" stroke="{COLOUR}" stroke-width="{0.5 + 4 * prob:.2f}"'
    style += f' stroke-opacity="{0.2 + 0.7 * prob:.2f}"'
    said = f"<title>{prob:.3f}</title>"
    if source == target:
        middle = CIRCLE + MARGIN
        away = math.atan2(y - middle, x - middle) if (x, y) != (middle, middle) else -math.pi / 2
        cx, cy = x + 1.25 * RADIUS * math.cos(away), y + 1.25 * RADIUS * math.sin(away)
        return f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{RADIUS / 2:.1f}" {style}>{said}</circle>'
    length = math.hypot(u - x, v - y)
    dx, dy = (u - x) / length, (v - y) / length
    begin = (x + dx * RADIUS - dy * 5, y + dy * RADIUS + dx * 5)
    end = (u - dx * (RADIUS + 3) - dy * 5, v - dy * (RADIUS + 3) + dx * 5)
    bend = ((x + u) / 2 - dy * length / 8, (y + v) / 2 + dx * length / 8)
    path = f"M{begin[0]:.1f} {begin[1]:.1f}Q{bend[0]:.1f} {bend[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    return f'<path d="{path}" {style} marker-end="url(#bighmm-tip)">{said}</path>'


def _state(
    hmm: HMM, state: int, place: tuple[float, float], weight: float, name: Callable[[int], str]
) -> str:
    x, y = place
    emitted = hmm.support.emission_rows(hmm.emission, torch.tensor([state]))[0].exp()
    best = emitted.topk(min(MOST_SYMBOLS, len(emitted)))
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    emits = [f"{escape(name(number)[:12])} {prob:.2f}" for prob, number in pairs]
    under = "".join(
        f'<text x="{x:.1f}" y="{y + RADIUS + 13 + 12 * line:.1f}" text-anchor="middle" '
        f'fill="#757575">{symbol}</text>'
        for line, symbol in enumerate(emits)
    )
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS:.0f}" fill="#e8eaf6" stroke="{COLOUR}"/>'
        f'<text x="{x:.1f}" y="{y - 1:.1f}" text-anchor="middle" font-weight="bold">{state}</text>'
        f'<text x="{x:.1f}" y="{y + 12:.1f}" text-anchor="middle">{weight:.0%}</text>{under}'
    )
