"""The server put together: addresses, jobs, the files of the page, and what guards them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bighmm.explore import asking
from bighmm.explore.addresses import ADDRESSES, Address, Call
from bighmm.explore.bodies import read_object
from bighmm.explore.jobs import Jobs
from bighmm.explore.openapi import document
from bighmm.explore.opened import Opened
from bighmm.explore.page_files import PageFile, page_files
from bighmm.explore.replies import refusal, reply
from bighmm.explore.security import App, Guard
from bighmm.explore.settings import BAD, MISSING, WRONG_METHOD, Limits, Refused

BASE = "/api/v1"
EVERYWHERE = ("wait", "model")  # parameters that every address may have


def make_app(
    opened: Sequence[Opened],
    limits: Limits | None = None,
    *,
    page: bool = True,
    names: Iterable[str] = (),
    quick: int = 2,
) -> App:
    """The server as an ASGI application.

    page: whether it also serves the page. names: host names under which it may be asked, beside
    those of this machine. quick: how many short questions are answered at the same time.
    """
    limits = limits or Limits()
    server = _Server(list(opened), limits, Jobs(limits, quick))
    routes = [server.route(address) for address in ADDRESSES]
    routes += [
        Route(f"{BASE}/openapi.json", server.openapi, methods=["GET"]),
        Route(f"{BASE}/jobs/{{id}}", server.job, methods=["GET", "DELETE"]),
    ]
    if page:
        routes += [_page_route(path, file) for path, file in page_files().items()]

    @contextlib.asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        for one in server.opened:
            one.prepare(server.jobs)
        try:
            yield
        finally:
            server.jobs.close()

    app = Starlette(
        routes=_merged(routes),
        lifespan=running,
        exception_handlers={
            Refused: _refused,
            HTTPException: _not_found,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    app.state.server = server
    return Guard(app, names)


class _Server:
    def __init__(self, opened: list[Opened], limits: Limits, jobs: Jobs) -> None:
        self.opened, self.limits, self.jobs = opened, limits, jobs
        self.by_key = {one.key: one for one in opened}

    def route(self, address: Address) -> Route:
        async def endpoint(request: Request) -> Response:
            call = await self._call(request, address)
            if not address.job:
                return reply(address.answer(call))
            question = address.path.strip("/")
            return await asking.answer(request, self.jobs, question, lambda: address.answer(call))

        return Route(BASE + address.path, endpoint, methods=[address.method])

    async def openapi(self, request: Request) -> Response:
        return reply(document(self.limits))

    async def job(self, request: Request) -> Response:
        job = self.jobs.find(request.path_params["id"])
        if request.method == "DELETE":
            job.cancel()
            return reply(asking.told(job))
        return await asking.look_at(request, job)

    async def _call(self, request: Request, address: Address) -> Call:
        given: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name in given:
                raise Refused(BAD, f"{name[:40]!r} stands twice in the address; once is right")
            given[name] = value
        query: Any = asking.query_of(address.query, given, EVERYWHERE)
        body: dict[str, Any] = {}
        if address.body is not None:
            body = read_object(await asking.read_body(request, self.limits))
        path = dict(request.path_params)
        key = path.pop("model", None) or given.get("model") or self.opened[0].key
        if key not in self.by_key:
            known = ", ".join(self.by_key)
            raise Refused(MISSING, f"there is no model {key[:40]!r}; there are {known}")
        numbers = {name: _path_number(text) for name, text in path.items()}
        model = self.by_key[key]
        return Call(self.opened, model, self.jobs, self.limits, numbers, query, body)


def _page_route(path: str, file: PageFile) -> Route:
    async def endpoint(request: Request) -> Response:
        return Response(file.content, media_type=file.media_type)

    return Route(path, endpoint, methods=["GET"])


def _merged(routes: list[Route]) -> list[Route]:
    """The routes with fixed parts before those with variables, one for each path.

    Several methods of one path are one route, so that another method is answered with 405.
    """
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    found = []
    for path, some in by_path.items():
        methods = {method: route.endpoint for route in some for method in route.methods or ()}

        async def endpoint(request: Request, methods: dict[str, Any] = methods) -> Response:
            return await methods[request.method](request)

        found.append(Route(path, endpoint, methods=list(methods)))
    return sorted(found, key=lambda route: route.path.count("{"))


def _path_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise Refused(MISSING, f"{text[:40]!r} is not a number; the address has one there")
    return int(text)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    shown = request.url.path[:100]
    if error.status_code == WRONG_METHOD:
        response = refusal(Refused(WRONG_METHOD, f"{shown} does not take {request.method[:20]}"))
        response.headers.update(error.headers or {})
        return response
    return refusal(Refused(MISSING, f"there is nothing at {shown}; {BASE}/openapi.json lists all"))


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(Refused(500, "the request failed by an error of this program"))
