"""A folder that is pushed to Hugging Face's hub, with a card that names the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelHubMixin

from bighmm.lm.cards import card_of

ABOUT = """# Hidden Markov model of sequences

A `SequenceHMM` of bighmm.

## Load it

```python
from bighmm import SequenceHMM

model = SequenceHMM.from_pretrained("FOLDER")  # that of this file, or OWNER/NAME on the hub
```
"""


class HubFolder(ModelHubMixin, library_name="bighmm"):
    """What `write` writes into a folder, with the methods of the hub.

    The estimator is no such class itself, since its attributes are its settings alone.
    """

    def __init__(self, write: Callable[[Path], None]) -> None:
        self.write = write

    def _save_pretrained(self, save_directory: Path) -> None:
        self.write(save_directory)

    def generate_model_card(self, license: str | None = None, **_: Any) -> ModelCard:
        return ModelCard(card_of(ABOUT, license))

    @classmethod
    def _from_pretrained(cls, **options: Any) -> HubFolder:
        raise NotImplementedError("SequenceHMM.from_pretrained reads folders")
