"""`bighmm train`: from a recipe to a trained model."""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bighmm.base import launch
from bighmm.cli.common import (
    AsJson,
    check_blocks,
    err,
    flag_value,
    keep_memory,
    out,
    parse,
    print_json,
)
from bighmm.cli.starting import (
    check_folder,
    check_of_family,
    given_settings,
    new_folder,
    recipe_name,
    run_to_resume,
    starting_point,
    with_defaults,
    with_recipe_flag,
)
from bighmm.lm.options import OPTIONS as BASELINE_OPTIONS
from bighmm.model.options import OPTIONS as PARAMETERISATION_OPTIONS
from bighmm.train.recipe import (
    QUICKSTART,
    CorpusSettings,
    InitialSettings,
    MixedSettings,
    ModelSettings,
    Recipe,
    TrainingSettings,
    options_of,
)

if TYPE_CHECKING:
    from bighmm.train.loop import Observer
    from bighmm.train.run import Watch


@dataclass(frozen=True)
class RunArguments:
    recipe: Annotated[
        Path | None,
        tyro.conf.arg(
            help="A TOML file of settings, or the name of a packaged one (`bighmm recipes` lists "
            "them). The first word of the command may be that, too."
        ),
    ] = None
    out: Annotated[
        Path | None, tyro.conf.arg(help="The run's folder; without it, a new one in runs/.")
    ] = None
    resume: Annotated[
        bool,
        tyro.conf.arg(
            help="Go on with the run in --out; without it, with the one in runs/ that has the "
            "given settings. With --epochs, to so many in all."
        ),
    ] = False
    tensorboard: Annotated[bool, tyro.conf.arg(help="Also write TensorBoard files.")] = False
    as_json: AsJson = False


LONGEST_SHOWN = 200  # characters of a text that is shown as an example
ABOUT = """Train a hidden Markov language model.

bighmm train RECIPE … trains by a recipe, of a file or of the package. Without one, states, blocks,
width, epochs, dropout, batch and averaging of an HMM that no flag sets are chosen for the size of
the text; the defaults below are those of other models.
"""
OWN = [("run", RunArguments, field(default_factory=RunArguments))]


def train_command(argv: list[str]) -> None:
    """Train a model; without any setting of it, by the packaged recipe of the quick start."""
    start = starting_point(argv)
    recipe, found = parse_recipe(with_recipe_flag(argv), "train", ABOUT, OWN, start.recipe)
    arguments: RunArguments = found.run
    given = given_settings(argv, recipe)
    check_of_family(recipe.model.family, given)
    reasons: dict[str, str] = {}
    chosen = arguments.out
    if chosen is not None and launch.is_first():
        check_folder(chosen, arguments.resume)  # before any work
    resumes = arguments.resume and start.kind != "resumed" and launch.is_first()
    if resumes and chosen is None:
        chosen = run_to_resume(recipe, given if recipe_name(argv) is None else None)
        again = ["--resume", "--out", str(chosen), *with_recipe_flag(argv)]
        recipe, _ = parse_recipe(again, "train", ABOUT, OWN, starting_point(again).recipe)
    elif start.kind == "open" and not resumes:
        filled, sentence = with_defaults(recipe, given)
        recipe, reasons = filled.recipe, filled.reasons
        if sentence is not None and launch.is_first():
            say(sentence)
    elif start.kind == "quickstart" and launch.is_first():
        say(f"no settings are given, so the packaged recipe {QUICKSTART} is used")
    elif start.kind == "grown" and launch.is_first():
        say(f"what is not given is as in {recipe.initial.init_from}")
    if chosen is None and not launch.is_first():
        chosen = Path("runs")  # which only the first process writes to
    with nullcontext(chosen) if chosen is not None else new_folder(recipe) as run:
        resuming = arguments.resume
        if launch.is_first():
            resuming = check_folder(run, arguments.resume)
        again_with = f"bighmm train --resume --out {run}"
        result = train_in_terminal(
            run, recipe, resuming, again_with, arguments.tensorboard, reasons
        )
    if not launch.is_first():
        return
    if arguments.as_json:
        print_json(result)
    else:
        _show(run, result, is_hmm=recipe.model.family == "hmm")


def train_arguments() -> list[type]:
    """Dataclasses of all flags that the command may have, which depend on the model."""
    return all_arguments(ABOUT, OWN, Recipe())


def train_in_terminal(
    run: Path,
    recipe: Recipe,
    resuming: bool,
    again: str,
    tensorboard: bool = False,
    reasons: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Train in the folder `run`, or resume there, and show the progress.

    reasons: of settings that were chosen, to be stored with the recipe.

    On Ctrl-C the run is saved and the program ends with a message that names the command `again`.
    """
    from bighmm.train.run import train_run

    keep_memory(recipe.training.device)
    with stopped_with(again), stoppable_watch(run, tensorboard) as (watch, should_stop):
        return train_run(
            run, recipe, resume=resuming, watch=watch, should_stop=should_stop, reasons=reasons
        )


@contextmanager
def stoppable_watch(
    run: Path, tensorboard: bool = False
) -> Iterator[tuple[Watch, Callable[[], bool]]]:
    """Callbacks that display the training of a run, and whether it should save and stop.

    Before its first step a run has nothing to save, so a Ctrl-C then, as in clustering, ends it at
    once; unless there are several processes, which stop together.
    """
    shown = terminal_watch(run, tensorboard)
    if launch.asked_for():
        with stop_signals() as should_stop:
            yield shown, should_stop
        return
    asked: list[Callable[[], bool]] = []

    @contextmanager
    def training() -> Iterator[Observer]:
        with stop_signals() as should_stop, shown.training() as observer:
            asked.append(should_stop)
            yield observer

    watch = dataclasses.replace(shown, training=training)
    yield watch, lambda: any(should_stop() for should_stop in asked)


def terminal_watch(run: Path, tensorboard: bool = False) -> Watch:
    """Callbacks that display the training of the run in this folder."""
    from bighmm.cli.progress import TrainingDisplay, clustering_progress
    from bighmm.train.run import Watch
    from bighmm.train.tensorboard import with_tensorboard

    @contextmanager
    def training() -> Iterator[Observer]:
        with TrainingDisplay() as display:
            yield with_tensorboard(display, run) if tensorboard else display

    return Watch(clustering_progress, training, say)


@contextmanager
def stopped_with(again: str) -> Iterator[None]:
    """End the program once training has stopped, with a message that names the command `again`."""
    from bighmm.train.loop import Stopped

    try:
        yield
    except Stopped as stopped:
        if launch.is_first():
            print(f"bighmm: stopped at step {stopped.step}; go on with: {again}", file=sys.stderr)
        sys.exit(130)


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether the run should save and stop: after a first Ctrl-C or SIGTERM.

    A second one raises KeyboardInterrupt.
    """
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        say("stopping after this step; once more to stop without saving")

    before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(sentence: str) -> None:
    """A message on standard error."""
    err().print(sentence, markup=False)


def shortened(text: str) -> str:
    """A text on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN].rstrip()} …"


def parse_recipe(
    argv: list[str],
    command: str,
    about: str,
    own: list[Any],
    start: Recipe,
    without: tuple[str, ...] = (),
) -> tuple[Recipe, Any]:
    """The recipe `start` as changed by flags, and all parsed arguments.

    own: fields of the command's own, as for `make_dataclass`; they come before the recipe's.
    without: sections of the recipe that have no flags and stay as they are.
    """
    model = dataclasses.replace(
        start.model,
        family=flag_value(argv, "--family") or start.model.family,
        parameterisation=flag_value(argv, "--parameterisation") or start.model.parameterisation,
    )
    check_blocks(argv)
    options = options_of(model)
    default = start.options if type(start.options) is options else options()
    found: Any = parse(_arguments(about, own, start, default, without), argv, command)
    sections = {field.name: getattr(start, field.name) for field in dataclasses.fields(start)}
    made = {name: _plain(getattr(found, name, value)) for name, value in sections.items()}
    return Recipe(**made), found


def all_arguments(
    about: str, own: list[Any], start: Recipe, without: tuple[str, ...] = ()
) -> list[type]:
    """One dataclass of arguments for each kind of options that a model may have."""
    kinds = {*PARAMETERISATION_OPTIONS.values(), *BASELINE_OPTIONS.values()}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    return [_arguments(about, own, start, kind(), without) for kind in ordered]


def _arguments(
    about: str, own: list[Any], start: Recipe, options: Any, without: tuple[str, ...]
) -> type:
    """The dataclass of a command's arguments: its own and the sections of a recipe."""
    sections = [
        ("corpus", CorpusSettings, field(default=start.corpus)),
        ("model", ModelSettings, field(default=start.model)),
        ("options", type(options), field(default=options)),
        ("training", TrainingSettings, field(default=start.training)),
        ("initial", InitialSettings, field(default=start.initial)),
        ("mixed", MixedSettings, field(default=start.mixed)),
    ]
    flags = [
        (name, _titled(name, kind), field(default=_as(_with_switches(kind), value.default)))
        for name, kind, value in sections
        if name not in without
    ]
    made = dataclasses.make_dataclass("Arguments", [*own, *flags], frozen=True)
    made.__doc__ = about
    return made


def _titled(name: str, kind: type) -> Any:
    """The dataclass of a section, whose flags the help has under its name."""
    made = _with_switches(kind)
    return Annotated[made, tyro.conf.arg(name="parameter")] if name == "options" else made


@functools.cache
def _with_switches(kind: type) -> type:
    """The dataclass with what is on by default marked so, as its flag is --no-NAME."""
    hint = tyro.conf.arg(help_behavior_hint="(on unless this is given)")
    fields = [
        (field.name, Annotated[bool, hint], dataclasses.field(default=True))
        for field in dataclasses.fields(kind)
        if field.default is True
    ]
    if not fields:
        return kind
    extra = {"__doc__": kind.__doc__, "__module__": kind.__module__, "plain": kind}
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), frozen=True, namespace=extra
    )


def _plain(section: Any) -> Any:
    """A section of a recipe, of the dataclass that `_with_switches` was given."""
    return _as(getattr(section, "plain", type(section)), section)


def _as(kind: type, section: Any) -> Any:
    """The values of one dataclass in another with the same fields."""
    if type(section) is kind:
        return section
    return kind(**{f.name: getattr(section, f.name) for f in dataclasses.fields(section)})


def _show(run: Path, result: dict[str, Any], is_hmm: bool) -> None:
    from rich.table import Table

    from bighmm.train.yardstick import verdict_of

    console = out()
    counted = result["kneser_ney"]
    others = ["unigram", *(["Kneser-Ney"] if counted else [])]
    table = Table("held-out text", "perplexity", *others, "tokens")
    for split in ("valid", "test"):
        found = result[split]
        values = [found["perplexity"], found["unigram_perplexity"]]
        values += [counted[split]] if counted else []
        table.add_row(split, *(f"{value:.2f}" for value in values), f"{found['tokens']:,}")
    console.print(table)
    for sentence in verdict_of(run, result):
        console.print(sentence, markup=False)
    console.print("Three sentences it wrote:")
    for text in result["samples"]:
        console.print(f"  {shortened(text)}", markup=False)
    console.print("\nTry next:")
    words = result["opening_words"]
    commands = [
        f"bighmm eval {run} --check-normalised",
        f"bighmm next {run} {quote(words)}",
        f"bighmm sample {run} --n 5",
        f"echo {quote(words)} | bighmm score {run}",
    ]
    if is_hmm:
        commands.insert(3, f"bighmm tag {run} {quote(words)}")
    for command in commands:
        console.print(f"  {command}", markup=False)
