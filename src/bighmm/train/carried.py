"""The state that streams carry from one window to the next, across changing dropout masks."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.infer.inputs import Carry
from bighmm.model.support import Blocked
from bighmm.ops import Impl, use_triton


@dataclass(frozen=True)
class Carried:
    """A `Carry` in terms of the states of the whole model."""

    tokens: Tensor  # (B,)
    states: Tensor  # (B, K') ids in the whole model, -1 where none
    log_alpha: Tensor  # (B, K')
    fresh: Tensor  # (B,) bool

    def fields(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def after(carry: Carry, hmm: HMM, kept: Tensor | None) -> Carried:
        """What `carry`, a result of `hmm` over the states `kept`, means for the whole model."""
        states = _in_whole_model(hmm, carry.tokens, kept)
        return Carried(carry.tokens, states, carry.log_alpha, carry.fresh)

    def onto(self, hmm: HMM, kept: Tensor | None, num_states: int, impl: Impl = "auto") -> Carry:
        """The carried distribution over the states that `hmm` keeps now, renormalised.

        Where none of the states that had any weight is kept, all that are get the same.
        """
        if (
            kept is not None
            and use_triton(self.log_alpha, impl)
            and isinstance(hmm.support, Blocked)
        ):
            from bighmm.ops import carried_triton

            blocks = hmm.support.partition.block_of.index_select(0, self.tokens)
            log_alpha = carried_triton.onto(
                blocks, self.states, self.log_alpha, kept, hmm.support.alive
            )
            return Carry(self.tokens, log_alpha, self.fresh)
        lost = -torch.inf
        whole = self.log_alpha.new_full((len(self.tokens), num_states + 1), lost)
        places = torch.where(self.states >= 0, self.states, num_states)
        whole.scatter_(1, places, self.log_alpha)
        whole[:, num_states].fill_(lost)
        now = _in_whole_model(hmm, self.tokens, kept)
        log_alpha = whole.gather(1, torch.where(now >= 0, now, num_states))
        total = log_alpha.logsumexp(1, keepdim=True)
        here = now >= 0
        even = -here.sum(1, keepdim=True).to(log_alpha.dtype).log()
        even = torch.where(here, even, lost)
        log_alpha = torch.where(total > lost, log_alpha - total, even)
        return Carry(self.tokens, log_alpha, self.fresh)


def _in_whole_model(hmm: HMM, tokens: Tensor, kept: Tensor | None) -> Tensor:
    states = hmm.support.states(tokens)
    if kept is None:
        return states
    return torch.where(states >= 0, kept[states.clamp(min=0)], -1)
