"""The HMMs of Ctrl-G (Zhang et al. 2024, `ctrlg.HMM`): a folder of the Hugging Face hub mixin.

    config.json         {"hidden_states": Z, "vocab_size": V, "eos_token_id": the end mark}
    model.safetensors   or pytorch_model.bin:
        alpha_exp (Z, Z)    transition probabilities
        beta      (Z, V)    emission log-probabilities
        gamma     (Z,)      start log-probabilities, as logits: their reader takes a softmax

Their training subtracts log-probabilities, so that -inf would give NaN there. Impossible is written
as -1e30, the number that their code has for it, and is -inf again when it is read.

**The end mark.** Nothing in the format says what follows it, and nothing in their inference treats
it apart: after it the states go on as after any token. Their distillation teaches it to be
absorbing: samples are filled up with end marks to a fixed length, and the last state is set aside
to emit the end mark and to follow itself, up to smoothing. So an HMM that is read does not start
anew (`reset=False`). An HMM of this library that does start anew is written with one state more,
as theirs are: the last state emits the end mark alone and stays, no other state emits it, and each
text up to its end mark keeps its probability exactly.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bighmm.base.files import (
    existing_folder,
    hub_folder,
    is_earlier_save,
    read_json,
    replace_folder,
    write_json,
    write_tensors,
)
from bighmm.hmm import HMM
from bighmm.interop.arrays import LIMIT, check_size
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import Dense
from bighmm.model.transitions import Table

CONFIG, WEIGHTS, OLDER_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
SETTINGS = ("hidden_states", "vocab_size", "eos_token_id")
IMPOSSIBLE = -1e30
TOLERANCE = 1e-3  # how far from one a row's probabilities may sum; it is divided out


def from_ctrlg(folder: str | Path) -> HMM:
    """The HMM of a local folder, or of the hub by its name there.

    Raises ValueError with one sentence if a file is missing or damaged, shapes do not fit the
    configuration, or a row does not sum to one.
    """
    folder = existing_folder(Path(folder)) or hub_folder(str(folder))
    states, vocabulary, end = _read_config(folder)
    tensors = _read_tensors(folder)
    gamma = tensors["gamma"]
    if gamma.shape == (1, states):
        gamma = gamma.squeeze(0)
    shapes = {
        "alpha_exp": (tensors["alpha_exp"], (states, states)),
        "beta": (tensors["beta"], (states, vocabulary)),
        "gamma": (gamma, (states,)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(
                f"{name} in {folder} has the shape {tuple(tensor.shape)}, but its configuration "
                f"says {shape}"
            )
    moves = _log_rows(tensors["alpha_exp"].float().log(), "alpha_exp", folder)
    words = _log_rows(_with_zeros(tensors["beta"]), "beta", folder)
    start = _with_zeros(gamma).log_softmax(0)
    if bool(start.isnan().any()):
        raise ValueError(f"gamma in {folder} is no distribution: it holds NaN, or nothing but zero")
    support = Dense(states, vocabulary)
    return HMM(start, Table(moves), EmissionTable(words.T.contiguous()), support, end, reset=False)


def to_ctrlg(hmm: HMM, folder: str | Path, *, end: int | None = None, limit: int = LIMIT) -> None:
    """Write `hmm` as a folder that `ctrlg.HMM.from_pretrained` reads, in float32.

    `end` is the end mark of an HMM that has none of its own. An HMM that starts anew after its end
    mark gets one state more (see above). Raises ValueError without an end mark, and where the
    tables would be larger than `limit`. What stood in the folder is replaced if it is an HMM that
    was written so before; ValueError if it holds anything else.
    """
    mark = hmm.end if hmm.end is not None else end
    if mark is None or not 0 <= mark < hmm.vocabulary_size:
        raise ValueError(
            f"Ctrl-G needs an end mark from 0 to {hmm.vocabulary_size - 1}, not {mark}; give end="
        )
    check_size(hmm, limit)
    start, transition, emission = _tables(hmm.to("cpu"))
    if hmm.end is not None and hmm.reset:
        start, transition, emission = absorbing(start, transition, emission, mark)
    tensors = {
        "alpha_exp": transition,
        "beta": emission.clamp(min=IMPOSSIBLE),
        "gamma": start.clamp(min=IMPOSSIBLE),
    }
    config = dict(zip(SETTINGS, (len(start), emission.shape[1], mark), strict=True))

    def fill(fresh: Path) -> None:
        write_tensors(fresh / WEIGHTS, {name: t.float() for name, t in tensors.items()})
        write_json(fresh / CONFIG, config)

    replace_folder(Path(folder), fill, keep_previous=False, may_replace=_is_written)


def absorbing(
    start: Tensor, transition: Tensor, emission: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same texts up to their end mark, with a last state that emits the mark for ever.

    start (Z,) and emission (Z, V) are logarithms, transition (Z, Z) are probabilities, and so is
    what is returned. To go to z and emit the mark there becomes to go to the last state; with
    e_z = p(end | z),

        p'(z | i) = p(z | i) (1 − e_z),   p'(last | i) = Σ_z p(z | i) e_z,
        p'(x | z) = p(x | z) / (1 − e_z).
    """
    size, vocabulary = emission.shape
    log_ends = emission[:, end]  # (Z,)
    words = emission.index_fill(1, torch.tensor([end]), -torch.inf)
    log_stays = words.logsumexp(1)
    # A state that emits the mark alone is never entered now: any row will do, and it keeps its own.
    words = torch.where(
        log_stays.unsqueeze(1) > -torch.inf, words - log_stays.unsqueeze(1), emission
    )
    last_word = emission.new_full((1, vocabulary), -torch.inf)
    last_word[0, end] = 0
    moves = transition.new_zeros(size + 1, size + 1)
    moves[:size, :size] = transition * log_stays.exp()
    moves[:size, size] = transition @ log_ends.exp()
    moves[size, size] = 1
    first_is_last = (start + log_ends).logsumexp(0).unsqueeze(0)
    return torch.cat([start + log_stays, first_is_last]), moves, torch.cat([words, last_word])


@torch.no_grad()
def _tables(hmm: HMM) -> tuple[Tensor, Tensor, Tensor]:
    """log start (Z,), transition (Z, Z) and log emission (Z, V)."""
    every = torch.arange(hmm.num_states)
    transition = hmm.transitions.log_probs(every).exp()
    return hmm.start, transition, hmm.support.emission_rows(hmm.emission, every)


def _is_written(folder: Path) -> bool:
    """Whether a folder is one that `to_ctrlg` wrote, and has no other files."""
    return is_earlier_save(folder, CONFIG, [WEIGHTS], lambda c: set(c) == set(SETTINGS))


def _read_config(folder: Path) -> tuple[int, int, int]:
    config: Any = read_json(folder / CONFIG)
    numbers = []
    for name in SETTINGS:
        number = config.get(name) if isinstance(config, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(
                f"{folder / CONFIG} is not that of a Ctrl-G HMM: {name} must be a whole number, "
                f"not {number!r}"
            )
        numbers.append(number)
    states, vocabulary, end = numbers
    if end >= vocabulary:
        raise ValueError(f"{folder / CONFIG} has the end mark {end} outside its {vocabulary} words")
    return states, vocabulary, end


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        path = folder / OLDER_WEIGHTS
    if not path.is_file():
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {OLDER_WEIGHTS}; it is not complete")
    try:
        if path.name == WEIGHTS:
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is damaged: {reason}") from None
    for name in ("alpha_exp", "beta", "gamma"):
        if not isinstance(tensors, dict) or not isinstance(tensors.get(name), Tensor):
            raise ValueError(f"{path} has no {name}, so it is not a Ctrl-G HMM")
    return tensors


def _with_zeros(log_probs: Tensor) -> Tensor:
    return log_probs.float().masked_fill(log_probs.float() <= IMPOSSIBLE / 10, -torch.inf)


def _log_rows(rows: Tensor, name: str, folder: Path) -> Tensor:
    """Log-probabilities (R, C), normalised to the last digit."""
    totals = rows.logsumexp(1)
    wrong = ~((totals.exp() - 1).abs() <= TOLERANCE)  # so that NaN is wrong too
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} of {name} in {folder} sums to {float(totals[row].exp()):.6g}; every row "
            "must sum to one"
        )
    return rows - totals.unsqueeze(1)
