"""Keywords in texts of a language model: guided by an HMM, and without guidance.

    python benchmarks/guide.py runs/guide LM

If there is no run yet, the HMM is first distilled from the language model (`bighmm distill-lm`), on
texts that it writes for other sets of the same words; this takes some minutes on a GPU.

For each of 200 sets of two to five words, a chat prompt asks the language model for one sentence
with these words, of at most 32 tokens with the end mark. There are four kinds of texts: guided
texts by sampling and by beam search, the first text of the model alone, and the first of `--tries`
texts of the model alone that has all words (rejection sampling). A text satisfies a set if it ends
in time and has all words as whole words. For each kind the figures are the number of satisfied
sets, the time per token, and the perplexity of the satisfying texts under the language model, after
the same prompt and after a prompt without the words. The first texts of the model alone are scored
even if they do not satisfy the set, without an end mark if they were cut off.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from bighmm.base.json_files import read_json
from bighmm.cli.distill_lm import distill_lm_command
from bighmm.distill.sampling import SampleSettings, sample_batch
from bighmm.guide.hugging_face import continuation_log_probs
from bighmm.guide.texts import GuideSettings, write
from bighmm.interop.language_model import LanguageModel
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import find_device, open_hmm
from record import save, settings_of, surroundings

THEMES = {
    "kitchen": "bread butter cook cup dinner fire fish garlic knife oven plate pot salt soup",
    "farm": "apple barn chicken corn cow farmer fence field grass hay horse milk rain sheep",
    "city": "bridge bus car crowd driver lamp market night office road street taxi tower train",
    "school": "answer bell book child class desk friend lesson letter paper pen story student",
    "sea": "beach boat bird captain coast island moon rope sail sand ship storm sun water wave",
    "music": "band concert dance drum guitar hall listen melody piano play quiet singer song",
    "forest": "bear bird branch deer forest fox leaf mountain path river rock snow stone tree",
    "home": "bed chair clock dog door family floor garden house key kitchen mother room sleep",
}
NEUTRAL = "Write one short sentence."


@dataclass(frozen=True)
class Arguments:
    hmm: Annotated[Path, tyro.conf.Positional]
    language_model: Annotated[str, tyro.conf.Positional]
    sets: int = 200
    length: int = 32  # the most tokens of a text, with the end mark
    tries: int = 64
    """Number of texts of the model alone for each set."""
    beams: int = 8
    batch: int = 50
    seed: int = 1
    device: str = "auto"
    tokens: int = 10_000_000
    """Number of tokens to distil the HMM from, if there is none yet."""
    states: int = 4096
    epochs: float = 10.0
    at_once: int = 4096
    """Texts in a batch, for the distillation and for rejection sampling."""
    show: int = 5
    """Number of texts of each kind to print."""
    out: str = "guide/smollm2.json"
    """File for the figures, under results/."""


@dataclass(frozen=True)
class Kind:
    """The texts of one kind: for each set a text that satisfies it, or None."""

    texts: list[str | None]
    ids: list[list[int] | None]  # with the end mark, unless the text was cut off
    seconds_per_token: float | None


def main(arguments: Arguments) -> None:
    device = find_device(arguments.device)
    distillation = _distil(arguments)
    lm = open_hmm(arguments.hmm, "probabilities of rules").to(device)
    language_model = LanguageModel(arguments.language_model, device)
    sets = keyword_sets(arguments.sets, arguments.seed)
    prompts = [_prompt(words) for words in sets]
    found: dict[str, Any] = {}
    shown: dict[str, list[str | None]] = {}
    for name, kind in _kinds(arguments, language_model, lm, sets, prompts).items():
        found[name] = {
            **_fluency(language_model, kind, prompts),
            "seconds_per_token": kind.seconds_per_token,
        }
        shown[name] = kind.texts[: arguments.show]
        print(name, found[name])
    unguided = _one_try(arguments, language_model, sets, prompts)
    found["as they come"] = unguided
    print("as they come", unguided)
    for name, texts in shown.items():
        for words, text in zip(sets, texts, strict=False):
            print(f"{name}\t{' '.join(words)}\t{text}")
    measured = {
        "operation": "guiding a language model",
        **settings_of(arguments),
        "language_model": Path(language_model.place.name).name,
        "states": lm.hmm().num_states,
        "words": lm.tokenizer.size,
        "distillation": distillation,
        "kinds": found,
        "texts": shown,
        **surroundings(),
    }
    print(f"saved to {save(arguments.out, measured)}")
    if found["guided, sampled"]["met"] < len(sets) or found["guided, beams"]["met"] < len(sets):
        sys.exit("a guided text lacks a word")


def _distil(arguments: Arguments) -> dict[str, Any]:
    """The figures of the distillation of the HMM, which runs unless it is finished."""
    finished = arguments.hmm / "result.json"
    if not finished.is_file():
        file = arguments.hmm.with_suffix(".prompts.txt")
        file.parent.mkdir(parents=True, exist_ok=True)
        asked = map(_prompt, keyword_sets(8 * arguments.sets, arguments.seed + 1))
        file.write_text("\n".join([*asked, *[NEUTRAL] * arguments.sets]) + "\n", encoding="utf-8")
        sizes = ("tokens", "states", "epochs", "device", "at_once")
        flags = [(f"--{name.replace('_', '-')}", getattr(arguments, name)) for name in sizes]
        distill_lm_command(
            [
                *(arguments.language_model, "--out", str(arguments.hmm), "--chat"),
                *("--prompts", str(file), "--length", str(arguments.length + 15)),
                *(str(word) for flag in flags for word in flag),
            ]
        )
    made = read_json(finished)
    names = ("stage_seconds", "valid", "test", "num_parameters", "steps")
    theirs = {k: v for k, v in made["language_model"].items() if k != "name"}
    return {"language_model": theirs, **{name: made[name] for name in names}}


def _prompt(words: list[str]) -> str:
    return f"Write one short sentence with the words {', '.join(words)}."


def keyword_sets(count: int, seed: int) -> list[list[str]]:
    """Sets of two to five words of one theme; the themes are used in turn."""
    chance = random.Random(seed)
    themes = [words.split() for words in THEMES.values()]
    return [chance.sample(chance.choice(themes), 2 + i % 4) for i in range(count)]


def _kinds(
    arguments: Arguments,
    language_model: LanguageModel,
    lm: HMMLM,
    sets: list[list[str]],
    prompts: list[str],
) -> dict[str, Kind]:
    rules = [lm.rule(must=words) for words in sets]
    result = {}
    for name, beams in (("guided, sampled", 0), ("guided, beams", arguments.beams)):
        settings = GuideSettings(
            length=arguments.length - 1,
            beams=beams,
            batch=arguments.batch * max(1, beams),
            seed=arguments.seed,
        )
        began = _now(language_model)
        written = write(language_model, lm, rules, settings, prompts=prompts, chat=True)
        seconds = _now(language_model) - began
        texts = [one[0].text for one in written]
        steps = sum(one[0].tokens for one in written)
        kept: list[str | None] = [
            text if has(words, text) else None for words, text in zip(sets, texts, strict=True)
        ]
        end = lm.tokenizer.end
        ids = [
            None if text is None else [*one[0].ids, end]
            for text, one in zip(kept, written, strict=True)
        ]
        result[name] = Kind(kept, ids, seconds / steps)
    result["rejection"] = _rejection(arguments, language_model, sets, prompts)
    return result


def _rejection(
    arguments: Arguments,
    language_model: LanguageModel,
    sets: list[list[str]],
    prompts: list[str],
) -> Kind:
    """For each set, the first of so many texts that satisfies it."""
    texts: list[str | None] = []
    ids: list[list[int] | None] = []
    tokens, began = 0, _now(language_model)
    at_once = max(1, arguments.at_once // arguments.tries)
    for first in range(0, len(sets), at_once):
        asked = [p for p in prompts[first : first + at_once] for _ in range(arguments.tries)]
        drawn = _draw(language_model, asked, arguments, first)
        tokens += sum(map(len, drawn))
        for number, words in enumerate(sets[first : first + at_once]):
            tries = drawn[number * arguments.tries : (number + 1) * arguments.tries]
            row = next((row for row in tries if _meets(words, row, language_model)), None)
            ids.append(row)
            texts.append(None if row is None else _text(row, language_model))
    return Kind(texts, ids, (_now(language_model) - began) / tokens)


def _one_try(
    arguments: Arguments,
    language_model: LanguageModel,
    sets: list[list[str]],
    prompts: list[str],
) -> dict[str, Any]:
    """The first text of the model alone for each set, whether it satisfies the set or not."""
    drawn: list[list[int]] = []
    began = _now(language_model)
    for first in range(0, len(prompts), arguments.batch):
        part = prompts[first : first + arguments.batch]
        drawn += _draw(language_model, part, arguments, -1 - first)
    seconds = _now(language_model) - began
    texts: list[str | None] = [_text(row, language_model) for row in drawn]
    whole = Kind(texts, list(drawn), seconds / sum(map(len, drawn)))
    met = sum(_meets(words, row, language_model) for words, row in zip(sets, drawn, strict=True))
    return {
        **_fluency(language_model, whole, prompts),
        "met": met,
        "seconds_per_token": whole.seconds_per_token,
    }


def _draw(
    language_model: LanguageModel, prompts: list[str], arguments: Arguments, number: int
) -> list[list[int]]:
    """A text for each prompt, with its end mark unless it was cut off."""
    ids = [language_model.prompt(prompt, chat=True) for prompt in prompts]
    settings = SampleSettings(length=arguments.length - 1)
    shard = sample_batch(language_model, ids, settings, seed=arguments.seed * 100_003 + number)
    bounds = shard["bounds"].tolist()
    return [shard["tokens"][a:b].tolist() for a, b in itertools.pairwise(bounds)]


def _text(row: list[int], language_model: LanguageModel) -> str:
    end = language_model.tokenizer.end
    return language_model.tokenizer.decode([id for id in row if id != end])


def _meets(words: Sequence[str], row: list[int], language_model: LanguageModel) -> bool:
    return row[-1] == language_model.tokenizer.end and has(words, _text(row, language_model))


def _fluency(language_model: LanguageModel, kind: Kind, prompts: list[str]) -> dict[str, Any]:
    """The perplexity of all texts that are not None, with their end marks."""
    places = [i for i, ids in enumerate(kind.ids) if ids is not None]
    texts = [ids for ids in kind.ids if ids is not None]
    given = [language_model.prompt(prompts[i], chat=True) for i in places]
    neutral = [language_model.prompt(NEUTRAL, chat=True)] * len(places)
    return {
        "met": len(places),
        "tokens": sum(map(len, texts)),
        "perplexity": _perplexity(language_model, given, texts),
        "perplexity_without_words_in_prompt": _perplexity(language_model, neutral, texts),
        "mean_length": statistics.mean(map(len, texts)) if texts else None,
    }


def _perplexity(
    language_model: LanguageModel, contexts: Sequence[list[int]], texts: Sequence[list[int]]
) -> float | None:
    if not texts:
        return None
    each = continuation_log_probs(language_model.model, contexts, texts, language_model.log_probs)
    total = sum(each)
    return math.exp(-total / sum(map(len, texts)))


def has(words: Sequence[str], text: str) -> bool:
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)


def _now(language_model: LanguageModel) -> float:
    if language_model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main(tyro.cli(Arguments))
