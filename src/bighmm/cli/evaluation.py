"""`bighmm eval`: perplexity with its conventions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from bighmm.cli.common import (
    AsJson,
    ModelPath,
    at_least_one,
    out,
    parse,
    print_json,
    trained_on,
)
from bighmm.data.corpus import prepare
from bighmm.lm.evaluation import TOLERANCE, Convention, deviation_from_one, unigram_perplexity
from bighmm.lm.opening import find_device, find_model, open_model


@dataclass(frozen=True)
class EvalArguments:
    """Perplexity of a model; every token counts, with end marks and unknown words."""

    model: ModelPath
    data: Annotated[
        str | None, tyro.conf.arg(help="A corpus; without it the one the run was trained on.")
    ] = None
    split: Annotated[Literal["train", "valid", "test"], tyro.conf.arg(help="Which part of it.")] = (
        "test"
    )
    carry: Annotated[
        bool, tyro.conf.arg(help="Carry the state over end marks instead of starting anew.")
    ] = False
    reset: Annotated[
        bool, tyro.conf.arg(help="Start anew after end marks, as HMMs and n-grams do anyway.")
    ] = False
    check_normalised: Annotated[
        bool,
        tyro.conf.arg(
            help="Also check that the next-word probabilities of sampled contexts sum to one."
        ),
    ] = False
    contexts: Annotated[int, tyro.conf.arg(help="How many contexts to check.")] = 32
    device: Annotated[str, tyro.conf.arg(help="cpu, cuda, or auto: a GPU if there is one.")] = "cpu"
    matmul_dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        tyro.conf.arg(help="Type of the vectors whose products are logits, as in training."),
    ] = "auto"
    as_json: AsJson = False


def eval_command(argv: list[str]) -> None:
    arguments = parse(EvalArguments, argv, "eval")
    at_least_one(arguments.contexts, "contexts")
    device = find_device(arguments.device)
    folder = find_model(arguments.model)
    lm = open_model(folder).to(device, arguments.matmul_dtype)
    corpus = prepare(arguments.data or trained_on(arguments.model), tokenizer=folder)
    if arguments.carry and arguments.reset:
        raise ValueError("--carry and --reset exclude each other; give at most one")
    convention: Convention = lm.convention
    if arguments.carry or arguments.reset:
        convention = "carry" if arguments.carry else "reset"
    found = lm.perplexity(corpus, split=arguments.split, convention=convention)
    tokens = corpus.split(arguments.split)
    result: dict[str, Any] = dataclasses.asdict(found)
    result["unigram_perplexity"] = unigram_perplexity(
        corpus.split("train"), tokens, corpus.tokenizer.size
    )
    if arguments.check_normalised:
        deviation = deviation_from_one(lm.predictor(), tokens, arguments.contexts)
        result["largest_deviation_from_one"] = deviation
        if not deviation <= TOLERANCE:
            raise ValueError(
                f"the model {arguments.model} is not normalised: the probabilities of the next "
                f"word sum to one only within {deviation:.2g}, which must be at most {TOLERANCE}"
            )
    if arguments.as_json:
        print_json(result)
        return
    console = out()
    console.print(
        f"{arguments.split} perplexity [bold]{found.perplexity:.2f}[/] over {found.tokens:,} "
        f"tokens (log-probability {found.log_prob:,.1f} nats)"
    )
    after = "the model starts anew" if convention == "reset" else "the state is carried on"
    console.print(f"after an end mark: {after}; vocabulary {found.vocabulary[:12]}")
    console.print(f"a unigram model has {result['unigram_perplexity']:.2f}")
    if arguments.check_normalised:
        console.print(
            f"next-word probabilities sum to one within {deviation:.1e} "
            f"in {arguments.contexts} contexts"
        )
