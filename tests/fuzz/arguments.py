"""Attack: odd arguments of every command.

The flags are those that the commands say they have, so that new ones are attacked too.
"""

from __future__ import annotations

import functools
import json
import os
import random
from pathlib import Path

from bighmm.cli.flags import Command, commands_with_flags
from bighmm.cli.main import COMMANDS

from .commands import call, check
from .originals import Originals
from .outcome import Case, Failure, Say
from .working import SERVERS, working_arguments

NUMBERS = (
    *("-1", "0", "1", "2", "3", "-0", "+2", "007", "1_0", "1.5", "nan", "inf", "-inf", "1e-320"),
    *("1e308", "1e999", "65536", "1000000000", "9223372036854775808", "9" * 30, "9" * 5000, "٣"),
)
SENSIBLE = ("1", "2", "3", "4", "5", "10", "0.5", "0.1", "1e-3")
WORDS = (
    *("", " ", "x", "auto", "None", "True", "[1]", "{}", "é🦜", "\udcff", "a\tb", "line\nbreak"),
    *("[bold]", "%s{0}", "--", "-", "=", "y" * 100_000, "\x1b[31m", "w01", "w01 w02", "nowhere"),
    *("dense", "two-level", "scalar", "lstm", "ngram", "train", "cuda", "cpu", "8..12", "5..2"),
)
PATTERNS = (
    *(
        "w01 .* w02",
        "(",
        ")",
        "[",
        "w01 |",
        "* w01",
        "w01{1000}",
        "w01{2,1}",
        "(" * 5000,
        "[^ w01]*",
    ),
    *(
        "(w01? ){9} w02",
        '"w01 w02"',
        '"',
        "((.* w01){20} .*){20}",
        "\\",
        ". . .",
        "w01{999999999999}",
    ),
    *("a*", "(a|b)*c", ".{1000}", "(?=a)", "\\p{L}+", "(a*)*b", "[a-z]{1,3}( [a-z]+)*", "\\d{400}"),
)
STDIN = (
    *(b"w01 w02\n", b"", b"\n", b"\xff", b"w01\0\n", b"w01\r\nw02", "\u2028w01".encode()),
    *(b"w01 " * 20_000, b"w01\n" * 3000, b"\xef\xbb\xbfw01"),
)
# What is written may not be anywhere but in the case's folder.
WRITTEN = ("--out", "--plot", "--write-docs", "--plots", "--results", "--keep")
NEW_NAMES = ("", ".", "new", "a/b/c", "é🦜", "z" * 300, "x.png", "x.paths", "new/../new", "\udcff")
# Long training is what such a number asks for, and so is help.
LEFT_OUT = {"--run", "--planned", "--restore", "--help", "--json", "--root"}
LONG = {
    "--epochs",
    "--tokens",
    "--contexts",
    "--labelled-epochs",
    "--iterations",
    "--checks-per-epoch",
}


def attack(originals: Originals, case: Case, draw: random.Random, place: Path, say: Say) -> str:
    """Run a command with one to three odd arguments."""
    os.environ["BIGHMM_CACHE"] = str(place / "cache")
    command = draw.choice(every_command())
    arguments = working_arguments(command.name, originals, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        arguments += _odd(command, originals, draw)
    if draw.random() < 0.1:
        draw.shuffle(arguments)
    as_json = draw.random() < 0.7
    words = [command.name, *arguments, *(["--json"] if as_json else [])]
    stdin = draw.choice(STDIN)
    say(_shown(words) + (f" with {stdin[:30]!r}" if command.name == "score" else ""))
    if command.name == "train" and draw.random() < 0.2:
        variables = {name: draw.choice(NUMBERS) for name in ("WORLD_SIZE", "RANK", "MASTER_PORT")}
        say(f"as if torchrun had set {variables}")
        os.environ.update(variables)  # but no address, so that it is not waited for others
    if any("\0" in word for word in words):
        words = [word.replace("\0", "") for word in words]  # no command line can hold it
    done = call(words, stdin)
    check(done)
    if as_json and not {"--help", "--"} & set(words):  # after -- it is the name of a file
        _check_json(done.out)
    return "same"


@functools.cache
def every_command() -> list[Command]:
    """All commands but servers, with their flags; importing them takes a while."""
    return commands_with_flags({n: at for n, at in COMMANDS.items() if n not in SERVERS})


def _odd(command: Command, originals: Originals, draw: random.Random) -> list[str]:
    """One odd argument."""
    flags = [flag for flag in command.flags if flag.name not in LEFT_OUT]
    if not flags or draw.random() < 0.05:
        return draw.choice((["--frobnicate"], ["--frobnicate=1"], ["-x"], ["more"], ["--"], [""]))
    flag = draw.choice(flags)
    if not flag.takes_value:
        return [flag.name] * draw.choice((1, 1, 2)) if draw.random() < 0.9 else [f"{flag.name}=1"]
    value = _value(flag.name, flag.is_path, flag.choices, originals, draw)
    if flag.name in ("--must", "--not") and draw.random() < 0.5:
        return [flag.name, draw.choice(("w01", "w02 w03")), flag.name, value]
    roll = draw.random()
    if roll < 0.1:
        return [flag.name]  # without a value
    if roll < 0.2 and flag.name not in WRITTEN:
        other = _value(flag.name, flag.is_path, flag.choices, originals, draw)
        return [flag.name, value, flag.name, other]
    return [flag.name, value] if roll < 0.6 and value[:1] != "-" else [f"{flag.name}={value}"]


def _value(
    name: str, is_path: bool, choices: tuple[str, ...], originals: Originals, draw: random.Random
) -> str:
    if name in WRITTEN:
        return draw.choice(NEW_NAMES)
    if name in LONG:
        return draw.choice([number for number in NUMBERS if len(number) < 4 and number != "inf"])
    if name in ("--regex", "--text"):
        return draw.choice((*PATTERNS, *WORDS))
    if is_path and draw.random() < 0.8:
        original = draw.choice(originals.every)
        inside = original.path.parent / draw.choice(original.files())
        odd = ("/dev/null", "/dev/zero", "nowhere", ".", "z" * 5000, str(originals.text))
        return draw.choice((*odd, str(original.path), str(original.path), str(inside)))
    if choices and draw.random() < 0.8:
        return draw.choice(choices)
    roll = draw.random()
    return draw.choice(SENSIBLE if roll < 0.4 else NUMBERS if roll < 0.8 else WORDS)


def _check_json(out: str) -> None:
    lines = out.splitlines()
    try:
        found = [json.loads(line) for line in out.split("\n") if line]
    except json.JSONDecodeError as error:
        raise Failure(f"the output is not JSON ({error}): {out[:200]!r}") from None
    if len(found) != 1 or not isinstance(found[0], dict):
        raise Failure(f"{len(lines)} lines were printed, not one object: {out[:200]!r}")


def _shown(words: list[str]) -> str:
    return " ".join(repr(word if len(word) < 80 else word[:40] + "…") for word in words)
