"""The answer to `write`: samples word by word, with what happens to a rule on the way."""

from __future__ import annotations

import math
from typing import Any

import torch

from bighmm.answers.browsing_objects import Written, WrittenText
from bighmm.answers.objects import VERSION
from bighmm.answers.plain import finite
from bighmm.base.randomness import generator_for
from bighmm.data.tokenizers import unknown_words
from bighmm.infer.constrained import sample_traced
from bighmm.infer.rules import Rule
from bighmm.infer.sequences import padded
from bighmm.lm import questions
from bighmm.lm.protocol import LM
from bighmm.lm.rules.asked import NO_RULE, AskedRule


@torch.no_grad()
def write(
    lm: LM,
    n: int = 3,
    prefix: str = "",
    rule: AskedRule = NO_RULE,
    length: int | None = None,
    temperature: float = 1.0,
    seed: int | None = None,
) -> Written:
    """n texts drawn from the model as `sample` draws them, word by word.

    length: tokens after the prefix at most, the end mark not counted (100).
    temperature: below 1 sharper, above 1 flatter, 0 always the likeliest word.
    seed: the same seed gives the same texts.
    """
    questions.check_texts(n)
    made = rule.of(lm.tokenizer)
    room = questions.check_length(length, made)
    answer = Written(
        version=VERSION,
        prefix=prefix,
        unknown=unknown_words(lm.tokenizer, prefix),
        rule=None if made is None else str(made),
        length=room,
        prob=None,
        log_prob_rule=None,
        prob_ends=None,
        automaton=None,
        texts=[],
    )
    if made is None:
        drawn = questions.sample(lm, n, prefix, room, None, temperature, seed)
        answer["texts"] = [_plain_text(lm, prefix, one) for one in drawn]
    else:
        _with_rule(lm, answer, made, n, generator_for(lm.device, seed), temperature)
    return finite(answer)


def _plain_text(lm: LM, prefix: str, drawn: questions.Sample) -> WrittenText:
    """A text that was drawn without a rule."""
    before = lm.encode(prefix)
    ids = [*drawn.ids, *([lm.tokenizer.end] if drawn.ended else [])]
    tokens, lengths = padded([[*before, *ids]])
    each = questions.token_log_probs(lm.predictor(), tokens, lengths)[0].tolist()[len(before) :]
    words: list[Any] = [
        {
            "word": lm.tokenizer.token(id),
            "log_prob_next": log_prob,
            "automaton": None,
            "prob_rule": None,
        }
        for id, log_prob in zip(ids, each, strict=True)
    ]
    total = math.fsum(each)
    return WrittenText(
        text=drawn.text, ended=drawn.ended, log_prob=total, log_prob_given_rule=total, words=words
    )


def _with_rule(
    lm: LM,
    answer: Written,
    rule: Rule,
    n: int,
    generator: torch.Generator | None,
    temperature: float,
) -> None:
    """Fill in texts that satisfy a rule, and its probability."""
    hmm = questions.hmm_of(lm, "samples under a rule")
    before, end = lm.encode(answer["prefix"]), lm.tokenizer.end
    carry = hmm.carry_after(torch.tensor([before], dtype=torch.long))
    if not bool(carry.possible.all()):
        raise ValueError("the prefix has probability zero in this model")
    found = sample_traced(hmm, rule, n, carry, answer["length"] + 1, generator, temperature)
    log_prob_rule = float(found.log_prob_rule)
    answer["log_prob_rule"], answer["prob"] = log_prob_rule, math.exp(log_prob_rule)
    answer["prob_ends"] = math.exp(float(found.log_prob_ends))
    answer["automaton"] = {"states": found.num_states, "start": 0}
    for row, ids in enumerate(found.tokens.tolist()):
        number = ids.index(end) + 1
        log_probs = found.log_probs[row, :number].tolist()
        total = math.fsum(log_probs)
        words: list[Any] = [
            {
                "word": lm.tokenizer.token(id),
                "log_prob_next": log_prob,
                "automaton": state,
                "prob_rule": math.exp(holds),
            }
            for id, log_prob, state, holds in zip(
                ids[:number],
                log_probs,
                found.dfa_states[row, :number].tolist(),
                found.log_holds[row, :number].tolist(),
                strict=True,
            )
        ]
        answer["texts"].append(
            WrittenText(
                text=lm.decode([*before, *ids[: number - 1]]),
                ended=True,
                log_prob=total,
                log_prob_given_rule=total - log_prob_rule,
                words=words,
            )
        )
