"""What is raised where nothing has been fitted."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


class NotFittedError(ValueError, AttributeError):
    """A question was asked of an estimator that has not been fitted."""


def not_fitted() -> NotFittedError:
    """The error to raise; also of scikit-learn's class, where that is in use."""
    kind = _joint_class() if "sklearn.exceptions" in sys.modules else NotFittedError
    return kind("this SequenceHMM has not been fitted; call fit first")


def set_by_fit() -> Any:
    """A class attribute that raises NotFittedError until the instance has one of the name."""
    return _SetByFit()


class _SetByFit:
    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        raise not_fitted()


@cache
def _joint_class() -> type[NotFittedError]:
    from sklearn import exceptions

    return type("NotFittedError", (NotFittedError, exceptions.NotFittedError), {})
