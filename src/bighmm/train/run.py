"""Training in a folder, which has everything that a run was and became.

recipe.json   what was asked for, and the fingerprints of the text and of the second one, if any
log.jsonl     every step and every look at the validation text
checkpoint/   to go on from
model/        the best model so far
result.json   once it is finished: figures of the best model, times, three texts

One command at a time trains in a folder, which is locked meanwhile. It may have several processes
(`base.processes`): the first one reads and writes the folder.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base import processes
from bighmm.base.files import existing_folder, replace_folder, write_json, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import locked_folder
from bighmm.data.corpus import Corpus
from bighmm.data.mixed import rows_of
from bighmm.data.written import writers_of
from bighmm.lm import baselines
from bighmm.lm.baselines import Baseline
from bighmm.lm.calibrating import Calibrated, calibrate, check_calibrates
from bighmm.lm.cards import about_run, write_card
from bighmm.lm.evaluation import Evaluation, unigram_perplexity
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import RECIPE, find_device, open_model
from bighmm.lm.protocol import LM
from bighmm.lm.questions import sample
from bighmm.train.checkpoint import load_checkpoint
from bighmm.train.logs import read_log
from bighmm.train.loop import Observer, StepReport, Training
from bighmm.train.recipe import Recipe, differences, from_saved, located
from bighmm.train.setup import new_model, open_data, open_more
from bighmm.train.yardstick import kneser_ney_perplexities, opening_words

NOTES = ("chosen", "extended")  # of recipe.json: why settings were chosen; earlier epochs
PARTS = (RECIPE, "checkpoint", "model", "result.json")  # that another run must not find
Progress = Callable[[int, int], None]  # done, of how many


class Quiet:
    """An observer that does nothing with what it sees."""

    def stepped(self, report: StepReport) -> None: ...

    def checked(self, report: StepReport, valid: Evaluation, best: bool) -> None: ...

    def said(self, sentence: str) -> None: ...


@dataclass(frozen=True)
class Watch:
    """Context managers that display the stages of a run, and a function for messages."""

    clustering: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    training: Callable[[], AbstractContextManager[Observer]] = lambda: nullcontext(Quiet())
    say: Callable[[str], None] = lambda sentence: None


@dataclass(frozen=True)
class _Texts:
    """What a run is trained on."""

    corpus: Corpus
    more: Corpus | None

    def fingerprints(self) -> dict[str, str]:
        texts = {"corpus": self.corpus, "more": self.more}
        return {name: text.fingerprint for name, text in texts.items() if text is not None}


@dataclass(frozen=True)
class _Trained:
    lm: LM  # the best model, as it was saved
    steps: int
    seconds: float
    calibrated: Calibrated | None = None


def train_run(
    folder: str | Path,
    recipe: Recipe,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    reasons: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Train by a recipe in a folder, or resume there, and return the contents of result.json.

    A run that is resumed may have another number of epochs than before, if it has not had more: it
    goes on as one of so many epochs would from that step. It may also be calibrated or not, which
    concerns its end alone.

    reasons: of settings that were chosen, by "section.field", to be stored with the recipe.

    Raises ValueError for what cannot be done, before anything is written, `base.locks.Busy` if
    another process trains in the folder, and `train.loop.Stopped` after saving, when `should_stop`
    returns True.
    """
    folder = Path(folder)
    device = find_device(processes.local_device(recipe.training.device))
    with processes.start(device) as here:
        watch = (watch or Watch()) if here.first else Watch()
        lock = locked_folder(folder, say=watch.say) if here.first else nullcontext()
        with lock:
            return train_locked(folder, recipe, resume, watch, should_stop, reasons)


def train_locked(
    folder: Path,
    recipe: Recipe,
    resume: bool,
    watch: Watch,
    should_stop: Callable[[], bool],
    reasons: dict[str, str] | None = None,
) -> dict[str, Any]:
    """As `train_run`, in a folder that the caller has locked; by all processes."""
    began, named, recipe = time.monotonic(), recipe.corpus.data, located(recipe)
    here = processes.current()
    device = find_device(processes.local_device(recipe.training.device))
    if not here.alone and recipe.training.batch < here.count:
        raise ValueError(
            f"a batch of {recipe.training.batch} rows cannot be shared by {here.count} processes; "
            "use a larger --batch, or fewer processes"
        )
    fit = None if recipe.model.family == "hmm" else baselines.find(recipe.model.family).fit
    if fit is not None and not here.alone:
        raise ValueError(f"{recipe.model.family} is counted in seconds; use one process")
    with here.first_does() as mine:
        if mine and not resume and any((folder / name).exists() for name in PARTS):
            raise ValueError(f"{folder} already holds a run; resume it, or choose another folder")
        if mine:
            texts = _open_texts(recipe)  # the others find them in the cache
            if fit is not None and texts.more is not None:
                family = recipe.model.family
                raise ValueError(f"a model of {family} counts one text; leave out --more")
            if resume:
                _check_same_run(folder, recipe, texts)
    if not here.first:
        texts = _open_texts(recipe)
    corpus = texts.corpus
    _check_alike(recipe, texts)
    train = corpus.split("train")
    watch.say(f"{named}: {len(train):,} training tokens, {corpus.tokenizer.size:,} words")
    if corpus.manifest["source"].get("cut"):
        watch.say(f"{named} has very long lines, so its sentences are the lines")
    if texts.more is not None:
        _say_of_more(recipe, corpus, texts.more, watch)
    if fit is not None:
        trained = _count(folder, recipe, texts, fit, watch, reasons)
    else:
        with watch.clustering() as progress:
            lm = new_model(recipe, corpus, progress)
        if recipe.training.calibrate:
            check_calibrates(lm)
        lm = lm.to(device, recipe.training.matmul_dtype)
        here.copy_first_([p.data for p in lm.params.parameters()])
        trained = _train_in_steps(folder, recipe, texts, lm, resume, watch, should_stop, reasons)
    return _finish(folder, recipe, corpus, trained, began)


def _open_texts(recipe: Recipe) -> _Texts:
    corpus = open_data(recipe.corpus)
    return _Texts(corpus, open_more(recipe, corpus))


def _check_alike(recipe: Recipe, texts: _Texts) -> None:
    """Raises ValueError if another process has other code, settings or text than this one."""
    settings = {k: v for k, v in recipe.to_dict().items() if k not in ("corpus", "mixed")}
    processes.current().require_alike(
        {
            "recipe": json.dumps(settings, sort_keys=True),
            "training text": json.dumps(texts.fingerprints()),
        }
    )


def saved_recipe(folder: Path) -> tuple[Recipe, dict[str, str]]:
    """What a run was asked for, and the fingerprints of its texts; ValueError if it is damaged.

    The fingerprints are "corpus" and, where there is a second text, "more".
    """
    path = folder / RECIPE
    saved = read_object(path)
    asked = saved.pop("recipe", None)
    notes = {name: saved.pop(name) for name in NOTES if name in saved}
    known = all(isinstance(value, dict | list) for value in notes.values())
    known = known and {"corpus"} <= set(saved) <= {"corpus", "more"}
    if not known or not isinstance(asked, dict):
        raise ValueError(f"{path} is damaged: it does not say what the run was asked for")
    return from_saved(asked, f"{path} is damaged:"), saved


def _check_same_run(folder: Path, recipe: Recipe, texts: _Texts) -> None:
    """Raises ValueError if the run was started with other settings or another text.

    Where texts and their tokenizer are does not matter, as fingerprints say what they are. A new
    place is stored.
    """
    saved, fingerprints = saved_recipe(folder)
    corpus = dataclasses.replace(
        saved.corpus, data=recipe.corpus.data, tokenizer=recipe.corpus.tokenizer
    )
    ending = dataclasses.replace(saved.training, calibrate=recipe.training.calibrate)
    moved = dataclasses.replace(saved, corpus=corpus, training=ending)
    if saved.mixed.more is not None and recipe.mixed.more is not None:
        mixed = dataclasses.replace(saved.mixed, more=recipe.mixed.more)
        moved = dataclasses.replace(moved, mixed=mixed)
    longer = recipe.training.epochs != saved.training.epochs
    if longer:
        _check_epochs(folder, recipe.training.epochs)
        settings = dataclasses.replace(moved.training, epochs=recipe.training.epochs)
        moved = dataclasses.replace(moved, training=settings)
    changed = differences(located(moved), recipe)
    if changed:
        raise ValueError(
            f"the run {folder} was started with another configuration: {', '.join(changed)}; "
            "resume it with the same, or start a new run with another --out"
        )
    for name, where in (("corpus", recipe.corpus.data), ("more", recipe.mixed.more)):
        if fingerprints.get(name) != texts.fingerprints().get(name):
            raise ValueError(
                f"the run {folder} was started on another corpus than {where} is now; "
                "resume it with the same text, or start a new run with another --out"
            )
    if saved != recipe:
        found = read_object(folder / RECIPE)
        notes = {name: found[name] for name in NOTES if name in found}
        if longer:
            step = _steps_done(folder)
            change = {"step": step, "epochs": saved.training.epochs}
            notes["extended"] = [*notes.get("extended", []), change]
        _begin(folder, recipe, texts, notes)


def _steps_done(folder: Path) -> int:
    """The step that a run goes on from."""
    if existing_folder(folder / "checkpoint") is None:
        return 0
    return int(load_checkpoint(folder)[0].state["step"])


def _check_epochs(folder: Path, epochs: float) -> None:
    """Raises ValueError if a run has already had more epochs than it is asked for now."""
    done = read_log(folder).epochs_at(_steps_done(folder))
    if epochs < done:
        raise ValueError(
            f"the run {folder} has already had {done:.4g} epochs; give --epochs as the number in "
            f"all, more than that, not {epochs:g}"
        )


def _say_of_more(recipe: Recipe, corpus: Corpus, more: Corpus, watch: Watch) -> None:
    """Tell how much is from the second text, and if its writer has learned from another one."""
    rows, tokens = rows_of(recipe.training.batch, recipe.mixed.share), len(more.split("train"))
    watch.say(
        f"{recipe.mixed.more}: {tokens:,} more tokens, {rows} of {recipe.training.batch} rows of "
        "every batch"
    )
    for writer in writers_of(more):
        if writer.trained_on not in (None, corpus.fingerprint):
            watch.say(
                f"{writer.name}, which wrote it, was trained on another text than "
                f"{recipe.corpus.data}"
            )


def _train_in_steps(
    folder: Path,
    recipe: Recipe,
    texts: _Texts,
    lm: Any,
    resume: bool,
    watch: Watch,
    should_stop: Callable[[], bool],
    reasons: dict[str, str] | None,
) -> _Trained:
    states = f"{recipe.model.states:,} states" if isinstance(lm, HMMLM) else recipe.model.family
    with watch.training() as observer:
        training = Training(recipe, texts.corpus, lm, folder, observer, texts.more)
        watch.say(f"{states}, {lm.num_parameters:,} parameters, {lm.device}; run: {folder}")
        here = processes.current()
        begun = resume and existing_folder(folder / "checkpoint") is not None
        begun = here.from_first(begun)
        if not resume and here.first:
            _begin(folder, recipe, texts, {"chosen": reasons} if reasons else {})
        elif begun:
            training.resume()
            observer.said(f"resumed at step {training.step} of {training.total_steps}")
        training.run(should_stop)
        if here.from_first(existing_folder(folder / "model") is None):
            observer.said("the best model was removed; the last one takes its place")
            with training.runner.evaluated():
                training.save_model()
    best = lm
    with here.first_does() as mine:
        if mine:
            best = open_model(folder).to(lm.device, recipe.training.matmul_dtype)
    here.copy_first_([p.data for p in best.params.parameters()])
    best.clear_cache()
    found = _calibrate(folder, best, texts.corpus, watch) if recipe.training.calibrate else None
    return _Trained(best, training.step, training.seconds, found)


def _calibrate(folder: Path, lm: HMMLM, corpus: Corpus, watch: Watch) -> Calibrated:
    """Calibrate the best model on the validation text, and save it so."""
    found = calibrate(lm, corpus)

    def fill(new: Path) -> None:
        lm.save_pretrained(new)

    with processes.current().first_does() as mine:
        if mine:
            replace_folder(folder / "model", fill, keep_previous=False)
    watch.say(f"calibrated: {found.sentence}")
    return found


def _count(
    folder: Path,
    recipe: Recipe,
    texts: _Texts,
    fit: Callable[[Any, Corpus], Baseline],
    watch: Watch,
    reasons: dict[str, str] | None,
) -> _Trained:
    """A model that is counted, not trained in steps; it takes seconds, so nothing is resumed."""
    began = time.monotonic()
    lm = fit(recipe.options, texts.corpus)
    seconds = time.monotonic() - began
    _begin(folder, recipe, texts, {"chosen": reasons} if reasons else {})
    replace_folder(folder / "model", lm.save_pretrained, keep_previous=False)
    watch.say(f"{recipe.model.family}, {lm.num_parameters:,} parameters; run: {folder}")
    return _Trained(lm, 0, seconds)


def _begin(folder: Path, recipe: Recipe, texts: _Texts, notes: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / RECIPE, {"recipe": recipe.to_dict(), **texts.fingerprints(), **notes})


def _finish(
    folder: Path, recipe: Recipe, corpus: Corpus, trained: _Trained, began: float
) -> dict[str, Any]:
    """Evaluate the best model on held-out text and write it all down."""
    lm, here = trained.lm, processes.current()
    figures = {}
    counted = kneser_ney_perplexities(corpus) if trained.steps and here.first else None
    for split in ("valid", "test"):
        found = dataclasses.asdict(lm.perplexity(corpus, split=split))
        found["unigram_perplexity"] = unigram_perplexity(
            corpus.split("train"), corpus.split(split), corpus.tokenizer.size
        )
        figures[split] = found
    result = {
        "run": str(folder),
        "recipe": recipe.to_dict(),
        "num_parameters": lm.num_parameters,
        "steps": trained.steps,
        "seconds": round(trained.seconds, 2),
        "device": str(lm.device),
        **figures,
        "kneser_ney": counted,
        "opening_words": opening_words(corpus),
        "samples": [drawn.text for drawn in sample(lm, 3, seed=recipe.training.seed)],
    }
    if trained.calibrated is not None:
        result["calibration"] = dataclasses.asdict(trained.calibrated)
    result["wall_seconds"] = round(time.monotonic() - began, 2)  # since the run was last started
    if not here.alone:
        result["processes"] = here.count
    with here.first_does() as mine:
        if mine:
            if (model := existing_folder(folder / "model")) is not None:
                write_card(model, about_run(lm, result, len(corpus.split("train"))))
            write_json(folder / "result.json", result)  # the last: a run that has it is finished
    return result
