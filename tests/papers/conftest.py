"""A checkout with one small paper of two tables."""

import json
import random
import sys
import textwrap
from pathlib import Path

import pytest

from bighmm.train.recipe import read_recipe
from papers import workers

PRETENDER = (sys.executable, str(Path(__file__).with_name("pretender.py")))
ROWS = """
    title = "Nobody 1999, Small Models"
    curves = ["table1"]

    [[tables]]
    name = "table1"
    title = "perplexity"
    rows = [
      { row = "3-gram", corpus = "words", recipe = "count", paper = { params = 2e6, test = 30.5 } },
      { row = "Cited", corpus = "words", paper = { valid = 12, test = 11.0 } },
      { row = "HMM 2^4", corpus = "words", recipe = "hmm", paper = { valid = 40.0 } },
      { row = "HMM 2^4", corpus = "other", recipe = "hmm-other", paper = { valid = 50.0 } },
    ]

    [[tables]]
    name = "figure2"
    title = "perplexity by states"
    axis = "states"
    rows = [
      { row = "HMM 2^4", corpus = "words", recipe = "hmm", x = 16, paper = { train = 38 } },
    ]
"""
COUNT = """
    [model]
    family = "ngram"
    [parameters]
    order = 3
"""
HMM = """
    [model]
    states = 16
    blocks = 4
    [parameters]
    width = 8
    [training]
    batch = 8
    window = 8
    epochs = 1
    device = "cpu"
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "checkout"
    paper = folder / "papers" / "small"
    (paper / "recipes").mkdir(parents=True)
    (paper / "rows.toml").write_text(textwrap.dedent(ROWS))
    for name, text in {"count": COUNT, "hmm": HMM, "hmm-other": HMM}.items():
        (paper / "recipes" / f"{name}.toml").write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def small(root):
    """The folder of the paper."""
    return root / "papers" / "small"


@pytest.fixture
def lines(small):
    """lines(table) gives the stored runs of a table, lines() those of all tables."""

    def lines(table="*"):
        files = sorted((small / "results").glob(f"{table}.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    return lines


@pytest.fixture
def names(lines):
    """The stored runs, as RECIPE CORPUS SEED."""
    return lambda: {f"{run['recipe']} {run['corpus']} {run['seed']}" for run in lines()}


@pytest.fixture
def more(small):
    """more(text, …) adds sections to rows.toml."""

    def more(*sections):
        path = small / "rows.toml"
        path.write_text(path.read_text() + "".join(map(textwrap.dedent, sections)))

    return more


@pytest.fixture
def words(tmp_path):
    """A small corpus."""
    draw = random.Random(0)
    lines = (" ".join(f"w{draw.randrange(20):02}" for _ in range(6)) for _ in range(200))
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def reproduce(bighmm, root):
    """The command, in that checkout."""
    return lambda *arguments: bighmm("reproduce", *arguments, "--root", root)


@pytest.fixture
def refused(reproduce):
    """The one sentence that the command refuses its arguments with."""

    def refused(*arguments):
        done = reproduce(*arguments)
        assert done.status == 2 and done.out == "" and done.err.count("\n") == 1
        assert done.err.startswith("bighmm: ")
        return done.err

    return refused


@pytest.fixture
def rows(ask, root):
    """The rows for programs, of a paper or a table."""
    return lambda what, *flags: ask("reproduce", what, *flags, "--root", root)["rows"]


@pytest.fixture
def measured(small):
    """measured(recipe, valid) adds a line to the results, as a run would."""

    def measured(recipe, valid, corpus="words", seed=1, table="table1", **more):
        result = {
            "recipe": recipe,
            "corpus": corpus,
            "seed": seed,
            "settings": read_recipe(small / "recipes" / f"{recipe}.toml").to_dict(),
            "num_parameters": 1_234_567,
            "steps": 40,
            "seconds": 12.5,
            "valid": {"perplexity": valid},
            "test": {"perplexity": valid - 1},
            "valid_curve": [[10, valid + 9], [40, valid]],
        }
        (small / "results").mkdir(exist_ok=True)
        with (small / "results" / f"{table}.jsonl").open("a") as file:
            file.write(json.dumps(result | more) + "\n")

    return measured


@pytest.fixture
def pretend(monkeypatch, tmp_path, small):
    """pretend(name="fail", …) says what the runs do instead of training."""
    recipe = read_recipe(small / "recipes" / "hmm.toml").to_dict()
    recipe["corpus"]["data"] = "/some/where/text.txt"
    result = {
        "run": "runs/x",
        "recipe": recipe,
        "num_parameters": 500,
        "steps": 10,
        "seconds": 1.5,
        "device": "cpu",
        "valid": {"perplexity": 41.0},
        "test": {"perplexity": 39.0},
        "samples": ["a", "b"],
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr(workers, "BIGHMM", PRETENDER)
    monkeypatch.setenv("RESULT", str(tmp_path / "result.json"))

    def pretend(**behaviour):
        names = {name.replace("_", "-"): what for name, what in behaviour.items()}
        monkeypatch.setenv("BEHAVIOUR", json.dumps(names))

    pretend()
    return pretend


@pytest.fixture
def data(words):
    return ("--data", f"words={words}", "--data", f"other={words}")
