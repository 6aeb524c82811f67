"""Small dense models on a CPU: this library and its peers, question by question.

    python benchmarks/small_models.py                 the whole grid, into results/bench/
    python benchmarks/small_models.py --minutes 9     a piece of it; call it again to go on
    python benchmarks/small_models.py --states 4 16 --time 100 1000 --batch 1 --out /tmp/some.json

For every number of states, length and number of sequences: log p, posterior, Viterbi, one
Baum-Welch iteration and sampling, by this library in float32 and float64, dynamax (float32,
compiled by jax), hmmlearn (float64, its implementations `log` and `scaling`) and pomegranate
(float32). Everyone gets the data in its own format, compiles before the clock starts, and takes
turns; the fastest of several runs counts. `ratio` is the time of the fastest peer of the same type
of numbers, divided by ours. Besides, with four states and one long sequence: `SequenceHMM` and
hmmlearn's estimator, from symbols in an array to the answer (`sequence_hmm`).

A peer that would take more than `--most` seconds in a cell is left out there, and named in
`left_out` with the seconds expected. They are what it took for a shorter text, times as many
symbols. hmmlearn does sequences one after the other, so for it a text of fewer sequences is such a
text, too. pomegranate's posteriors and counts keep the moves of all positions (B T Z² numbers, some
of them twice); where they would not fit in `--memory` it is named in `out_of_memory`.

Everything that was measured is kept in one file. The program goes on where it stopped, as long as
the file comes from the same commit and settings; otherwise it begins anew. All run on one core,
unless `--cores` says otherwise. The peers are installed by `bighmm[bench]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

QUESTIONS = ("log p", "posterior", "viterbi", "EM step", "sample")
ESTIMATOR_QUESTIONS = ("score", "predict", "fit, one iteration")
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    parser.add_argument("--time", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--long", type=int, default=200_000, help="of one, with the fewest states")
    parser.add_argument("--symbols", type=int, default=32)
    parser.add_argument("--questions", nargs="+", default=list(QUESTIONS), choices=QUESTIONS)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=float, default=20.0, help="seconds of one run of a peer")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB that a cell may need")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which to stop for now")
    parser.add_argument("--out", default="bench/small_models.json", help="relative to results/")
    given = parser.parse_args()
    ends = time.monotonic() + 60 * given.minutes
    use_cores(given.cores)
    found = begun(given)
    for cell in cells(given, found):
        if not any(same_cell(cell, row) for row in found["rows"] + found["sequence_hmm"]):
            if time.monotonic() > ends:
                print("more is to be measured; call this again")
                return
            if cell["question"] in ESTIMATOR_QUESTIONS:
                kind, row = "sequence_hmm", cell | estimators(cell, given)
            else:
                kind, row = "rows", cell | measured(cell, given, found["rows"])
            found[kind].append(row)
            write(found, given.out)
            print(line(row), flush=True)
    print("all is measured")


def begun(given: argparse.Namespace) -> dict[str, Any]:
    """What is there already of this commit and these settings, or an empty result."""
    from record import RESULTS, surroundings

    settings = {k: v for k, v in vars(given).items() if k not in ("out", "minutes")}
    fresh: dict[str, Any] = {**surroundings(), "settings": settings}
    fresh |= {"too_large": [], "rows": [], "sequence_hmm": []}
    file = RESULTS / given.out
    if file.exists():
        there = json.loads(file.read_text(encoding="utf-8"))
        same = _clean(there.get("commit", "")) == _clean(fresh["commit"])
        if same and there.get("settings") == settings:
            return dict(there)
    return fresh


def _clean(commit: str) -> str:
    """Without the mark of changed files, as the result itself is one once it is begun."""
    return commit.removesuffix("-dirty")


def write(found: dict[str, Any], out: str) -> None:
    """The file is whole at any time, also if this is killed."""
    from record import RESULTS, save

    save(f"{out}.part", found)
    os.replace(RESULTS / f"{out}.part", RESULTS / out)


def cells(given: argparse.Namespace, found: dict[str, Any]) -> Iterator[Row]:
    """Everything that is asked, small cells first; what does not fit in memory is noted."""
    for states in given.states:
        for length in given.time:
            for batch in given.batch:
                size = {"states": states, "length": length, "batch": batch}
                if batch * length * states * 4 * 6 > given.memory * 2**30:
                    if size not in found["too_large"]:
                        found["too_large"].append(size)
                    continue
                yield from (size | {"question": question} for question in given.questions)
    if given.long:
        size = {"states": min(given.states), "length": given.long, "batch": 1}
        yield from (size | {"question": q} for q in (*given.questions, *ESTIMATOR_QUESTIONS))


def same_cell(cell: Row, row: Row) -> bool:
    return all(row[name] == value for name, value in cell.items())


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


def measured(cell: Row, given: argparse.Namespace, rows: list[Row]) -> Row:
    """Milliseconds of everyone, the ratios, and who was left out."""
    import numpy as np

    states, length, batch, question = cell.values()
    tables = random_tables(states, given.symbols)
    ids = np.random.default_rng(1).integers(0, given.symbols, (batch, length))
    ready: dict[str, Callable[[], Any]] = {}
    left_out: dict[str, float] = {}
    out_of_memory = []
    for name in ("bighmm float32", "bighmm float64", *given.peers):
        if name in PEERS and not all(map(importlib.util.find_spec, PEERS[name][1])):
            continue
        if (name, question) == ("pomegranate", "sample"):
            continue  # its samples end where they like
        moves = batch * length * states**2 * 4 * 3 * (question in ("posterior", "EM step"))
        if name == "pomegranate" and moves > given.memory * 2**30:
            out_of_memory.append(name)
            continue
        seconds = expected_seconds(name, cell, rows)
        if name in PEERS and seconds > given.most:
            left_out[name] = round(seconds, 1)
            continue
        answer = OURS[name] if name in OURS else PEERS[name][0]
        if name != "dynamax":  # which compiles for every shape, and does so without running
            answer(question, tables, ids[:, :20])()
        ready[name] = answer(question, tables, ids)
    best = fastest(ready, given.repeats)
    ratios = {}
    for kind in ("float32", "float64"):
        others = [s for n, s in best.items() if n in PEERS and PEERS[n][2] == kind]
        if others:
            ratios[kind] = round(min(others) / best[f"bighmm {kind}"], 2)
    row = {"ms": milliseconds(best), "ratio": ratios, "left_out": left_out}
    return row | ({"out_of_memory": out_of_memory} if out_of_memory else {})


def fastest(ready: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of everyone's fastest run; they take turns, short runs many times."""
    best = dict.fromkeys(ready, float("inf"))
    for turn in range(repeats):
        for name, work in ready.items():
            if turn and best[name] > (4.0 if turn == 1 else 1.0):
                continue  # long runs are steady
            count = max(1, min(100, int(0.02 / best[name]))) if turn else 1
            for _ in range(count):
                began = time.perf_counter()
                work()
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def milliseconds(best: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds * 1e3, 4) for name, seconds in best.items()}


def expected_seconds(name: str, cell: Row, rows: list[Row]) -> float:
    """What a run will take, judged by the largest cell that was measured; 0 if there is none."""
    symbols, found = cell["length"] * cell["batch"], 0.0
    for row in rows:
        same = all(row[key] == cell[key] for key in ("states", "question"))
        smaller = row["length"] < cell["length"] and row["batch"] == cell["batch"]
        if name.startswith("hmmlearn"):
            smaller = row["length"] <= cell["length"] and row["batch"] <= cell["batch"]
        if same and smaller:
            seconds = row["left_out"].get(name, row["ms"].get(name, 0.0) / 1e3)
            found = seconds * symbols / (row["length"] * row["batch"])
    return found


def estimators(cell: Row, given: argparse.Namespace) -> Row:
    """As `measured`, for estimators that are given an array of symbols."""
    import numpy as np
    from hmmlearn.hmm import CategoricalHMM

    from bighmm.sequences import SequenceHMM

    states, length, _, question = cell.values()
    tables = random_tables(states, given.symbols)
    symbols = np.random.default_rng(1).integers(0, given.symbols, (length, 1))
    logging.getLogger("hmmlearn").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # one iteration does not converge

    def ours() -> Any:
        return SequenceHMM.from_tables(*tables, iterations=1, init_params="")

    def theirs(implementation: str) -> Callable[[], Any]:
        def make() -> Any:
            settings: dict[str, Any] = {"n_iter": 1, "init_params": ""}
            made = CategoricalHMM(states, implementation=implementation, **settings)
            made.n_features = given.symbols
            made.startprob_, made.transmat_, made.emissionprob_ = tables
            return made

        return make

    makers = {"SequenceHMM": ours, **{f"hmmlearn {i}": theirs(i) for i in ("log", "scaling")}}
    ready: dict[str, Callable[[], Any]] = {}
    for name, make in makers.items():
        model = make()
        ready[name] = {
            "score": lambda model=model: model.score(symbols),
            "predict": lambda model=model: model.predict(symbols),
            "fit, one iteration": lambda make=make: make().fit(symbols),
        }[question]
        ready[name]()  # compiles
    best = fastest(ready, given.repeats)
    others = min(seconds for name, seconds in best.items() if name != "SequenceHMM")
    ratio = {"float64": round(others / best["SequenceHMM"], 2)}
    return {"ms": milliseconds(best), "ratio": ratio, "left_out": {}}


def line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {ms:.3f}" for name, ms in row["ms"].items())
    size = f"{row['states']:>5} states {row['length']:>6} x {row['batch']:<3}"
    return f"{size} {row['question']:>9}  {row['ratio']}  ms: {times}  {row['left_out'] or ''}"


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
    given = keys if question == "sample" else rows
    compiled = jax.jit(found).lower(params, given).compile()  # a call of it is as fast as can be
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
