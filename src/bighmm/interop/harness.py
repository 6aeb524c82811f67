"""A model for EleutherAI's lm-evaluation-harness; needs the extra `bighmm[lm-eval]`.

    python -m bighmm.interop.harness --model bighmm --model_args pretrained=RUN --tasks …

is `lm_eval` with this model added: an HMM, an n-gram model or a network, whatever `open_model`
opens. From Python, `register()` gives the class. A line break is the end mark. After it HMMs and
n-grams start anew, so what stands before the last line break of a context does not matter; a
network, and an HMM that was trained to, carries its state on. Words that are not in a word
vocabulary count as its unknown word: figures over different vocabularies cannot be compared.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bighmm.infer.sequences import padded
from bighmm.lm.opening import find_device, open_model
from bighmm.lm.protocol import LM
from bighmm.lm.questions import sample
from bighmm.lm.stepping import go_on, state_after, stepper_of

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names of the longest answer's length

LONGEST = 256  # tokens of an answer, where a task does not say

DEFAULT_DEVICE = "cuda:0"  # what the harness gives if its user gives none


class HarnessModel:
    """The harness' requests, answered by a model of any family.

    It is a mixin for the harness' base class, `lm_eval.api.model.LM`.

    pretrained: a model, its folder or that of a run, or its name on the hub.
    batch_size: requests at once; "auto" is 16. Other options of the harness are ignored.
    device: as for `find_device`; the harness' default, "cuda:0", is the CPU where there is no GPU.
    """

    def __init__(
        self,
        pretrained: str | Path | LM,
        batch_size: int | str = 16,
        device: str | None = None,
        seed: int = 0,
        **_: Any,
    ) -> None:
        super().__init__()
        if isinstance(pretrained, str | Path):
            pretrained = open_model(pretrained)
        if device == DEFAULT_DEVICE and not torch.cuda.is_available():
            device = "cpu"
        self.lm = pretrained if device is None else pretrained.to(find_device(device))
        self._device = self.lm.device
        self.batch_size = int(batch_size) if str(batch_size).isdigit() else 16
        self.generator = torch.Generator(self.lm.device).manual_seed(seed)

    @property
    def tokenizer_name(self) -> str:
        """A name for the harness' cache, different for every vocabulary."""
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
            found |= zip(rows, continuations(self.lm, contexts, rests), strict=True)
        return [found[row] for row in range(len(pairs))]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """log p of whole texts, each by itself; end marks are those of its line breaks."""
        texts = [self.lm.encode(request.args[0]) for request in requests]
        found: dict[int, float] = {}
        for rows in self._batches([len(ids) for ids in texts]):
            log_probs = self.lm.predictor().log_prob(*padded([texts[row] for row in rows]))
            found |= zip(rows, log_probs.tolist(), strict=True)
        return [found[row] for row in range(len(texts))]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The continuation of each context, up to the end mark or the first of the `until` strings.

        It takes the likeliest word, unless `do_sample` or a `temperature` above 0 asks for samples.
        """
        return [self._generate(*request.args) for request in requests]

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        temperature = float(options.get("temperature", 1.0 if options.get("do_sample") else 0.0))
        if options.get("do_sample") is False:
            temperature = 0.0
        length = int(next((options[name] for name in LENGTHS if name in options), LONGEST))
        (drawn,) = sample(self.lm, 1, context, length, None, temperature, generator=self.generator)
        text = self.lm.decode(drawn.ids)
        until = options.get("until") or []
        for stop in [until] if isinstance(until, str) else until:
            text = text.split(stop)[0] if stop else text
        return text

    def _encode(self, context: str, continuation: str) -> tuple[list[int], int]:
        """The ids of both together, and how many of them belong to the context.

        Spaces at the end of a context belong to the continuation, because of subword tokenizers. So
        does a token that spans both. A continuation that is not empty has at least one token.
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
        """Indices of requests, in batches of similar length."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        for first in range(0, len(order), self.batch_size):
            yield order[first : first + self.batch_size]


@torch.no_grad()
def continuations(
    lm: LM, contexts: Sequence[list[int]], rests: Sequence[list[int]]
) -> list[tuple[float, bool]]:
    """log p(rest | context) of each row, and whether every token of it is the likeliest one."""
    stepper = stepper_of(lm)
    state = state_after(stepper, contexts)
    ids, lengths = (tensor.to(stepper.device) for tensor in padded(rests))
    total = torch.zeros(len(rests), dtype=torch.float64, device=stepper.device)
    greedy = torch.ones(len(rests), dtype=torch.bool, device=stepper.device)
    for t in range(ids.shape[1]):
        tokens, inside = ids[:, t], t < lengths
        log_probs, predicted = stepper.predict(state)
        gained = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        total += torch.where(inside, gained.double(), 0.0)
        greedy &= ~inside | (log_probs.argmax(1) == tokens)
        state = go_on(stepper, predicted, state, tokens, inside)
    return list(zip(total.tolist(), greedy.tolist(), strict=True))


@cache
def register() -> type:
    """The class for the harness, registered as "bighmm"; ValueError if lm-eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError("lm-eval is not installed; install bighmm[lm-eval]")
    from lm_eval.api.model import LM as HarnessLM
    from lm_eval.api.registry import register_model

    return register_model("bighmm")(type("BigHMM", (HarnessModel, HarnessLM), {}))


def main() -> None:
    """`lm_eval` with this model added; one sentence if it is not installed."""
    try:
        register()
    except ValueError as error:
        sys.exit(f"error: {error}")
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
