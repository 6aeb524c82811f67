"""Write docs/learn/transcript.md: a session with the quick-start model, by running its commands.

    python benchmarks/transcript.py runs/pydoc-4096

Every command is run as it is printed; its standard output and standard error are what the page
shows. The model is what `bighmm train` leaves.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from bighmm.cli.common import models_stay_open
from bighmm.cli.main import main as bighmm

PAGE = Path(__file__).resolve().parent.parent / "docs" / "learn" / "transcript.md"
SHOWN = "runs/pydoc-4096"
HEAD = """\
# A session

Made by `python benchmarks/transcript.py runs/pydoc-4096`, which runs these commands with the model
that `bighmm train` leaves and writes down what they print.
"""
# A heading, a sentence, and commands; one that begins with > is a line at the prompt of `ask`.
SESSION: list[tuple[str, str, list[str]]] = [
    (
        "How good it is",
        "Unknown words are counted, and the perplexity of the others is beside.",
        [f"bighmm eval {SHOWN}"],
    ),
    (
        "Next words and scores",
        "The model does not know every word, and says so.",
        [
            f'bighmm next {SHOWN} "the name of the" --n 4',
            f'bighmm next {SHOWN} "the name of the" --n 4 --no-unk',
            f'bighmm score {SHOWN} "the name of the zorblax file" --words',
            f'bighmm score {SHOWN} "the name of the file" --json',
        ],
    ),
    (
        "Texts",
        "Rules hold in every text; one that cannot hold is refused with the reason.",
        [
            f"bighmm sample {SHOWN} --n 3 --top-p 0.8 --no-unk --seed 1",
            f'bighmm sample {SHOWN} --must "the file" --words 8..12 --n 3 --seed 1',
            f"bighmm sample {SHOWN} --regex 'return (a | the) .{{1,3}} file .*' --n 2 --seed 1",
            f"bighmm sample {SHOWN} --regex 'the.*file'",
            f'bighmm rule {SHOWN} "the name" --must file --length 10',
            f"bighmm rule {SHOWN} --must file --words ..3 --length 2 --starts 'the old name'",
        ],
    ),
    (
        "Gaps",
        "What stands in a gap depends on both sides of it.",
        [
            f'bighmm fill {SHOWN} "return the ___ of the file." --best --n 3',
            f'bighmm fill {SHOWN} "the ___1-3 of the ___ ." --must name --no-unk --n 3 --seed 1',
            f'bighmm fill {SHOWN} "return the ___ of the file." --probs --n 3',
        ],
    ),
    (
        "States",
        "What the model takes words for.",
        [
            f'bighmm tag {SHOWN} "the name of the file"',
            f"bighmm states {SHOWN} --word file --top 2 --top-words 4 --neighbours 2",
            f"bighmm states {SHOWN} --block 7 --top 2 --top-words 2 --csv",
        ],
    ),
    (
        "Many questions",
        "`ask` loads the model once.",
        [
            "> next the name of the --n 2",
            "> fill the ___ of the file --best --n 2",
            "> score the name of the zorblax",
            "> nxt the name",
            "> sample --must file --words 4..8 --n 2 --seed 3",
        ],
    ),
    (
        "Mistakes",
        "One sentence says what is wrong and what would be right.",
        [
            f"bighmm sample {SHOWN} --must zorblax",
            f"bighmm sample {SHOWN} --n 0",
            f"bighmm next {SHOWN} the --length 5",
            f"bighmm states {SHOWN} --state 999999",
            f"bighmm sample {SHOWN} --must file --in-order",
        ],
    ),
]


@dataclass(frozen=True)
class Arguments:
    run: tyro.conf.Positional[Path] = Path(SHOWN)
    out: Path = PAGE


def main(arguments: Arguments) -> None:
    parts = [HEAD]
    for title, about, commands in SESSION:
        parts.append(f"## {title}\n\n{about}\n")
        asked = [line.removeprefix("> ") for line in commands if line.startswith("> ")]
        if asked:
            said = [f"> {line}\n{run(['ask', SHOWN], arguments.run, line)}" for line in asked]
            parts.append(f"```text\n$ bighmm ask {SHOWN}\n{''.join(said)}```\n")
            continue
        for command in commands:
            said = run(shlex.split(command)[1:], arguments.run)
            parts.append(f"```text\n$ {command}\n{said}```\n")
    arguments.out.write_text("\n".join(parts), encoding="utf-8")


def run(words: list[str], model: Path, typed: str = "") -> str:
    """What a command prints, on standard output and standard error together."""
    argv = [str(model) if word == SHOWN else word for word in words]
    said, stdin = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(typed.encode()))
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            bighmm(argv)
    except SystemExit as end:
        if end.code not in (None, 0, 2):
            raise SystemExit(f"bighmm {shlex.join(argv)} failed:\n{said.getvalue()}") from None
    finally:
        sys.stdin = stdin
    return said.getvalue().replace(str(model), SHOWN)


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    with models_stay_open():  # what is printed is the same, and it takes seconds
        main(tyro.cli(Arguments))
