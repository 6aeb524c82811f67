"""Which address asks what: routes and the OpenAPI document are made from `ADDRESSES`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import bighmm
from bighmm.answers import browsing, browsing_objects
from bighmm.answers.browsing_objects import Compared, RunCurves, Written
from bighmm.answers.comparing import compare
from bighmm.answers.questions import QUESTIONS
from bighmm.base.settings import Between
from bighmm.explore.bodies import (
    ASKED,
    CompareBody,
    NameBody,
    arguments_of,
    check_cost,
    filled,
)
from bighmm.explore.jobs import Jobs
from bighmm.explore.opened import Opened
from bighmm.explore.settings import (
    BAD,
    MISSING,
    TOO_LARGE,
    UNAVAILABLE,
    VERSION,
    Limits,
    Refused,
)
from bighmm.inspect.states import check_states
from bighmm.train.curves import has_log, is_running, read_curves

Page = Annotated[int, Between(0, 10**9)]
Size = Annotated[int, Between(1, 500)]


@dataclass(frozen=True)
class Call:
    """A request as the functions below see it."""

    opened: list[Opened]
    model: Opened  # that of ?model
    jobs: Jobs
    limits: Limits
    path: dict[str, int]  # the numbers in the address
    query: Any  # an instance of the address' dataclass of parameters
    body: dict[str, Any]

    def known(self) -> browsing.Known:
        return self.model.known(self.jobs)


@dataclass(frozen=True)
class NoQuery:
    """No parameters."""


@dataclass(frozen=True)
class StatesQuery:
    query: str = ""
    sort: Literal["number", "share", "entropy", "block"] = "number"
    order: Literal["asc", "desc"] | None = None
    block: Page | None = None
    page: Page = 0
    size: Size = 50


@dataclass(frozen=True)
class SizeQuery:
    size: Size = 20


@dataclass(frozen=True)
class PageQuery:
    page: Page = 0
    size: Size = 200


@dataclass(frozen=True)
class CurvesQuery:
    after: Annotated[int, Between(0, 2**62)] = 0
    points: Annotated[int, Between(1, 10_000)] = 1000


@dataclass(frozen=True)
class CompareQuery:
    models: str | None = None


@dataclass(frozen=True)
class Address:
    """An address of the server, below /api/v1."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    about: str
    answer: Callable[[Call], dict[str, Any]]
    result: Any = None  # the type of the answer, for the OpenAPI document
    query: type = NoQuery
    body: str | type | None = None  # a question, whose arguments the body has; or a dataclass
    job: bool = True  # whether a thread works on it, with ?wait; others answer at once


def ask_question(name: str) -> Callable[[Call], dict[str, Any]]:
    """The function that answers a question of `answers`."""

    def ask(call: Call) -> dict[str, Any]:
        given = arguments_of(name, call.body, call.limits)
        model = call.model
        if name in QUESTIONS and QUESTIONS[name].only_hmm:
            model.hmm_lm  # noqa: B018  # refuses a model without states
        check_cost(model.lm, name, given, model.num_states)
        if name == "states":
            return _states(call, given)
        return ASKED[name](model.lm, **given)

    return ask


def _states(call: Call, given: dict[str, Any]) -> dict[str, Any]:
    """The question `states`, with the shares of the survey, which it waits for if it needs them."""
    if len(given.get("states", ())) > call.limits.states:
        raise Refused(TOO_LARGE, f"at most {call.limits.states} states are answered at a time")
    model = call.model
    shares = None
    if given.get("sort", "share") == "share" and model.corpus is not None:
        shares = model.survey.wait(call.jobs).shares
    return ASKED["states"](model.lm, **given, shares=shares, split=model.split)


def health(call: Call) -> dict[str, Any]:
    return {
        "version": VERSION,
        "status": "ok",
        "bighmm": bighmm.__version__,
        "models": len(call.opened),
    }


def models(call: Call) -> dict[str, Any]:
    listed = [
        {"model": one.key, "name": one.name, "family": one.family, "states": one.num_states or None}
        for one in call.opened
    ]
    return {"version": VERSION, "models": listed}


def facts(call: Call) -> dict[str, Any]:
    return call.model.facts(call.limits)


def begin_survey(call: Call) -> dict[str, Any]:
    call.model.hmm_lm  # noqa: B018
    if call.model.corpus is None:
        raise Refused(UNAVAILABLE, call.model.why_no_corpus)
    call.model.survey.begin(call.jobs)
    return {"version": VERSION, "survey": call.model.survey_progress()}


def cancel_survey(call: Call) -> dict[str, Any]:
    if call.model.survey.job is not None:
        call.model.survey.job.cancel()
    return {"version": VERSION, "survey": call.model.survey_progress()}


def state_rows(call: Call) -> dict[str, Any]:
    query: StatesQuery = call.query
    known = call.known()
    sort = query.sort
    if sort == "share" and known.shares is None:
        sort = "number"
    descending = query.order == "desc" or (query.order is None and sort == "share")
    if len(query.query) > 200:
        raise Refused(TOO_LARGE, "a query has at most 200 characters")
    found = browsing.state_rows(
        known, query.query, sort, descending, query.block, query.page, query.size
    )
    return {**found, "survey": call.model.survey_progress()}


def one_state(call: Call) -> dict[str, Any]:
    return dict(browsing.one_state(call.known(), _state(call)))


def contexts(call: Call) -> dict[str, Any]:
    state, model = _state(call), call.model
    if model.corpus is None:
        raise Refused(UNAVAILABLE, model.why_no_corpus)
    known = call.known()
    there = known.survey is not None
    found = browsing.state_contexts(known, state, call.query.size) if there else []
    progress = model.survey_progress()
    return {"version": VERSION, "state": state, "survey": progress, "contexts": found}


def blocks(call: Call) -> dict[str, Any]:
    _block(call)
    return dict(browsing.block_list(call.known()))


def one_block(call: Call) -> dict[str, Any]:
    block = _block(call, "block")
    return dict(browsing.one_block(call.known(), block, call.query.page, call.query.size))


def moves(call: Call) -> dict[str, Any]:
    _block(call)
    return call.model.moves(call.jobs)


def pair(call: Call) -> dict[str, Any]:
    first, second = _block(call, "first"), _block(call, "second")
    return dict(browsing.pair(call.known(), first, second, call.query.size))


def names(call: Call) -> dict[str, Any]:
    return {"model": call.model.key, **call.model.names.described()}


def rename(call: Call) -> dict[str, Any]:
    body: NameBody = filled(NameBody, call.body, call.limits)
    return {"model": call.model.key, **call.model.names.rename(_state(call), body.name)}


def unname(call: Call) -> dict[str, Any]:
    return {"model": call.model.key, **call.model.names.rename(_state(call), "")}


def compared(call: Call) -> dict[str, Any]:
    body: CompareBody = filled(CompareBody, call.body, call.limits)
    if len(body.text) > call.limits.all_text:
        raise Refused(
            TOO_LARGE,
            f"the text has {len(body.text):,} characters; at most {call.limits.all_text:,} are "
            "compared",
        )
    longest = max(map(len, body.text.split("\n")))
    if longest > call.limits.text:
        raise Refused(
            TOO_LARGE,
            f"a line has {longest:,} characters; at most {call.limits.text:,} are read",
        )
    keys = [one.key for one in call.opened][:2]
    if call.query.models:
        keys = call.query.models.split(",")
    by_key = {one.key: one for one in call.opened}
    for key in keys:
        if key not in by_key:
            raise Refused(MISSING, f"there is no model {key[:40]!r}; there are {', '.join(by_key)}")
    if len(keys) > 8:
        raise Refused(BAD, "at most 8 models are compared")
    chosen = [by_key[key] for key in keys]
    found = compare([one.lm for one in chosen], keys, body.text)
    return {**found, "names": [one.name for one in chosen]}


def runs(call: Call) -> dict[str, Any]:
    listed = [
        {"model": one.key, "name": one.name, "has_log": has_log(one.run)} for one in call.opened
    ]
    return {"version": VERSION, "runs": listed}


def curves(call: Call) -> dict[str, Any]:
    """The curves of the model of the address' last part, which `app` has found."""
    model, query = call.model, call.query
    if not has_log(model.run):
        raise Refused(
            UNAVAILABLE, f"{model.name} has no log.jsonl, so there are no curves of its training"
        )
    found = read_curves(model.run, query.after, query.points)
    return {
        "version": VERSION,
        "model": model.key,
        "name": model.name,
        "running": is_running(model.run),
        **dataclasses.asdict(found),
    }


def _state(call: Call) -> int:
    """The state of the address; Refused if there is none of this number."""
    state = call.path["state"]
    hmm = call.model.hmm_lm.hmm()
    try:
        check_states(hmm, [state])
    except ValueError as error:
        raise Refused(MISSING, str(error)) from None
    return state


def _block(call: Call, name: str | None = None) -> int:
    """The block of the address; Refused if the model has no blocks, or none of this number."""
    partition = call.model.hmm_lm.hmm().support.partition
    if partition is None:
        raise Refused(UNAVAILABLE, f"the states of {call.model.name} are not in blocks")
    block = 0 if name is None else call.path[name]
    if block >= partition.num_blocks:
        raise Refused(
            MISSING, f"there is no block {block}: blocks go from 0 to {partition.num_blocks - 1}"
        )
    return block


ADDRESSES = [
    Address("GET", "/health", "Whether the server answers.", health, job=False),
    *(
        Address(
            "POST",
            f"/{name}",
            (ASKED[name].__doc__ or "").splitlines()[0],
            ask_question(name),
            QUESTIONS[name].answer,
            body=name,
        )
        for name in QUESTIONS
    ),
    Address(
        "POST",
        "/write",
        "Samples word by word, and how likely a rule was after each word.",
        ask_question("write"),
        Written,
        body="write",
    ),
    Address(
        "POST",
        "/compare",
        "Several models on the same text: the surprisal of every word.",
        compared,
        Compared,
        CompareQuery,
        CompareBody,
    ),
    Address("GET", "/models", "The models of this server.", models, job=False),
    Address("GET", "/model", "Facts about a model.", facts, job=False),
    Address("POST", "/survey", "Begin to read the corpus again.", begin_survey, job=False),
    Address("DELETE", "/survey", "Stop reading the corpus.", cancel_survey, job=False),
    Address(
        "GET",
        "/states",
        "A page of the table of states.",
        state_rows,
        browsing_objects.StatesPage,
        StatesQuery,
    ),
    Address(
        "GET", "/states/{state}", "All about one state.", one_state, browsing_objects.StatePage
    ),
    Address(
        "GET",
        "/states/{state}/contexts",
        "Places of the corpus at which a state is most certain.",
        contexts,
        query=SizeQuery,
    ),
    Address("GET", "/blocks", "The blocks of the vocabulary.", blocks, browsing_objects.Blocks),
    Address(
        "GET", "/blocks/moves", "Moves between all blocks.", moves, browsing_objects.BlockMoves
    ),
    Address(
        "GET",
        "/blocks/{block}",
        "A block with its words.",
        one_block,
        browsing_objects.BlockPage,
        PageQuery,
    ),
    Address(
        "GET",
        "/blocks/{first}/to/{second}",
        "Moves between the states of two blocks.",
        pair,
        browsing_objects.BlockPair,
        SizeQuery,
    ),
    Address("GET", "/names", "The names that people gave to states.", names, job=False),
    Address("PUT", "/names/{state}", "Give a state a name.", rename, body=NameBody),
    Address("DELETE", "/names/{state}", "Take a state's name away.", unname),
    Address("GET", "/runs", "The runs of this server's models.", runs, job=False),
    Address(
        "GET",
        "/runs/{model}",
        "The curves of a run, from a byte of its log on.",
        curves,
        RunCurves,
        CurvesQuery,
    ),
]
