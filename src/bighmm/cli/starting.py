"""Which recipe and which folder the words of a `bighmm train` command mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bighmm.base import launch
from bighmm.base.locks import check_free, is_unused
from bighmm.cli.common import flag_value
from bighmm.lm.opening import RECIPE
from bighmm.train.recipe import (
    QUICKSTART,
    ModelSettings,
    Recipe,
    find_recipe,
    located,
    packaged_recipes,
)

if TYPE_CHECKING:
    from bighmm.train.defaults import Chosen

RUNS = Path("runs")  # where folders are made for runs that name none
CHANGEABLE = {"epochs", "device"}  # settings that a run may be resumed with other values of
NOT_OF_HMMS = {"family"}  # fields of a model's settings that baselines have, too


@dataclass(frozen=True)
class Start:
    """Where a command begins, before its flags change the recipe."""

    recipe: Recipe
    kind: Literal["recipe", "quickstart", "resumed", "grown", "open"]


def starting_point(argv: list[str]) -> Start:
    """The recipe that flags change: a named one, that of a run, or one whose settings are open.

    Raises ValueError where there is no such recipe or run.
    """
    name, before = recipe_name(argv), flag_value(argv, "--init-from")
    if "--resume" in argv:
        folder = flag_value(argv, "--out")
        if folder and (Path(folder) / RECIPE).exists():
            return Start(_saved(Path(folder)), "resumed")
    if name is not None:
        return Start(_named(name), "recipe")
    if before is not None:
        return Start(_recipe_of(before), "grown")
    if has_no_settings(argv):
        return Start(find_recipe(QUICKSTART), "quickstart")
    return Start(_open_recipe(argv), "open")


def recipe_name(argv: list[str]) -> str | None:
    """The recipe that is named, by the first word or by --recipe."""
    first = argv[0] if argv and not argv[0].startswith("-") else None
    flag = flag_value(argv, "--recipe")
    if first is not None and flag is not None:
        raise ValueError(f"two recipes are named, {first} and {flag}; give one")
    return flag if first is None else first


def with_recipe_flag(argv: list[str]) -> list[str]:
    """The words of a command, with a recipe that is the first of them as a flag."""
    named = bool(argv) and not argv[0].startswith("-")
    return ["--recipe", argv[0], *argv[1:]] if named else argv


def has_no_settings(argv: list[str]) -> bool:
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


def given_settings(argv: list[str], recipe: Recipe) -> set[str]:
    """The names of the fields of a recipe that have flags in a command."""
    flags = {word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--")}
    names = {key for section in recipe.to_dict().values() for key in section}
    forms = {name: name.replace("_", "-") for name in names}
    return {name for name, form in forms.items() if {f"--{form}", f"--no-{form}"} & flags}


def check_of_family(family: str, given: set[str]) -> None:
    """Raises ValueError for a flag about states where the model has none."""
    if family == "hmm":
        return
    names = [field.name for field in dataclasses.fields(ModelSettings)]
    for name in names:
        if name in given - NOT_OF_HMMS:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is for an HMM, and not for {family}; leave it out")


def with_defaults(recipe: Recipe, given: set[str]) -> tuple[Chosen, str | None]:
    """The recipe with what is not given chosen for its text, and a sentence about that."""
    from bighmm.data.counting import count_tokens
    from bighmm.lm.opening import find_device
    from bighmm.train.defaults import Chosen, TextSize, choose
    from bighmm.train.setup import open_data

    if recipe.model.family != "hmm":
        return Chosen(recipe, {}), None
    device = find_device(recipe.training.device).type
    corpus = open_data(recipe.corpus)
    train = corpus.split("train")
    used = int((count_tokens(train, corpus.tokenizer.size) > 0).sum())
    size = TextSize(len(train), corpus.tokenizer.size, used)
    chosen = choose(recipe, given, size, device)
    return chosen, chosen.summary(size) if chosen.reasons else None


def run_to_resume(recipe: Recipe, given: set[str] | None) -> Path:
    """The folder in runs/ of the one run that has the given settings of a recipe.

    given: names of the fields that have flags; None where the whole recipe was named. How long and
        where a run is trained may change.

    Raises ValueError if there is none, or several.
    """
    asked = _comparable(recipe, given)
    found = []
    for path in sorted(RUNS.glob(f"*/{RECIPE}")):
        with suppress(ValueError):  # a damaged one is not meant
            if _comparable(_saved(path.parent), given) == asked:
                found.append(path.parent)
    unfinished = [run for run in found if not (run / "result.json").exists()]
    for runs in (unfinished, found):
        if len(runs) == 1:
            return runs[0]
    what = "of these settings " if asked else ""
    if not found:
        raise ValueError(f"there is no run {what}in {RUNS}/; say which to resume with --out RUN")
    names = ", ".join(str(run) for run in unfinished or found)
    raise ValueError(f"several runs {what}could be resumed: {names}; say which with --out RUN")


@contextmanager
def new_folder(recipe: Recipe) -> Iterator[Path]:
    """A new folder in runs/, which no other process gets; removed at the end if it is empty."""
    what = recipe.model.states if recipe.model.family == "hmm" else recipe.model.family
    name = f"{Path(recipe.corpus.data).name or 'corpus'}-{what}"
    folder, number = RUNS / name, 2
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            folder, number = RUNS / f"{name}-{number}", number + 1
    try:
        yield folder
    finally:
        with suppress(OSError):  # it holds a run
            folder.rmdir()
            folder.parent.rmdir()


def check_folder(run: Path, resume: bool) -> bool:
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


def _open_recipe(argv: list[str]) -> Recipe:
    """The default recipe, with states and blocks of which any that is given can take the place."""
    states, blocks = flag_value(argv, "--states"), flag_value(argv, "--blocks")
    if states is not None and blocks is None:
        return Recipe(model=ModelSettings(blocks=1))
    if states is None and blocks is not None and blocks.isdecimal() and int(blocks) > 0:
        return Recipe(model=ModelSettings(states=int(blocks), blocks=int(blocks)))
    return Recipe()


def _named(name: str) -> Recipe:
    """The recipe of this name; the sentence about a text that is none says what was meant."""
    is_text = Path(name).is_dir() or (Path(name).is_file() and Path(name).suffix != ".toml")
    if is_text and name not in packaged_recipes():
        try:
            return find_recipe(name)
        except ValueError as error:
            raise ValueError(
                f"{name} is no recipe; to train on it type bighmm train --data {name} ({error})"
            ) from None
    return find_recipe(name)


def _saved(folder: Path) -> Recipe:
    from bighmm.train.run import saved_recipe

    return saved_recipe(folder)[0]


def _recipe_of(before: str) -> Recipe:
    """The recipe of the run that a model begins with; of a model alone, its own settings."""
    folder = Path(before).expanduser()
    if (folder / RECIPE).exists():
        saved = _saved(folder)
        return dataclasses.replace(saved, initial=type(saved.initial)())
    from bighmm.lm.opening import open_hmm

    lm = open_hmm(before, "states that another HMM could begin with")
    support = lm.params.support
    model: dict[str, Any] = {
        "states": support.num_states,
        "support": support.kind,
        "parameterisation": lm.parameterisation,
    }
    if support.partition is not None:
        model["blocks"] = support.partition.num_blocks
    return Recipe(model=ModelSettings(**model), options=lm.options)


def _comparable(recipe: Recipe, given: set[str] | None) -> dict[tuple[str, str], Any]:
    """The given settings, or all, by section and name, but for how long and where it is trained."""
    return {
        (section, name): value
        for section, values in located(recipe).to_dict().items()
        for name, value in values.items()
        if name not in CHANGEABLE and (given is None or name in given)
    }
