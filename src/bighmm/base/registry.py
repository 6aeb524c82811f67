"""Registries: the modules of a package register values under names, and are found automatically."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Generic, TypeVar

from bighmm.base.settings import shown

T = TypeVar("T")


class Registry(Generic[T]):
    """Values by name, registered by the modules of `package` when they are imported.

    Code outside the package may register more. `what` names one of them in messages.
    """

    def __init__(self, package: str, what: str) -> None:
        self.package, self.what = package, what
        self.known: dict[str, T] = {}

    def add(self, name: str, value: T) -> None:
        self.known[name] = value

    def all(self) -> dict[str, T]:
        """All values by name; imports every module of the package."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return dict(sorted(self.known.items()))

    def find(self, name: Any) -> T:
        """The value of that name; ValueError if there is none."""
        known = isinstance(name, str)  # what is in a file may be anything
        if known and name in self.known:
            return self.known[name]
        found = self.all()
        if not known or name not in found:
            raise ValueError(
                f"there is no {self.what} {shown(name)}; choose from {', '.join(found)}"
            )
        return found[name]
