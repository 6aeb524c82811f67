"""An HMM with a language model's tokens, from texts that the model is asked to write.

A run has all stages in its folder, and each goes on from what is there:

    stages.json        what the finished stages before training were asked for
    samples/           texts of the language model, in shards (`distill.sampling`)
    corpus/            the same as a corpus; the last ones are valid and test
    labels/            states of the training tokens, from the language model's own vectors
    recipe.json, …     a run like any other (`learn.run`)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.files import read_json, write_json
from bighmm.data.corpus import Corpus, open_corpus
from bighmm.distill.making import LabelSettings, make_labels
from bighmm.distill.sampling import SampleSettings, corpus_of, read_samples, sample_texts
from bighmm.distill.teachers import Reading
from bighmm.interop.hugging_face import HuggingFaceTeacher, find_model
from bighmm.interop.language_model import ROLE, LanguageModel
from bighmm.lm.opening import find_device
from bighmm.train.recipe import CorpusSettings, InitialSettings, Recipe
from bighmm.train.setup import make_support

STAGES = "stages.json"
Progress = Callable[[str, int, int], None]  # stage, done, of how many


def _nobody(stage: str, done: int, total: int) -> None:
    """Who is told of the progress where nobody asks."""


@dataclass(frozen=True)
class Labelling:
    epochs: float = 1.0  # how many are trained with labels
    cluster_tokens: int = 1_000_000  # to find the clusters with, at most
    layer: int | None = None  # whose vectors are clustered; 0 is the embeddings, None the usual one


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
        """Raises ValueError for what is seen to be wrong before anything is done."""
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
        if not begun and folder.exists() and (folder.is_file() or any(folder.iterdir())):
            raise ValueError(f"{folder} already holds other files; choose another --out")

    @property
    def corpus(self) -> Corpus:
        return open_corpus(self.folder / "corpus")

    @property
    def labelled_tokens(self) -> int:
        """How many tokens are trained with labels."""
        return round(self.labelling.epochs * len(self.corpus.split("train")))

    def sample(self, progress: Progress = _nobody) -> None:
        asked = {"files": self.place.hashes(), **dataclasses.asdict(self.samples)}
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
            corpus_of(found, lm, self.folder / "corpus", asked)

    def label(self, progress: Progress = _nobody) -> None:
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
        """With the corpus and the labels that were made."""
        initial = InitialSettings()
        if labelled := self.labelled_tokens:
            initial = InitialSettings(labels=str(self.folder / "labels"), labelled_tokens=labelled)
        corpus = CorpusSettings(data=str(self.folder / "corpus"))
        return dataclasses.replace(self.recipe, corpus=corpus, initial=initial)

    def perplexities(self) -> dict[str, dict[str, float]]:
        """Of the held-out texts, by the language model that wrote them."""
        found = read_samples(self.folder / "samples", self.samples.tokens)
        splits = found.splits()
        return {
            split: {"perplexity": found.perplexity(*splits[split])} for split in ("valid", "test")
        }

    @contextmanager
    def _unless_done(self, stage: str, asked: dict[str, Any]) -> Iterator[bool]:
        """Whether a stage is to be done, which is then noted; ValueError if it was otherwise."""
        path = self.folder / STAGES
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
                f"the {stage} of the run {self.folder} had another {key} "
                f"({done[stage].get(key)}, {asked[key]}); go on with the same, or choose another "
                "--out"
            )
        yield False
