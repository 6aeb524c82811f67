"""Time of constrained sampling: the acceptance table of HMM and automaton, and exact samples.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/constrained.py
    python benchmarks/constrained.py --device cuda --out bench/constrained-gpu.json

A dense model with random parameters samples texts that contain three phrases in order, a rule with
an automaton of ten states. Then it samples as many texts, each with other phrases. No figure is
given if a text does not satisfy its rule, or if the probability of the rule in float32 differs from
that in float64. With OMP_WAIT_POLICY=PASSIVE, as also set by `bighmm`, waiting threads do not spin;
spinning makes them several times slower on a machine that runs anything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro

from bighmm import HMM
from bighmm import constraints as c
from bighmm.model.support import Dense
from bighmm.model.transitions import Flat
from record import best_seconds, save, settings_of, surroundings


@dataclass(frozen=True)
class Shape:
    states: int = 4096
    words: int = 10_000
    width: int = 64
    """Width of the vectors whose products are the transition logits."""
    texts: int = 64
    length: int = 32
    repeats: int = 3
    device: str = "cpu"
    out: str = "bench/constrained.json"
    """File for the figures, under results/."""


def main(shape: Shape) -> None:
    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    hmm = _model(shape)
    rule = _rule(0)
    rules = [_rule(9 * i) for i in range(shape.texts)]
    generator = torch.Generator(shape.device).manual_seed(0)

    def sample(given: c.Rule | list[c.Rule] | None) -> torch.Tensor:
        return hmm.sample(shape.texts, shape.length, generator=generator, rule=given)

    _check(hmm, rule, rules, sample, shape)
    work: dict[str, Callable[[], object]] = {
        "probability of the rule": lambda: hmm.rule_log_prob(rule, shape.length),
        "texts, one rule": lambda: sample(rule),
        "texts, a rule for each": lambda: sample(rules),
        "texts, no rule": lambda: sample(None),
    }
    seconds = {}
    for name, call in work.items():
        seconds[name] = best_seconds(lambda call=call: _finished(call, shape), shape.repeats)
        print(f"{name}: {seconds[name]:.3f} s")
    measured = {
        "operation": "texts under a rule",
        **settings_of(shape),
        "automaton_states": rule.compile(shape.words).num_states,
        "seconds": seconds,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        **surroundings(),
    }
    print(f"saved to {save(shape.out, measured)}")


def _rule(first: int) -> c.Rule:
    """The rule of three phrases of three tokens each, in order."""
    return c.in_order([[first + 3 * i + j for j in range(1, 4)] for i in range(3)])


def _model(shape: Shape) -> HMM:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    leaving, entering = normal(shape.states, shape.width), normal(shape.states, shape.width)
    hmm = HMM(
        normal(shape.states).log_softmax(0),
        Flat(leaving / shape.width**0.5, entering),
        normal(shape.words, shape.states).log_softmax(0),
        Dense(shape.states, shape.words),
        end=0,
    ).to(shape.device)
    _ = hmm.transitions.norm
    return hmm


def _check(
    hmm: HMM,
    rule: c.Rule,
    rules: list[c.Rule],
    sample: Callable[[c.Rule | list[c.Rule] | None], torch.Tensor],
    shape: Shape,
) -> None:
    for given in ([rule] * shape.texts, rules):
        drawn = sample(given).tolist()
        if not all(one.matches(text) for one, text in zip(given, drawn, strict=True)):
            sys.exit("no figure: a text does not satisfy its rule")
    exact = hmm.to(shape.device, torch.float64).rule_log_prob(rule, shape.length)
    error = abs(float(exact) - float(hmm.rule_log_prob(rule, shape.length)))
    if not error < 1e-3:
        sys.exit(f"no figure: the log-probability of the rule is off by {error:.2g}")


def _finished(call: Callable[[], object], shape: Shape) -> None:
    call()
    if shape.device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(tyro.cli(Shape))
