"""Names that settings and data share; apart, so that a command's help need not load NumPy."""

from __future__ import annotations

from typing import Literal

BatchKind = Literal["streams", "ordered", "sentences", "windows", "documents"]
