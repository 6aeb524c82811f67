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
    measured("hmm-words", "hmm", 40.0)
    measured("hmm-words-seed2", "hmm", 43.0)
    measured("hmm-other", "hmm-other", 60.0)
    measured("count-words", "count", 30.0, valid_curve=[], steps=0)
    assert reproduce("small/figure2", "--plots", folder).status == 0
    assert [path.name for path in folder.iterdir()] == ["figure2.png"]
    assert reproduce("small", "--plots", folder).status == 0
    assert {path.name for path in folder.iterdir()} == {"figure2.png", "curves.png"}
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
