"""`bighmm score`, `next`, `sample` and `tag`: questions to a trained model."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from rich.markup import escape
from rich.table import Table

from bighmm.cli.common import (
    AsJson,
    ModelPath,
    at_least_one,
    out,
    parse,
    print_json,
    some_text,
)
from bighmm.cli.rules import NO_RULE, RuleFlags
from bighmm.hmm import HMM
from bighmm.infer.rules.rules import why_impossible
from bighmm.infer.sequences import padded
from bighmm.lm.baselines import Baseline
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import generator_for, open_hmm, open_model, sample_texts

LINES_AT_ONCE = 512


@dataclass(frozen=True)
class ScoreArguments:
    """Log-probability in nats of every line of standard input, with its end mark."""

    model: ModelPath
    as_json: AsJson = False


def score_command(argv: list[str]) -> None:
    arguments = parse(ScoreArguments, argv, "score")
    lm = open_model(arguments.model)
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise ValueError("standard input holds no text; give one text per line")
    # Not splitlines: a line may hold one of the rarer line separators of Unicode.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    found: list[dict[str, Any]] = []
    for i in range(0, len(lines), LINES_AT_ONCE):
        part = lines[i : i + LINES_AT_ONCE]
        tokens, lengths = padded([lm.encode(line + "\n") for line in part])
        log_probs = lm.predictor().log_prob(tokens, lengths).tolist()
        for line, log_prob, length in zip(part, log_probs, lengths.tolist(), strict=True):
            perplexity = math.exp(min(-log_prob / length, 700))
            found.append(
                {"text": line, "log_prob": log_prob, "tokens": length, "perplexity": perplexity}
            )
    if arguments.as_json:
        print_json({"lines": found})
        return
    for row in found:
        print(f"{row['log_prob']:.4f}\t{row['tokens']}\t{row['text']}")


@dataclass(frozen=True)
class NextArguments:
    """The most likely next words after a text, or at its beginning."""

    model: ModelPath
    prefix: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(help="The text so far.")] = (
        None
    )
    rule: RuleFlags = NO_RULE
    remaining: Annotated[
        int | None, tyro.conf.arg(help="With a rule, at most so many words to come (40).")
    ] = None
    n: Annotated[int, tyro.conf.arg(help="How many words.")] = 10
    as_json: AsJson = False


def next_command(argv: list[str]) -> None:
    arguments = parse(NextArguments, argv, "next")
    if arguments.prefix is not None:
        some_text(arguments.prefix, "the prefix")
    at_least_one(arguments.n, "n")
    prefix = arguments.prefix or ""
    lm: HMMLM | Baseline
    if arguments.rule.given:
        lm = open_hmm(arguments.model, "answers under a rule")
        rule, room = arguments.rule.of(lm), arguments.rule.room(arguments.remaining)
        log_probs = lm.next_token(prefix, rule, room)
        if not bool((log_probs > -torch.inf).any()):
            reason = why_impossible(rule, lm.tokenizer.size, room, exact=False)
            raise ValueError(reason or f"the rule {rule} has probability zero after this prefix")
    else:
        lm = open_model(arguments.model)
        ids = torch.tensor([lm.encode(prefix)], dtype=torch.long)
        log_probs = lm.predictor().next_token(ids)[0]
    best = log_probs.topk(min(arguments.n, len(log_probs)))
    words = [
        {"word": lm.tokenizer.token(i), "prob": math.exp(p), "log_prob": p}
        for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        if p > -math.inf
    ]
    if arguments.as_json:
        print_json({"prefix": prefix, "next": words})
        return
    for row in words:
        print(f"{row['prob']:.4f}\t{row['word']}")


@dataclass(frozen=True)
class SampleArguments:
    """Text drawn from a model."""

    model: ModelPath
    n: Annotated[int, tyro.conf.arg(help="How many texts.")] = 3
    prefix: Annotated[str | None, tyro.conf.arg(help="What every text begins with.")] = None
    rule: RuleFlags = NO_RULE
    length: Annotated[
        int | None,
        tyro.conf.arg(
            help="Exactly so many tokens; without it, up to the end mark. With a rule, at most so "
            "many words before it (40)."
        ),
    ] = None
    temperature: Annotated[
        float, tyro.conf.arg(help="Below 1 sharper, above 1 flatter, 0 always the likeliest word.")
    ] = 1.0
    seed: Annotated[int | None, tyro.conf.arg(help="The same seed, the same texts.")] = None
    as_json: AsJson = False


def sample_command(argv: list[str]) -> None:
    arguments = parse(SampleArguments, argv, "sample")
    if arguments.prefix is not None:
        some_text(arguments.prefix, "the prefix")
    if arguments.rule.given:
        lm = open_hmm(arguments.model, "samples under a rule")
        texts = lm.sample(
            arguments.n,
            arguments.rule.room(arguments.length),
            arguments.prefix or "",
            arguments.rule.of(lm),
            generator_for(lm.device, arguments.seed),
            arguments.temperature,
        )
    else:
        texts = sample_texts(
            open_model(arguments.model),
            arguments.n,
            arguments.prefix or "",
            arguments.seed,
            arguments.length,
            arguments.temperature,
        )
    if arguments.as_json:
        print_json({"prefix": arguments.prefix or "", "texts": texts})
        return
    for text in texts:
        print(text)


@dataclass(frozen=True)
class TagArguments:
    """The most likely state of every word, and the words each state likes best."""

    model: ModelPath
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="The text to tag.")]
    words: Annotated[int, tyro.conf.arg(help="How many words to show for a state.")] = 6
    as_json: AsJson = False


def tag_command(argv: list[str]) -> None:
    arguments = parse(TagArguments, argv, "tag")
    some_text(arguments.text, "the text")
    at_least_one(arguments.words, "words")
    lm = open_hmm(arguments.model, "states")
    hmm = lm.hmm()
    ids = lm.encode(arguments.text)
    tokens = torch.tensor([ids], dtype=torch.long)
    best, smoothed = hmm.viterbi(tokens), hmm.posterior(tokens)
    rows = []
    for t, (token, state) in enumerate(zip(ids, best.states[0].tolist(), strict=True)):
        sure = float(smoothed.marginals[0, t][smoothed.states[0, t] == state].sum())
        likes = [lm.tokenizer.token(i) for i in _words_of(hmm, state, arguments.words)]
        rows.append(
            {"word": lm.tokenizer.token(token), "state": state, "posterior": sure, "words": likes}
        )
    if arguments.as_json:
        print_json({"log_prob": float(best.log_prob[0]), "tokens": rows})
        return
    table = Table("word", "state", "p(state | text)", "the state's words")
    for row in rows:
        shown = "  ".join(repr(word)[1:-1] for word in row["words"])
        word = escape(repr(row["word"])[1:-1])
        table.add_row(word, str(row["state"]), f"{row['posterior']:.2f}", escape(shown))
    out().print(table)


def _words_of(hmm: HMM, state: int, number: int) -> list[int]:
    """The tokens a state emits most often, of those it can emit at all."""
    log_probs = hmm.support.emission_rows(hmm.emission, torch.tensor([state]))[0]
    best = log_probs.topk(min(number, len(log_probs)))
    return [
        i for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True) if p > -math.inf
    ]
