"""What the README tells a user to type is typed here, with smaller models."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bighmm.cli.main import COMMANDS, main
from bighmm.model import params
from tiny_lm import save_language_model

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
    (folder / "papers").symlink_to(ROOT / "papers")
    environment = {
        **os.environ,
        "BIGHMM_CACHE": str(tmp_path_factory.getbasetemp() / "cache"),  # that of other tests
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    save_language_model(folder / "models" / "smollm2")
    quickstart = f"bighmm train --recipe quickstart {SMALL} --out runs/pydoc-4096"
    subprocess.run(quickstart, shell=True, cwd=folder, env=environment, check=True)
    return folder, environment


def test_the_makefile_trains_with_the_recipe_tested_here():
    assert "train --recipe quickstart\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_shell_commands(workplace, bighmm, monkeypatch):
    """In this process, but for those that need a shell: to load torch takes longer than most."""
    folder, environment = workplace
    monkeypatch.chdir(folder)
    in_shell = 0
    for line in COMMAND_LINES:
        smaller = f"{line} {SMALL}" if "bighmm train" in line and "--resume" not in line else line
        smaller = f"{line} {SMALL_LM}" if "bighmm distill-lm" in line else smaller
        words = shlex.split(smaller)
        if words[0] == "bighmm":
            done = bighmm(*words[1:])
            assert done.status == 0, f"{line}\n{done.err}"
            assert done.out.strip(), line
            continue
        in_shell += 1
        ran = subprocess.run(
            smaller, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, f"{line}\n{ran.stderr}"
        assert ran.stdout.strip(), line
    assert in_shell


def test_every_command_is_shown():
    text = "\n".join(COMMAND_LINES)
    for name in COMMANDS:
        assert f"bighmm {name} " in text


def run_example(code, folder, monkeypatch):
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec", dont_inherit=True), {"__name__": "__main__"})


def test_python_examples(workplace, monkeypatch, capsys):
    shown = []
    for code in BLOCKS["python"][:3]:
        run_example(code, workplace[0], monkeypatch)
        shown.append(capsys.readouterr().out)
    assert abs(float(shown[0].split()[0]) - 1) < 1e-3
    assert "WordProb(" in shown[1] and "the file" in shown[1]
    assert "[[0, 0, 1, 1, 1]]" in shown[2]


@pytest.mark.parametrize(
    "name", ["lm.fill(", "SequenceHMM", "bighmm.interop import", "constraints as c"]
)
def test_examples_of_other_parts(workplace, name, monkeypatch, capsys):
    (code,) = [block for block in BLOCKS["python"] if name in block]
    run_example(code, workplace[0], monkeypatch)
    assert capsys.readouterr().out


def test_example_of_guiding(workplace, bighmm, monkeypatch, capsys):
    (code,) = [block for block in BLOCKS["python"] if "guide.texts" in block]
    monkeypatch.chdir(workplace[0])
    if not Path("runs/smollm2").exists():  # another test has made it, if it has run
        (line,) = [line for line in COMMAND_LINES if "distill-lm" in line]
        assert bighmm(*shlex.split(f"{line} {SMALL_LM}")[1:]).status == 0
    run_example(code, workplace[0], monkeypatch)
    assert capsys.readouterr().out


def test_added_parameterisation_trains(workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace[0])
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
