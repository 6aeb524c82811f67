"""`bighmm distill-lm`: an HMM with a language model's tokens, from texts that it is asked to write.

A run has all stages in its folder, and each goes on from what is there:

    stages.json        what the finished stages before training were asked for
    samples/           texts of the language model, in shards (`distill.sampling`)
    corpus/            the same as a corpus; the last ones are valid and test
    labels/            states of the training tokens, from the language model's own vectors
    recipe.json, …     a run like that of `bighmm train`
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.table import Table

from bighmm.cli.common import AsJson, find_device, out, print_json
from bighmm.cli.progress import stages_progress
from bighmm.cli.train import flag_value, parse_recipe, train_run
from bighmm.corpus import Corpus, open_corpus
from bighmm.distill.hugging_face import HuggingFaceTeacher, find_model
from bighmm.distill.language_model import ROLE, LanguageModel
from bighmm.distill.making import LabelSettings, make_labels
from bighmm.distill.sampling import SampleSettings, corpus_of, read_samples, sample_texts
from bighmm.distill.teachers import Reading
from bighmm.files import read_json, write_json
from bighmm.learn.setup import make_support
from bighmm.params import find
from bighmm.recipe import (
    CorpusSettings,
    InitialSettings,
    ModelSettings,
    Recipe,
    TrainingSettings,
    read_recipe,
)

Texts = tyro.conf.UseAppendAction[tuple[str, ...]]
STAGES = "stages.json"


@dataclass(frozen=True)
class RunArguments:
    model: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="LM", help="A Hugging Face model's folder or name, or a .gguf file."),
    ]
    out: Annotated[Path, tyro.conf.arg(help="The run's folder; what is begun there goes on.")]
    recipe: Annotated[
        Path | None, tyro.conf.arg(help="A TOML file with settings of model and training.")
    ] = None
    as_json: AsJson = False


@dataclass(frozen=True)
class SampleArguments:
    tokens: Annotated[
        int | None,
        tyro.conf.arg(help="How many to sample. Left out: 10,000,000 on a GPU, else 50,000."),
    ] = None
    length: Annotated[int, tyro.conf.arg(help="Tokens of a text at most, with its end mark.")] = (
        SampleSettings.length
    )
    prompt: Annotated[
        Texts, tyro.conf.arg(metavar="TEXT", help="What texts come after; several in turn.")
    ] = ()
    prompts: Annotated[Path | None, tyro.conf.arg(help="A file with a prompt on each line.")] = None
    chat: Annotated[
        bool, tyro.conf.arg(help="Prompts are a user's turns, in the model's template.")
    ] = False
    temperature: float = 1.0
    top_p: Annotated[
        float, tyro.conf.arg(help="Sample from the likeliest tokens of this probability in all.")
    ] = 1.0
    at_once: Annotated[
        int | None, tyro.conf.arg(help="Texts at once. Left out: 1,024 on a GPU, else 64.")
    ] = None


@dataclass(frozen=True)
class LabelArguments:
    labelled_epochs: Annotated[
        float, tyro.conf.arg(help="How many of the epochs are trained with labels; 0: none.")
    ] = 1.0
    cluster_tokens: Annotated[
        int, tyro.conf.arg(help="Tokens to find the clusters of labels with, at most.")
    ] = 1_000_000
    layer: Annotated[
        int, tyro.conf.arg(help="Whose vectors are clustered; -1 is the last, 0 the embeddings.")
    ] = -1


def distill_lm_command(argv: list[str]) -> None:
    recipe, found = _arguments(argv)
    distillation = _Distillation(found, recipe)
    run, seconds = found.run.out, {}
    try:
        for name, stage in (("sampling", distillation.sample), ("labels", distillation.label)):
            began = time.monotonic()
            stage()
            seconds[name] = round(time.monotonic() - began, 2)
    except KeyboardInterrupt:
        print("bighmm: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    began = time.monotonic()
    resuming = (run / "recipe.json").exists()
    trained = train_run(run, distillation.recipe_for_training(), resuming, "the same command")
    seconds["training"] = round(time.monotonic() - began, 2)
    samples = read_samples(run / "samples", distillation.settings.tokens)
    language_model = {
        split: {"perplexity": samples.perplexity(*samples.splits()[split])}
        for split in ("valid", "test")
    }
    result = {
        "language_model": {"name": found.run.model, **language_model},
        **trained,
        "stage_seconds": seconds,
    }
    write_json(run / "result.json", result)
    if found.run.as_json:
        print_json(result)
    else:
        _show(result)


def _arguments(argv: list[str]) -> tuple[Recipe, Any]:
    own = [
        ("run", RunArguments),
        ("sample", SampleArguments, field(default_factory=SampleArguments)),
        ("label", LabelArguments, field(default_factory=LabelArguments)),
    ]
    about = "Sample texts from a language model and train an HMM on them, with the same tokens."
    start = _starting_point(argv)
    recipe, found = parse_recipe(argv, "distill-lm", about, own, start, ("corpus", "initial"))
    if recipe.model.family != "hmm":
        raise ValueError(f"distill-lm trains an HMM, not a model of {recipe.model.family}")
    if recipe.training.batches == "documents":
        training = dataclasses.replace(recipe.training, window=found.sample.length)
        recipe = dataclasses.replace(recipe, training=training)
    return recipe, found


def _starting_point(argv: list[str]) -> Recipe:
    """The recipe of the flag --recipe, or one that suits sampled texts and the device."""
    if file := flag_value(argv, "--recipe"):
        recipe = read_recipe(Path(file))
        if recipe.corpus != CorpusSettings() or recipe.initial != InitialSettings():
            raise ValueError(
                f"the recipe {file} has a [corpus] or [initial], and distill-lm makes both; leave "
                "them out"
            )
        return recipe
    asked = flag_value(argv, "--device") or "auto"
    on_gpu = asked.startswith("cuda") or (asked == "auto" and torch.cuda.is_available())
    return Recipe(
        model=ModelSettings(states=4096 if on_gpu else 512, support="dense", parameters="one-relu"),
        parameters=find("one-relu").options(init_scale=0.5),
        training=TrainingSettings(
            epochs=10.0 if on_gpu else 4.0,  # little text is soon known by heart
            # Texts that were cut off have no end mark and must not run on into the next.
            batches="documents",
            batch=256 if on_gpu else 32,
            state_dropout=0.0,
            beta2=0.95,
            weight_decay=0.1,
            warmup=0.05,
            final_lr=0.1,
            checks_per_epoch=1.0,
            checkpoint_at_checks=False,
        ),
    )


def _sample_settings(
    arguments: SampleArguments, recipe: Recipe, device: torch.device
) -> SampleSettings:
    on_gpu = device.type == "cuda"
    return SampleSettings(
        tokens=_or(arguments.tokens, 10_000_000 if on_gpu else 50_000),
        length=arguments.length,
        prompts=_prompts(arguments),
        chat=arguments.chat,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        at_once=_or(arguments.at_once, 1024 if on_gpu else 64),
        seed=recipe.training.seed,
    )


def _prompts(arguments: SampleArguments) -> tuple[str, ...]:
    if arguments.prompts is None:
        return arguments.prompt
    try:
        lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{arguments.prompts} is not UTF-8 text") from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError(f"{arguments.prompts} holds no prompts; it needs one on a line")
    return (*arguments.prompt, *found)


class _Distillation:
    """The stages before training, in a run's folder."""

    def __init__(self, found: Any, recipe: Recipe) -> None:
        """Raises ValueError for what is seen to be wrong before anything is done."""
        self.run: Path = found.run.out
        self.recipe, self.labelling = recipe, found.label
        self.device = find_device(recipe.training.device)
        self.settings = _sample_settings(found.sample, recipe, self.device)
        if self.settings.tokens < recipe.model.states:
            raise ValueError(
                f"{self.settings.tokens:,} tokens are too few for {recipe.model.states:,} states; "
                "sample more with --tokens, or use fewer --states"
            )
        if not 0 <= self.labelling.labelled_epochs <= recipe.training.epochs:
            raise ValueError(
                f"labelled_epochs must be from 0 to the number of epochs, "
                f"{recipe.training.epochs}, not {self.labelling.labelled_epochs}"
            )
        self.place = find_model(found.run.model, ROLE)
        begun = (self.run / "samples").is_dir()
        if not begun and self.run.exists() and (self.run.is_file() or any(self.run.iterdir())):
            raise ValueError(f"{self.run} already holds other files; choose another --out")
        self.files = self.place.hashes()

    @property
    def corpus(self) -> Corpus:
        return open_corpus(self.run / "corpus")

    @property
    def labelled_tokens(self) -> int:
        """How many tokens are trained with labels."""
        return round(self.labelling.labelled_epochs * len(self.corpus.split("train")))

    def sample(self) -> None:
        asked = {"files": self.files, **dataclasses.asdict(self.settings)}
        with self._unless_done("sampling", asked) as wanted:
            if not wanted:
                return
            lm = LanguageModel(self.place.name, self.device)
            with stages_progress() as progress:
                samples = sample_texts(
                    lm,
                    self.settings,
                    self.run / "samples",
                    lambda done, total: progress("sampling", done, total),
                )
            corpus_of(samples, lm, self.run / "corpus", asked)

    def label(self) -> None:
        if self.labelled_tokens == 0:
            return
        model, seed = self.recipe.model, self.recipe.training.seed
        asked = {
            "files": self.files,
            "layer": self.labelling.layer,
            "cluster_tokens": self.labelling.cluster_tokens,
            "seed": seed,
            **dataclasses.asdict(model),
        }
        with self._unless_done("labels", asked) as wanted:
            if not wanted:
                return
            teacher = HuggingFaceTeacher(
                self.place, layer=self.labelling.layer, fresh=False, seed=0, device=self.device
            )
            window = min(256, teacher.longest or 256)
            settings = LabelSettings(
                cluster_tokens=self.labelling.cluster_tokens,
                label_tokens=None,
                reading=Reading(window, window // 4),
                seed=seed,
            )
            with stages_progress() as progress:
                make_labels(
                    self.corpus,
                    teacher,
                    make_support(model, self.corpus, seed),
                    settings,
                    out=self.run / "labels",
                    device=self.device,
                    progress=progress,
                )

    def recipe_for_training(self) -> Recipe:
        """With the corpus and the labels that were made."""
        initial = InitialSettings()
        if labelled := self.labelled_tokens:
            initial = InitialSettings(labels=str(self.run / "labels"), labelled_tokens=labelled)
        corpus = CorpusSettings(data=str(self.run / "corpus"))
        return dataclasses.replace(self.recipe, corpus=corpus, initial=initial)

    @contextmanager
    def _unless_done(self, stage: str, asked: dict[str, Any]) -> Iterator[bool]:
        """Whether a stage is to be done, which is then noted; ValueError if it was otherwise."""
        path = self.run / STAGES
        done = read_json(path) if path.is_file() else {}
        asked = json.loads(json.dumps(asked))  # with lists for tuples, as it is read again
        if stage not in done:
            yield True
            write_json(path, {**done, stage: asked})
            return
        changed = [key for key in asked if done[stage].get(key) != asked[key]]
        if changed:
            key = changed[0]
            raise ValueError(
                f"the {stage} of the run {self.run} had another {key} "
                f"({done[stage].get(key)}, {asked[key]}); go on with the same, or choose another "
                "--out"
            )
        yield False


def _show(result: dict[str, Any]) -> None:
    console = out()
    table = Table("held-out texts", "HMM", "language model", "unigram", "tokens")
    for split in ("valid", "test"):
        found, theirs = result[split], result["language_model"][split]
        table.add_row(
            split,
            f"{found['perplexity']:.2f}",
            f"{theirs['perplexity']:.2f}",
            f"{found['unigram_perplexity']:.2f}",
            f"{found['tokens']:,}",
        )
    console.print(table)
    stages = ", ".join(f"{name} {value:,.0f} s" for name, value in result["stage_seconds"].items())
    console.print(f"perplexities; {stages}")
    console.print("Three texts that the HMM wrote:")
    for text in result["samples"]:
        console.print(f"  {text!r}", markup=False)
    run, name = result["run"], result["language_model"]["name"]
    console.print(
        f"\nTry next:\n  bighmm sample {run} --n 5\n  bighmm guide {run} {name} --must WORD",
        markup=False,
    )


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
