"""An HMM with a language model's tokens, from texts that the model is asked to write.

`distill_language_model` does all of it. A run has all stages in its folder, and each resumes from
what is there:

    stages.json        what the finished stages before training were asked for
    samples/           texts of the language model, in shards (`distill.sampling`)
    corpus/            the same as a corpus; the last ones are valid and test
    labels/            states of the training tokens, from the language model's own vectors
    recipe.json, …     a run like any other (`train.run`)
    result.json        the figures of the HMM and of the language model
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bighmm.base import processes
from bighmm.base.files import write_json, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import is_unused, locked_folder
from bighmm.data.corpus import Corpus, open_corpus
from bighmm.distill.hugging_face import HuggingFaceTeacher
from bighmm.distill.labelling import LabelSettings, make_labels
from bighmm.distill.sampling import corpus_of, read_samples, sample_texts
from bighmm.distill.settings import Labelling, SampleSettings, distillation_recipe
from bighmm.distill.teachers import Reading
from bighmm.interop.hugging_face import find_model
from bighmm.interop.language_model import ROLE, LanguageModel
from bighmm.lm.opening import RECIPE, find_device
from bighmm.train.recipe import CorpusSettings, InitialSettings, MixedSettings, Recipe
from bighmm.train.run import Watch, train_locked
from bighmm.train.setup import make_support

STAGES = "stages.json"
Progress = Callable[[str, int, int], None]  # stage, done, of how many


def _silent(stage: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


@dataclass(frozen=True)
class DistillationWatch:
    """Callbacks that display the stages of a distillation."""

    stage: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(_silent)
    training: Watch = field(default_factory=Watch)


def distill_language_model(
    folder: str | Path,
    language_model: str,
    recipe: Recipe | None = None,
    samples: SampleSettings | None = None,
    labelling: Labelling | None = None,
    *,
    watch: DistillationWatch | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Sample texts from a language model, label their tokens, and train an HMM on them.

    folder: the run's; what is begun there is resumed, with the same settings.
    language_model: a Hugging Face model's folder or name, or a .gguf file.
    recipe, samples: without them those that suit the device. A recipe has no corpus and no initial
        values, which are made here.

    Several processes of a launcher (`base.processes`) share the work; all must see the folder.

    Returns what is written to result.json: that of `train_run`, the perplexities of the language
    model on the held-out texts, and the seconds of each stage. Raises ValueError with one sentence
    for what cannot be done, also if another process works in the folder, and `train.loop.Stopped`
    once `should_stop` says so in training.
    """
    if recipe is None:
        recipe = distillation_recipe("cuda" if find_device("auto").type == "cuda" else "cpu")
    if samples is None:
        device = find_device(recipe.training.device).type
        samples = SampleSettings.on_device(device, seed=recipe.training.seed)
    folder, labelling = Path(folder), labelling or Labelling()
    with processes.start(find_device(recipe.training.device)) as here:
        watch = watch or DistillationWatch()
        with locked_folder(folder, say=watch.training.say) if here.first else nullcontext():
            here.from_each(None)  # the folder is there
            distillation = Distillation(folder, language_model, samples, recipe, labelling)
            here.require_alike({"request": repr((samples, recipe, labelling))})
            return _distill(distillation, language_model, watch, should_stop)


def _distill(
    distillation: Distillation,
    language_model: str,
    watch: DistillationWatch,
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    """All stages, in a folder that is locked."""
    folder, seconds = distillation.folder, {}
    for name, stage in (("sampling", distillation.sample), ("labels", distillation.label)):
        began = time.monotonic()
        with watch.stage() as progress:
            stage(progress)
        seconds[name] = round(time.monotonic() - began, 2)
    began = time.monotonic()
    here = processes.current()
    resume = here.from_first((folder / RECIPE).exists())
    recipe = distillation.recipe_for_training()
    trained = train_locked(folder, recipe, resume, watch.training, should_stop)
    seconds["training"] = round(time.monotonic() - began, 2)
    result = {
        "language_model": {"name": language_model, **distillation.perplexities()},
        **trained,
        "stage_seconds": seconds,
    }
    with here.first_does() as mine:
        if mine:
            write_json(folder / "result.json", result)
    return result


class Distillation:
    """The stages before training, in a run's folder."""

    def __init__(
        self,
        folder: Path,
        language_model: str,
        samples: SampleSettings,
        recipe: Recipe,
        labelling: Labelling,
    ) -> None:
        """Raises ValueError for mistakes that can be found before any work is done."""
        if recipe.model.family != "hmm":
            raise ValueError(f"distill-lm trains an HMM, not a model of {recipe.model.family}")
        if recipe.corpus != CorpusSettings() or recipe.initial != InitialSettings():
            raise ValueError(
                "the recipe has a [corpus] or [initial], and distill-lm makes both; leave them out"
            )
        if recipe.mixed != MixedSettings():
            raise ValueError("the recipe has a [mixed], which distill-lm has no text for")
        if recipe.training.batches == "documents":  # a row for each text
            training = dataclasses.replace(recipe.training, window=samples.window)
            recipe = dataclasses.replace(recipe, training=training)
        self.folder, self.samples = folder, samples
        self.recipe, self.labelling = recipe, labelling
        self.device = find_device(recipe.training.device)
        if samples.tokens < recipe.model.states:
            raise ValueError(
                f"{samples.tokens:,} tokens are too few for {recipe.model.states:,} states; "
                "sample more with --tokens, or use fewer --states"
            )
        if not 0 <= labelling.epochs <= recipe.training.epochs:
            raise ValueError(
                f"labelled_epochs must be from 0 to the number of epochs, "
                f"{recipe.training.epochs}, not {labelling.epochs}"
            )
        self.place = find_model(language_model, ROLE)
        begun = (folder / "samples").is_dir()
        if not begun and not is_unused(folder):
            raise ValueError(f"{folder} already holds other files; choose another --out")

    @property
    def corpus(self) -> Corpus:
        """The sampled texts, once they are there."""
        return open_corpus(self.folder / "corpus")

    @property
    def labelled_tokens(self) -> int:
        """How many tokens are trained with labels."""
        return round(self.labelling.epochs * len(self.corpus.split("train")))

    def sample(self, progress: Progress = _silent) -> None:
        """Sample the texts and make a corpus of them, unless that is done."""
        asked = {"files": self.place.hashes(), **self.samples.stored()}
        with self._unless_done("sampling", asked) as wanted:
            if not wanted:
                return
            lm = LanguageModel(self.place.name, self.device)
            found = sample_texts(
                lm,
                self.samples,
                self.folder / "samples",
                lambda done, total: progress("sampling", done, total),
            )
            with processes.current().first_does() as mine:
                if mine:
                    corpus_of(found, lm, self.folder / "corpus", asked)

    def label(self, progress: Progress = _silent) -> None:
        """Label the training tokens, unless that is done or no epoch is trained with labels."""
        if self.labelled_tokens == 0:
            return
        model, seed = self.recipe.model, self.recipe.training.seed
        asked = {
            "files": self.place.hashes(),
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
            make_labels(
                self.corpus,
                teacher,
                make_support(model, self.corpus, seed),
                settings,
                out=self.folder / "labels",
                device=self.device,
                progress=progress,
            )

    def recipe_for_training(self) -> Recipe:
        """The recipe with the corpus and the labels that were made."""
        initial = InitialSettings()
        if labelled := self.labelled_tokens:
            initial = InitialSettings(labels=str(self.folder / "labels"), labelled_tokens=labelled)
        corpus = CorpusSettings(data=str(self.folder / "corpus"))
        return dataclasses.replace(self.recipe, corpus=corpus, initial=initial)

    def perplexities(self) -> dict[str, dict[str, float]]:
        """Perplexities of the held-out texts by the language model that wrote them."""
        found = read_samples(self.folder / "samples", self.samples.tokens)
        splits = found.splits()
        return {
            split: {"perplexity": found.perplexity(*splits[split])} for split in ("valid", "test")
        }

    @contextmanager
    def _unless_done(self, stage: str, asked: dict[str, Any]) -> Iterator[bool]:
        """Context manager that tells whether a stage has to be done, and records it when it is.

        Raises ValueError if it was done with other settings.
        """
        path, here = self.folder / STAGES, processes.current()
        done = here.from_first(read_object(path) if here.first and path.is_file() else {})
        if not all(isinstance(stage, dict) for stage in done.values()):
            raise ValueError(f"{path} is damaged: it does not say what the stages were asked for")
        asked = json.loads(json.dumps(asked))  # with lists for tuples, as it is read again
        if stage not in done:
            yield True
            with here.first_does() as mine:
                if mine:
                    write_sealed(path, {**done, stage: asked})
            return
        changed = [key for key in asked if done[stage].get(key) != asked[key]]
        if changed:
            key = changed[0]
            raise ValueError(
                f"the {stage} of the run {self.folder} had another {key} "
                f"({done[stage].get(key)}, {asked[key]}); go on with the same, or choose another "
                "--out"
            )
        yield False
