"""What a server allows, and its errors."""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1  # of the addresses and of the objects that the page needs


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for."""

    body: int = 1 << 20  # bytes of a request
    text: int = 4_000  # characters of a text or a prefix
    texts: int = 256  # texts of one request
    all_text: int = 200_000  # characters of all texts of one request, and of a text to compare on
    rule: int = 20_000  # characters of all parts of a rule
    number: int = 200  # texts or words that are asked for
    length: int = 500  # tokens of a text that is drawn
    states: int = 500  # states of one answer
    seconds: float = 60.0  # that a request waits for its answer
    job_seconds: float = 1800.0  # that a job may take
    waiting: int = 200  # requests that are worked on or wait
    jobs: int = 200  # that are remembered
    keep_seconds: float = 300.0  # for which a finished job is remembered


class Refused(ValueError):
    """A request that is answered with a status from 400 on and one sentence."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


BAD, FORBIDDEN, MISSING, WRONG_METHOD = 400, 403, 404, 405
UNAVAILABLE, TOO_LARGE, WRONG_TYPE, UNANSWERABLE, BUSY = 409, 413, 415, 422, 503
