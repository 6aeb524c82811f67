"""Latent variable distillation: a teacher's vectors of the training tokens, clustered into states.

After Liu et al. 2022 and Lee & Berg-Kirkpatrick 2025 (section 4, algorithm 1). `make_labels` writes
one state for each token, `data.labels.open_labels` reads them; `distill_language_model` trains an
HMM on texts that a language model writes; `write_text` samples a corpus from models of this
library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.distill.from_language_model import distill_language_model
    from bighmm.distill.labelling import LabelSettings, make_labels
    from bighmm.distill.settings import SampleSettings, WriteSettings
    from bighmm.distill.teachers import Teacher, open_teacher
    from bighmm.distill.writing import open_teachers, write_text

__all__ = [
    *("LabelSettings", "SampleSettings", "Teacher", "distill_language_model", "make_labels"),
    *("WriteSettings", "open_teacher", "open_teachers", "write_text"),
]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.distill.from_language_model": ("distill_language_model",),
        "bighmm.distill.labelling": ("LabelSettings", "make_labels"),
        "bighmm.distill.settings": ("SampleSettings", "WriteSettings"),
        "bighmm.distill.teachers": ("Teacher", "open_teacher"),
        "bighmm.distill.writing": ("open_teachers", "write_text"),
    },
)
