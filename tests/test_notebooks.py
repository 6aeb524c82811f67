"""The notebooks among the docs run, and show what they say."""

from pathlib import Path

import numpy as np
import pytest

import notebooks

pytest.importorskip("numba")  # long sequences, whose loops are compiled

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


def test_all_are_here():
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == {"clicks", "dna", "music", "text"}


def test_clicks():
    names, _ = notebooks.run(EXAMPLES / "clicks.ipynb")
    assert names["best"] == 3 and names["right"] > 0.85
    assert names["patchy"].score(names["visits"]) > names["fits"][2].score(names["visits"])
    assert names["model"].score(names["tomorrow"]) > names["before"]


def test_dna():
    names, _ = notebooks.run(EXAMPLES / "dna.ipynb")
    assert min(names["by_path"].mean(), names["by_posterior"].mean(), names["still"]) > 0.9
    assert np.allclose(names["model"].emissionprob_, names["emits"])
    assert names["model"].transmat_[5, [2, 6]].sum() > 2 * names["model"].transmat_[1, [2, 6]].sum()


def test_music():
    names, _ = notebooks.run(EXAMPLES / "music.ipynb")
    assert all(names["wanted"].matches(ids) for ids in names["written"].tolist())
    assert len({*names["model"].init_scores_}) > 1


def test_text():
    names, outputs = notebooks.run(EXAMPLES / "text.ipynb")
    vowels, consonants = sorted(names["classes"].values(), key=lambda letters: "e" not in letters)
    assert {*"aeiou"} <= {*vowels} and {*"bcdfglmnprst"} <= {*consonants}
    figures = [line for shown in outputs for part in shown for line in part.get("text", [])]
    assert sum("perplexity" in line for line in figures) == 4


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_outputs_are_stored(path):
    """So that they can be read where nothing runs them: `python tests/notebooks.py FILE` does."""
    cells = [cell for cell in notebooks.read(path)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] == n for n, cell in enumerate(cells, start=1))
    assert any(cell["outputs"] for cell in cells)
