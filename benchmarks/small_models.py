"""Small dense models on a CPU: this library and its peers, question by question.

    python benchmarks/small_models.py                        the whole grid, into results/bench/
    python benchmarks/small_models.py --states 4 16 --time 100 1000 --batch 1

For every number of states, length and number of sequences: log p, posterior, Viterbi, one
Baum-Welch iteration and sampling, by this library in float32 and float64, dynamax (float32,
compiled by jax), hmmlearn (float64, its implementations `log` and `scaling`) and pomegranate
(float32). Everyone gets the data in its own format, compiles before the clock starts, and takes
turns; the fastest of several runs counts. A library whose run would take more than `--most`
seconds, judged by a shorter text, is left out of that cell. `ratio` is the time of the fastest peer
of the same type of numbers, divided by ours.

All run on one core, unless `--cores` says otherwise. The peers are installed by `bighmm[bench]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import time
from collections.abc import Callable
from typing import Any

QUESTIONS = ("log p", "posterior", "viterbi", "EM step", "sample")
Answers = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    parser.add_argument("--time", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--long", type=int, default=200_000, help="of one, with the fewest states")
    parser.add_argument("--symbols", type=int, default=32)
    parser.add_argument("--questions", nargs="+", default=QUESTIONS, choices=QUESTIONS)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=float, default=20.0, help="seconds of one run of a peer")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB that a cell may need")
    parser.add_argument("--out", default="bench/small_models.json", help="relative to results/")
    given = parser.parse_args()
    use_cores(given.cores)
    import numpy as np

    from record import save, surroundings

    rows: list[dict[str, Any]] = []
    for states in given.states:
        tables = random_tables(states, given.symbols)
        longest = [given.long] if given.long and states == min(given.states) else []
        for length in given.time + longest:
            for batch in given.batch if length != given.long else [1]:
                if batch * length * states * 4 * 6 > given.memory * 2**30:
                    print(f"{states} states, {length} x {batch}: needs too much memory")
                    continue
                ids = np.random.default_rng(1).integers(0, given.symbols, (batch, length))
                for question in given.questions:
                    row = {"states": states, "length": length, "batch": batch}
                    row |= {"question": question, **measured(question, tables, ids, given)}
                    rows.append(row)
                    print(line(row), flush=True)
        settings = {k: v for k, v in vars(given).items() if k != "out"}
        found = {**surroundings(), "settings": settings, "rows": rows}
        save(given.out, found)


def use_cores(cores: int) -> None:
    """Keep this process on so many cores; before any library starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(cores)
    if cores == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def random_tables(states: int, symbols: int) -> tuple[Any, Any, Any]:
    """Start (Z,), transition (Z, Z) and emission (Z, V) probabilities, float64."""
    import numpy as np

    draw = np.random.default_rng(0)
    return tuple(draw.dirichlet(np.ones(n), m) for n, m in _shapes(states, symbols))


def _shapes(states: int, symbols: int) -> tuple[tuple[int, Any], ...]:
    return (states, None), (states, states), (symbols, states)


def measured(question: str, tables: Any, ids: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of everyone, and the ratios."""
    ready: dict[str, Callable[[], Any]] = {}
    for name in ("bighmm float32", "bighmm float64", *given.peers):
        if name in PEERS and not all(map(importlib.util.find_spec, PEERS[name][1])):
            continue
        if (name, question) == ("pomegranate", "sample"):
            continue  # its samples end where they like
        answer = OURS[name] if name in OURS else PEERS[name][0]
        if name in PEERS and expected_seconds(answer, question, tables, ids) > given.most:
            continue
        ready[name] = answer(question, tables, ids)
        ready[name]()  # compiles
    best = dict.fromkeys(ready, float("inf"))
    for turn in range(given.repeats):
        for name, work in ready.items():
            if turn and best[name] > 2.0:
                continue  # long runs are steady
            count = max(1, min(50, int(0.02 / best[name]))) if turn else 1
            for _ in range(count):
                began = time.perf_counter()
                work()
                best[name] = min(best[name], time.perf_counter() - began)
    ratios = {}
    for kind in ("float32", "float64"):
        others = [s for n, s in best.items() if n in PEERS and PEERS[n][2] == kind]
        if others:
            ratios[kind] = round(min(others) / best[f"bighmm {kind}"], 2)
    return {"ms": {n: round(s * 1e3, 4) for n, s in best.items()}, "ratio": ratios}


def expected_seconds(answer: Any, question: str, tables: Any, ids: Any) -> float:
    """What a run will take, judged by the first 20 positions of all sequences."""
    few = ids[:, :20]
    if ids.size * len(tables[0]) ** 2 < 1e8:
        return 0.0
    work = answer(question, tables, few)
    work()
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * ids.size / few.size


def line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {ms:.3f}" for name, ms in row["ms"].items())
    size = f"{row['states']:>5} states {row['length']:>6} x {row['batch']:<3}"
    return f"{size} {row['question']:>9}  {row['ratio']}  ms: {times}"


def ours(kind: str) -> Callable[..., Callable[[], Any]]:
    def answer(question: str, tables: Any, ids: Any) -> Callable[[], Any]:
        import torch

        from bighmm.hmm import HMM
        from bighmm.model.emissions import EmissionTable
        from bighmm.model.transitions import Table
        from bighmm.train.expectation_maximisation import baum_welch

        hmm = HMM.from_probs(*map(torch.from_numpy, tables)).to("cpu", getattr(torch, kind))
        tokens = torch.from_numpy(ids)
        batch, length = ids.shape

        def em_step() -> Any:
            # An iteration has a model that was not there before, so nothing of it is cached.
            moves, emission = Table(hmm.transitions.operands[0]), EmissionTable(hmm.emission)
            new = HMM(hmm.start, moves, emission, hmm.support)
            return baum_welch(new, tokens, iterations=1)

        return {
            "log p": lambda: hmm.log_prob(tokens),
            "posterior": lambda: hmm.posterior(tokens),
            "viterbi": lambda: hmm.viterbi(tokens),
            "EM step": em_step,
            "sample": lambda: hmm.sample(batch, length),
        }[question]

    return answer


def hmmlearn(implementation: str) -> Callable[..., Callable[[], Any]]:
    def answer(question: str, tables: Any, ids: Any) -> Callable[[], Any]:
        from hmmlearn.hmm import CategoricalHMM

        batch, length = ids.shape
        symbols, lengths = ids.reshape(-1, 1), [length] * batch

        def model() -> Any:
            made = CategoricalHMM(
                len(tables[0]),
                n_features=tables[2].shape[1],
                n_iter=1,
                init_params="",
                implementation=implementation,
            )
            made.startprob_, made.transmat_, made.emissionprob_ = tables
            return made

        logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # it warns of few data
        one = model()
        return {
            "log p": lambda: one.score(symbols, lengths),
            "posterior": lambda: one.predict_proba(symbols, lengths),
            "viterbi": lambda: one.decode(symbols, lengths),
            "EM step": lambda: model().fit(symbols, lengths),
            "sample": lambda: [one.sample(length) for _ in range(batch)],
        }[question]

    return answer


def dynamax(question: str, tables: Any, ids: Any) -> Callable[[], Any]:
    """Its functions for one sequence, over all of them by `vmap`, compiled."""
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    start, transition, emission = tables
    batch, length = ids.shape
    model = CategoricalHMM(
        len(start),
        emission_dim=1,
        num_classes=emission.shape[1],
        emission_prior_concentration=1.0001,
        transition_matrix_concentration=1.0001,
        initial_probs_concentration=1.0001,
    )
    params, props = model.initialize(
        initial_probs=jnp.asarray(start, jnp.float32),
        transition_matrix=jnp.asarray(transition, jnp.float32),
        emission_probs=jnp.asarray(emission[:, None], jnp.float32),
    )
    rows = jnp.asarray(ids[:, :, None], jnp.int32)
    keys = jax.random.split(jax.random.PRNGKey(0), batch)

    def em_step(params: Any, rows: Any) -> Any:
        stats, log_probs = jax.vmap(lambda row: model.e_step(params, row))(rows)
        state = model.initialize_m_step_state(params, props)
        return model.m_step(params, props, stats, state)[0], log_probs.sum()

    def over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, rows: jax.vmap(lambda row: function(params, row))(rows)

    found = {
        "log p": over_rows(model.marginal_log_prob),
        "posterior": over_rows(lambda p, row: model.smoother(p, row).smoothed_probs),
        "viterbi": over_rows(model.most_likely_states),
        "EM step": em_step,
        "sample": over_rows(lambda p, key: model.sample(p, key, length)),
    }[question]
    compiled = jax.jit(found)
    given = keys if question == "sample" else rows
    return lambda: jax.block_until_ready(compiled(params, given))


def pomegranate(question: str, tables: Any, ids: Any) -> Callable[[], Any]:
    import torch

    from peers import pomegranate_model

    rows = torch.from_numpy(ids)[:, :, None]
    make = lambda: pomegranate_model(*map(torch.from_numpy, tables))  # noqa: E731
    model = make()

    def em_step() -> Any:
        fresh = make()
        fresh.summarize(rows)
        fresh.from_summaries()

    return {
        "log p": lambda: model.log_probability(rows),
        "posterior": lambda: model.predict_proba(rows),
        "viterbi": lambda: model.viterbi(rows),
        "EM step": em_step,
    }[question]


OURS = {f"bighmm {kind}": ours(kind) for kind in ("float32", "float64")}
PEERS = {  # how to ask, packages, and the type of its numbers
    "dynamax": (dynamax, ("dynamax", "jax"), "float32"),
    "hmmlearn log": (hmmlearn("log"), ("hmmlearn",), "float64"),
    "hmmlearn scaling": (hmmlearn("scaling"), ("hmmlearn",), "float64"),
    "pomegranate": (pomegranate, ("pomegranate",), "float32"),
}


if __name__ == "__main__":
    main()
