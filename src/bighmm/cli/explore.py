"""`bighmm serve` and `bighmm explore`: a server for questions, and a page on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bighmm.cli.common import ON_ANY_DEVICE, DeviceFlags, ModelPath, err, parse

if TYPE_CHECKING:
    from bighmm.explore.opened import Opened

Runs = tyro.conf.UseAppendAction[tuple[Path, ...]]
Texts = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class ServerFlags:
    """What is served, and where."""

    other: Annotated[
        Runs, tyro.conf.arg(metavar="RUN", help="One more model, to compare with; may be repeated.")
    ] = ()
    data: Annotated[
        str | None,
        tyro.conf.arg(help="The corpus for shares and contexts; without it, that of the run."),
    ] = None
    split: Annotated[str, tyro.conf.arg(help="The part of the corpus: train, valid or test.")] = (
        "valid"
    )
    host: Annotated[
        str,
        tyro.conf.arg(help="The address to listen on; any other lets other machines ask as well."),
    ] = "127.0.0.1"
    port: Annotated[int, tyro.conf.arg(help="The port to listen on; 0: any that is free.")] = 8765
    allow_host: Annotated[
        Texts,
        tyro.conf.arg(metavar="NAME", help="A further name under which the server may be asked."),
    ] = ()

    threads: Annotated[
        int | None, tyro.conf.arg(help="Threads for one question; several are answered at a time.")
    ] = None

    def open(self, model: Path, compute: DeviceFlags) -> list[Opened]:
        """The models, opened."""
        from bighmm.explore.opened import open_all
        from bighmm.explore.serving import limit_memory, limit_threads

        limit_memory()
        limit_threads(self.threads)
        runs = [model, *self.other]
        return open_all(runs, compute.device, compute.matmul_dtype, self.data, self.split)


AS_USUAL = ServerFlags()


@dataclass(frozen=True)
class ServeArguments:
    """Answer questions to a model over HTTP, in JSON, on this machine.

    GET /api/v1/openapi.json describes the addresses.
    """

    model: ModelPath
    server: ServerFlags = AS_USUAL
    compute: DeviceFlags = ON_ANY_DEVICE


def serve_command(argv: list[str]) -> None:
    """Answer requests until the process is interrupted."""
    arguments = parse(ServeArguments, argv, "serve")
    _serve(arguments.model, arguments.server, arguments.compute, page=False, browser=False)


@dataclass(frozen=True)
class ExploreArguments:
    """See and play with a model on a page in the browser: sentences, states, blocks, rules."""

    model: ModelPath
    server: ServerFlags = AS_USUAL
    compute: DeviceFlags = ON_ANY_DEVICE
    no_browser: Annotated[bool, tyro.conf.arg(help="Do not open the browser.")] = False
    export: Annotated[
        Path | None,
        tyro.conf.arg(help="Write a page that needs no server into this folder instead."),
    ] = None
    sentence: Annotated[
        Texts, tyro.conf.arg(metavar="TEXT", help="With --export: a sentence to show; repeatable.")
    ] = ()


def explore_command(argv: list[str]) -> None:
    """Serve the page and open it, or write one that needs no server."""
    arguments = parse(ExploreArguments, argv, "explore")
    if arguments.sentence and arguments.export is None:
        raise ValueError("--sentence is for a page that is exported; give --export too")
    if arguments.export is not None:
        _export(arguments)
        return
    browser = not arguments.no_browser
    _serve(arguments.model, arguments.server, arguments.compute, page=True, browser=browser)


def _serve(
    model: Path, server: ServerFlags, compute: DeviceFlags, *, page: bool, browser: bool
) -> None:
    _check_extra()
    from bighmm.explore.serving import serve

    opened = server.open(model, compute)
    serve(
        opened,
        host=server.host,
        port=server.port,
        names=server.allow_host,
        page=page,
        browser=browser,
        say=_say,
    )


def _export(arguments: ExploreArguments) -> None:
    _check_extra()
    from bighmm.cli.progress import stages_progress
    from bighmm.explore.export import export_site

    assert arguments.export is not None
    (opened, *_) = arguments.server.open(arguments.model, arguments.compute)
    with stages_progress() as progress:
        export_site(opened, arguments.export, _sentences(arguments.sentence), progress)
    print(f"wrote {arguments.export}; open {arguments.export / 'index.html'} in a browser")


def _sentences(given: Sequence[str]) -> list[str]:
    from bighmm.cli.common import some_text

    return [some_text(text, "a sentence") for text in given]


def _check_extra() -> None:
    """Raises the one sentence about a missing package before a model is opened."""
    from bighmm.base.extras import missing

    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing("the server", error, "explore") from None


def _say(sentence: str) -> None:
    err().print(sentence)
