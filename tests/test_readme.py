"""What the README tells a user to type is typed here, with smaller models."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bighmm import params
from bighmm.cli.main import COMMANDS, main
from distill.tiny_lm import save_language_model

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = "--states 64 --blocks 16 --width 8 --epochs 0.02"
SMALL_LM = "--tokens 2000 --length 8 --states 8 --width 8 --epochs 1"
BLOCKS = {
    kind: re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    for kind in ("sh", "python")
}
COMMAND_LINES = [
    line for block in BLOCKS["sh"] for line in block.splitlines() if not line.startswith("make ")
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder as after `make train`, and an environment with the commands on the path."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    environment = {
        **os.environ,
        "BIGHMM_CACHE": str(folder / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    save_language_model(folder / "models" / "smollm2")
    quickstart = f"bighmm train --recipe recipes/quickstart.toml {SMALL} --out runs/pydoc-4096"
    subprocess.run(quickstart, shell=True, cwd=folder, env=environment, check=True)
    return folder, environment


def test_the_makefile_trains_with_the_recipe_tested_here():
    recipe = "train --recipe recipes/quickstart.toml"
    assert recipe in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_shell_commands(workplace):
    folder, environment = workplace
    for line in COMMAND_LINES:
        smaller = f"{line} {SMALL}" if "bighmm train" in line and "--resume" not in line else line
        smaller = f"{line} {SMALL_LM}" if "bighmm distill-lm" in line else smaller
        done = subprocess.run(
            smaller, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert done.stdout.strip(), line


def test_every_command_is_shown():
    text = "\n".join(COMMAND_LINES)
    for name in COMMANDS:
        assert f"bighmm {name} " in text


def test_python_examples(workplace):
    folder, environment = workplace
    shown = []
    for code in BLOCKS["python"][:2]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout)
    assert abs(float(shown[0].split()[0]) - 1) < 1e-3
    assert "[[0, 0, 1, 1, 1]]" in shown[1]


@pytest.mark.parametrize("name", ["lm.fill(", "SequenceHMM", "bighmm.interop", "constraints as c"])
def test_examples_of_other_parts(workplace, name):
    folder, environment = workplace
    (code,) = [block for block in BLOCKS["python"] if name in block]
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)


def test_added_parameterisation_trains(workplace, monkeypatch, capsys):
    folder, environment = workplace
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BIGHMM_CACHE", environment["BIGHMM_CACHE"])
    monkeypatch.setattr(params.REGISTRY, "known", params.REGISTRY.all())
    exec(
        compile(BLOCKS["python"][-1], "shared.py", "exec", dont_inherit=True),
        {"__name__": "shared"},
    )
    try:
        main(f"train {SMALL} --parameters shared --out runs/shared".split())
        assert "runs/shared" in capsys.readouterr().out
        main(["eval", "runs/shared", "--check-normalised"])
        assert "sum to one within" in capsys.readouterr().out
    finally:
        monkeypatch.undo()


def test_files_named_in_the_readme_exist():
    for name in re.findall(r"`(\w+/)`|`([\w/]+\.(?:py|toml|svg|md))`|\((docs/[\w.]+)\)", README):
        path = next(filter(None, name))
        places = (ROOT, ROOT / "src" / "bighmm", ROOT / "src" / "bighmm" / "infer")
        if path not in ("model/", "runs/"):
            assert any((place / path).exists() for place in places), path
