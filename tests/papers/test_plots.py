"""Charts from result files."""

import sys

import pytest


def test_without_matplotlib(refused, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refused("small", "--plots", tmp_path / "plots")
    assert "matplotlib is not installed; install bighmm[plot]" in said
    assert not (tmp_path / "plots").exists()


def test_plots(reproduce, measured, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "plots"
    done = reproduce("small", "--plots", folder)
    assert done.status == 0 and done.err == "there is nothing to draw yet\n"
    measured("hmm", 40.0)
    measured("hmm", 43.0, seed=2)
    measured("hmm-other", 60.0, corpus="other")
    measured("count", 30.0, valid_curve=[], steps=0)
    assert reproduce("small/figure2", "--plots", folder).status == 0
    assert [path.name for path in folder.iterdir()] == ["figure2.png"]
    assert reproduce("small", "--plots", folder).status == 0
    assert {path.name for path in folder.iterdir()} == {"figure2.png", "curves.png"}
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


BARS = """
    [[tables]]
    name = "bars"
    title = "perplexity by kind"
    axis = "kind"
    rows = [
      { row = "HMM", corpus = "words", recipe = "hmm", x = "HMM", series = "here" },
      { row = "HMM", corpus = "other", recipe = "hmm-other", x = "HMM", series = "there" },
      { row = "5-gram", corpus = "words", paper = { valid = 30 }, x = "5-gram", series = "here" },
      { row = "3-gram", corpus = "words", recipe = "count" },
    ]

    [[tables]]
    name = "sizes"
    title = "perplexity by parameters"
    axis = "parameters"
    rows = [
      { row = "small", corpus = "words", recipe = "hmm", x = 262144 },
      { row = "large", corpus = "other", recipe = "hmm-other", x = 1048576 },
    ]
"""


SECONDS = """
    [[tables]]
    name = "seconds"
    title = "perplexity by seconds"
    axis = "seconds"
    rows = [
      { row = "HMM", corpus = "words", recipe = "hmm", series = "HMMs" },
      { row = "HMM", corpus = "other", recipe = "hmm-other", series = "HMMs" },
      { row = "3-gram", corpus = "words", recipe = "count", series = "others" },
    ]
"""


def test_over_seconds(reproduce, measured, more, tmp_path):
    pytest.importorskip("matplotlib")
    more(SECONDS)
    chart = tmp_path / "plots" / "seconds.png"
    reproduce("small/seconds", "--plots", tmp_path / "plots")
    assert not chart.exists()
    measured("count", 30.0, seconds=0.0, valid_curve=[], steps=0)
    assert reproduce("small/seconds", "--plots", tmp_path / "plots").status == 0
    first = chart.stat().st_size
    measured("hmm", 40.0)
    measured("hmm-other", 43.0, corpus="other")
    assert reproduce("small/seconds", "--plots", tmp_path / "plots").status == 0
    assert chart.read_bytes().startswith(b"\x89PNG") and chart.stat().st_size != first > 5000


def test_bars_and_lines_across(reproduce, measured, more, tmp_path):
    pytest.importorskip("matplotlib")
    more(BARS)
    measured("hmm", 40.0)
    measured("hmm", 43.0, seed=2)
    measured("hmm-other", 60.0, corpus="other")
    measured("count", 30.0, valid_curve=[], steps=0)
    for table in ("bars", "sizes"):
        assert reproduce(f"small/{table}", "--plots", tmp_path / "plots").status == 0
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"bars.png", "sizes.png"}
    for path in (tmp_path / "plots").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
