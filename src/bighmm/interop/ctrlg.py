"""Reading and writing the HMMs of Ctrl-G (Zhang et al. 2024, `ctrlg.HMM`).

An HMM is a folder of the Hugging Face hub mixin:

    config.json         {"hidden_states": Z, "vocab_size": V, "eos_token_id": the end mark}
    model.safetensors   or pytorch_model.bin:
        alpha_exp (Z, Z)    transition probabilities
        beta      (Z, V)    emission log-probabilities
        gamma     (Z,)      logits of the start probabilities

The training of Ctrl-G subtracts log-probabilities, where -inf would give NaN. So log 0 is written
as -1e30, as Ctrl-G does, and becomes -inf again when it is read.

**The end mark.** Inference in Ctrl-G treats the end mark like any token: the state after it follows
from the transition probabilities. In its distillation the end mark is absorbing: samples are filled
up with end marks to a fixed length, and one state is reserved that emits the end mark and then
follows itself, apart from smoothing. So an HMM that is read has `reset=False`. An HMM of this
library with `reset=True` is written with an additional last state like that: it emits only the end
mark and is absorbing, and no other state emits the end mark. The probability of a text up to its
end mark stays exactly the same.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bighmm.base.files import (
    existing_folder,
    hub_folder,
    is_earlier_save,
    replace_folder,
    write_json,
)
from bighmm.base.json_files import read_object
from bighmm.base.reading import check_regular
from bighmm.base.settings import shown
from bighmm.base.tensor_files import read_tensors, write_tensors
from bighmm.hmm import HMM
from bighmm.interop.arrays import LIMIT, check_size
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import Dense
from bighmm.model.transitions import Table

CONFIG, WEIGHTS, OLDER_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
SETTINGS = ("hidden_states", "vocab_size", "eos_token_id")
ZIP = b"PK\x03\x04"  # the beginning of an archive
IMPOSSIBLE = -1e30  # stands for log 0
TOLERANCE = 1e-3  # the largest deviation of the sum of a row from one; rows are normalised


def from_ctrlg(folder: str | Path) -> HMM:
    """The HMM in a local folder, or with this name on the Hugging Face hub.

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
    transition = _log_rows(tensors["alpha_exp"].float().log(), "alpha_exp", folder)
    emission = _log_rows(_with_log_zeros(tensors["beta"]), "beta", folder)
    start = _with_log_zeros(gamma).log_softmax(0)
    if bool(start.isnan().any()):
        raise ValueError(f"gamma in {folder} is no distribution: it holds NaN, or nothing but zero")
    return HMM(
        start,
        Table(transition),
        EmissionTable(emission.T.contiguous()),
        Dense(states, vocabulary),
        end,
        reset=False,
    )


def to_ctrlg(hmm: HMM, folder: str | Path, *, end: int | None = None, limit: int = LIMIT) -> None:
    """Write `hmm` as a folder that `ctrlg.HMM.from_pretrained` reads, in float32.

    An HMM with `reset=True` gets an additional state (see above).
    end: the end mark, for an HMM that has none.
    limit: the most entries of a table, as for `to_numpy`.

    Raises ValueError if there is no end mark, a table would have more than `limit` entries, or the
    folder holds anything but an HMM that was written by this function; that one is replaced.
    """
    mark = hmm.end if hmm.end is not None else end
    if mark is None or not 0 <= mark < hmm.vocabulary_size:
        raise ValueError(
            f"Ctrl-G needs an end mark from 0 to {hmm.vocabulary_size - 1}, not {mark}; give end="
        )
    check_size(hmm, limit)
    start, transition, emission = _tables(hmm.to("cpu"))
    if hmm.end is not None and hmm.reset:
        start, transition, emission = with_absorbing_end(start, transition, emission, mark)
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


def with_absorbing_end(
    start: Tensor, transition: Tensor, emission: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """An equivalent HMM with an additional last state, which alone emits the end mark, forever.

    start (Z,) and emission (Z, V) are log-probabilities, transition (Z, Z) are probabilities. The
    result has the same three tables, with one state more. A transition to z followed by the end
    mark becomes a transition to the last state. With e_z = p(end | z),

        p'(z | i) = p(z | i) (1 − e_z),   p'(last | i) = Σ_z p(z | i) e_z,
        p'(x | z) = p(x | z) / (1 − e_z).
    """
    size, vocabulary = emission.shape
    log_ends = emission[:, end]  # (Z,)
    others = emission.index_fill(1, torch.tensor([end]), -torch.inf)
    log_others = others.logsumexp(1)
    # A state that emits only the end mark is never entered now, so its row does not matter.
    new_emission = torch.where(
        log_others.unsqueeze(1) > -torch.inf, others - log_others.unsqueeze(1), emission
    )
    last_row = emission.new_full((1, vocabulary), -torch.inf)
    last_row[0, end] = 0
    new_transition = transition.new_zeros(size + 1, size + 1)
    new_transition[:size, :size] = transition * log_others.exp()
    new_transition[:size, size] = transition @ log_ends.exp()
    new_transition[size, size] = 1
    log_end_first = (start + log_ends).logsumexp(0).unsqueeze(0)
    new_start = torch.cat([start + log_others, log_end_first])
    return new_start, new_transition, torch.cat([new_emission, last_row])


@torch.no_grad()
def _tables(hmm: HMM) -> tuple[Tensor, Tensor, Tensor]:
    """log start (Z,), transition (Z, Z) and log emission (Z, V)."""
    every = torch.arange(hmm.num_states)
    transition = hmm.transitions.log_probs(every).exp()
    return hmm.start, transition, hmm.support.emission_rows(hmm.emission, every)


def _is_written(folder: Path) -> bool:
    """Whether `to_ctrlg` wrote a folder, and it has no other files."""
    return is_earlier_save(folder, CONFIG, [WEIGHTS], lambda c: set(c) == set(SETTINGS))


def _read_config(folder: Path) -> tuple[int, int, int]:
    """The number of states, the size of the vocabulary, and the end mark."""
    config = read_object(folder / CONFIG)
    numbers = []
    for name in SETTINGS:
        number = config.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(
                f"{folder / CONFIG} is not that of a Ctrl-G HMM: {name} must be a whole number, "
                f"not {shown(number)}"
            )
        numbers.append(number)
    states, vocabulary, end = numbers
    if end >= vocabulary:
        raise ValueError(f"{folder / CONFIG} has the end mark {end} outside its {vocabulary} words")
    return states, vocabulary, end


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder; ValueError if one is missing or a file is damaged."""
    path = folder / WEIGHTS
    if not path.is_file():
        path = folder / OLDER_WEIGHTS
    if not path.is_file():
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {OLDER_WEIGHTS}; it is not complete")
    tensors: Any
    if path.name == WEIGHTS:
        tensors = read_tensors(path)
    else:
        try:
            _check_stored(path)
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle may raise errors of any class
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{path} is damaged: {reason}") from None
    for name in ("alpha_exp", "beta", "gamma"):
        if not isinstance(tensors, dict) or not isinstance(tensors.get(name), Tensor):
            raise ValueError(f"{path} has no {name}, so it is not a Ctrl-G HMM")
        if not _is_whole(tensors[name]):
            raise ValueError(f"{path} is damaged: {name} has fewer numbers than its shape says")
    return tensors


def _check_stored(path: Path) -> None:
    """Raises an error if a file of torch, which is a ZIP archive, unpacks to more than its size.

    torch itself writes archives that are not packed. Files of old versions are no archives.
    """
    check_regular(path)
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            return
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
    if packed or sum(part.file_size for part in parts) > path.stat().st_size:
        raise ValueError("its parts are packed, which torch does not do")


def _is_whole(tensor: Tensor) -> bool:
    """Whether every number of a tensor was in the file: a view may repeat one without end."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def _with_log_zeros(log_probs: Tensor) -> Tensor:
    """Log-probabilities in float32, with -inf for numbers near `IMPOSSIBLE`."""
    return log_probs.float().masked_fill(log_probs.float() <= IMPOSSIBLE / 10, -torch.inf)


def _log_rows(rows: Tensor, name: str, folder: Path) -> Tensor:
    """Log-probabilities (R, C), normalised; ValueError if a row does not sum to one."""
    totals = rows.logsumexp(1)
    wrong = ~((totals.exp() - 1).abs() <= TOLERANCE)  # this form is also true for NaN
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} of {name} in {folder} sums to {float(totals[row].exp()):.6g}; every row "
            "must sum to one"
        )
    return rows - totals.unsqueeze(1)
