"""`bighmm COMMAND …`: runs a command, and prints a user's mistake as one sentence."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import bighmm
from bighmm.base import launch
from bighmm.base.launch import Said

COMMANDS = {
    "train": ("bighmm.cli.train", "train a model from a corpus, or go on with a run"),
    "eval": ("bighmm.cli.evaluation", "perplexity of a model on a corpus"),
    "score": ("bighmm.cli.questions", "log-probability of every line of standard input"),
    "next": ("bighmm.cli.questions", "the most likely next words after a text"),
    "sample": ("bighmm.cli.questions", "text drawn from a model"),
    "ask": ("bighmm.cli.ask", "many questions to one model, which is loaded once"),
    "rule": ("bighmm.cli.questions", "how likely a rule is to hold, and why it cannot"),
    "fill": ("bighmm.cli.fill", "what stands in the gaps of a text"),
    "tag": ("bighmm.cli.states", "the most likely states of a text, and what they stand for"),
    "states": ("bighmm.cli.states", "what the states stand for, and how much of a text is theirs"),
    "posterior": ("bighmm.cli.states", "how likely each state is at every word of a text"),
    "explore": ("bighmm.cli.explore", "a page where one sees and plays with a model"),
    "serve": ("bighmm.cli.explore", "answers to questions over HTTP, in JSON"),
    "mix": ("bighmm.cli.mixing", "several HMMs as one"),
    "calibrate": ("bighmm.cli.calibrating", "an HMM made as sure as held-out text says"),
    "arpa": ("bighmm.cli.arpa", "n-gram models to and from ARPA files"),
    "guide": ("bighmm.cli.guide", "a language model's text under a rule"),
    "distill": ("bighmm.cli.distill", "labels for training from a teacher's vectors"),
    "distill-lm": ("bighmm.cli.distill_lm", "an HMM trained on a language model's own texts"),
    "write": ("bighmm.cli.write", "a corpus that a model, or several together, write"),
    "cluster": ("bighmm.cli.corpora", "Brown clusters of a corpus"),
    "recipes": ("bighmm.cli.recipes", "the recipes of the package"),
    "compare": ("bighmm.cli.compare", "runs side by side: settings, figures, curves"),
    "data": ("bighmm.cli.corpora", "what is known about a corpus"),
    "reproduce": ("bighmm.cli.reproduce", "a paper's tables with our figures beside them"),
}

# Commands that several processes of `torchrun` do together.
SHARED = ("train", "eval", "distill", "distill-lm", "write", "cluster", "reproduce")
LONGEST_SENTENCE = 2000  # characters of a message about a mistake


def main(argv: list[str] | None = None) -> None:
    """Run the command of `argv`, or of the command line; a mistake exits with status 2."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        call(lambda: print(_usage()))
        sys.exit(0 if argv else 2)
    if argv[0] == "--version":
        print(bighmm.__version__)
        return
    call(lambda: _run(argv[0], argv[1:]))


def call(command: Callable[[], None]) -> None:
    """Run a command; a mistake of the user ends the program with one sentence and status 2."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that spin while they wait are several times slower as soon as anything else runs
        # on the machine, and those that sleep at once a third slower if nothing does. So they spin
        # some microseconds. It has to be set before torch is loaded.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "500")  # of the GNU library, which torch has
    if launch.asked_for():
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what is wrong is said in a sentence
    if not launch.is_first():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        command()
        sys.stdout.flush()  # here and not on the way out, so that its failure is seen below
    except Said:
        sys.exit(2)
    except ValueError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader of our output is gone, so nothing can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        _fail(
            "the GPU's memory is full; reduce --states, --batch, --window or --width, or use "
            "--device cpu"
        )
    except KeyboardInterrupt:
        print("bighmm: interrupted", file=sys.stderr)
        sys.exit(130)


def _run(command: str, rest: list[str]) -> None:
    if command.partition("=")[0] == "--completion":
        from bighmm.cli.completion import completion_script

        shell = command.partition("=")[2] or " ".join(rest)
        print(completion_script(shell, COMMANDS), end="")
        return
    if command not in COMMANDS:
        raise ValueError(f"there is no command {command!r}; choose from {', '.join(COMMANDS)}")
    if launch.asked_for() and command not in SHARED and not {"-h", "--help"} & set(rest):
        raise ValueError(
            f"bighmm {command} is done by one process; start it without torchrun. Several can do: "
            f"{', '.join(SHARED)}"
        )
    from bighmm.cli.common import with_new_names

    module = importlib.import_module(COMMANDS[command][0])
    with _together(command, rest):
        getattr(module, f"{command.replace('-', '_')}_command")(with_new_names(rest, command))


def _together(command: str, rest: list[str]) -> AbstractContextManager[object]:
    """Context in which several processes know each other, so that all hear of a mistake of one.

    Training starts them itself.
    """
    if not launch.asked_for() or command == "train" or {"-h", "--help"} & set(rest):
        return nullcontext()
    from bighmm.base import processes
    from bighmm.cli.common import flag_value
    from bighmm.lm.opening import find_device

    device = "cpu" if command in ("cluster", "reproduce") else flag_value(rest, "--device")
    return processes.start(find_device(device or "auto"))


def _usage() -> str:
    lines = ["usage: bighmm COMMAND [options]", "", "commands:"]
    lines += [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
    lines += ["", "bighmm COMMAND --help tells the options of one, bighmm --version the version."]
    lines += ['Tab completion: eval "$(bighmm --completion bash)" in ~/.bashrc; also zsh and fish.']
    return "\n".join(lines)


def _fail(sentence: str) -> None:
    """Print what is wrong and exit with status 2; what is very long is shortened in its middle."""
    line = " ".join(sentence.split())
    if not launch.is_first() and not line.startswith("process "):
        line = f"process {launch.place()}: {line}"
    if len(line) > LONGEST_SENTENCE:
        line = f"{line[: LONGEST_SENTENCE // 2]} … {line[-LONGEST_SENTENCE // 2 :]}"
    print(f"bighmm: {line}", file=sys.stderr)
    sys.exit(2)
