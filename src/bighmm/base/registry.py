"""Things that announce themselves: one file of a folder each, found by themselves."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """What the modules of a package add under names of their own."""

    def __init__(self, package: str, what: str) -> None:
        self.package, self.what = package, what
        self.known: dict[str, T] = {}

    def add(self, name: str, value: T) -> None:
        self.known[name] = value

    def all(self) -> dict[str, T]:
        """Everything, by name."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return dict(sorted(self.known.items()))

    def find(self, name: str) -> T:
        found = self.all()
        if name not in found:
            raise ValueError(f"there is no {self.what} {name!r}; choose from {', '.join(found)}")
        return found[name]
