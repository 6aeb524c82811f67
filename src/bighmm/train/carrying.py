"""The filtered state that streams carry from one window to the next, across dropout masks.

Between two steps it is a dictionary of tensors in terms of the states of the whole model:

    tokens     (B,)       the last token of each row
    states     (B, K')    ids in the whole model of the states that were kept, -1 where none
    log_alpha  (B, K')    log p(state | what came before)
    fresh      (B,) bool  the next state is drawn from the start distribution

Where several processes share the rows (`base.processes`), B is the number of a process's own; it
also has

    every      (B,)       the last token of every row, of all processes
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bighmm.base import processes
from bighmm.infer.sequences import Carry
from bighmm.model.model import Model
from bighmm.ops.carry import renormalise
from bighmm.ops.impl import Impl

State = dict[str, Tensor]
EVERY = "every"


def initial_state(rows: int, states_per_token: int, device: torch.device) -> State:
    """Before the first token of a text."""
    shape = (rows, states_per_token)
    return {
        "tokens": torch.zeros(rows, dtype=torch.long, device=device),
        "states": torch.full(shape, -1, device=device),
        "log_alpha": torch.full(shape, -torch.inf, device=device),
        "fresh": torch.ones(rows, dtype=torch.bool, device=device),
    }


def begun_anew(state: State, initial: State, goes_on: Tensor, own: slice) -> State:
    """A carried state of any model, with the rows that do not go on (B,) as `initial` has them.

    own: the rows that the state is of.
    """
    found = {}
    for name, was in state.items():
        kept = (goes_on if name == EVERY else goes_on[own]).view(-1, *[1] * (was.dim() - 1))
        found[name] = torch.where(kept, was, initial[name])
    return found


def every_row(state: State) -> State:
    """What is carried by the rows of all processes, as a single one would carry it."""
    here = processes.current()
    return {name: here.join(part.detach()) for name, part in state.items() if name != EVERY}


def own_rows(state: State) -> State:
    """What this process carries, of what `every_row` has given."""
    here = processes.current()
    if here.alone:
        return state
    count = len(next(iter(state.values())))
    some = {name: part[here.share(count)] for name, part in state.items()}
    return {**some, EVERY: state["tokens"]} if "states" in state else some


def last_tokens(ids: Tensor, lengths: Tensor, before: Tensor) -> Tensor:
    """The last token (B,) of each row; of a row without tokens, the one `before`."""
    place = (lengths - 1).clamp(min=0).unsqueeze(1)
    return torch.where(lengths > 0, ids.gather(1, place).squeeze(1), before)


def to_carry(
    state: State, model: Model, kept: Tensor | None, num_states: int, impl: Impl = "auto"
) -> Carry:
    """The carried distribution over the states of `model`, which keeps `kept` of `num_states`.

    Where none of the states that had any weight is kept, all that are kept get the same. Without a
    mask the states are those of the window before.
    """
    states, log_alpha = state["states"], state["log_alpha"]
    if kept is None and states.shape[1] == model.support.states_per_token:
        at_start = (states < 0).all(1, keepdim=True)
        log_alpha = torch.where(at_start, -math.log(states.shape[1]), log_alpha)
    else:
        now = model.support.states_among(state["tokens"], kept)
        log_alpha = renormalise(states, log_alpha, now, num_states, impl)
    return Carry(state["tokens"], log_alpha, state["fresh"])


def from_carry(carry: Carry, model: Model, kept: Tensor | None) -> State:
    """What `carry`, a result of `model` over the states `kept`, means for the whole model."""
    return {
        "tokens": carry.tokens,
        "states": model.support.states_among(carry.tokens, kept),
        "log_alpha": carry.log_alpha,
        "fresh": carry.fresh,
    }
