"""A folder that is pushed to Hugging Face's hub, with a card that names the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin


class HubFolder(
    ModelHubMixin, library_name="bighmm", license="apache-2.0", tags=["hmm", "sequences"]
):
    """What `write` writes into a folder, with the methods of the hub.

    The estimator is no such class itself, since its attributes are its settings alone.
    """

    def __init__(self, write: Callable[[Path], None]) -> None:
        self.write = write

    def _save_pretrained(self, save_directory: Path) -> None:
        self.write(save_directory)

    @classmethod
    def _from_pretrained(cls, **options: Any) -> HubFolder:
        raise NotImplementedError("SequenceHMM.from_pretrained reads folders")
