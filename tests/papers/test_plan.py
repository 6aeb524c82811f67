"""Plans: what is made in which order, mixtures, and what is taken along to another machine."""

import threading
import time

import pytest
import torch

from bighmm.lm.opening import open_model
from papers.schedule import Task, run_tasks

PLAN = """
    [[prepare]]
    makes = "labels/words"
    corpus = "words"
    command = "distill random --states 16"

    [[plan]]
    makes = "runs/small/hmm-words-seed2"
    load = 0.5
    keep = true

    [[plan]]
    makes = "labels/words"

    [[plan]]
    makes = "runs/small/hmm-words"
    load = 0.5
    keep = true

    [[plan]]
    makes = "runs/small/hmm-mixture-2-words"
"""
MIXTURE = '{ row = "Both", corpus = "words", recipe = "hmm", mixture = 2 },'


@pytest.fixture
def plan(small, more):
    """The paper with a plan: two runs and their mixture; the first run needs nothing of it."""
    path = small / "rows.toml"
    path.write_text(path.read_text().replace('{ row = "Cited"', f'{MIXTURE}\n  {{ row = "Cited"'))
    path.write_text(path.read_text().replace("curves", "check_normalised = true\ncurves"))
    more(PLAN)


def begun(order, name, **settings):
    return Task(name, lambda: order.append(name) is None, **settings)


def test_tasks_begin_in_order_once_they_are_ready():
    order = []
    tasks = [
        begun(order, "c", needs=frozenset({"b", "elsewhere"})),
        begun(order, "a"),
        begun(order, "b"),
    ]
    assert run_tasks(tasks, lambda: None) == {"a": True, "b": True, "c": True}
    assert order == ["a", "b", "c"]


def test_tasks_share_the_machine():
    """Two halves meet; the whole waits for both, and what needs nothing of it does not wait."""
    half, free = threading.Barrier(2, timeout=30), threading.Event()
    running, most = [], []

    def counted(name, wait):
        def work():
            running.append(name)
            wait()
            most.append(set(running))
            running.remove(name)
            return True

        return work

    tasks = [
        Task("a", counted("a", half.wait), load=0.5),
        Task("b", counted("b", lambda: (half.wait(), free.wait(30))), load=0.5),
        Task("whole", counted("whole", lambda: None)),
        Task("free", lambda: free.set() is None, load=0.0),
    ]
    assert all(run_tasks(tasks, lambda: None).values())
    assert {"a", "b"} in most or {"b"} in most
    assert {"whole"} in most


def test_when_the_time_is_over():
    """What is under way is stopped, and the rest is not begun."""
    stopped = threading.Event()
    tasks = [Task("long", lambda: not stopped.wait(30)), Task("never", lambda: True)]
    assert run_tasks(tasks, stopped.set, until=time.monotonic() + 0.05) == {"long": False}


def test_a_plan(reproduce, names, lines, data, pretend, plan):
    done = reproduce("small", "--run", "--planned", *data)
    assert done.status == 0, done.err
    said = done.err.splitlines()
    assert said[0] == (
        "to make: runs/small/hmm-words-seed2, runs/small/hmm-words, runs/small/hmm-mixture-2-words"
    )
    assert names() == {"hmm words 1", "hmm words 2", "hmm-mixture-2 words 1"}
    by_name = {(run["recipe"], run["seed"]): run for run in lines()}
    mixture = by_name["hmm-mixture-2", 1]
    assert (mixture["steps"], mixture["seconds"], mixture["num_parameters"]) == (20, 3.0, 1002)
    assert mixture["test"]["perplexity"] == 20.0 and mixture["mixture"] == 2
    assert [run["at_once"] for run in lines()] == [2, 2, 1]
    assert all(run["largest_deviation_from_one"] == 1e-6 for run in lines())
    assert "to make: nothing\n" in reproduce("small", "--run", "--planned").err


def test_a_plan_in_several_sittings(reproduce, names, data, pretend, plan):
    """The time is over while a run is under way; the next sitting goes on with it."""
    pretend(hmm_words_seed2="wait")
    done = reproduce("small", "--run", "--planned", "--seconds", "2", *data)
    assert done.status == 0, done.err
    assert "the time is over; " in done.err and "hmm words 2" not in names()
    pretend()
    done = reproduce("small", "--run", "--planned", *data)
    assert done.status == 0 and "hmm-words-seed2: finished" in done.err
    assert names() == {"hmm words 1", "hmm words 2", "hmm-mixture-2 words 1"}


def test_what_a_mixture_needs_is_trained_without_a_plan(reproduce, names, data, pretend, plan):
    assert "4 to train" in reproduce("small", "--run", "--only", "hmm", *data).err
    runs = {"hmm words 1", "hmm words 2", "hmm-mixture-2 words 1", "hmm-other other 1"}
    assert names() == runs


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("makes = 'runs/small/other'", "names runs/small/other, which is no run of its rows"),
        ("makes = 'labels/words'\nload = 2", "load is a share from 0 to 1, not 2"),
    ],
)
def test_mistakes_in_a_plan(refused, more, data, pretend, step, said):
    more(PLAN, f"\n[[plan]]\n{step}\n")
    assert said in refused("small", "--run", "--planned", *data)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--planned",), "--planned says what --run trains"),
        (("--run", "--planned", "--jobs", "2"), "the plan says what is trained"),
        (("--run", "--seconds", "5"), "goes with --planned"),
        (("--run", "--planned"), "small has no plan; leave out --planned"),
        (("--restore", "nowhere"), "there is no folder nowhere to restore runs from"),
    ],
)
def test_flags(refused, flags, said):
    assert said in refused("small", *flags)


def test_taken_along(reproduce, root, small, names, words, plan, tmp_path, monkeypatch):
    """Trained and mixed for real; another checkout goes on with what was kept."""
    from papers import keeping

    monkeypatch.setattr(keeping, "LARGEST", 2000)
    flags = ("--run", "--planned", "--data", f"words={words}")
    kept = tmp_path / "kept"
    done = reproduce("small", *flags, "--keep", kept)
    assert done.status == 0, done.err
    assert names() == {"hmm words 1", "hmm words 2", "hmm-mixture-2 words 1"}
    stored = (small / "results" / "table1.jsonl").read_bytes()
    assert {path.name for path in kept.glob("*.00")} == {"hmm-words.00", "hmm-words-seed2.00"}
    assert (kept / "hmm-words.01").stat().st_size <= 2000
    before = open_model(root / "runs" / "small" / "hmm-words").params.state_dict()

    (root / "runs").rename(tmp_path / "old")
    (small / "results" / "table1.jsonl").unlink()
    done = reproduce("small", *flags, "--restore", kept)
    assert done.status == 0 and "to make: nothing\n" in done.err, done.err
    assert (small / "results" / "table1.jsonl").read_bytes() == stored
    after = open_model(root / "runs" / "small" / "hmm-words").params.state_dict()
    assert all(torch.equal(after[k], v.bfloat16().float()) for k, v in before.items())

    (small / "results" / "table1.jsonl").unlink()  # only the mixture is made again
    (kept / "results.tar.gz").unlink()
    done = reproduce("small", *flags, "--restore", kept)
    assert done.status == 0 and "hmm-words: was trained before\n" in done.err, done.err
    assert len(names()) == 3
    (kept / "hmm-words.00").write_bytes(b"no archive")
    (root / "runs" / "small" / "hmm-words" / "result.json").unlink()
    done = reproduce("small", "--restore", kept)
    assert done.status == 2 and "hmm-words.00 and its further parts are damaged" in done.err
