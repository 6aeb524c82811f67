"""Registries: the modules of a package register values under names, and are found automatically.

Other distributions announce theirs as entry points. Those of the group `bighmm.parameterisations`,
for instance, have the names of parameterisations; what an entry point refers to is imported when
its name is asked for, and registers itself by that.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from bighmm.base.settings import shown

T = TypeVar("T")


class Registry(Generic[T]):
    """Values by name, registered by the modules of `package` when they are imported.

    Code outside the package may register more. `what` names one of them in messages, and their
    plural the group of entry points: "parameterisation" is `bighmm.parameterisations`.
    """

    def __init__(self, package: str, what: str) -> None:
        self.package, self.what = package, what
        plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
        self.group = f"bighmm.{plural.replace(' ', '_')}"
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
        """The value of that name; ValueError if there is none, or if it cannot be imported."""
        known = isinstance(name, str)  # what is in a file may be anything
        if known and name in self.known:
            return self.known[name]
        found = self.all()
        announced = {point.name: point for point in entry_points(group=self.group)}
        if known and name not in found and name in announced:
            self._load(announced[name])
            found = self.known
        if not known or name not in found:
            names = ", ".join({**found, **announced})
            raise ValueError(f"there is no {self.what} {shown(name)}; choose from {names}")
        return found[name]

    def _load(self, point: EntryPoint) -> None:
        """Import what an entry point refers to, which registers itself."""
        where = f"the {self.what} {point.name!r}, which is {point.value},"
        try:
            point.load()
        except Exception as error:  # whatever a stranger's module raises
            raise ValueError(f"{where} cannot be imported: {error!r}") from None
        if point.name not in self.known:
            raise ValueError(f"{where} does not register itself under this name")
