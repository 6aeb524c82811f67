"""Help is fast because it imports nothing heavy; `import bighmm` neither."""

import json
import subprocess
import sys

import pytest

from bighmm.cli.main import COMMANDS

HEAVY = (
    *("torch", "numpy", "transformers", "tokenizers", "huggingface_hub"),
    *("matplotlib", "safetensors", "triton", "sklearn", "pandas"),
)
PACKAGES = [
    *("bighmm", "bighmm.lm", "bighmm.lm.protocol", "bighmm.lm.opening", "bighmm.lm.options"),
    *("bighmm.inspect", "bighmm.guide.settings", "bighmm.distill.settings", "bighmm.interop"),
    *("bighmm.lm.rules", "bighmm.sequences"),
    *("bighmm.train.recipe", "bighmm.model.options", "bighmm.base.files", "bighmm.cli.completion"),
]


def heavy_after(code: str) -> list[str]:
    """The heavy modules that are imported once `code` has run in a process of its own."""
    code += f"\nimport json, sys; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run(*argv: str) -> str:
    return (
        "from bighmm.cli.main import main\n"
        f"try: main({list(argv)})\nexcept SystemExit as end: assert not end.code, end.code"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command):
    assert heavy_after(run(command, "--help")) == []


@pytest.mark.parametrize("argv", [["--help"], ["--version"]])
def test_help_of_all(argv):
    assert heavy_after(run(*argv)) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--parameterisation", "scalar", "--help"],
        ["train", "--family", "ngram", "--help"],
        ["distill-lm", "--device", "cuda", "--help"],
    ],
    ids=" ".join,
)
def test_help_of_other_models(argv):
    assert heavy_after(run(*argv)) == []


def test_packages():
    assert heavy_after(f"import {', '.join(PACKAGES)}") == []


def test_version_without_torch():
    assert heavy_after("import bighmm; assert bighmm.__version__[0].isdigit()") == []
