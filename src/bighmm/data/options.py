"""Types of settings; a module of its own, so that `--help` of a command does not load NumPy."""

from __future__ import annotations

from typing import Literal

BatchKind = Literal["streams", "ordered", "rotated", "sentences", "windows", "documents"]
