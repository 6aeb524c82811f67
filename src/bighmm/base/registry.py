"""Registries of implementations: one module of a package each, imported when asked for."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Values that the modules of a package register by name when they are imported."""

    def __init__(self, package: str, what: str) -> None:
        self.package, self.what = package, what
        self.known: dict[str, T] = {}

    def add(self, name: str, value: T) -> None:
        """Register a value."""
        self.known[name] = value

    def all(self) -> dict[str, T]:
        """All values by name, after importing all modules of the package."""
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return dict(sorted(self.known.items()))

    def find(self, name: str) -> T:
        """The value of that name; ValueError if there is none."""
        found = self.all()
        if name not in found:
            raise ValueError(f"there is no {self.what} {name!r}; choose from {', '.join(found)}")
        return found[name]
