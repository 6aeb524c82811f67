"""From a recipe to the corpus, the batches and the untrained model it describes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bighmm.data import brown
from bighmm.data.batches import Batches, labelled_batches, make_batches
from bighmm.data.corpus import Corpus, prepare
from bighmm.lm import baselines
from bighmm.lm.baselines.neural import NeuralLM
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.support import Blocked, Dense, PerToken, Support
from bighmm.train.initial import initialise, options_for
from bighmm.train.recipe import CorpusSettings, ModelSettings, Recipe, TrainingSettings

Progress = Callable[[int, int], None]


def open_data(settings: CorpusSettings) -> Corpus:
    return prepare(
        settings.data,
        tokenizer=settings.tokenizer,
        min_count=settings.min_count,
        max_size=settings.max_size,
        lowercase=settings.lowercase,
    )


def training_batches(
    corpus: Corpus, settings: TrainingSettings, states: np.ndarray | None = None
) -> Batches:
    """Batches of the training text; with `states`, of the first tokens, each with its own."""
    make: Callable[..., Batches] = make_batches
    if states is not None:
        make = partial(labelled_batches, states=states)
    return make(
        settings.batches,
        corpus.split("train"),
        corpus.documents("train"),
        end=corpus.tokenizer.end,
        batch=settings.batch,
        window=settings.window,
        seed=settings.seed,
    )


def new_model(recipe: Recipe, corpus: Corpus, progress: Progress | None = None) -> HMMLM | NeuralLM:
    """A model with fresh parameters; a blocked one clusters the training text first."""
    if recipe.model.family != "hmm":
        model = baselines.find(recipe.model.family).model
        assert issubclass(model, NeuralLM), "only these are trained in steps"
        return model(recipe.options, corpus.tokenizer, recipe.training.seed)
    support = make_support(recipe.model, corpus, recipe.training.seed, progress)
    lm = HMMLM(
        recipe.model.parameterisation,
        options_for(recipe),
        support,
        corpus.tokenizer,
        seed=recipe.training.seed,
    )
    initialise(lm, recipe.initial, corpus)
    return lm


def make_support(
    model: ModelSettings, corpus: Corpus, seed: int, progress: Progress | None = None
) -> Support:
    size = corpus.tokenizer.size
    if model.support == "dense":
        return Dense(model.states, size)
    if model.support == "per-token":
        return PerToken.random(size, model.states, model.states_per_token, seed)
    if model.paths is not None:
        words = [corpus.tokenizer.token(i) for i in range(size)]
        classes = brown.read_paths(Path(model.paths), words).classes
        found = int(classes.max()) + 1
        if model.blocks not in (found, ModelSettings.blocks):
            raise ValueError(
                f"{model.paths} has {found} classes for the words of this corpus, not "
                f"{model.blocks}; leave out --blocks"
            )
    else:
        classes = brown_clusters(corpus, model.blocks, progress).classes
    return Blocked.of(torch.from_numpy(classes.astype("int64")), model.states)


def brown_clusters(
    corpus: Corpus, classes: int, progress: Progress | None = None
) -> brown.Clusters:
    """Brown clusters of the training text, kept beside the corpus for the next time."""
    words = [corpus.tokenizer.token(i) for i in range(corpus.tokenizer.size)]
    train = corpus.split("train")
    kept = corpus.folder / f"brown.{classes}.paths"
    unique = len(set(words)) == len(words)
    if kept.exists() and unique:
        try:
            found = brown.read_paths(kept, words, tokens=train)
        except ValueError:  # damaged, and nothing in a cache is worth keeping then
            kept.unlink()
        else:
            return found
    clusters = brown.cluster(train, corpus.tokenizer.size, classes, progress=progress)
    if unique:
        counts = torch.bincount(torch.from_numpy(train.astype("int64")), minlength=len(words))
        brown.write_paths(kept, clusters, words, counts.tolist())
    return clusters
