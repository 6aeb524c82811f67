"""Where the program is found: in the checkout of the package, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bighmm as package

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from bighmm.cli.main import main; main()"


@pytest.mark.parametrize("place", ["site-packages/bighmm", "src/bighmm"])
def test_without_a_checkout(bighmm, monkeypatch, tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr(package, "__file__", str(tmp_path / place / "__init__.py"))
    for arguments in ((), ("chiu2020",), ("--help",)):
        done = bighmm("reproduce", *arguments)
        assert done.status == 2 and done.out == "" and done.err.count("\n") == 1
        assert "needs a checkout of bighmm" in done.err and "pip install -e ." in done.err


def test_a_package_beside_other_papers_does_not_run_them(bighmm, monkeypatch, tmp_path):
    """Where it was installed into FOLDER/lib, FOLDER is no checkout."""
    (tmp_path / "lib" / "bighmm").mkdir(parents=True)
    trap(tmp_path)
    monkeypatch.setattr(package, "__file__", str(tmp_path / "lib" / "bighmm" / "__init__.py"))
    assert "needs a checkout" in bighmm("reproduce").err


def test_code_of_the_current_folder_is_not_run(tmp_path):
    trap(tmp_path)
    listed = run("-c", MAIN, "reproduce", folder=tmp_path)
    assert listed.startswith("chiu2020: ") and "lee2025/cpu: " in listed


def test_code_of_another_checkout_is_not_run(reproduce, root):
    trap(root)
    assert reproduce().out.startswith("small: ")


def test_runs_do_not_import_from_the_checkout(reproduce, root, words):
    """The processes of runs have it as their current folder."""
    (root / "torch.py").write_text("raise SystemExit('this is not torch')")
    done = reproduce("small", "--only", "count", "--run", "--data", f"words={words}")
    assert done.status == 0, done.err


def test_as_a_module():
    assert run("-m", "papers", "lee2025/cpu") == run("-c", MAIN, "reproduce", "lee2025/cpu")
    done = subprocess.run(
        [sys.executable, "-m", "papers", "nobody"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "bighmm: there is no paper 'nobody'; choose from chiu2020, frontier, lee2025\n"
    )


def trap(folder):
    """A package `papers` that must not be imported."""
    (folder / "papers").mkdir(exist_ok=True)
    for name in ("__init__.py", "command.py"):
        (folder / "papers" / name).write_text("raise SystemExit('these are other papers')")


def run(*arguments, folder=ROOT):
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
