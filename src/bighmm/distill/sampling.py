"""Texts sampled from a language model, stored in shards.

    request.json       the settings that determine the texts; `length` there counts the end mark
    00000.safetensors  tokens (N,), bounds (texts + 1,) of the texts, log_probs (N,)
    00001.safetensors  …

A shard is one batch with a seed of its own. So an interrupted request continues with the missing
shards and gives the same texts. `log_probs` are those of the distribution that was sampled from,
given the prompt. No model can have a higher expected log-probability of the texts.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from bighmm.base import randomness
from bighmm.base.files import write_atomically, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import locked_folder
from bighmm.base.tensor_files import read_tensors
from bighmm.data.corpus import Corpus, write_corpus
from bighmm.distill.settings import SampleSettings
from bighmm.interop.language_model import LanguageModel, left_padded, prompts_of

REQUEST = "request.json"
DIGEST = "sha256"  # of the tensors of a shard, in its header
HELD_OUT, MOST_HELD_OUT = 0.05, 4096  # valid and test: share and largest number of the texts
WORTH_REMOVING = 0.25  # finished rows are removed from a batch once they are this share of it

Progress = Callable[[int, int], None]  # number of tokens sampled, and of how many


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


def sample_texts(
    lm: LanguageModel, settings: SampleSettings, folder: Path, progress: Progress | None = None
) -> Samples:
    """Texts of a language model, written to a folder shard by shard; existing shards are reused.

    Raises ValueError if the folder has texts of another request, another process samples into it,
    or the texts would be longer than the model can read.
    """
    prompts = prompts_of(lm, settings.prompts, settings.chat)
    lm.check_room(prompts, settings.window)
    with locked_folder(folder):
        _sample_missing(lm, settings, folder, prompts, progress)
    return read_samples(folder, settings.tokens)


def _sample_missing(
    lm: LanguageModel,
    settings: SampleSettings,
    folder: Path,
    prompts: Sequence[Sequence[int]],
    progress: Progress | None,
) -> None:
    """Write the shards that are missing."""
    _check_request(folder, {"model": lm.place.hashes(), **settings.stored()})
    done, number = 0, 0
    while done < settings.tokens:
        path = folder / f"{number:05}.safetensors"
        if not path.is_file():
            chosen = [
                prompts[(number * settings.at_once + i) % len(prompts)]
                for i in range(settings.at_once)
            ]
            seed = int(randomness.key(settings.seed, number)) % 2**63
            report = None if progress is None else _later(progress, done, settings.tokens)
            shard = sample_batch(lm, chosen, settings, seed, report)
            write_atomically(path, to_safetensors(shard, {DIGEST: _digest(shard)}))
        done += len(_read(path)["tokens"])
        number += 1
        if progress is not None:
            progress(min(done, settings.tokens), settings.tokens)


def read_samples(folder: Path, tokens: int | None = None) -> Samples:
    """The texts of all shards in a folder, or of the first shards that have `tokens` tokens."""
    shards: list[dict[str, Tensor]] = []
    for path in sorted(folder.glob("*.safetensors")):
        if tokens is not None and sum(len(shard["tokens"]) for shard in shards) >= tokens:
            break
        shards.append(_read(path))
    sizes = np.concatenate([[0], *(np.diff(shard["bounds"].numpy()) for shard in shards)])
    ids, log_probs = (
        np.concatenate([shard[name].numpy() for shard in shards])
        for name in ("tokens", "log_probs")
    )
    return Samples(ids, np.cumsum(sizes), log_probs)


def corpus_of(samples: Samples, lm: LanguageModel, folder: Path, described: dict) -> Corpus:
    """A corpus of sampled texts, written to a folder; each text is a document.

    described: what the manifest says about the source.
    """
    splits = {name: samples.texts(*texts) for name, texts in samples.splits().items()}
    described = {"kind": "samples", "name": lm.place.name, **described}
    return write_corpus(folder, lm.tokenizer, splits, described)


@torch.inference_mode()
def sample_batch(
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: SampleSettings,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    """A shard with one text for each prompt: "tokens", "bounds" and "log_probs".

    prompts: token ids; the texts do not include them.
    progress: called with the number of tokens sampled.
    """
    generator = torch.Generator(lm.device).manual_seed(seed)
    ids, mask = left_padded(prompts, lm.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    rows = torch.arange(len(prompts), device=lm.device)  # the texts that are still in the batch
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=lm.device)
    texts = torch.full((len(prompts), settings.window), -1, device=lm.device)
    log_probs = torch.zeros(texts.shape, device=lm.device)
    past, written, gone = None, 0, 0
    for step in range(settings.window):
        logits, past = lm.forward(ids, mask, positions, past)
        each = nucleus(lm.log_probs(logits, settings.temperature), settings.top_p)
        drawn = torch.multinomial(each.exp(), 1, generator=generator)
        texts[rows, step] = drawn.squeeze(1).where(~ended, -1)
        log_probs[rows, step] = each.gather(1, drawn).squeeze(1)
        written += len(ended) - gone
        ended |= drawn.squeeze(1) == lm.tokenizer.end
        gone = int(ended.sum())  # the only host synchronisation of a step
        if progress is not None:
            progress(written)
        if gone == len(ended):
            break
        if gone > WORTH_REMOVING * len(ended) and hasattr(past, "batch_select_indices"):
            going = torch.nonzero(~ended).squeeze(1)
            past.batch_select_indices(going)
            rows, ended, drawn, mask, positions = (
                x[going] for x in (rows, ended, drawn, mask, positions)
            )
            gone = 0
        ids = drawn
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        positions = positions[:, -1:] + 1
    inside = texts >= 0
    return {
        "tokens": texts[inside].int().cpu(),
        "bounds": torch.cat([torch.zeros(1, dtype=torch.long), inside.sum(1).cpu().cumsum(0)]),
        "log_probs": log_probs[inside].cpu(),
    }


def nucleus(log_probs: Tensor, top_p: float) -> Tensor:
    """log p (B, V) restricted to the smallest set of likeliest tokens with probability `top_p`."""
    if top_p == 1:
        return log_probs
    ordered, order = log_probs.sort(dim=1, descending=True)
    before = ordered.exp().cumsum(1) - ordered.exp()
    kept = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.empty_like(kept).scatter_(1, order, kept).log_softmax(1)


def _check_request(folder: Path, request: dict[str, Any]) -> None:
    """Store the request; ValueError if the folder has another one, the number of tokens aside."""
    request["prompts"] = list(request["prompts"])
    if not (folder / REQUEST).is_file():
        write_sealed(folder / REQUEST, request)
    known = read_object(folder / REQUEST)
    changed = [key for key in request if key != "tokens" and known.get(key) != request[key]]
    if changed:
        key = changed[0]
        values = f" ({known.get(key)}, {request[key]}, the end mark counted)"
        raise ValueError(
            f"{folder} has texts that were sampled with another {key}"
            f"{values if key == 'length' else ''}; choose another folder"
        )


def _read(path: Path) -> dict[str, Tensor]:
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


def _is_shard(tensors: dict[str, Tensor]) -> bool:
    """Whether tensors are texts: whole numbers, cut where `bounds` says, with log-probabilities."""
    if set(tensors) != {"tokens", "bounds", "log_probs"}:
        return False
    tokens, bounds, log_probs = tensors["tokens"], tensors["bounds"], tensors["log_probs"]
    if not tokens.dim() == bounds.dim() == log_probs.dim() == 1 or not len(bounds):
        return False
    ends = int(bounds[0]) == 0 and int(bounds[-1]) == len(tokens) == len(log_probs)
    kinds = (tokens.dtype, bounds.dtype, log_probs.dtype)
    whole = kinds == (torch.int32, torch.int64, torch.float32)
    return whole and ends and bool((bounds.diff() >= 0).all())


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _later(progress: Progress, done: int, total: int) -> Callable[[int], None]:
    """`progress` for tokens that are sampled after `done` others."""
    return lambda more: progress(min(done + more, total), total)
