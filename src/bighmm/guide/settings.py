"""Settings of guided texts. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from bighmm.base.settings import check_at_least_one, check_sharpness


@dataclass(frozen=True)
class GuideSettings:
    """How texts are written under a rule."""

    length: int = 31  # tokens after the prefix at most, suffix included, the end mark not counted
    n: int = 1  # texts for each rule
    beams: int = 0  # a search for likely texts with so many beams; 0: texts are sampled
    temperature: float = 1.0
    top_p: float = 1.0  # sample from the fewest likeliest tokens that have this probability
    top_k: int | None = None  # sample from so many of the likeliest tokens
    batch: int = 64  # texts that are written at once
    seed: int | None = 1  # None: other texts every time

    def __post_init__(self) -> None:
        if min(self.n, self.batch) < 1 or min(self.length, self.beams) < 0:
            raise ValueError(
                "n and batch must be at least 1 and length and beams at least 0, not "
                f"{self.n}, {self.batch}, {self.length} and {self.beams}"
            )
        if self.beams and self.n > self.beams:
            raise ValueError(f"{self.beams} beams cannot give {self.n} texts; use more beams")
        check_sharpness(self.temperature, self.top_p)
        if self.top_k is not None:
            check_at_least_one(self.top_k, "top_k")

    @property
    def window(self) -> int:
        """Tokens after the prefix at most, the end mark counted."""
        return self.length + 1
