"""The OpenAPI document, made from the addresses, the arguments of questions and their answers."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from functools import cache
from typing import Annotated, Any, Literal

import bighmm
from bighmm.answers.schemas import objects_in, request_schema, schema_of
from bighmm.base.settings import Between
from bighmm.explore.addresses import ADDRESSES, Address
from bighmm.explore.asking import LONGEST_WAIT, fields_of
from bighmm.explore.bodies import ASKED, NOT_ASKED, body_class
from bighmm.explore.settings import VERSION, Limits

ERRORS = {
    400: "The request cannot be read.",
    403: "Host or Origin is not this server's.",
    404: "There is no such thing.",
    409: "The model or the server does not have what is needed: states, blocks, a corpus.",
    413: "The request asks for more than one may ask for.",
    422: "The model cannot answer this, or not in time.",
    503: "Too many requests wait; Retry-After says for how long to wait.",
}


@cache
def document(limits: Limits) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the server."""
    paths: dict[str, Any] = {}
    for address in ADDRESSES:
        there = paths.setdefault(f"/api/v1{address.path}", {})
        there[address.method.lower()] = _operation(address, limits)
    id_parameter = _parameter("id", "path", {"type": "string"}, "Of the job.", True)
    job = {"200": _response("The job.", {"$ref": "#/components/schemas/JobTold"})}
    paths["/api/v1/jobs/{id}"] = {
        "get": {
            "summary": "A job, with its answer once it has one.",
            "parameters": [id_parameter, _wait()],
            "responses": job | _errors(404),
        },
        "delete": {
            "summary": "Cancel a job.",
            "parameters": [id_parameter],
            "responses": job | _errors(404),
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bighmm",
            "version": f"{VERSION} ({bighmm.__version__})",
            "description": "Questions to hidden Markov language models. Answers are those that the "
            "commands print with --json.",
        },
        "paths": paths,
        "components": {"schemas": _components()},
    }


def _operation(address: Address, limits: Limits) -> dict[str, Any]:
    parameters = [
        _parameter(name, "path", {"type": "string" if name == "model" else "integer"}, "", True)
        for name in re.findall(r"\{(\w+)\}", address.path)
    ]
    for name, hint, default in fields_of(address.query):
        schema = _ranged(hint)
        if default is not dataclasses.MISSING and default is not None:
            schema["default"] = default
        parameters.append(_parameter(name, "query", schema, "", False))
    if "{model}" not in address.path:
        which = "The model: a, b, …; without it the first."
        parameters.append(_parameter("model", "query", {"type": "string"}, which, False))
    operation: dict[str, Any] = {"summary": address.about, "parameters": parameters}
    schema = {"type": "object"}
    if address.result is not None:
        schema = {"$ref": f"#/components/schemas/{address.result.__name__}"}
    operation["responses"] = {"200": _response("The answer.", schema)}
    if address.job:
        parameters.append(_wait())
        told = {"$ref": "#/components/schemas/JobTold"}
        operation["responses"]["202"] = _response("With ?wait: it takes longer.", told)
    operation["responses"] |= _errors(*ERRORS)
    if address.body is not None:
        body = _body(address.body, limits)
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return operation


def _body(body: str | type, limits: Limits) -> dict[str, Any]:
    """The schema of a body: the question's arguments, with the ranges that the server allows."""
    if isinstance(body, type):
        return schema_of(body)
    schema = request_schema(ASKED[body])
    for name, hint, _ in fields_of(body_class(body, limits)):
        known = schema["properties"].get(name)
        if known is not None and name != "rule":
            known |= _ranged(hint)
    for name in NOT_ASKED:
        schema["properties"].pop(name, None)
    return schema


def _ranged(hint: Any) -> dict[str, Any]:
    """The schema of a type with ranges."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        schema = _ranged(arguments[0])
        for limit in arguments[1:]:
            if isinstance(limit, Between):
                schema |= {"minimum": limit.least, "maximum": limit.most}
        return schema
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_ranged(option) for option in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _ranged(arguments[0])}
    if origin is Literal:
        return {"enum": list(arguments)}
    return schema_of(hint)


def _components() -> dict[str, Any]:
    """The objects of all answers by name, those within others as references."""
    found: dict[str, Any] = {}
    for address in ADDRESSES:
        if address.result is not None:
            for kind in objects_in(address.result):
                found[kind.__name__] = _with_references(schema_of(kind), top=True)
    error = {
        "type": "object",
        "properties": {"status": {"type": "integer"}, "message": {"type": "string"}},
        "required": ["status", "message"],
    }
    found["Error"] = {
        "type": "object",
        "properties": {"version": {"type": "integer"}, "error": error},
        "required": ["version", "error"],
    }
    states = ["queued", "running", "done", "failed", "cancelled"]
    number = {"type": ["number", "null"]}
    job = {
        "id": {"type": "string"},
        "question": {"type": "string"},
        "state": {"enum": states},
        "done": number,
        "total": number,
        "fraction": number,
        "seconds": {"type": "number"},
        "answer": {"type": "object", "description": "The answer, once it is done."},
        "error": error,
    }
    found["JobTold"] = {
        "type": "object",
        "properties": {
            "version": {"type": "integer"},
            "job": {"type": "object", "properties": job, "required": list(job)[:7]},
        },
        "required": ["version", "job"],
    }
    return found


def _with_references(schema: Any, top: bool = False) -> Any:
    if isinstance(schema, list):
        return [_with_references(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if not top and schema.get("type") == "object" and "title" in schema:
        return {"$ref": f"#/components/schemas/{schema['title']}"}
    return {name: _with_references(value) for name, value in schema.items()}


def _errors(*statuses: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {str(status): _response(ERRORS[status], schema) for status in statuses}


def _response(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _wait() -> dict[str, Any]:
    about = "After so many seconds a job is answered, if the answer is not there yet."
    schema = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT}
    return _parameter("wait", "query", schema, about, False)


def _parameter(
    name: str, where: str, schema: dict[str, Any], about: str, required: bool
) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": required,
        "schema": schema,
        **({"description": about} if about else {}),
    }
