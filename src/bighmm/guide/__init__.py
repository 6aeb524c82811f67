"""Guiding a language model by an HMM, so that its texts satisfy a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.guide.hugging_face import GuidedLogits
    from bighmm.guide.settings import GuideSettings
    from bighmm.guide.texts import Written, write
    from bighmm.guide.weights import Guide

__all__ = ["Guide", "GuideSettings", "GuidedLogits", "Written", "write"]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.guide.hugging_face": ("GuidedLogits",),
        "bighmm.guide.settings": ("GuideSettings",),
        "bighmm.guide.texts": ("Written", "write"),
        "bighmm.guide.weights": ("Guide",),
    },
)
