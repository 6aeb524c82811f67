"""Texts that a model wrote, in shards: files that are whole or absent.

    request.json       the settings that determine the texts; `length` there counts the end mark
    00000.safetensors  tokens (N,), bounds (texts + 1,) of the texts, log_probs (N,)
    00001.safetensors  …

A shard is a function of the request and of its number. So an interrupted request continues with the
missing shards and gives the same texts. `log_probs` are those of the distribution that was sampled
from, given the prompt. No model can have a higher expected log-probability of the texts. A shard
has none where the model drew its texts without them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from bighmm.base import processes
from bighmm.base.files import write_atomically, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import locked_folder
from bighmm.base.tensor_files import read_tensors

REQUEST = "request.json"
DIGEST = "sha256"  # of the tensors of a shard, in its header
HELD_OUT, MOST_HELD_OUT = 0.05, 4096  # valid and test: share and largest number of the texts

Progress = Callable[[int, int], None]  # number of tokens sampled, and of how many
Shard = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Samples:
    """Sampled texts; text i is tokens[bounds[i] : bounds[i + 1]]."""

    tokens: np.ndarray  # (N,) int32, with end marks; a text that was cut off has none
    bounds: np.ndarray  # (texts + 1,) int64
    log_probs: np.ndarray  # (N,) float32

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def texts(self, first: int, last: int) -> list[np.ndarray]:
        """The tokens of texts first … last-1."""
        return [self.tokens[a:b] for a, b in itertools.pairwise(self.bounds[first : last + 1])]

    def perplexity(self, first: int, last: int) -> float:
        """The perplexity of texts first … last-1 under the distribution they were sampled from."""
        found = self.log_probs[self.bounds[first] : self.bounds[last]]
        return math.exp(-float(found.astype(np.float64).mean()))

    def splits(self) -> dict[str, tuple[int, int]]:
        """(first, last) of train, valid and test, which have the texts first … last-1.

        Raises ValueError for fewer than three texts.
        """
        held = min(max(1, round(HELD_OUT * len(self))), MOST_HELD_OUT)
        if len(self) < 3:
            raise ValueError(
                f"{len(self)} sampled texts cannot be divided into train, valid and test; ask for "
                "more tokens"
            )
        first_valid, first_test = len(self) - 2 * held, len(self) - held
        return {
            "train": (0, first_valid),
            "valid": (first_valid, first_test),
            "test": (first_test, len(self)),
        }


class Shards:
    """The shards of a request in a folder.

    asked: the settings that determine the texts, and "tokens", which may grow.
    """

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder = folder
        self.asked = json.loads(json.dumps(asked))  # with lists for tuples, as it is read again

    @contextmanager
    def locked(self) -> Iterator[Shards]:
        """Context in which no other process writes there.

        Raises ValueError if one does, and if the folder has shards of another request.
        """
        here = processes.current()
        with locked_folder(self.folder) if here.first else nullcontext():
            with here.first_does() as mine:
                if mine:
                    self._check_request()
            yield self

    def write_missing(
        self,
        tokens: int,
        make: Callable[[int, Callable[[int], None] | None], Shard],
        progress: Progress | None = None,
    ) -> None:
        """Write the shards that are missing, until all have so many tokens.

        make: a shard by its number; also given a callback for the number of its tokens so far.

        Several processes (`base.processes`) make the next missing shards at the same time. The
        first one writes them, and leaves out those that are not needed after all.
        """
        here, done, number = processes.current(), 0, 0
        while True:
            with here.first_does() as mine:
                while mine and done < tokens and self._path(number).is_file():
                    done += len(read_shard(self._path(number))["tokens"])
                    number += 1
                    if progress is not None:
                        progress(min(done, tokens), tokens)
            done, missing = here.from_first((done, self._missing(number, here.count)))
            if done >= tokens:
                return
            report = None if progress is None else _later(progress, done, tokens, here.count)
            made = here.to_first(make(missing[here.number], report))
            with here.first_does():
                enough = done
                for which, shard in zip(missing, made or [], strict=False):
                    if enough < tokens:
                        self._write(which, shard)
                        enough += len(shard["tokens"])

    def _missing(self, number: int, count: int) -> list[int]:
        """The next shards from `number` on that are not there."""
        absent = (n for n in itertools.count(number) if not self._path(n).is_file())
        return list(itertools.islice(absent, count))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05}.safetensors"

    def _write(self, number: int, shard: Shard) -> None:
        write_atomically(self._path(number), to_safetensors(shard, {DIGEST: _digest(shard)}))

    def _check_request(self) -> None:
        """Store the request; ValueError if there is another one, the number of tokens aside."""
        path, asked = self.folder / REQUEST, self.asked
        if not path.is_file():
            write_sealed(path, asked)
        known = read_object(path)
        changed = [key for key in asked if key != "tokens" and known.get(key) != asked[key]]
        if changed:
            key = changed[0]
            values = f" ({known.get(key)}, {asked[key]}, the end mark counted)"
            raise ValueError(
                f"{self.folder} has texts that were sampled with another {key}"
                f"{values if key == 'length' else ''}; choose another folder"
            )


def shard_paths(folder: Path) -> list[Path]:
    """The files of all shards in a folder, in order."""
    return sorted(folder.glob("*.safetensors"))


def read_samples(folder: Path, tokens: int | None = None) -> Samples:
    """The texts of all shards in a folder, or of the first shards that have `tokens` tokens."""
    shards: list[Shard] = []
    for path in shard_paths(folder):
        if tokens is not None and sum(len(shard["tokens"]) for shard in shards) >= tokens:
            break
        shards.append(read_shard(path))
        if "log_probs" not in shards[-1]:
            raise ValueError(
                f"{path} is damaged: it has no log_probs; delete it to sample it again"
            )
    sizes = np.concatenate([[0], *(np.diff(shard["bounds"].numpy()) for shard in shards)])
    ids, log_probs = (
        np.concatenate([shard[name].numpy() for shard in shards])
        for name in ("tokens", "log_probs")
    )
    return Samples(ids, np.cumsum(sizes), log_probs)


def read_shard(path: Path) -> Shard:
    """The tensors of a shard; ValueError if it is damaged."""
    try:
        shard = read_tensors(path)
        with safe_open(path, framework="pt") as file:
            digest = (file.metadata() or {}).get(DIGEST)  # shards of the first version have none
        if not _is_shard(shard) or digest not in (None, _digest(shard)):
            raise ValueError(f"{path} is damaged: its content is not what was saved")
    except ValueError as error:
        raise ValueError(f"{error}; delete it to sample it again") from None
    return shard


def _is_shard(tensors: Shard) -> bool:
    """Whether tensors are texts: whole numbers, cut where `bounds` says, with log-probabilities."""
    if set(tensors) | {"log_probs"} != {"tokens", "bounds", "log_probs"}:
        return False
    tokens, bounds = tensors["tokens"], tensors["bounds"]
    log_probs = tensors.get("log_probs", torch.zeros(tokens.shape))
    if not tokens.dim() == bounds.dim() == log_probs.dim() == 1 or not len(bounds):
        return False
    ends = int(bounds[0]) == 0 and int(bounds[-1]) == len(tokens) == len(log_probs)
    kinds = (tokens.dtype, bounds.dtype, log_probs.dtype)
    whole = kinds == (torch.int32, torch.int64, torch.float32)
    return whole and ends and bool((bounds.diff() >= 0).all())


def _digest(tensors: Shard) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _later(progress: Progress, done: int, total: int, makers: int) -> Callable[[int], None]:
    """`progress` for tokens that so many processes sample after `done` others."""
    return lambda more: progress(min(done + makers * more, total), total)
