"""`bighmm COMMAND …`: finds the command, and turns a user's mistake into one sentence."""

from __future__ import annotations

import importlib
import os
import sys

COMMANDS = {
    "train": ("bighmm.cli.train", "train a model from a corpus, or go on with a run"),
    "eval": ("bighmm.cli.evaluation", "perplexity of a model on a corpus"),
    "score": ("bighmm.cli.questions", "log-probability of every line of standard input"),
    "next": ("bighmm.cli.questions", "the most likely next words after a text"),
    "sample": ("bighmm.cli.questions", "text drawn from a model"),
    "fill": ("bighmm.cli.fill", "what stands in the gaps of a text"),
    "tag": ("bighmm.cli.states", "the most likely states of a text, and what they stand for"),
    "states": ("bighmm.cli.states", "what the states stand for, and how much of a text is theirs"),
    "posterior": ("bighmm.cli.states", "how likely each state is at every word of a text"),
    "guide": ("bighmm.cli.guide", "a language model's text under a rule"),
    "distill": ("bighmm.cli.distill", "labels for training from a teacher's vectors"),
    "distill-lm": ("bighmm.cli.distill_lm", "an HMM trained on a language model's own texts"),
    "cluster": ("bighmm.cli.corpora", "Brown clusters of a corpus"),
    "data": ("bighmm.cli.corpora", "what is known about a corpus"),
    "reproduce": ("bighmm.cli.reproduce", "a paper's tables with our figures beside them"),
}


def main(argv: list[str] | None = None) -> None:
    # Threads that wait for each other by spinning are several times slower as soon as anything
    # else runs on the machine, and no faster when nothing does. It counts when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        sys.exit(0 if argv else 2)
    if argv[0] == "--version":
        from importlib.metadata import version

        print(version("bighmm"))
        return
    if argv[0] not in COMMANDS:
        _fail(f"there is no command {argv[0]!r}; choose from {', '.join(COMMANDS)}")
    module, _ = COMMANDS[argv[0]]
    function = f"{argv[0].replace('-', '_')}_command"
    try:
        from bighmm.cli.common import with_new_names

        getattr(importlib.import_module(module), function)(with_new_names(argv[1:]))
        sys.stdout.flush()  # here and not on the way out, so that its failure is seen below
    except ValueError as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone; there is no one to tell.
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


def _usage() -> str:
    lines = ["usage: bighmm COMMAND [options]", "", "commands:"]
    lines += [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join([*lines, "", "bighmm COMMAND --help tells the options of one."])


def _fail(sentence: str) -> None:
    print(f"bighmm: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(2)
