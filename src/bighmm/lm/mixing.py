"""Mixtures of trained HMMs, as one HMM whose states are those of all (see `params.mixture`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bighmm.data.corpus import Corpus
from bighmm.lm.evaluation import sentence_log_probs, stream_of
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.calibration import UNCALIBRATED
from bighmm.model.params.mixture import Mixture, MixtureOptions, support_of

ITERATIONS = 200
LEAST = 1e-12  # a weight is above 0, as its logarithm is a parameter


def mix(lms: Sequence[HMMLM], weights: Sequence[float] | None = None) -> HMMLM:
    """The mixture of HMMs with the same vocabulary, blocks and convention.

    weights: one above 0 for each, in any scale; without them all the same. The parameters are
    copied. Raises ValueError for models that cannot be mixed, and for wrong weights.
    """
    weights = [1.0] * len(lms) if weights is None else list(weights)
    _check(lms, weights)
    first = lms[0].params.support
    total = sum(lm.params.support.num_states for lm in lms)
    components = [
        {
            "parameterisation": lm.parameterisation,
            "options": dataclasses.asdict(lm.options),
            "states": lm.params.support.num_states,
            **_own_calibration(lm),
        }
        for lm in lms
    ]
    options = MixtureOptions(components)
    mixed = HMMLM("mixture", options, support_of(first, total), lms[0].tokenizer)
    mixed.convention = lms[0].convention
    assert isinstance(mixed.params, Mixture)
    with torch.no_grad():
        for part, lm in zip(mixed.params.parts, lms, strict=True):
            part.load_state_dict(lm.params.state_dict())
        mixed.params.weights.copy_(torch.tensor(weights, dtype=torch.float64).log())
    return mixed.to(lms[0].device, lms[0].params.matmul_dtype)


def weights_of(lm: HMMLM) -> list[float]:
    """The weights of a mixture; ValueError if it is none."""
    if not isinstance(lm.params, Mixture):
        raise ValueError("the model is not a mixture, so it has no weights")
    return lm.params.weights.detach().softmax(0).tolist()


def fitted_weights(lms: Sequence[HMMLM], corpus: Corpus, split: str = "valid") -> list[float]:
    """The weights that maximise the likelihood of a split, each sentence from one of the models.

    Expectation maximisation: the likelihood is concave in the weights, so these are the best.
    """
    columns = []
    for lm in lms:
        tokens, documents, _ = stream_of(corpus, split, lm.tokenizer.fingerprint())
        hmm = dataclasses.replace(lm.hmm(), reset=True)
        columns.append(sentence_log_probs(hmm, tokens, documents))
    return best_weights(np.stack(columns, axis=1)).tolist()


def best_weights(log_probs: np.ndarray) -> np.ndarray:
    """Weights (C,) that maximise Σ_n log Σ_c weight_c exp(log_probs[n, c]), by EM."""
    top = log_probs.max(axis=1, keepdims=True)
    probs = np.exp(log_probs - np.where(np.isfinite(top), top, 0.0))
    probs = probs[probs.sum(axis=1) > 0]  # what no model can say tells nothing
    weights = np.full(log_probs.shape[1], 1 / log_probs.shape[1])
    for _ in range(ITERATIONS if len(probs) else 0):
        shares = probs * weights
        weights = (shares / shares.sum(axis=1, keepdims=True)).mean(axis=0)
        weights = np.maximum(weights, LEAST)
    return weights


def _own_calibration(lm: HMMLM) -> dict[str, Any]:
    """The entry of a component that is calibrated; none for one that is not."""
    own = lm.params.calibration
    return {} if own == UNCALIBRATED else {"calibration": dataclasses.asdict(own)}


def _check(lms: Sequence[HMMLM], weights: Sequence[float]) -> None:
    if len(lms) < 2:
        raise ValueError("a mixture needs at least two models")
    if len(weights) != len(lms) or not all(0 < w < math.inf for w in weights):
        raise ValueError(
            f"{len(lms)} models need as many finite weights above 0, not "
            f"{', '.join(map(str, weights)) or 'none'}"
        )
    first = lms[0]
    blocks = first.params.support.partition
    for lm in lms[1:]:
        if lm.tokenizer.fingerprint() != first.tokenizer.fingerprint():
            raise ValueError("the models have different vocabularies, so they cannot be mixed")
        if lm.convention != first.convention:
            raise ValueError("the models differ in what follows an end mark: reset or carry")
        other = lm.params.support.partition
        same = (other is None) == (blocks is None)
        if same and other is not None and blocks is not None:
            mine, theirs = blocks.block_of.cpu(), other.block_of.cpu()
            same = torch.equal(mine, theirs)
        if not same:
            raise ValueError(
                "the models have their words in different blocks, so they cannot be mixed; train "
                "them with the same --blocks on the same text, or with the same --paths"
            )
