"""A model for EleutherAI's lm-evaluation-harness; needs the extra `bighmm[lm-eval]`.

    python -m bighmm.interop.harness --model bighmm --model_args pretrained=RUN --tasks …

is `lm_eval` with one model more. From Python, `register()` gives the class. A line break is the end
mark, after which the model starts anew, so what stands before the last line break of a context does
not change what follows. Words that a word vocabulary lacks count as its word for them: figures over
different vocabularies cannot be compared.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bighmm.hmm import HMM
from bighmm.infer.sequences import padded, unchecked, validate
from bighmm.lm.hmmlm import HMMLM

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # what tasks call the longest answer


class HarnessModel:
    """What the harness asks of a language model. It needs a base class, `lm_eval.api.model.LM`.

    pretrained: an `HMMLM`, its folder or that of a run, or its name on the hub.
    batch_size: requests at once; "auto" is 16. Other options of the harness do not matter here.
    """

    def __init__(
        self,
        pretrained: str | Path | HMMLM,
        batch_size: int | str = 16,
        device: str | None = None,
        seed: int = 0,
        **_: Any,
    ) -> None:
        super().__init__()
        if not isinstance(pretrained, HMMLM):
            pretrained = HMMLM.from_pretrained(pretrained)
        self.lm = pretrained if device is None else pretrained.to(device)
        self._device = self.lm.device
        self.batch_size = int(batch_size) if str(batch_size).isdigit() else 16
        self.generator = torch.Generator(self.lm.device).manual_seed(seed)

    @property
    def tokenizer_name(self) -> str:
        return f"bighmm-{self.lm.tokenizer.fingerprint()[:12]}"

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """log p(continuation | context), and whether each of its tokens is the likeliest one."""
        pairs = [self._encode(*request.args) for request in requests]
        found: dict[int, tuple[float, bool]] = {}
        for rows in self._batches([len(ids) for ids, _ in pairs]):
            contexts = [pairs[row][0][: pairs[row][1]] for row in rows]
            rests = [pairs[row][0][pairs[row][1] :] for row in rows]
            found |= zip(rows, continuations(self.lm.hmm(), contexts, rests), strict=True)
        return [found[row] for row in range(len(pairs))]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of whole texts, each by itself; end marks are those of its line breaks."""
        texts = [self.lm.encode(request.args[0]) for request in requests]
        found: dict[int, float] = {}
        for rows in self._batches([len(ids) for ids in texts]):
            log_probs = self.lm.hmm().log_prob(*padded([texts[row] for row in rows]))
            found |= zip(rows, log_probs.tolist(), strict=True)
        return [found[row] for row in range(len(texts))]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What follows each context, up to the end mark or the first of the `until` strings.

        Always the likeliest word, unless `do_sample` or a `temperature` above 0 asks for others.
        """
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        temperature = float(options.get("temperature", 1.0 if options.get("do_sample") else 0.0))
        if options.get("do_sample") is False:
            temperature = 0.0
        drawn = (
            self.lm.hmm()
            .sample(
                1,
                prefix=self.lm.encode(context),
                generator=self.generator,
                temperature=temperature,
                max_length=int(next((options[name] for name in LENGTHS if name in options), 256)),
            )[0]
            .tolist()
        )
        if self.lm.tokenizer.end in drawn:
            drawn = drawn[: drawn.index(self.lm.tokenizer.end)]
        text = self.lm.decode(drawn)
        until = options.get("until") or []
        for stop in [until] if isinstance(until, str) else until:
            text = text.split(stop)[0] if stop else text
        return text

    def _encode(self, context: str, continuation: str) -> tuple[list[int], int]:
        """The ids of both together, and how many of them belong to the context.

        Spaces at the end of a context go with the continuation, as a tokenizer may want them. Where
        both meet in one token it is the continuation's, with all that follows; a continuation that
        is not empty has one token at least.
        """
        whole = self.lm.encode(context + continuation)
        if not continuation:
            return whole, len(whole)
        alone = self.lm.encode(context.rstrip(" "))
        same = 0
        while same < min(len(alone), len(whole) - 1) and alone[same] == whole[same]:
            same += 1
        return whole, same

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """Numbers of requests, those of similar length together."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        for first in range(0, len(order), self.batch_size):
            yield order[first : first + self.batch_size]


@torch.no_grad()
def continuations(
    hmm: HMM, contexts: Sequence[list[int]], rests: Sequence[list[int]]
) -> list[tuple[float, bool]]:
    """log p(rest | context) of each row, and whether every token of it is the likeliest one."""
    carry = hmm.carry_after(*padded(contexts))
    after = validate(hmm, *padded(rests))
    total = torch.zeros(len(rests), dtype=torch.float64, device=hmm.start.device)
    greedy = torch.ones(len(rests), dtype=torch.bool, device=hmm.start.device)
    for t in range(after.ids.shape[1]):
        tokens, inside = after.ids[:, t], t < after.lengths
        log_probs = hmm.next_token_after(carry)
        gained = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        total += torch.where(inside, gained.double(), 0.0)
        greedy &= ~inside | (log_probs.argmax(1) == tokens)
        _, carry = hmm.advance(unchecked(hmm, tokens.unsqueeze(1), inside.long()), carry)
    return list(zip(total.tolist(), greedy.tolist(), strict=True))


@cache
def register() -> type:
    """The class for the harness, known there as "bighmm"; ValueError if it is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError("lm-eval is not installed; install bighmm[lm-eval]")
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model

    return register_model("bighmm")(type("BigHMM", (HarnessModel, LM), {}))


if __name__ == "__main__":
    register()
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
