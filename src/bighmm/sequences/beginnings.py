"""What fitting begins with: random parameters, tables that were given, or some of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from bighmm.data import brown
from bighmm.hmm import HMM
from bighmm.model import params
from bighmm.model.emissions import EmissionTable
from bighmm.model.params import Parameterisation
from bighmm.model.support import Support, SupportRequest, find_support
from bighmm.model.transitions import Table
from bighmm.sequences.rows import Rows
from bighmm.sequences.settings import TABLES, Settings


def random_letters(settings: Settings) -> str:
    """Which tables Baum-Welch draws at random: all, or none if it is given an initial HMM."""
    if settings.init_params is not None:
        return settings.init_params
    return "" if settings.initial is not None else "".join(TABLES)


def first_tables(
    settings: Settings, rows: Rows, seed: int, known: HMM | Mapping[str, np.ndarray]
) -> HMM:
    """The HMM in float64 that Baum-Welch begins with.

    known: where tables that are not drawn come from, unless there is an `initial` HMM: an HMM, or
        probabilities by the letters of `TABLES`.

    Raises ValueError if a table that is to be kept is not known, or is of another size.
    """
    if settings.parameterisation != "scalar":
        raise ValueError(
            f"Baum-Welch makes tables of probabilities, so it needs parameterisation='scalar', not "
            f"{settings.parameterisation!r}; use optimizer='adamw'"
        )
    drawn = random_letters(settings)
    kept = [letter for letter in TABLES if letter not in drawn]
    if not kept:
        return finished(new_parameters(settings, rows, seed))
    base = known if settings.initial is None else settings.initial
    if isinstance(base, HMM):
        return _with_some_of(base, settings, rows, drawn, seed)
    missing = [TABLES[letter] for letter in kept if letter not in base]
    if missing:
        raise ValueError(
            f"init_params={drawn!r} keeps {missing[0]}, so set {missing[0]}_ before fitting, or "
            "give an initial HMM"
        )
    hmm = finished(new_parameters(settings, rows, seed))
    states = hmm.num_states
    shapes = {"s": (states,), "t": (states, states), "e": (states, rows.size)}
    for letter in kept:
        if base[letter].shape != shapes[letter]:
            raise ValueError(
                f"{TABLES[letter]}_ was set to a table of shape {base[letter].shape}, but "
                f"{states} states and {rows.size} symbols need {shapes[letter]}"
            )
    given = {letter: torch.as_tensor(base[letter]).double().log() for letter in kept}
    if "e" in given:
        if not hmm.support.is_dense:
            raise ValueError("emissionprob_ is for support='dense'; give an initial HMM")
        given["e"] = given["e"].T.contiguous()
    return replaced(hmm, given)


def _with_some_of(base: HMM, settings: Settings, rows: Rows, drawn: str, seed: int) -> HMM:
    """The base with the tables `drawn` at random, over the same support."""
    if (base.num_states, base.vocabulary_size) != (settings.n_states, rows.size):
        name = "model to begin with" if settings.initial is None else "initial HMM"
        raise ValueError(
            f"the {name} has {base.num_states} states and {base.vocabulary_size} "
            f"symbols, not {settings.n_states} and {rows.size}"
        )
    base = dataclasses.replace(base.to("cpu", torch.float64), end=None)
    base = replaced(base, {"t": base.transitions.log_probs()})
    if not drawn:
        return base
    found = finished(new_parameters(settings, rows, seed, base.support))
    tables = {"s": found.start, "t": found.transitions.log_probs(), "e": found.emission}
    return replaced(base, {letter: tables[letter] for letter in drawn})


def replaced(hmm: HMM, tables: Mapping[str, Tensor]) -> HMM:
    """The HMM with other log-probabilities, by the letters of `TABLES`: (Z,), (Z, Z), (V, K)."""
    parts = {
        "s": lambda table: {"start": table},
        "t": lambda table: {"transitions": Table(table)},
        "e": lambda table: {"emissions": EmissionTable(table)},
    }
    for letter, table in tables.items():
        hmm = dataclasses.replace(hmm, **parts[letter](table))
    return hmm


def new_parameters(
    settings: Settings, rows: Rows, seed: int, support: Support | None = None
) -> Parameterisation:
    """Random parameters of the parameterisation and the support that were asked for."""
    options = params.find(settings.parameterisation).options
    support = support or new_support(settings, rows, seed)
    try:
        chosen = options(**(settings.options or {}))
        return params.build(settings.parameterisation, chosen, support, None, seed)
    except TypeError:
        known = ", ".join(field.name for field in dataclasses.fields(options))
        raise ValueError(
            f"options {settings.options!r} do not fit the parameterisation "
            f"{settings.parameterisation!r}, which has {known}"
        ) from None


def new_support(settings: Settings, rows: Rows, seed: int) -> Support:
    """A support of the kind that was asked for; blocks are Brown clusters of the sequences."""

    def classes() -> np.ndarray:
        stream = np.concatenate(rows.rows)
        return brown.cluster(stream[stream < rows.size], rows.size, int(settings.n_blocks)).classes

    kind = "per-token" if settings.support == "per-symbol" else settings.support
    request = SupportRequest(
        int(settings.n_states), rows.size, int(settings.n_states_per_symbol), seed, classes
    )
    return find_support(kind).make(request)


@torch.no_grad()
def finished(module: Parameterisation) -> HMM:
    """The HMM of trained parameters, apart from them, in float64."""
    made = module.double()()  # before anything is normalised
    transitions, emissions = made.transitions.detach(), EmissionTable(made.emission)
    made = dataclasses.replace(made, transitions=transitions, emissions=emissions)
    return HMM.of(made).to("cpu", torch.float64)
