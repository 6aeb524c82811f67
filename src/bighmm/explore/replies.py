"""Answers and refusals as HTTP responses."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from bighmm.answers.plain import finite
from bighmm.explore.settings import VERSION, Refused

LONGEST = 1000  # characters of a message


def reply(value: dict[str, Any] | bytes, status: int = 200) -> Response:
    """A JSON object, which may be encoded already."""
    body = value if isinstance(value, bytes) else encoded(value)
    return Response(body, status, media_type="application/json")


def encoded(value: dict[str, Any]) -> bytes:
    """An object in JSON; null where a number is not finite."""
    try:
        content = _dumped(value)
    except ValueError:  # most answers are finite already, and large ones take a while
        content = _dumped(finite(value))
    # Half characters can come back in a message about them.
    return content.encode("utf-8", "backslashreplace")


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def refusal(error: Refused) -> Response:
    """The answer to a request that is refused: one sentence."""
    response = reply({"version": VERSION, "error": described(error)}, error.status)
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    return response


def described(error: Refused) -> dict[str, Any]:
    """A refusal in JSON."""
    line = " ".join(str(error).split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    return {"status": error.status, "message": line}
