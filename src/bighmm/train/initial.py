"""What parameters begin with: a pretrained transformer, centroids of labels, a head's weights."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor, nn

from bighmm.data.corpus import Corpus
from bighmm.data.labels import open_labels
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_hmm
from bighmm.model.networks import load_pretrained
from bighmm.train.recipe import InitialSettings, Recipe


def options_for(recipe: Recipe) -> Any:
    """The recipe's parameter options, with the sizes of the transformer it begins with."""
    options, path = recipe.options, recipe.initial.pretrained
    if path is None:
        return options
    if getattr(options, "network", None) != "transformer":
        raise ValueError(
            f"the pretrained model {path} is for a transformer over the states; use "
            "--parameterisation monolithic-transformer"
        )
    config = load_pretrained(path).config
    return dataclasses.replace(
        options,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        backbone=json.dumps(dataclasses.asdict(config)),
    )


def model_to_begin_with(recipe: Recipe, corpus: Corpus) -> HMMLM | None:
    """The model of `init_from`, whose words, blocks and options a recipe shares; None without one.

    Raises ValueError for one that does not fit.
    """
    path = recipe.initial.init_from
    if path is None:
        return None
    lm = open_hmm(path, "states that another HMM could begin with")
    if lm.tokenizer.fingerprint() != corpus.tokenizer.fingerprint():
        raise ValueError(
            f"{path} has another vocabulary than {recipe.corpus.data}; a model begins with one of "
            "the same words"
        )
    support, model = lm.params.support, recipe.model
    blocks = None if support.partition is None else support.partition.num_blocks
    if model.support != support.kind:
        raise ValueError(f"{path} has a {support.kind} support, not a {model.support} one")
    asked = corpus.tokenizer.size if model.blocks == "words" else model.blocks
    if blocks is not None and blocks != asked:
        raise ValueError(f"{path} has {blocks:,} blocks, which are kept; use --blocks {blocks}")
    if model.parameterisation != lm.parameterisation:
        raise ValueError(
            f"{path} is a model of {lm.parameterisation} parameters, not of "
            f"{model.parameterisation}"
        )
    return lm


def initialise(lm: HMMLM, initial: InitialSettings, corpus: Corpus) -> None:
    """Put what `initial` names into a fresh model; ValueError where it does not fit."""
    with torch.no_grad():
        if initial.pretrained is not None:
            _fill_transformers(lm, initial.pretrained)
        if initial.centroids and initial.labels is not None:
            labels = open_labels(initial.labels, corpus)
            labels.check_states(lm.params.support.label_key())
            _fill_states(lm, labels.centroids()["centroids"], initial.labels)
        if initial.head is not None:
            _fill_words(lm, initial.head)


def embeddings_to_freeze(lm: HMMLM) -> list[nn.Parameter]:
    """Of states and words; ValueError if the model has none."""
    found = lm.params.embeddings()
    if not found:
        raise ValueError(
            "frozen_tokens freezes embeddings, and a model of "
            f"{lm.parameterisation} parameters has none"
        )
    return found


def _fill_transformers(lm: HMMLM, path: str) -> None:
    weights = load_pretrained(path).backbone.state_dict()
    for backbone in lm.params.backbones():
        backbone.load_state_dict(weights)


def _fill_states(lm: HMMLM, centroids: Tensor, source: str) -> None:
    tables = lm.params.state_embeddings()
    if not tables:
        raise ValueError(f"centroids of {source} need states with embeddings of their own")
    for table in tables:
        _put(centroids, table, f"the centroids of {source}", "states")


def _fill_words(lm: HMMLM, path: str) -> None:
    words = lm.params.word_embedding()
    if words is None:
        raise ValueError(f"the head of {path} needs a model whose words have embeddings")
    _put(load_pretrained(path).head, words, f"the head of {path}", "words")


def _put(source: Tensor, target: Tensor, name: str, rows: str) -> None:
    """`source` in place of `target`, with the mean and the spread that `target` has."""
    if source.shape != target.shape:
        raise ValueError(
            f"{name} has {source.shape[0]:,} {rows} of width {source.shape[1]}, and the model has "
            f"{target.shape[0]:,} of width {target.shape[1]}"
        )
    source = source.to(target)
    spread = source.std().clamp(min=1e-12)
    target.copy_((source - source.mean()) / spread * target.std() + target.mean())
