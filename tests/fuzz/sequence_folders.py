"""`SequenceHMM`s of every kind, and an HMM in the files of Ctrl-G."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch

from bighmm import SequenceHMM
from bighmm.hmm import HMM
from bighmm.interop import from_ctrlg, to_ctrlg
from bighmm.sequences import ConvergenceWarning

from .originals import Original, Originals, check_sums

ROWS = [[0, 1, 2, 3, 4, 0, 1], [2, 2, 3], [4, 3, 1, 0]]
LETTERS = "abcde"
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "blocked": {"support": "blocked", "n_blocks": 2},
    "per-symbol": {"support": "per-symbol", "n_states_per_symbol": 2},
    "named": {
        **{"symbols": list(LETTERS), "unseen": "smooth", "smoothing": 0.1, "tolerance": math.inf},
        **{"transmat_prior": [[2.0] * 4] * 4, "startprob_prior": 1.5, "params": "ste"},
    },
    "neural": {
        **{"parameterisation": "neural", "options": {"width": 4}, "optimizer": "adamw"},
        **{"support": "blocked", "n_blocks": 2, "batch_size": 2},
    },
}


def add_sequences(originals: Originals) -> None:
    for kind, settings in KINDS.items():
        size = {} if "symbols" in settings else {"n_symbols": 5}
        model = SequenceHMM(4, iterations=2, random_state=0, **size, **settings)
        folder = originals.place / f"sequence-{kind}" / "hmm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(_written(ROWS, model))
        if kind == "dense":
            model.partial_fit(ROWS[:1])
        model.save(folder)
        originals.add(Original(f"sequence-{kind}", folder, {"library": _sequence}))
    folder = originals.place / "ctrlg" / "hmm"
    to_ctrlg(tiny_hmm(), folder)
    # The format is Ctrl-G's and has no hashes.
    originals.add(Original("ctrlg", folder, {"library": _ctrlg}, saved=False))


def _written(rows: list[list[int]], model: SequenceHMM) -> list[list[Any]]:
    """The rows as a model has its symbols, as numbers or as letters."""
    named = model.symbols is not None
    return [[LETTERS[x] for x in row] if named else list(row) for row in rows]


def _sequence(path: Path) -> Any:
    model = SequenceHMM.load(path)
    rows = _written([[0, 1, 2, 3], [4, 4]], model)
    following = model.next_proba(rows)
    check_sums(following.sum(1).tolist(), model.score_sequences(rows).tolist())
    return {
        "scores": model.score_sequences(rows).tolist(),
        "states": [path.tolist() for path in model.predict(rows)],
        "next": following.round(6).tolist(),
        "settings": model.get_params(),
        "history": model.history_,
        "batches": model.n_batches_,
    }


def _ctrlg(path: Path) -> Any:
    hmm = from_ctrlg(path)
    rows = [[1, 2], [3]]
    following = hmm.next_token(rows).exp()
    check_sums(following.sum(1).tolist(), hmm.log_prob(rows).tolist())
    return {"log_prob": hmm.log_prob([[1, 2, 0]]).tolist(), "next": following.tolist()}


def tiny_hmm() -> HMM:
    draw = torch.Generator().manual_seed(1)
    tables = [torch.rand(*shape, generator=draw) + 0.1 for shape in ((3,), (3, 3), (3, 5))]
    start, transition, emission = (table / table.sum(-1, keepdim=True) for table in tables)
    return HMM.from_probs(start, transition, emission, end=0)
