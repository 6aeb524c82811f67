"""`bighmm train`: from a recipe to a model, with everything saved on the way."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.table import Table

from bighmm import baselines
from bighmm.baselines import Baseline
from bighmm.cli.common import err, find_device, open_model, out, parse, print_json
from bighmm.cli.progress import TrainingDisplay, clustering_progress
from bighmm.cli.questions import sample_texts
from bighmm.corpus import Corpus
from bighmm.evaluate import unigram_perplexity
from bighmm.files import existing_folder, read_json, replace_folder, write_json
from bighmm.learn.loop import Stopped, Training
from bighmm.learn.setup import new_model, open_data
from bighmm.learn.tensorboard import with_tensorboard
from bighmm.lm import HMMLM
from bighmm.recipe import (
    CorpusSettings,
    InitialSettings,
    ModelSettings,
    Recipe,
    TrainingSettings,
    differences,
    from_dict,
    options_of,
    read_recipe,
)


@dataclass(frozen=True)
class RunArguments:
    recipe: Annotated[Path | None, tyro.conf.arg(help="A TOML file of settings.")] = None
    out: Annotated[
        Path | None, tyro.conf.arg(help="The run's folder; without it, a new one in runs/.")
    ] = None
    resume: Annotated[bool, tyro.conf.arg(help="Go on with the run in --out.")] = False
    tensorboard: Annotated[bool, tyro.conf.arg(help="Also write TensorBoard files.")] = False
    as_json: Annotated[
        bool, tyro.conf.arg(name="json", help="One JSON object on standard output.")
    ] = False


def train_command(argv: list[str]) -> None:
    own = [("run", RunArguments, field(default_factory=RunArguments))]
    about = "Train a hidden Markov language model."
    recipe, found = parse_recipe(argv, "train", about, own, _starting_point(argv))
    arguments: RunArguments = found.run
    run = arguments.out if arguments.out is not None else _new_folder(recipe)
    resuming = _check_folder(run, arguments.resume)
    again = f"bighmm train --resume --out {run}"
    result = train_run(run, recipe, resuming, again, arguments.tensorboard)
    if arguments.as_json:
        print_json(result)
    else:
        _show(run, result, is_hmm=recipe.model.family == "hmm")


def train_run(
    run: Path, recipe: Recipe, resuming: bool, again: str, tensorboard: bool = False
) -> dict[str, Any]:
    """Train what a recipe describes in the folder `run`, or go on; what is in RUN/result.json.

    On Ctrl-C the run is saved and the program ends, having said that the command `again` goes on.
    """
    began = time.monotonic()
    device = find_device(recipe.training.device)
    corpus = open_data(recipe.corpus)
    if resuming:
        _check_same_run(run, recipe, corpus)
    train = corpus.split("train")
    err().print(
        f"{recipe.corpus.data}: {len(train):,} training tokens, {corpus.tokenizer.size:,} words",
        markup=False,
    )
    family = recipe.model.family
    fit = None if family == "hmm" else baselines.find(family).fit
    if fit is not None:
        trained = _count(run, recipe, corpus, fit)
    else:
        trained = _train_in_steps(run, recipe, corpus, device, resuming, again, tensorboard)
    return _finish(run, recipe, corpus, trained, began)


@dataclass(frozen=True)
class Trained:
    lm: HMMLM | Baseline  # the best model, as it was saved
    steps: int
    seconds: float


def _train_in_steps(
    run: Path,
    recipe: Recipe,
    corpus: Corpus,
    device: torch.device,
    resuming: bool,
    again: str,
    tensorboard: bool,
) -> Trained:
    with clustering_progress() as progress:
        lm = new_model(recipe, corpus, progress).to(device, recipe.training.operands)
    if not resuming:
        _begin(run, recipe, corpus)
    states = f"{recipe.model.states:,} states" if isinstance(lm, HMMLM) else recipe.model.family
    err().print(f"{states}, {lm.size:,} parameters, {device}; run: {run}", markup=False)
    with TrainingDisplay() as display:
        observer = with_tensorboard(display, run) if tensorboard else display
        training = Training(recipe, corpus, lm, run, observer)
        if resuming and existing_folder(run / "checkpoint") is not None:
            training.resume()
            display.said(f"resumed at step {training.step} of {training.total_steps}")
        with _stop_signals(display.said) as should_stop:
            try:
                training.run(should_stop)
            except Stopped:
                _say_how_to_resume(again, training.step)
    folder = existing_folder(run / "model")
    assert folder is not None, "a finished run has saved its best model"
    best = open_model(folder).to(device, recipe.training.operands)
    return Trained(best, training.step, training.seconds)


def _count(
    run: Path, recipe: Recipe, corpus: Corpus, fit: Callable[[Any, Corpus], Baseline]
) -> Trained:
    """A model that is counted, not trained in steps; it takes seconds, so nothing is resumed."""
    began = time.monotonic()
    lm = fit(recipe.parameters, corpus)
    seconds = time.monotonic() - began
    _begin(run, recipe, corpus)
    replace_folder(run / "model", lm.save_pretrained, keep_previous=False)
    err().print(f"{recipe.model.family}, {lm.size:,} parameters; run: {run}", markup=False)
    return Trained(lm, 0, seconds)


def _begin(run: Path, recipe: Recipe, corpus: Corpus) -> None:
    run.mkdir(parents=True, exist_ok=True)
    described = {"recipe": recipe.to_dict(), "corpus": corpus.fingerprint}
    write_json(run / "recipe.json", described)


def parse_recipe(
    argv: list[str],
    command: str,
    about: str,
    own: list[Any],
    start: Recipe,
    without: tuple[str, ...] = (),
) -> tuple[Recipe, Any]:
    """The recipe that flags make of `start`, and all arguments that were found.

    own: fields of the command's own, as for `make_dataclass`; they come before the recipe's.
    without: sections of the recipe that have no flags and stay as they are.
    """
    chosen = dataclasses.replace(
        start.model,
        family=flag_value(argv, "--family") or start.model.family,
        parameters=flag_value(argv, "--parameters") or start.model.parameters,
    )
    options = options_of(chosen)
    default_options = start.parameters if type(start.parameters) is options else options()
    sections = [
        ("corpus", CorpusSettings, field(default=start.corpus)),
        ("model", ModelSettings, field(default=start.model)),
        ("parameters", options, field(default=default_options)),
        ("training", TrainingSettings, field(default=start.training)),
        ("initial", InitialSettings, field(default=start.initial)),
    ]
    flags = [section for section in sections if section[0] not in without]
    everything = dataclasses.make_dataclass("Arguments", [*own, *flags], frozen=True)
    everything.__doc__ = about
    found: Any = parse(everything, argv, command)
    made = {name: getattr(found, name, getattr(start, name)) for name, _, _ in sections}
    return Recipe(**made), found


def _starting_point(argv: list[str]) -> Recipe:
    """Its file stands for a recipe, and a run to resume for its own."""
    if file := flag_value(argv, "--recipe"):
        return read_recipe(Path(file))
    folder = flag_value(argv, "--out")
    if "--resume" in argv and folder and (Path(folder) / "recipe.json").exists():
        saved = Path(folder) / "recipe.json"
        return from_dict(read_json(saved)["recipe"], str(saved))
    return Recipe()


def flag_value(argv: list[str], name: str) -> str | None:
    """The value of a flag that decides what the other flags are."""
    for i, word in enumerate(argv):
        if word == name and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _new_folder(recipe: Recipe) -> Path:
    what = recipe.model.states if recipe.model.family == "hmm" else recipe.model.family
    name = f"{Path(recipe.corpus.data).name or 'corpus'}-{what}"
    folder, number = Path("runs") / name, 2
    while folder.exists():
        folder, number = Path("runs") / f"{name}-{number}", number + 1
    return folder


def _check_folder(run: Path, resume: bool) -> bool:
    """Whether there is a run to go on with; ValueError where the folder and the wish differ."""
    if resume:
        if not (run / "recipe.json").exists():
            raise ValueError(f"{run} holds no run to resume; leave out --resume to start one")
        return True
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ValueError(
            f"{run} already holds a run or other files; choose another --out, or add --resume"
        )
    return False


def _check_same_run(run: Path, recipe: Recipe, corpus: Corpus) -> None:
    saved = read_json(run / "recipe.json")
    changed = differences(from_dict(saved["recipe"], str(run / "recipe.json")), recipe)
    if changed:
        raise ValueError(
            f"the run {run} was started with another configuration: {', '.join(changed)}; "
            "resume it with the same, or start a new run with another --out"
        )
    if saved["corpus"] != corpus.fingerprint:
        raise ValueError(
            f"the run {run} was started on another corpus than {recipe.corpus.data} is now; "
            "resume it with the same text, or start a new run with another --out"
        )


@contextmanager
def _stop_signals(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM) asks the run to save and stop, a second one insists."""
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


def _say_how_to_resume(again: str, step: int) -> None:
    print(f"bighmm: stopped at step {step}; go on with: {again}", file=sys.stderr)
    sys.exit(130)


def _finish(
    run: Path, recipe: Recipe, corpus: Corpus, trained: Trained, began: float
) -> dict[str, Any]:
    """Evaluate the best model on held-out text and write it all to RUN/result.json."""
    lm = trained.lm
    figures = {}
    for split in ("valid", "test"):
        found = dataclasses.asdict(lm.perplexity(corpus, split=split))
        found["unigram_perplexity"] = unigram_perplexity(
            corpus.split("train"), corpus.split(split), corpus.tokenizer.size
        )
        figures[split] = found
    result = {
        "run": str(run),
        "recipe": recipe.to_dict(),
        "parameters": lm.size,
        "steps": trained.steps,
        "seconds": round(trained.seconds, 2),
        "device": str(lm.device),
        **figures,
        "samples": sample_texts(lm, 3, seed=recipe.training.seed),
    }
    result["wall_seconds"] = round(time.monotonic() - began, 2)  # since the run was last started
    write_json(run / "result.json", result)
    return result


def _show(run: Path, result: dict[str, Any], is_hmm: bool) -> None:
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
