"""What every request must pass, and the headers of every answer.

A page of another site, open in the browser of somebody who runs this server, can send requests to
it. So the Host of a request must be a name under which the server was started, which a name that an
attacker points to 127.0.0.1 is not, and its Origin, if it has one, must be the server itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from bighmm.explore.replies import refusal
from bighmm.explore.settings import FORBIDDEN, Refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def is_local(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_every_address(host: str) -> bool:
    """Whether a server that listens there is reached under any address of the machine."""
    return host in ("", "0.0.0.0", "::")


class Guard:
    """Refuses requests with a wrong Host or Origin, and adds the headers to every answer."""

    def __init__(self, app: App, names: Iterable[str]) -> None:
        """names: those under which the server may be asked, without ports."""
        self.app = app
        self.names = {name.lower() for name in (*LOCAL, *names) if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which there is none of
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.encode() not in given
                    ),
                ]
            await send(message)

        try:
            self.check(scope["headers"])
        except Refused as error:
            await refusal(error)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises Refused for what does not come from this server's own page or a program."""
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = found.get("host", [])
        if len(hosts) != 1 or _name(hosts[0]) not in self.names:
            raise Refused(
                FORBIDDEN,
                f"the server is not called {', '.join(hosts)[:100] or 'nothing'!r}; ask it under "
                "the address that it printed, or start it with --allow-host",
            )
        own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        for origin in found.get("origin", []):
            if origin.lower() not in own:
                raise Refused(
                    FORBIDDEN,
                    f"requests of the page {origin[:100]!r} are not answered; only this server's "
                    "own page may ask",
                )
        site, mode = (found.get(f"sec-fetch-{name}", [""])[0] for name in ("site", "mode"))
        # A link from elsewhere to the page itself is no harm.
        if site not in ("", "none", "same-origin") and mode != "navigate":
            raise Refused(
                FORBIDDEN, "requests of other pages are not answered, only this server's own"
            )


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
