"""Texts sampled from a Hugging Face language model, after prompts, in shards (`distill.shards`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bighmm.base import processes, randomness
from bighmm.data.corpus import Corpus, write_corpus
from bighmm.distill.settings import SampleSettings
from bighmm.distill.shards import Progress, Samples, Shards, read_samples
from bighmm.infer.sample import nucleus
from bighmm.interop.language_model import LanguageModel, left_padded, prompts_of

WORTH_REMOVING = 0.25  # finished rows are removed from a batch once they are this share of it


def sample_texts(
    lm: LanguageModel, settings: SampleSettings, folder: Path, progress: Progress | None = None
) -> Samples:
    """Texts of a language model, written to a folder shard by shard; existing shards are reused.

    Several processes (`base.processes`) make shards at the same time; all must see the folder.

    Raises ValueError if the folder has texts of another request, another process samples into it,
    or the texts would be longer than the model can read.
    """
    prompts = prompts_of(lm, settings.prompts, settings.chat)
    lm.check_room(prompts, settings.window)

    def shard(number: int, report: Callable[[int], None] | None) -> dict[str, Tensor]:
        chosen = [
            prompts[(number * settings.at_once + i) % len(prompts)] for i in range(settings.at_once)
        ]
        seed = int(randomness.key(settings.seed, number)) % 2**63
        return sample_batch(lm, chosen, settings, seed, report)

    asked = {"model": lm.place.hashes(), **settings.stored()}
    processes.current().require_alike({"request": json.dumps(asked, sort_keys=True)})
    with Shards(folder, asked).locked() as shards:
        shards.write_missing(settings.tokens, shard, progress)
    return read_samples(folder, settings.tokens)


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
