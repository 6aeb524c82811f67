"""The bodies of requests, checked against the arguments of the functions that answer them."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import numpy as np

from bighmm.answers.questions import QUESTIONS
from bighmm.answers.writing import write
from bighmm.base.json_files import parse_json
from bighmm.base.settings import LARGEST, Between, fill
from bighmm.explore.settings import BAD, TOO_LARGE, Limits, Refused
from bighmm.infer.acceptance import live_states
from bighmm.lm.gapped_text import GappedText
from bighmm.lm.protocol import LM
from bighmm.lm.questions import check_length
from bighmm.lm.rules import until
from bighmm.lm.rules.asked import NO_RULE, AskedRule

NOT_ASKED = ("lm", "corpus", "split", "shares")  # arguments that the server gives itself
MOST_NUMBERS = 2**28  # of the tables that a rule or the gaps of a text may need: 1 GiB

# What answers each question; bodies and the OpenAPI document are made from it.
ASKED: dict[str, Callable[..., Any]] = {
    **{name: question.ask for name, question in QUESTIONS.items()},
    "write": write,
}


@dataclasses.dataclass(frozen=True)
class CompareBody:
    """What models are compared on."""

    text: str


@dataclasses.dataclass(frozen=True)
class NameBody:
    """The name of a state."""

    name: str


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is."""
    if not body.strip():
        raise Refused(BAD, "the body is empty; send a JSON object")
    try:
        value = parse_json(body, "the body cannot be read")
    except ValueError as error:
        raise Refused(BAD, str(error)) from None
    if not isinstance(value, dict):
        raise Refused(BAD, 'the body must be a JSON object, such as {"text": "…"}')
    return value


def arguments_of(question: str, value: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The arguments of a question, from a JSON object; Refused for what is wrong with it."""
    kind = body_class(question, limits)
    try:
        found: Any = fill(kind, value, "the body")
        given = {name: getattr(found, name) for name in value}
        if "rule" in given:
            _check_rule_text(given["rule"], limits)
            given["rule"] = AskedRule.from_json(given["rule"] or {})
    except Refused:
        raise
    except ValueError as error:
        raise Refused(BAD, str(error)) from None
    check_texts(given, limits)
    return given


def filled(kind: type, value: dict[str, Any], limits: Limits) -> Any:
    """An instance of one of the dataclasses of bodies."""
    try:
        found: Any = fill(kind, value, "the body")
    except ValueError as error:
        raise Refused(BAD, str(error)) from None
    return found


@cache
def body_class(question: str, limits: Limits) -> type:
    """A dataclass of what a question is asked with, with the ranges that the server allows."""
    ask = ASKED[question]
    hints = typing.get_type_hints(ask, localns={"Corpus": Any, "Tensor": Any})
    fields: list[Any] = []
    for name, parameter in inspect.signature(ask).parameters.items():
        if name in NOT_ASKED:
            continue
        hint = _limited(name, hints[name], limits)
        if parameter.default is inspect.Parameter.empty:
            fields.append((name, hint))
        else:
            fields.append((name, hint, dataclasses.field(default=parameter.default)))
    return dataclasses.make_dataclass(question.title(), fields, frozen=True)


def check_texts(given: dict[str, Any], limits: Limits) -> None:
    """Raises Refused for texts that are too long or too many."""
    for name, value in given.items():
        what = "the text" if name == "texts" else f"the {name}"
        several = value if isinstance(value, list | tuple) else [value]
        texts = [text for text in several if isinstance(text, str)]
        if len(texts) > limits.texts:
            raise Refused(
                TOO_LARGE, f"there are {len(texts)} {name}; at most {limits.texts} are answered"
            )
        for text in texts:
            if len(text) > limits.text:
                raise Refused(
                    TOO_LARGE,
                    f"{what} has {len(text):,} characters; at most {limits.text:,} are read",
                )
        if sum(map(len, texts)) > limits.all_text:
            raise Refused(
                TOO_LARGE, f"the {name} have more than {limits.all_text:,} characters together"
            )


def check_cost(lm: LM, question: str, given: dict[str, Any], states: int) -> None:
    """Raises Refused if the tables of a rule, or of gaps, would not fit in memory."""
    rule = given.get("rule", NO_RULE).of(lm.tokenizer)
    if question == "fill":
        gapped = GappedText.read(given["text"], lm.tokenizer)
        places = sum(sum(lengths) for lengths in gapped.choices)
        if rule is not None:
            places *= rule.compile(lm.tokenizer.size).num_states
        advice = "give shorter gaps, narrower ranges or a simpler rule"
        _check_rows("the gaps of the text", places, states, advice)
    elif rule is not None:
        automaton = until(rule, lm.tokenizer.end).compile(lm.tokenizer.size)
        steps = check_length(given.get("length"), rule) + 1
        rows = automaton.num_states * steps
        if rows * states > MOST_NUMBERS:  # fewer may be needed
            rows = int(live_states(automaton, np.zeros(1, dtype=np.int64), steps).sum())
        _check_rows("the rule", rows, states, "ask for a simpler rule or a shorter length")


def _check_rows(what: str, rows: int, states: int, advice: str) -> None:
    if rows * states > MOST_NUMBERS:
        raise Refused(
            TOO_LARGE,
            f"{what} would take a table of {rows:,} rows of {states:,} states, and at most "
            f"{MOST_NUMBERS:,} numbers are kept; {advice}",
        )


def _check_rule_text(rule: Any, limits: Limits) -> None:
    size = len(str(rule))
    if size > limits.rule:
        raise Refused(
            TOO_LARGE, f"the rule has about {size:,} characters; at most {limits.rule:,} are read"
        )


def _limited(name: str, hint: Any, limits: Limits) -> Any:
    """A type as JSON has it, with the range of its numbers."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is AskedRule:
        return dict[str, Any] | None
    if origin in (Sequence, list, tuple):
        return list[_limited(name, arguments[0], limits)]  # type: ignore[misc]
    if origin in (typing.Union, types.UnionType):
        options = tuple(_limited(name, option, limits) for option in arguments)
        return typing.Union[options]  # noqa: UP007
    if hint is int:
        return Annotated[int, _range(name, limits)]
    if hint is float:
        return Annotated[float, Between(0, 1 if name == "top_p" else 1000)]
    return hint


def _range(name: str, limits: Limits) -> Between:
    ranges = {
        "n": Between(1, limits.number),
        "top": Between(1, limits.number),
        "words": Between(1, limits.number),
        "neighbours": Between(1, limits.number),
        "top_k": Between(1, LARGEST),
        "length": Between(0, limits.length),
    }
    return ranges.get(name, Between(0, LARGEST))
