"""Guided texts from a Hugging Face language model: a logits processor, and `generate` around it.

The processor works with `model.generate(logits_processor=[…])`: greedy, sampling or beam search.
`generate` also makes the batches and checks every text. The module needs the extra
`bighmm[teachers]`; without it, importing it raises an ImportError of one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bighmm.base.extras import missing
from bighmm.guide.weights import Guide
from bighmm.infer.constrained import groups, to_satisfy
from bighmm.infer.sequences import padded
from bighmm.interop.language_model import left_padded
from bighmm.lm.rules import Rule

if TYPE_CHECKING:
    from bighmm.hmm import HMM

try:
    from transformers import LogitsProcessor, LogitsProcessorList
except ImportError as error:
    raise missing("guiding a language model", error, "teachers") from None

LOGITS_AT_ONCE = 2**27  # numbers: 512 MiB


class GuidedLogits(LogitsProcessor):
    """log p(x | prompt, text) of the language model, plus the log-weights of a guide.

    Rows belong to the guide's items in order, the same number of rows to each. `prompt_length` is
    the number of tokens before the text of each row, padding included.
    """

    def __init__(self, guide: Guide, prompt_length: int) -> None:
        self.guide, self.prompt_length = guide, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = input_ids[:, self.prompt_length :]
        rows, items = len(text), self.guide.items
        if rows % items:
            raise ValueError(f"{rows} texts cannot be divided among {items} rules")
        item = torch.arange(rows, device=text.device) // (rows // items)
        weights = self.guide.log_weights(text, item).to(scores.device, torch.float32)
        size = weights.shape[1]
        if scores.shape[1] < size:
            raise ValueError(
                f"the language model has {scores.shape[1]} tokens and the HMM {size}; the HMM must "
                "be trained on the language model's tokens"
            )
        guided = scores.float().log_softmax(1)
        guided[:, :size] += weights
        ended = (text == self.guide.end).any(1)
        guided[:, size:] = guided[:, size:].masked_fill(~ended.unsqueeze(1), -torch.inf)
        return guided


Normalise = Callable[[Tensor], Tensor]


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(1)


@dataclass(frozen=True)
class GuidedText:
    """A text that satisfies its rule."""

    ids: list[int]  # generated tokens, without the end mark
    log_prob: float  # the language model's, of these and the end mark, given the context


@torch.inference_mode()
def generate(
    model: Any,
    hmm: HMM,
    prompts: Sequence[Sequence[int]],
    rules: Sequence[Rule],
    length: int,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    n: int = 1,
    batch: int = 64,
    progress: Callable[[int], None] | None = None,
    normalise: Normalise = _log_softmax,
    **how: Any,
) -> list[list[GuidedText]]:
    """n texts for every prompt, which satisfy its rule and end.

    prompts: token ids that the language model reads first, at least one each.
    length: generated tokens at most, the end mark counted.
    prefixes: token ids between the prompt and the text, which the HMM reads too.
    batch: texts generated together, at most; fewer where the tables of their rules are large.
    how: arguments of `model.generate`; without `num_beams` and `do_sample` texts are sampled.
        Other logits processors are applied before the guide's.
    progress: called with the number of prompts done.
    normalise: log p of the next token (B, V) from the model's logits, if not their log-softmax.

    A beam search may have fewer than n texts to give. Raises ValueError with the reason if a rule
    cannot hold, before anything is generated, and RuntimeError should a prompt get no text.
    """
    if not len(prompts) == len(rules) == len(prefixes or prompts):
        raise ValueError(f"{len(prompts)} prompts, {len(rules)} rules: give one of each for a text")
    before = prefixes or [()] * len(prompts)
    how = {"do_sample": how.get("num_beams", 1) == 1, **how}
    automata = [to_satisfy(hmm, rule, None, length) for rule in rules]
    found: list[list[GuidedText]] = []
    done = 0
    for group in groups(hmm, automata, length):
        for first in range(0, len(group), max(1, batch // n)):
            items = group[first : first + max(1, batch // n)]
            guide = Guide(hmm, [rules[i] for i in items], length, [before[i] for i in items])
            contexts = [[*prompts[i], *before[i]] for i in items]
            chosen = [rules[i] for i in items]
            found += _texts(model, guide, contexts, chosen, n, normalise, dict(how))
            done += len(items)
            if progress is not None:
                progress(done)
    return found


def _texts(
    model: Any,
    guide: Guide,
    contexts: list[list[int]],
    rules: list[Rule],
    n: int,
    normalise: Normalise,
    how: dict[str, Any],
) -> list[list[GuidedText]]:
    ids, mask = left_padded(contexts, model.device)
    processors = [
        lambda ids, scores: normalise(scores),
        *how.pop("logits_processor", ()),
        GuidedLogits(guide, ids.shape[1]),
    ]
    drawn = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=guide.length,
        num_return_sequences=n,
        eos_token_id=guide.end,
        pad_token_id=guide.end,
        logits_processor=LogitsProcessorList(processors),
        **how,
    )
    texts = drawn[:, ids.shape[1] :].tolist()
    each = [contexts[row // n] for row in range(len(texts))]
    ended = [text[: text.index(guide.end)] if guide.end in text else None for text in texts]
    whole = [[*(text or []), guide.end] for text in ended]
    log_probs = continuation_log_probs(model, each, whole, normalise)
    searched = how.get("num_beams", 1) > 1
    result: list[list[GuidedText]] = [[] for _ in contexts]
    for row, (text, log_prob) in enumerate(zip(ended, log_probs, strict=True)):
        # A search with more beams than there are texts returns some that do not satisfy the rule,
        # and the same text several times.
        found = result[row // n]
        again = searched and any(text == other.ids for other in found)
        if text is not None and rules[row // n].matches(text) and not again:
            found.append(GuidedText(text, log_prob))
    for rule, texts_found in zip(rules, result, strict=True):
        if not texts_found:
            raise RuntimeError(f"no text of {guide.length} tokens was found for the rule {rule}")
    return result


def continuation_log_probs(
    model: Any,
    contexts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    normalise: Normalise = _log_softmax,
) -> list[float]:
    """The language model's log p(text | context) of each text; both have at least one token."""
    whole = [[*context, *text] for context, text in zip(contexts, texts, strict=True)]
    longest = max(map(len, whole), default=1)
    step = max(1, LOGITS_AT_ONCE // (model.config.vocab_size * longest))
    result: list[float] = []
    for first in range(0, len(whole), step):
        rows = slice(first, first + step)
        begins = [len(context) for context in contexts[rows]]
        result += _log_probs(model, whole[rows], begins, normalise)
    return result


@torch.inference_mode()
def _log_probs(
    model: Any, rows: list[list[int]], begins: list[int], normalise: Normalise
) -> list[float]:
    """log p of each row from position `begins` on, given the tokens before it."""
    # Padding on the right does not change what a causal model computes before it.
    ids, lengths = (x.to(model.device) for x in padded(rows))
    logits = model(input_ids=ids).logits[:, :-1].float()
    log_probs = normalise(logits.flatten(0, 1)).view(logits.shape)
    of_token = log_probs.gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    place = torch.arange(1, ids.shape[1], device=ids.device)
    first = torch.tensor(begins, device=ids.device).unsqueeze(1)
    inside = (place >= first) & (place < lengths.unsqueeze(1))
    return of_token.masked_fill(~inside, 0).sum(1).tolist()
