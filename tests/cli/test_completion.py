"""Shell completion: each script knows every command, flag and choice; bash really completes."""

import re
import shutil
import subprocess

import pytest

from bighmm.cli.completion import SHELLS, completion_script
from bighmm.cli.main import COMMANDS


@pytest.fixture(scope="module")
def scripts():
    return {shell: completion_script(shell, COMMANDS) for shell in SHELLS}


@pytest.fixture
def complete(scripts, tmp_path):
    """What bash offers for the last of some words."""
    (tmp_path / "completion").write_text(scripts["bash"])
    (tmp_path / "a run").mkdir()
    (tmp_path / "a.toml").write_text("")

    def complete(*words: str) -> list[str]:
        program = (
            "source ./completion; complete -p bighmm >/dev/null || exit 3\n"
            'COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _bighmm\n'
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(
            ["bash", "-c", program, "bash", *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return sorted(filter(None, done.stdout.splitlines()))

    return complete


def flags_in_help(bighmm, command):
    """The flags that the command's own help names, which tyro has made."""
    found = set(
        re.findall(r"^(?:│| ) (?:-h, )?(--[a-z][\w-]*)", bighmm(command, "--help").out, re.M)
    )
    assert "--help" in found
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_completed(bighmm, complete, command):
    offered = set(complete("bighmm", command, "--"))
    expected = flags_in_help(bighmm, command)
    assert expected <= offered
    if command not in ("train", "distill-lm"):  # there flags depend on the model
        assert expected == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["sa"], ["sample"]),
        (["distill"], ["distill", "distill-lm"]),
        (["--v"], ["--version"]),
        (["--completion", ""], ["bash", "fish", "zsh"]),
        (["eval", "runs/x", "--split", ""], ["test", "train", "valid"]),
        (["eval", "runs/x", "--split", "=", "te"], ["test"]),
        (["eval", "runs/x", "--split", "="], ["test", "train", "valid"]),
        (["tag", "--device", ""], ["auto", "cpu", "cuda"]),
        (["guide", "--matmul-dtype", "b"], ["bfloat16"]),
        (["train", "--family", "l"], ["lstm"]),
        (["train", "--parameterisation", "one-"], ["one-linear", "one-relu"]),
        (["train", "--disc"], ["--discounts"]),
        (["distill-lm", "--no-sk"], ["--no-skip"]),
        (["sample", "--len"], ["--length"]),
        (["sample", "--length", ""], []),  # a number
        (["sample", "a"], ["a run", "a.toml"]),
        (["train", "--recipe", "a."], ["a.toml"]),
        (["data", "--data", "a "], ["a run"]),
    ],
    ids=" ".join,
)
def test_bash_completes(complete, words, offered):
    assert complete("bighmm", *words) == offered


def test_first_word(complete):
    assert set(COMMANDS) < set(complete("bighmm", ""))


def test_the_scripts_are_valid(scripts, tmp_path):
    for shell, script in scripts.items():
        if shutil.which(shell) is not None:
            (tmp_path / shell).write_text(script)
            done = subprocess.run([shell, "-n", str(tmp_path / shell)], capture_output=True)
            assert done.returncode == 0, done.stderr


def test_zsh_and_fish_know_the_same(bighmm, scripts):
    zsh = dict(
        re.findall(r"^        ([\w-]+)\)\n(.*?)^            ;;", scripts["zsh"], re.M | re.S)
    )
    for command in COMMANDS:
        for flag in flags_in_help(bighmm, command):
            assert f"*{flag}[" in zsh[command]
            fish = f"__fish_seen_subcommand_from {command}' -l {flag[2:]}"
            assert re.search(rf"{re.escape(fish)}( |$)", scripts["fish"], re.M)
    assert "(train valid test)" in zsh["eval"] and "_files" in zsh["eval"]
    assert "from eval' -l split -xa 'train valid test'" in scripts["fish"]
    assert "-l recipe -rF" in scripts["fish"]


def test_the_command(bighmm, scripts):
    assert bighmm("--completion", "bash").out == scripts["bash"] == bighmm("--completion=bash").out
    assert "bighmm --completion bash" in bighmm("--help").out
    for words in (["--completion"], ["--completion", "tcsh"]):
        done = bighmm(*words)
        assert done.status == 2 and "choose from bash, zsh, fish\n" in done.err
