"""The answer about a rule: how likely it is to hold, and why if it cannot."""

from __future__ import annotations

import math

import torch

from bighmm.answers.objects import VERSION, RuleAnswer
from bighmm.answers.plain import finite
from bighmm.data.tokenizers import unknown_words
from bighmm.infer.rules.rules import Rule, why_impossible
from bighmm.infer.rules.rules import length as of_length
from bighmm.lm.protocol import LM
from bighmm.lm.questions import check_length, hmm_of
from bighmm.lm.rules import until
from bighmm.lm.rules.asked import AskedRule


@torch.no_grad()
def rule(lm: LM, rule: AskedRule, prefix: str = "", length: int | None = None) -> RuleAnswer:
    """p(the words after a prefix satisfy a rule), and whether and why they cannot.

    length: tokens after the prefix at most, the end mark not counted (100).
    """
    made = rule.of(lm.tokenizer)
    if made is None:
        raise ValueError("there is no rule; give what must or must not be in the text")
    hmm, before, end = hmm_of(lm, "probabilities of rules"), lm.encode(prefix), lm.tokenizer.end
    room = check_length(length, made)

    def log_prob(asked: Rule) -> float:
        return float(hmm.rule_log_prob(until(asked, end), room + 1, before))

    reason = why_impossible(made, lm.tokenizer.size, room, exact=False)
    of_rule = -math.inf if reason is not None else log_prob(made)
    if reason is None and of_rule == -math.inf:
        where = "after this prefix" if before else "at the beginning of a text"
        reason = f"the rule {made} has probability zero in this model {where}"
    return finite(
        RuleAnswer(
            version=VERSION,
            prefix=prefix,
            unknown=unknown_words(lm.tokenizer, prefix),
            rule=str(made),
            length=room,
            possible=reason is None,
            why_not=reason,
            prob=math.exp(of_rule),
            log_prob_rule=of_rule,
            prob_ends=math.exp(log_prob(of_length(0))),
        )
    )
