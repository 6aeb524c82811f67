"""`bighmm train`: from a recipe to a trained model."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bighmm.base import launch
from bighmm.base.locks import check_free, is_unused
from bighmm.cli.common import AsJson, check_blocks, err, flag_value, out, parse, print_json
from bighmm.lm.opening import RECIPE
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
    find_recipe,
    options_of,
)

if TYPE_CHECKING:
    from bighmm.train.loop import Observer
    from bighmm.train.run import Watch


@dataclass(frozen=True)
class RunArguments:
    recipe: Annotated[
        Path | None,
        tyro.conf.arg(help="A TOML file of settings, or the name of a packaged one: quickstart, …"),
    ] = None
    out: Annotated[
        Path | None, tyro.conf.arg(help="The run's folder; without it, a new one in runs/.")
    ] = None
    resume: Annotated[bool, tyro.conf.arg(help="Go on with the run in --out.")] = False
    tensorboard: Annotated[bool, tyro.conf.arg(help="Also write TensorBoard files.")] = False
    as_json: AsJson = False


ABOUT = "Train a hidden Markov language model."
OWN = [("run", RunArguments, field(default_factory=RunArguments))]


def train_command(argv: list[str]) -> None:
    """Train a model; without any setting of it, by the packaged recipe of the quick start."""
    recipe, found = parse_recipe(argv, "train", ABOUT, OWN, _starting_point(argv))
    arguments: RunArguments = found.run
    if _has_no_settings(argv) and launch.is_first():
        say = f"no settings are given, so the packaged recipe {QUICKSTART} is used"
        err().print(say, markup=False)
    chosen = arguments.out
    if chosen is None and not launch.is_first():
        chosen = Path("runs")  # which only the first process writes to
    with nullcontext(chosen) if chosen is not None else _new_folder(recipe) as run:
        resuming = arguments.resume
        if launch.is_first():
            resuming = _check_folder(run, arguments.resume)
        again = f"bighmm train --resume --out {run}"
        result = train_in_terminal(run, recipe, resuming, again, arguments.tensorboard)
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
    run: Path, recipe: Recipe, resuming: bool, again: str, tensorboard: bool = False
) -> dict[str, Any]:
    """Train in the folder `run`, or resume there, and show the progress.

    On Ctrl-C the run is saved and the program ends with a message that names the command `again`.
    """
    from bighmm.train.run import train_run

    with stop_signals() as should_stop, stopped_with(again):
        watch = terminal_watch(run, tensorboard)
        return train_run(run, recipe, resume=resuming, watch=watch, should_stop=should_stop)


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
    return Recipe(**{name: getattr(found, name, value) for name, value in sections.items()}), found


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
    flags = [section for section in sections if section[0] not in without]
    made = dataclasses.make_dataclass("Arguments", [*own, *flags], frozen=True)
    made.__doc__ = about
    return made


def _starting_point(argv: list[str]) -> Recipe:
    """The recipe that flags change: that of --recipe, of the run to resume, or a default."""
    if name := flag_value(argv, "--recipe"):
        return find_recipe(name)
    if _has_no_settings(argv):
        return find_recipe(QUICKSTART)
    folder = flag_value(argv, "--out")
    if "--resume" in argv and folder and (Path(folder) / RECIPE).exists():
        from bighmm.train.run import saved_recipe

        return saved_recipe(Path(folder))[0]
    return Recipe()


def _has_no_settings(argv: list[str]) -> bool:
    """Whether the flags say nothing about corpus, model and training but device and seed."""
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in ("--out", "--device", "--seed"):
            if not equals:
                next(words, None)  # its value
        elif word not in ("--json", "--tensorboard"):
            return False
    return True


@contextmanager
def _new_folder(recipe: Recipe) -> Iterator[Path]:
    """A new folder in runs/, which no other process gets; removed at the end if it is empty."""
    what = recipe.model.states if recipe.model.family == "hmm" else recipe.model.family
    name = f"{Path(recipe.corpus.data).name or 'corpus'}-{what}"
    folder, number = Path("runs") / name, 2
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder, number = Path("runs") / f"{name}-{number}", number + 1
    try:
        yield folder
    finally:
        with suppress(OSError):  # it holds a run
            folder.rmdir()
            folder.parent.rmdir()


def _check_folder(run: Path, resume: bool) -> bool:
    """Whether a run is resumed; ValueError if the folder holds none, or one that should not be."""
    check_free(run)  # first, as what is there is what another process has written so far
    if launch.restarted():
        return (run / RECIPE).exists()
    if resume:
        if not (run / RECIPE).exists():
            raise ValueError(f"{run} holds no run to resume; leave out --resume to start one")
        return True
    if not is_unused(run):
        raise ValueError(
            f"{run} already holds a run or other files; choose another --out, or add --resume"
        )
    return False


def _show(run: Path, result: dict[str, Any], is_hmm: bool) -> None:
    from rich.table import Table

    console = out()
    table = Table("held-out text", "perplexity", "unigram", "tokens")
    for split in ("valid", "test"):
        found = result[split]
        table.add_row(
            split,
            f"{found['perplexity']:.2f}",
            f"{found['unigram_perplexity']:.2f}",
            f"{found['tokens']:,}",
        )
    console.print(table)
    console.print("Three sentences it wrote:")
    for text in result["samples"]:
        console.print(f"  {text}", markup=False)
    console.print("\nTry next:")
    commands = [
        f"bighmm eval {run} --check-normalised",
        f'bighmm next {run} "the name of the"',
        f"bighmm sample {run} --n 5",
        f'echo "the name of the file" | bighmm score {run}',
    ]
    if is_hmm:
        commands.insert(3, f'bighmm tag {run} "the name of the file"')
    for command in commands:
        console.print(f"  {command}", markup=False)
