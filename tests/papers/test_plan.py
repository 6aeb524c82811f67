"""Plans: what is made in which order, mixtures, and what is taken along to another machine."""

import threading
import time

import pytest
import torch

from bighmm.data.tokenizers import Words
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_model
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import Dense
from papers import keeping
from papers.rows import read_paper
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


def make_lm(seed=1):
    words = Words(["<eos>", "<unk>", *(f"w{i}" for i in range(30))])
    return HMMLM("scalar", ScalarOptions(), Dense(16, words.size), words, seed=seed)


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
    assert {"a", "b"} in most and most[-1] == {"whole"}


def test_when_the_time_is_over():
    """What is under way is stopped, and the rest is not begun."""
    stopped = threading.Event()
    tasks = [Task("long", lambda: not stopped.wait(30)), Task("never", lambda: True)]
    assert run_tasks(tasks, stopped.set, until=time.monotonic() + 0.05) == {"long": False}


def test_a_plan(reproduce, small, names, lines, data, pretend, plan):
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

    path = small / "results" / "table1.jsonl"  # as if the time had been over before the checks
    path.write_text(path.read_text().replace("largest_deviation_from_one", "unknown"))
    done = reproduce("small", "--run", "--planned", *data)
    assert "hmm-words: was trained before\n" in done.err and "hmm-words-seed2: next" in done.err
    assert all(run["largest_deviation_from_one"] == 1e-6 for run in lines())


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


def test_a_mixture_of_several_recipes(reproduce, small, names, lines, data, pretend):
    path, recipes = small / "rows.toml", small / "recipes"
    (recipes / "large.toml").write_text((recipes / "hmm.toml").read_text().replace("16", "32"))
    rows = (
        '{ row = "Large", corpus = "words", recipe = "large" },',
        '{ row = "Both", corpus = "words", recipe = "large", also = ["hmm"] },',
        '{ row = "Cited"',
    )
    path.write_text(path.read_text().replace(rows[-1], "\n".join(rows), 1))
    assert reproduce("small", "--run", "--only", "large-and-hmm", *data).status == 0
    assert names() == {"hmm words 1", "large words 1", "large-and-hmm words 1"}
    (mixture,) = (run for run in lines() if run["recipe"] == "large-and-hmm")
    assert (mixture["steps"], mixture["seconds"], mixture["num_parameters"]) == (20, 3.0, 1002)


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


def test_taken_along(reproduce, root, small, names, data, pretend, plan, tmp_path, monkeypatch):
    """Results and models of one checkout are put back into another, which need not make them."""
    monkeypatch.setattr(keeping, "LARGEST", 2000)
    kept, runs = tmp_path / "kept", root / "runs" / "small"
    assert reproduce("small", "--run", "--planned", *data).status == 0
    for name in ("hmm-words", "hmm-words-seed2"):
        lm = make_lm(seed=len(name))
        lm.save_pretrained(runs / name / "model")
    before = lm.params.state_dict()
    assert reproduce("small", "--keep", kept).status == 0
    stored = (small / "results" / "table1.jsonl").read_bytes()
    assert {path.name for path in kept.glob("*.00")} == {"hmm-words.00", "hmm-words-seed2.00"}
    assert (kept / "hmm-words.01").stat().st_size <= 2000

    (root / "runs").rename(tmp_path / "old")
    (small / "results" / "table1.jsonl").unlink()
    done = reproduce("small", "--run", "--planned", "--restore", kept)
    assert done.status == 0 and "to make: nothing\n" in done.err, done.err
    assert (small / "results" / "table1.jsonl").read_bytes() == stored
    after = open_model(runs / "hmm-words-seed2").params.state_dict()
    assert all(torch.equal(after[k], v.bfloat16().float()) for k, v in before.items())

    (small / "results" / "table1.jsonl").unlink()  # runs are on the disk, so none is trained
    (kept / "results.tar.gz").unlink()
    pretend(hmm_words="fail")
    done = reproduce("small", "--run", "--planned", "--restore", kept, *data)
    assert done.status == 0 and "hmm-words: was trained before\n" in done.err, done.err
    assert len(names()) == 3


def test_what_was_kept_is_damaged(reproduce, plan, tmp_path):
    (tmp_path / "hmm-words.00").write_bytes(b"no archive")
    done = reproduce("small", "--restore", tmp_path)
    assert done.status == 2 and "hmm-words.00 and its further parts are damaged" in done.err


def test_what_is_too_large_is_kept_another_time(root, plan, tmp_path):
    """Those first that were not kept before, as long as there is room."""
    paper = read_paper(root, "small")
    for name in ("hmm-words", "hmm-words-seed2"):
        make_lm().save_pretrained(paper.runs / name / "model")
        (paper.runs / name / "result.json").write_text("{}")
    size = len(keeping._packed(paper.runs / "hmm-words"))
    said = []
    kept = [keeping.keep(paper, tmp_path / str(i), said.append, size + 1000) for i in (1, 2)]
    assert kept == [["hmm-words-seed2"], ["hmm-words"]]
    assert "hmm-words: 0 MiB are too many to be kept this time" in said
