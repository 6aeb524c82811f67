"""Folders of models of every family, on this machine and on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelHubMixin

from bighmm.base.files import hub_folder, model_folder, read_current
from bighmm.base.json_files import read_json
from bighmm.data.tokenizers import TOKENIZER_FILES
from bighmm.lm.cards import CARD, about_model, card_of, written_by_us

CONFIG, WEIGHTS, BLOCKS = "config.json", "model.safetensors", "blocks.json"
OTHERS = (BLOCKS, *TOKENIZER_FILES)
DOWNLOAD = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class OnHub(ModelHubMixin, library_name="bighmm"):
    """A model with `push_to_hub`; a family implements `load` and `_save_pretrained`.

    Its card says what it is and how it is loaded, and where the card of the folder that it was read
    from says more, such as the figures of its run, what that says. A licence is named where one is
    given: `push_to_hub(name, model_card_kwargs={"license": "cc-by-4.0"})`.
    """

    _card: str | None = None  # that of the folder it was read from

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The model in a folder; ValueError if a file is missing or damaged."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the hub's options are passed through
        cls, folder: str | Path, **options: Any
    ) -> Self:
        """A model from its local folder or that of its run, or from the hub by its name there.

        Raises ValueError with one sentence if there is none, or a file is missing or damaged.
        """

        path = Path(folder).expanduser()
        if model_folder(path).is_dir():
            return read_current(lambda: model_folder(path), cls._load_with_card)
        chosen = {name: value for name, value in options.items() if name in DOWNLOAD}
        return cls._load_with_card(hub_folder(str(folder), **chosen))

    @classmethod
    def _load_with_card(cls, folder: Path) -> Self:
        lm = cls.load(folder)
        lm._card = written_by_us(folder / CARD)
        return lm

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write the model into a folder, over an earlier one if there is one; other files stay.

        Raises ValueError if files that are not a model's of this library would be overwritten.
        `options` are those of the hub mixin.
        """
        _check_place(Path(save_directory))
        return super().save_pretrained(save_directory, **options)

    def generate_model_card(self, license: str | None = None, **_: Any) -> ModelCard:
        """The card that is saved where there is none yet."""
        return ModelCard(card_of(self._card or about_model(self), license))


def _check_place(folder: Path) -> None:
    """Raises ValueError if saving a model there would overwrite files of another kind."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, so no model can be saved there; choose another name")
    names = (CONFIG, WEIGHTS, *OTHERS)
    found = [name for name in names if (folder / name).exists()]
    if found and not _holds_model(folder):
        raise ValueError(
            f"{folder} holds {found[0]}, which is not of an earlier model of this library and "
            "would be lost; choose another folder"
        )


def _holds_model(folder: Path) -> bool:
    """Whether a folder's configuration is that of a model of this library, of any family."""
    try:
        config = read_json(folder / CONFIG)
    except ValueError:
        return False
    return isinstance(config, dict) and {"format", "options", "vocabulary"} <= set(config)
