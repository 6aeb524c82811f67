"""Packages that only some parts need, and that extras of this one install."""

from __future__ import annotations


class MissingExtraError(ImportError, ValueError):
    """A package is not installed: an ImportError, and a mistake that commands print as one line."""


def missing(what: str, error: ImportError, extra: str) -> MissingExtraError:
    """The error, in one sentence, if `what` needs a package whose import has failed."""
    sentence = f'{what} needs the package {error.name}: install "bighmm[{extra}]"'
    return MissingExtraError(sentence, name=error.name)
