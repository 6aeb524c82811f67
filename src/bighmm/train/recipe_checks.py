"""Which values of a recipe are possible, and which go together.

This module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.settings import check_at_least_one, check_range, check_seed, check_shares

if TYPE_CHECKING:
    from bighmm.train.recipe import ModelSettings, Recipe, TrainingSettings

SUPPORTS = ("blocked", "dense", "per-token")  # those that come with the package
SHARES = ("embedding_dropout", "vector_dropout", "word_dropout", "hidden_words")
DECAYS = ("weight_decay_states", "weight_decay_words", "weight_decay_networks")


def check_recipe(recipe: Recipe) -> None:
    """Raises ValueError with one sentence for a value out of range, or values that do not fit."""
    if not recipe.corpus.data:
        raise ValueError("data is empty; give pydoc, or a file or folder of text")
    _check_initial(recipe)
    _check_mixed(recipe)
    model, training = recipe.model, recipe.training
    for section, key in (
        (model, "states"),
        (model, "states_per_token"),
        (training, "batch"),
        (training, "window"),
    ):
        check_at_least_one(getattr(section, key), key)
    if model.blocks != "words" and model.blocks < 1:
        raise ValueError(f"blocks must be a number of at least 1, or words, not {model.blocks}")
    if model.support not in SUPPORTS:  # one from outside, which needs torch to be known
        from bighmm.model.support import find_support

        find_support(model.support)
    blocked = model.family == "hmm" and model.support == "blocked"
    if blocked and model.paths is None and model.blocks != "words":
        check_shares(model.states, model.blocks)
    _check_regularisation(recipe)
    for key in ("epochs", "lr", "plateau_factor", "checks_per_epoch"):
        check_range(getattr(training, key), key, above=True)
    check_range(training.lr, "lr", 0, 1e30, above=True)
    if not training.clip >= 0:
        raise ValueError(f"clip must be at least 0, not {training.clip}")
    check_seed(training.seed)
    check_at_least_one(training.plateau_patience, "plateau_patience")
    for key in ("beta1", "beta2", "averaging"):
        check_range(getattr(training, key), key, 0, 1, below=True)
    if training.rows == "touched" and (model.family != "hmm" or training.optimizer != "adamw"):
        kind = model.family if model.family != "hmm" else training.optimizer
        raise ValueError(f"rows = touched is for an HMM that AdamW trains, not for {kind}")
    if training.shard_optimizer and training.optimizer != "adamw":
        raise ValueError("shard_optimizer is for AdamW; Baum-Welch has nothing to share out")
    if training.calibrate and (model.family != "hmm" or model.parameterisation == "scalar"):
        kind = model.family if model.family != "hmm" else f"{model.parameterisation} parameters"
        raise ValueError(f"calibrate is for an HMM that is computed from vectors, not for {kind}")
    _check_baum_welch(model, training)
    check_at_least_one(getattr(recipe.options, "width", 1), "width")
    for key in ("warmup", "final_lr"):
        check_range(getattr(training, key), key, 0, 1)


def _check_regularisation(recipe: Recipe) -> None:
    """Shares, and settings that only some models have."""
    model, training = recipe.model, recipe.training
    for name in ("state_dropout", *SHARES):
        check_range(getattr(training, name), name, 0, 1, below=True)
    for name in ("weight_decay", *DECAYS):
        decay = getattr(training, name)
        if decay is not None:
            check_range(decay, name)
    used = [name for name in SHARES if getattr(training, name)]
    used += [name for name in DECAYS if getattr(training, name) is not None]
    used += ["convention = carry"] if training.convention == "carry" else []
    if used and (model.family != "hmm" or training.optimizer != "adamw"):
        kind = model.family if model.family != "hmm" else training.optimizer
        raise ValueError(f"{used[0]} is for an HMM that AdamW trains, not for {kind}")
    by_vectors = [name for name in used if name in (*SHARES[:3], *DECAYS)]
    if by_vectors and model.parameterisation == "scalar":
        raise ValueError(f"{by_vectors[0]} is for models with embeddings, not for scalar ones")
    if training.hidden_words and model.support == "dense":
        raise ValueError("hidden_words hides a word within its block, so support must be blocked")


def _check_baum_welch(model: ModelSettings, training: TrainingSettings) -> None:
    check_range(training.step_size, "step_size", 0, 1, above=True)
    check_range(training.smoothing, "smoothing")
    if training.optimizer == "adamw":
        if training.full_batch:
            raise ValueError("full_batch is for optimizer = baum-welch; AdamW trains on batches")
        return
    if model.family != "hmm" or model.parameterisation != "scalar":
        kind = model.parameterisation if model.family == "hmm" else model.family
        raise ValueError(
            f"Baum-Welch makes tables of probabilities, so it needs parameterisation = scalar, "
            f"not {kind}"
        )
    if training.averaging:
        raise ValueError(
            f"averaging is for gradient descent; for Baum-Welch set it to 0, not "
            f"{training.averaging}"
        )
    if training.state_dropout != 0:
        raise ValueError(
            f"Baum-Welch has no state dropout; set state_dropout to 0, not {training.state_dropout}"
        )


def _check_initial(recipe: Recipe) -> None:
    initial = recipe.initial
    for key in ("labelled_tokens", "frozen_tokens"):
        check_range(getattr(initial, key), key)
    if initial.centroids and initial.labels is None:
        raise ValueError("centroids are those of labels; give --labels too")
    check_range(initial.split_noise, "split_noise")
    given = initial.folders()
    if initial.init_from is not None and (initial.pretrained or initial.head or initial.centroids):
        raise ValueError(
            "init_from has all parameters already; leave out pretrained, head and centroids"
        )
    if given and recipe.model.family != "hmm":
        raise ValueError(
            f"only an HMM can begin with {given[0]}, and the model is of the family "
            f"{recipe.model.family}; leave it out, or train an hmm"
        )
    others = [path for path in given if path not in (initial.labels, initial.init_from)]
    if others and recipe.training.optimizer != "adamw":
        raise ValueError(
            f"{others[0]} goes with the optimiser adamw, not {recipe.training.optimizer}"
        )


def _check_mixed(recipe: Recipe) -> None:
    mixed, training = recipe.mixed, recipe.training
    if mixed.more is None:
        if mixed != type(mixed)():
            raise ValueError("share and real_epochs are about more text; give --more too")
        return
    check_range(mixed.share, "share", 0, 1, above=True)
    if not 0 <= mixed.real_epochs <= training.epochs:
        raise ValueError(
            f"real_epochs must be from 0 to the number of epochs, {training.epochs:g}, not "
            f"{mixed.real_epochs}"
        )
    if training.batch < 2 and mixed.share < 1:
        raise ValueError(
            f"a batch of {training.batch} row cannot be shared by two texts; use a larger --batch"
        )
    if training.full_batch:
        raise ValueError("full_batch reads one text at every step; leave out --more")
