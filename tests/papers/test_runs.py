"""Training what a paper lacks: once for real, and with a pretender for all that can happen."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bighmm.base.locks import locked_name
from papers import runs


def test_for_real(reproduce, rows, root, small, lines, words):
    """A trained and a counted model; then the former goes on from its last checkpoint."""
    train = ("small/table1", "--only", "count", "--run", "--data", f"words={words}")
    done = reproduce("small/figure2", "--run", "--data", f"words={words}")
    assert done.status == 0, done.err
    assert "hmm-words: started\n" in done.err and "hmm-words: finished; valid " in done.err
    assert reproduce(*train).status == 0
    found, counted = lines("table1")
    assert [found[key] for key in ("recipe", "corpus", "seed")] == ["hmm", "words", 1]
    assert [counted[key] for key in ("recipe", "corpus", "seed")] == ["count", "words", 1]
    assert "run" not in found and "samples" not in found and found["training_device"] == "cpu"
    assert found["settings"]["corpus"]["data"] == "words" and found["at_once"] == 1
    assert found["settings"]["training"]["seed"] == 1 and len(found["valid_curve"]) == 4
    assert found["train"]["split"] == "train" and found["train"]["tokens"] == 7 * 180
    assert str(root) not in json.dumps(found)
    log = (root / "runs" / "small" / "hmm-words.log").read_text()
    assert log.startswith("$ bighmm train --recipe ") and "\n$ bighmm eval " in log

    shown = {row["recipe"]: row["ours"] for row in rows("small") if row["ours"]}
    assert set(shown) == {"hmm", "count"}
    assert shown["hmm"]["valid"] == found["valid"]["perplexity"]
    assert shown["hmm"]["train"] == found["train"]["perplexity"] < shown["hmm"]["valid"]

    (small / "results" / "table1.jsonl").unlink()
    (root / "runs" / "small" / "hmm-words" / "result.json").unlink()
    done = reproduce("small", "--only", "hmm", "--run", "--data", f"words={words}")
    assert done.status == 2 and "training needs other" in done.err
    done = reproduce("small/figure2", "--run", "--data", f"words={words}")
    assert done.status == 0 and "hmm-words: goes on\n" in done.err
    (again,) = lines()
    same = ("valid", "test", "train", "steps", "valid_curve", "settings")
    assert [again[key] for key in same] == [found[key] for key in same]


def test_what_is_missing_is_run_once(reproduce, lines, data, pretend):
    done = reproduce("small", "--run", *data)
    assert done.status == 0 and "3 to train, 1 at a time\n" in done.err
    counted, kept, other = lines("table1")
    assert lines() == [counted, kept, other]  # a row of two tables is stored with the first
    assert [run["recipe"] for run in lines()] == ["count", "hmm", "hmm-other"]
    assert "hmm-words: finished; valid 41.0, test 39.0, 1.5 s\n" in done.err
    assert kept["train"]["perplexity"] == 20.0  # asked for in the other table
    assert kept["train"]["arguments"][1:] == [
        *("--data", data[1].partition("=")[2], "--split", "train"),
        *("--device", "cpu", "--matmul-dtype", "auto", "--json"),
    ]
    assert "train" not in other
    again = reproduce("small", "--run")
    assert again.status == 0 and again.err == "nothing is missing\n"


def test_seeds(reproduce, rows, lines, names, data, pretend):
    assert reproduce("small/figure2", "--run", "--seeds", "2", *data).status == 0
    assert reproduce("small/figure2", "--run").err == "nothing is missing\n"
    done = reproduce("small", "--run", "--seeds", "1,2", "--only", "o", *data)
    assert done.status == 0
    assert reproduce("small/figure2", "--run", "--seeds", "1,2,3", *data).status == 0
    assert names() == {
        *("hmm words 1", "hmm words 2", "hmm words 3"),
        *("hmm-other other 1", "hmm-other other 2"),
        "count words 1",  # counting is the same with every seed
    }
    assert all(run["settings"]["training"]["seed"] == run["seed"] for run in lines())
    assert rows("small/figure2")[0]["ours"]["runs"] == 3


def test_seeds_of_a_table(reproduce, small, names, data, pretend):
    path = small / "rows.toml"
    path.write_text(path.read_text().replace('axis = "states"', 'axis = "states"\nseeds = [7, 8]'))
    assert reproduce("small/table1", "--run", "--only", "hmm", *data).status == 0
    assert "2 to train" in reproduce("small", "--run", "--only", "hmm", *data).err
    assert {"hmm words 1", "hmm words 7", "hmm words 8"} <= names()
    assert reproduce("small/figure2", "--run").err == "nothing is missing\n"
    assert "1 to train" in reproduce("small/figure2", "--run", "--seeds", "9", *data).err


PREPARE = """
    [[prepare]]
    makes = "labels/words"
    corpus = "words"
    command = "distill models/teacher --states 16 --random"

    [[prepare]]
    makes = "models/teacher"
    corpus = "words"
    command = "train --recipe papers/small/recipes/hmm-other.toml"

    [[prepare]]
    makes = "models/given"
    by_hand = "put a model into that folder"
"""


@pytest.fixture
def begins(small, more):
    """begins(labels="labels/words") lets the recipe of hmm-words begin with something."""
    more(PREPARE)

    def begins(**initial):
        path = small / "recipes" / "hmm.toml"
        lines = [f'{key} = "{folder}"\n' for key, folder in initial.items()]
        path.write_text(f"{path.read_text()}[initial]\n{''.join(lines)}")

    return begins


def test_what_recipes_begin_with_is_made_first(reproduce, root, small, data, pretend, begins):
    begins(labels="labels/words")
    done = reproduce("small", "--run", "--only", "hmm", *data)
    assert done.status == 0, done.err
    said = [line for line in done.err.splitlines() if "other" not in line]
    assert said[:6] == [
        "to prepare: models/teacher, labels/words",
        "2 to train, 1 at a time",
        "models/teacher: being made",
        "models/teacher: made",
        "labels/words: being made",
        "labels/words: made",
    ]
    assert (root / "labels" / "words" / "manifest.json").exists()
    kept = (root / "runs" / "small" / "labels-words.log").read_text()
    text = data[1].partition("=")[2]
    out = root / "labels" / "words"
    assert kept.splitlines()[0] == (
        f"$ bighmm distill models/teacher --states 16 --random --data {text} --out {out}"
    )
    (small / "results" / "table1.jsonl").unlink()
    assert "prepare" not in reproduce("small/figure2", "--run", *data).err


def test_what_needs_something_that_could_not_be_made_fails(reproduce, names, data, pretend, begins):
    begins(labels="labels/words")
    pretend(teacher="fail")
    done = reproduce("small", "--run", "--only", "hmm", *data)
    assert done.status == 1 and names() == {"hmm-other other 1"}
    assert "models/teacher: failed; status 2, read " in done.err
    assert "labels/words: failed; it needs models/teacher, which could not be made" in done.err
    assert "hmm-words: failed; it needs labels/words, which could not be made" in done.err


def test_what_is_put_there_by_hand(reproduce, refused, root, data, pretend, begins):
    begins(head="models/given")
    said = refused("small/figure2", "--run", *data)
    assert "models/given; put a model into that folder" in said
    assert not (root / "runs").exists()
    (root / "models" / "given").mkdir(parents=True)
    assert reproduce("small/figure2", "--run", *data).status == 0


def test_a_stopped_preparation_goes_on(reproduce, root, data, pretend, begins):
    begins(pretrained="models/teacher")
    folder = root / "models" / "teacher"
    folder.mkdir(parents=True)
    (folder / "recipe.json").touch()
    assert reproduce("small/figure2", "--run", *data).status == 0
    assert "--resume" in (root / "runs" / "small" / "models-teacher.log").read_text()


def test_tokenizers(reproduce, refused, root, small, data, pretend, tmp_path):
    path = small / "rows.toml"
    path.write_text(path.read_text().replace("curves", 'tokenizers = ["words"]\ncurves'))
    said = "training needs the tokenizer of words; say where with --tokenizer words=FILE"
    assert said in refused("small", "--run", *data)
    for given, said in (
        ("other=x", "small uses no tokenizer for 'other'; choose from words"),
        ("words=no/where", "no/where as --tokenizer words=… says"),
        ("words", "--tokenizer words is not of the form NAME=FILE"),
    ):
        assert said in refused("small", "--run", *data, "--tokenizer", given)
    file = tmp_path / "pieces.model"
    file.touch()
    assert reproduce("small", "--run", *data, "--tokenizer", f"words={file}").status == 0
    logs = {name: (root / "runs/small" / f"{name}.log").read_text() for name in ("hmm-words",)}
    assert f"--tokenizer {file}" in logs["hmm-words"]
    assert "--tokenizer" not in (root / "runs/small/hmm-other.log").read_text()


def test_pythons_documentation_needs_no_folder(reproduce, root, small, pretend):
    path = small / "rows.toml"
    path.write_text(path.read_text().replace('"words"', '"pydoc"'))
    assert reproduce("small/figure2", "--run").status == 0
    assert "--data pydoc" in (root / "runs/small/hmm-pydoc.log").read_text()


def test_failures_do_not_stop_the_others(reproduce, root, names, data, pretend):
    pretend(count_words="fail")
    done = reproduce("small", "--run", *data)
    assert done.status == 1 and "HMM 2^4" in done.out
    log = root / "runs" / "small" / "count-words.log"
    said = f"count-words: failed; status 2, read {log} (bighmm: there is no luck today)\n"
    assert said in done.err
    assert done.err.endswith("bighmm: 1 of the runs failed: count-words\n")
    assert names() == {"hmm words 1", "hmm-other other 1"}
    pretend()
    assert "1 to train" in reproduce("small", "--run", *data).err
    assert "count words 1" in names()


def test_several_at_a_time(reproduce, lines, data, pretend):
    pretend(count_words="meet", hmm_words="meet")
    done = reproduce("small", "--run", "--jobs", "2", *data)
    assert done.status == 0 and len(lines()) == 3
    assert all(run["at_once"] == 2 for run in lines())


def test_a_finished_run_is_not_trained_again(reproduce, small, names, data, pretend):
    stored = small / "results" / "table1.jsonl"
    assert reproduce("small/figure2", "--run", *data).status == 0
    stored.unlink()
    pretend(hmm_words="fail")
    done = reproduce("small/figure2", "--run", *data)
    assert done.status == 0 and "hmm-words: was trained before\n" in done.err
    stored.unlink()
    recipe = small / "recipes" / "hmm.toml"
    recipe.write_text(recipe.read_text().replace("epochs = 1", "epochs = 2"))
    done = reproduce("small/figure2", "--run", *data)
    said = "holds a run with another configuration: training.epochs (1.0, 2.0); move it away"
    assert done.status == 1 and said in done.err and not names()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "training needs other and words; say where with --data other=FOLDER --data words="),
        (["--data", "words=."], "training needs other; say where with --data other=FOLDER"),
        (["--data", "words"], "--data words is not of the form NAME=FOLDER"),
        (["--data", "wrds=."], "small uses no corpus 'wrds'; choose from other, words"),
        (["--data", "words=no/where"], "no/where as --data words=… says"),
    ],
)
def test_data_is_checked_before_anything_starts(refused, root, pretend, flags, said):
    assert said in refused("small", "--run", *flags)
    assert not (root / "runs").exists()


@pytest.fixture
def signals():
    """Signals as in a terminal, however these tests were started; afterwards as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_stopped_and_gone_on_with(reproduce, root, names, data, pretend, signals, name):
    """The run itself sends the signal, once it has begun."""
    pretend(hmm_words=name)
    folder = root / "runs" / "small"
    done = reproduce("small", "--run", *data)
    assert done.status == 130 and done.out == ""
    assert done.err.endswith(
        "bighmm: stopped; the same command goes on where the runs were saved\n"
    )
    assert (folder / "hmm-words" / "saved").exists() and names() == {"count words 1"}
    done = reproduce("small", "--run", *data)
    assert done.status == 0 and "2 to train" in done.err and "hmm-words: goes on\n" in done.err
    assert "--resume" in (folder / "hmm-words.log").read_text() and len(names()) == 3


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_under_nohup_a_closed_terminal_does_not_stop_it(signals, handler):
    signal.signal(signal.SIGHUP, handler)
    with runs._signals_as_ctrl_c():
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert ignored == (handler == signal.SIG_IGN)
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGHUP) == handler


def test_the_same_runs_at_the_same_time(reproduce, refused, root, names, data, pretend):
    """They are refused before anything starts; other runs are not."""
    with locked_name(root / "runs" / "small" / "hmm-words"):
        said = refused("small", "--run", *data)
        assert f"small/hmm-words is being written by another process (pid {os.getpid()} " in said
        assert not (root / "runs" / "small" / "count-words").exists()
        assert reproduce("small/table1", "--only", "count", "--run", *data).status == 0
    assert names() == {"count words 1"}
    assert reproduce("small", "--run", *data).status == 0 and len(names()) == 3
    assert not list((root / "runs" / "small").glob(".*"))


def test_a_folder_that_another_process_prepares(refused, root, data, pretend, begins):
    begins(labels="labels/words")
    with locked_name(root / "runs" / "small" / "models-teacher"):
        assert "models-teacher is being written" in refused("small/figure2", "--run", *data)
    assert not (root / "models").exists()


def test_a_finished_run_whose_paths_are_absolute(reproduce, small, root, data, pretend, begins):
    """As `bighmm train` stores them."""
    begins(labels="labels/words")
    assert reproduce("small/figure2", "--run", *data).status == 0
    path = root / "runs" / "small" / "hmm-words" / "result.json"
    result = json.loads(path.read_text())
    result["recipe"]["initial"]["labels"] = str(root / "labels" / "words")
    path.write_text(json.dumps(result))
    (small / "results" / "table1.jsonl").unlink()
    done = reproduce("small/figure2", "--run", *data)
    assert done.status == 0 and "hmm-words: was trained before\n" in done.err


def test_save_run_keeps_the_same(reproduce, root, lines, data, pretend, tmp_path):
    """benchmarks/save_run.py writes what `record_of` makes."""
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "save_run.py"
    assert reproduce("small/figure2", "--run", *data).status == 0
    out = tmp_path / "kept.json"
    command = [sys.executable, script, root / "runs/small/hmm-words", out, "--peak-gib", "2"]
    subprocess.run(command, check=True, capture_output=True)
    kept = json.loads(out.read_text())
    (made,) = lines()
    assert kept["recipe"]["corpus"]["data"] == "text.txt" and kept["peak_gib"] == 2
    added = {"corpus", "seed", "settings", "train", "at_once"}
    assert set(kept) == set(made) - added | {"peak_gib"}
