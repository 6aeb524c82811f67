"""Starting the server: its socket, its threads, and the browser."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bighmm.base.extras import missing
from bighmm.base.settings import check_at_least_one
from bighmm.explore.opened import Opened
from bighmm.explore.security import is_every_address, is_local
from bighmm.explore.settings import Limits

if TYPE_CHECKING:
    import uvicorn

    from bighmm.explore.security import App


ARENA_MAX = -8  # M_ARENA_MAX of mallopt


def serve(
    opened: Sequence[Opened],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    names: Sequence[str] = (),
    page: bool = True,
    browser: bool = False,
    limits: Limits | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Answer requests until the process is interrupted.

    host, port: where to listen; port 0 is any that is free. names: further names under which the
    server may be asked. page: whether it serves the page too; browser: whether to open it in one.
    say: told where it listens, and who can reach it.

    Raises ValueError if nothing can listen there, or a package is not installed.
    """
    try:
        from bighmm.explore.app import make_app
    except ImportError as error:
        raise missing("the server", error, "explore") from None

    listener = _listen(host, port)
    address = f"http://{_in_address(_shown(host))}:{listener.getsockname()[1]}/"
    own_names = [*names, *(() if is_every_address(host) else (host,))]
    app = make_app(opened, limits, page=page, names=[*own_names, *_own_names(host)], quick=_quick())
    say(f"listening on {address}" + ("" if page else "api/v1/health"))
    if not is_local(host):
        say(
            "anyone who can reach this machine over the network can ask the model; there is no "
            "password"
        )
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    with listener:
        server_of(app).run(sockets=[listener])


def server_of(app: App) -> uvicorn.Server:
    """The server that runs an application; it drops connections that send no end of headers."""
    try:
        import uvicorn
    except ImportError as error:
        raise missing("the server", error, "explore") from None

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        limit_concurrency=1000,
        h11_max_incomplete_event_size=1 << 16,
        timeout_graceful_shutdown=3,
        ws="none",
        http="h11",
        loop="asyncio",
    )
    return uvicorn.Server(config)


def limit_threads(threads: int | None = None) -> None:
    """Set how many threads torch uses for each question, since several are answered at a time.

    Without a number they share the processors (docs/log.md).
    """
    import torch

    if threads is not None:
        check_at_least_one(threads, "threads")
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // _quick()))


def limit_memory() -> None:
    """Let the threads share few pools of memory, where the system's allocator can be told.

    glibc gives each thread a pool of its own, and what large tensors leave free in one is of no use
    to the others: a server that answers 50 clients grew for minutes (docs/log.md).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(ARENA_MAX, 1)


def _quick() -> int:
    """How many short questions are answered at the same time."""
    return max(2, min(8, os.cpu_count() or 1))


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ValueError(f"a port is a number from 0 to {2**16 - 1}, not {port}")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=1)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        raise ValueError(
            f"the server cannot listen on {host or 'all addresses'}, port {port}: "
            f"{error.strerror or error}; choose another --port or --host"
        ) from None
    listener.setblocking(False)
    return listener


def _own_names(host: str) -> list[str]:
    """Names and addresses of this machine, for a server that listens on all of them."""
    if not is_every_address(host):
        return []
    name = socket.gethostname()
    found = {name, socket.getfqdn()}
    with contextlib.suppress(OSError):
        found |= {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    return sorted(found)


def _shown(host: str) -> str:
    return "127.0.0.1" if is_every_address(host) else host


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
