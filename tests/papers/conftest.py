"""A checkout with one small paper of two tables."""

import json
import random
import textwrap

import pytest

from bighmm.train.recipe import read_recipe

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
    (folder / "recipes" / "small").mkdir(parents=True)
    files = {"rows": ROWS, "count": COUNT, "hmm": HMM, "hmm-other": HMM}
    for name, text in files.items():
        (folder / "recipes" / "small" / f"{name}.toml").write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def more(root):
    """more(text, …) adds sections to rows.toml."""

    def more(*sections):
        path = root / "recipes" / "small" / "rows.toml"
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
def measured(root):
    """measured(name, recipe, valid) puts a result file where a run would."""

    def measured(name, recipe, valid, **more):
        settings = read_recipe(root / "recipes" / "small" / f"{recipe}.toml").to_dict()
        result = {
            "recipe": settings,
            "parameters": 1_234_567,
            "steps": 40,
            "seconds": 12.5,
            "valid": {"perplexity": valid},
            "test": {"perplexity": valid - 1},
            "valid_curve": [[10, valid + 9], [40, valid]],
        }
        folder = root / "results" / "small"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(result | more))

    return measured
