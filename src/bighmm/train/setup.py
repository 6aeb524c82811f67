"""From a recipe to the corpus, the batches and the untrained model it describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bighmm.data import brown
from bighmm.data.batches import Batches, labelled_batches, make_batches
from bighmm.data.clusters import brown_clusters
from bighmm.data.corpus import Corpus, is_prepared, open_corpus, prepare
from bighmm.data.counting import count_tokens
from bighmm.data.mixed import Text, mixed_batches
from bighmm.lm import baselines
from bighmm.lm.baselines.neural import NeuralLM
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import find_device
from bighmm.model import params
from bighmm.model.params.splitting import split_states
from bighmm.model.support import Support, SupportRequest, find_support
from bighmm.train.initial import initialise, model_to_begin_with, options_for
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


def open_more(recipe: Recipe, corpus: Corpus) -> Corpus | None:
    """The second text that a recipe asks for, in the words of the training text.

    Raises ValueError if it is prepared with another vocabulary.
    """
    more, data = recipe.mixed.more, recipe.corpus.data
    if more is None:
        return None
    if not is_prepared(more):
        return prepare(more, tokenizer=corpus.folder)
    found = open_corpus(Path(more).expanduser())
    if found.tokenizer.fingerprint() != corpus.tokenizer.fingerprint():
        raise ValueError(
            f"{more} has another vocabulary than {data}; both texts must have the same words"
        )
    return found


def batches_of(recipe: Recipe, corpus: Corpus, more: Corpus | None) -> Batches:
    """All batches of a run: of the training text, mixed with those of `more` where there is one."""
    settings, mixed = recipe.training, recipe.mixed
    if more is None:
        return training_batches(corpus, settings)
    texts = (Text(text.split("train"), text.documents("train")) for text in (corpus, more))
    return mixed_batches(
        settings.batches,
        *texts,
        end=corpus.tokenizer.end,
        batch=settings.batch,
        window=settings.window,
        seed=settings.seed,
        share=mixed.share,
        mixed_epochs=settings.epochs - mixed.real_epochs,
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
    source = model_to_begin_with(recipe, corpus)
    if source is None:
        support = make_support(recipe.model, corpus, recipe.training.seed, progress)
    else:
        support = source.params.support.with_states(recipe.model.states)
    options = options_for(recipe)
    check_room(recipe, options, support, corpus)
    lm = HMMLM(
        recipe.model.parameterisation,
        options,
        support,
        corpus.tokenizer,
        seed=recipe.training.seed,
    )
    lm.convention = recipe.training.convention
    if source is None:
        initialise(lm, recipe.initial, corpus)
    else:
        noise, seed = recipe.initial.split_noise, recipe.training.seed
        split_states(source.params, lm.params, noise, seed)
    return lm


def check_room(recipe: Recipe, options: Any, support: Support, corpus: Corpus) -> None:
    """Raises ValueError if this machine's memory cannot hold the parameters while they are trained.

    AdamW has a gradient and two averages beside each; on a GPU they are still made here first.
    """
    name, end = recipe.model.parameterisation, corpus.tokenizer.end
    found = params.shapes(name, options, support, end)
    if found is None:
        return
    number = sum(shape.numel() for shape in found.values())
    copies = 4 if find_device(recipe.training.device).type == "cpu" else 1
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 4 * copies * number > room:
        raise ValueError(
            f"a model of {recipe.model.states:,} states has {number:,} parameters, which need "
            f"{4 * copies * number / 2**30:,.0f} GiB, and this machine has {room / 2**30:,.0f} "
            "GiB; use fewer --states"
        )


def make_support(
    model: ModelSettings, corpus: Corpus, seed: int, progress: Progress | None = None
) -> Support:
    """The support that a recipe asks for; ValueError for an unknown kind."""

    def word_classes() -> np.ndarray:
        if model.paths is None:
            if model.blocks == "words":
                return np.arange(corpus.tokenizer.size)
            counts = count_tokens(corpus.split("train"), corpus.tokenizer.size)
            words_used = int(np.count_nonzero(counts))
            if model.blocks > words_used:
                raise ValueError(
                    f"the training text has {words_used:,} different words, which cannot fill "
                    f"{model.blocks:,} blocks; use fewer, or --blocks words"
                )
            return brown_clusters(corpus, model.blocks, progress).classes
        words = [corpus.tokenizer.token(i) for i in range(corpus.tokenizer.size)]
        classes = brown.read_paths(Path(model.paths), words).classes
        found = int(classes.max()) + 1
        if model.blocks not in (found, ModelSettings.blocks):
            raise ValueError(
                f"{model.paths} has {found} classes for the words of this corpus, not "
                f"{model.blocks}; leave out --blocks"
            )
        return classes

    request = SupportRequest(
        model.states, corpus.tokenizer.size, model.states_per_token, seed, word_classes
    )
    return find_support(model.support).make(request)
