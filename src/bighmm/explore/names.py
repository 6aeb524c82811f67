"""The names that people give to states, in a file beside the run or in a folder of the user.

A run's folder has them in `state-names.json`. A model that is no run, such as one of the hub, may
be read-only or replaced as a whole; its names are in the user's own folder, under a hash of it.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.files import sha256_of, write_json
from bighmm.base.json_files import read_record
from bighmm.base.locks import locked_name
from bighmm.base.settings import shown
from bighmm.explore.settings import BAD, UNAVAILABLE, VERSION, Refused
from bighmm.lm.opening import RECIPE

FILE = "state-names.json"
LONGEST = 200  # characters of a name
STATE = re.compile("0|[1-9][0-9]{0,18}")  # so that a state has one key


@dataclass(frozen=True)
class NamesFile:
    """The content of the file."""

    version: int
    fingerprint: str
    names: dict[str, str]


class Names:
    """The names of a model's states; every change is on the disk before it is answered.

    Several processes may change names of the same states. Each reads before it writes, so none
    loses what another has written.
    """

    def __init__(self, run: Path, model: Path, num_states: int) -> None:
        """run: what the user named; model: the folder of the model.

        Raises ValueError with one sentence if the file is damaged or of another version.
        """
        self.fingerprint = sha256_of(model / "config.json")
        self.path = names_file(run, self.fingerprint)
        self.num_states = num_states
        self.lock = threading.Lock()
        self.by_state: dict[int, str] = {}
        self.stale = False  # whether they were given to an earlier model of the run
        self._read()

    def described(self) -> dict[str, Any]:
        """All names in JSON."""
        with self.lock:
            return self._described()

    def rename(self, state: int, name: str) -> dict[str, Any]:
        """Give a state a name, or take it away if the name is empty; returns all names."""
        name = " ".join(name.split())
        if len(name) > LONGEST:
            raise Refused(BAD, f"a name has at most {LONGEST} characters, not {len(name)}")
        try:
            with self.lock, locked_name(self.path, wait=True):
                self._read()
                changed = dict(self.by_state)
                if name:
                    changed[state] = name
                else:
                    changed.pop(state, None)
                self._save(changed)
                self.by_state, self.stale = changed, False
                return self._described()
        except OSError as error:
            raise Refused(
                UNAVAILABLE, f"the names of states cannot be saved: {error.strerror}"
            ) from None

    def _read(self) -> None:
        """Take the names from the file, if there is one."""
        if not self.path.exists():
            self.by_state, self.stale = {}, False
            return
        found = read_record(NamesFile, self.path)
        if found.version != VERSION:
            raise ValueError(
                f"{self.path} is of version {shown(found.version)}, and this version of bighmm "
                f"reads version {VERSION}"
            )
        for state in found.names:
            if not STATE.fullmatch(state):
                raise ValueError(
                    f"{self.path} is damaged: {shown(state)} is not the number of a state"
                )
        self.stale = found.fingerprint != self.fingerprint
        self.by_state = {
            int(state): name
            for state, name in found.names.items()
            if int(state) < self.num_states and 0 < len(name) <= LONGEST
        }

    def _described(self) -> dict[str, Any]:
        names = {str(state): name for state, name in sorted(self.by_state.items())}
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "stale": self.stale,
            "names": names,
        }

    def _save(self, by_state: dict[int, str]) -> None:
        names = {str(state): name for state, name in sorted(by_state.items())}
        value = {"version": VERSION, "fingerprint": self.fingerprint, "names": names}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, value)


def names_file(run: Path, fingerprint: str) -> Path:
    """The file with the names of a model's states."""
    if (run / RECIPE).exists():
        return run / FILE
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "bighmm" / "names" / f"{fingerprint[:32]}.json"
