"""Texts of a language model that satisfy rules about words, guided by an HMM."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch

from bighmm.guide.settings import GuideSettings
from bighmm.interop.language_model import LanguageModel, prompts_of
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.rules import Rule, boundaries, excludes, length, starts_with
from bighmm.lm.rules.words import spellings


@dataclass(frozen=True)
class Written:
    """A text that satisfies its rule."""

    text: str  # with the prefix and the suffix, without the prompt
    ids: list[int]  # generated: without the prefix and the end mark
    log_prob: float  # the language model's, of these and the end mark

    @property
    def perplexity(self) -> float:
        """The language model's, of what was generated with the end mark."""
        return math.exp(-self.log_prob / self.tokens)

    @property
    def tokens(self) -> int:
        """Generated tokens, with the end mark."""
        return len(self.ids) + 1


def check_vocabulary(language_model: LanguageModel, lm: HMMLM) -> None:
    """Raises ValueError if token ids do not mean the same to both models."""
    ours, theirs = lm.tokenizer, language_model.tokenizer
    same = ours.size == theirs.size and ours.end == theirs.end
    if not same or any(ours.token(i) != theirs.token(i) for i in range(ours.size)):
        raise ValueError(
            f"the HMM has another vocabulary than the language model {language_model.place.name}; "
            "it must be trained on that model's tokens, as `bighmm distill-lm` does"
        )


def write(
    language_model: LanguageModel,
    lm: HMMLM,
    rules: Sequence[Rule],
    settings: GuideSettings | None = None,
    *,
    prompts: Sequence[str] = (),
    chat: bool = False,
    prefix: str = "",
    suffix: str = "",
    progress: Callable[[int], None] | None = None,
) -> list[list[Written]]:
    """`settings.n` texts for every rule, which satisfy it; a beam search may find fewer.

    prompts: what only the language model reads first, one for all rules or one for each, with
        `chat` as a user's turn; without one a text follows the beginning mark.
    prefix, suffix: what the text begins and ends with. Rules are about the words between them; no
        word runs on from the prefix or into the suffix.
    progress: called with the number of rules done.

    Raises ValueError with the reason if a rule cannot hold, before anything is written, and if the
    package transformers is missing.
    """
    from bighmm.guide import hugging_face

    settings = settings or GuideSettings()
    check_vocabulary(language_model, lm)
    before = lm.encode(prefix)
    without_marks = excludes([[id] for id in language_model.never_written]).called("no marks")
    whole = [rule & without_marks for rule in _between(rules, prefix, suffix, lm)]
    given = prompts_of(language_model, prompts, chat)
    language_model.check_room(given, len(before) + settings.window)
    if len(given) not in (1, len(rules)):
        raise ValueError(
            f"{len(given)} prompts were given for {len(rules)} rules; give one of each"
        )
    devices = [language_model.device] if language_model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # leave the caller's random numbers alone
        torch.seed() if settings.seed is None else torch.manual_seed(settings.seed)
        found = hugging_face.generate(
            language_model.model,
            lm.hmm(),
            given * (len(rules) // len(given)),
            whole,
            settings.window,
            prefixes=[before] * len(rules),
            n=settings.n,
            batch=max(1, settings.batch // max(1, settings.beams)),
            progress=progress,
            num_beams=max(1, settings.beams),
            do_sample=settings.beams == 0,
            temperature=settings.temperature if settings.beams == 0 else None,
            top_p=settings.top_p if settings.beams == 0 else None,
            top_k=settings.top_k or 0 if settings.beams == 0 else None,
            normalise=language_model.log_probs,
        )
    return [
        [Written(lm.decode([*before, *t.ids]), t.ids, t.log_prob) for t in texts] for texts in found
    ]


def _between(rules: Sequence[Rule], prefix: str, suffix: str, lm: HMMLM) -> list[Rule]:
    """Each rule about whole words after the prefix, followed by the suffix in any spelling."""
    tokenizer, after_word = lm.tokenizer, boundaries.ends_in_word(prefix)
    apart = boundaries.begins_outside_word(tokenizer) if after_word else None
    found = [rule if apart is None else (rule & apart).called(f"{rule}") for rule in rules]
    if not suffix:
        return found
    closed = boundaries.ends_outside_word(tokenizer, after_word)
    ways = []  # to write the suffix, and what has to hold right before
    for ids in spellings(tokenizer, suffix):
        before = closed if boundaries.begins_with_word(tokenizer, ids) else None
        ways.append((before, starts_with(ids) & length(len(ids), len(ids))))
    return [
        reduce(
            or_, ((rule if before is None else rule & before) + way for before, way in ways)
        ).called(f"{rule} followed by {suffix!r}")
        for rule in found
    ]
