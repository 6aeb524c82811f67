"""Parameterisations that another distribution announces as entry points."""

import sys

import pytest

from bighmm.model import params
from bighmm.train.recipe import from_dict

MODULE = """
from dataclasses import dataclass

from bighmm.model.options import ScalarOptions
from bighmm.model.params import register
from bighmm.model.params.scalar import Scalar


@dataclass(frozen=True)
class FlatterOptions(ScalarOptions):
    flatness: float = 0.5
    '''How much smaller the initial logits are.'''


@register("flatter", FlatterOptions)
def flatter(options, support, end):
    made = Scalar(options, support, end)
    made.transition.data.mul_(1 - options.flatness)
    return made
"""
ENTRY_POINTS = """[bighmm.parameterisations]
flatter = flatter_hmm
broken = broken_hmm
silent = silent_hmm:nothing
"""


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """A distribution as an installer leaves it, with three entry points."""
    site = tmp_path / "site"
    info = site / "flatter_hmm-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flatter-hmm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "flatter_hmm.py").write_text(MODULE)
    (site / "broken_hmm.py").write_text("import not_there_at_all\n")
    (site / "silent_hmm.py").write_text("nothing = 1\n")
    monkeypatch.syspath_prepend(str(site))
    yield
    params.REGISTRY.known.pop("flatter", None)
    for name in ("flatter_hmm", "silent_hmm"):
        sys.modules.pop(name, None)


def test_it_is_trained_and_opened(distribution, tmp_path, bighmm, ask):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"w{i % 5} w{i * i % 7}" for i in range(60)) + "\n")
    done = bighmm("train", "--parameterisation", "flatter", "--help")
    assert done.status == 0 and "--flatness" in done.out
    flags = ("--states", 4, "--support", "dense", "--flatness", 0.25, "--epochs", 1)
    flags += ("--parameterisation", "flatter", "--device", "cpu")
    done = bighmm("train", "--data", text, *flags, "--out", tmp_path / "run")
    assert done.status == 0, done.err
    assert ask("next", tmp_path / "run", "w1")
    assert from_dict({"model": {"parameterisation": "flatter"}}, "r").options.flatness == 0.5


def test_one_that_cannot_be_used(distribution):
    with pytest.raises(ValueError, match=r"'broken', which is broken_hmm, cannot be imported: Mod"):
        params.find("broken")
    with pytest.raises(ValueError, match=r"'silent', .* does not register itself"):
        params.find("silent")
    with pytest.raises(ValueError, match=r"no parameterisation 'quantum'; choose from .*flatter"):
        params.find("quantum")
    assert params.find("scalar").name == "scalar"
