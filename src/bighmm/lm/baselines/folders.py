"""The configuration of a baseline's folder, and the hashes of its other files.

config.json   family, options, fingerprint of the vocabulary, hashes of the other files and itself
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bighmm.base.files import check_hashes, sha256_of, write_sealed
from bighmm.base.json_files import read_record
from bighmm.base.settings import fill, shown
from bighmm.data.tokenizers import TOKENIZER_FILES, Tokenizer, load_tokenizer
from bighmm.lm.baselines import find

CONFIG = "config.json"


@dataclass(frozen=True)
class Config:
    """The content of config.json."""

    format: Literal[1]
    family: str
    options: Any  # a dictionary, and then an instance of the family's dataclass
    vocabulary: str  # fingerprint of the tokenizer
    files: dict[str, str] | None = None  # SHA-256 by name; n-gram models had none at first


def write_config(
    folder: Path, family: str, options: Any, tokenizer: Tokenizer, files: Collection[str]
) -> None:
    """Write the tokenizer and the configuration of a model whose `files` are in its folder."""
    for name in TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)  # of an earlier model
    tokenizer.save(folder)
    named = [name for name in (*files, *TOKENIZER_FILES) if (folder / name).is_file()]
    content = {
        "format": 1,
        "family": family,
        "options": dataclasses.asdict(options),
        "vocabulary": tokenizer.fingerprint(),
        "files": {name: sha256_of(folder / name) for name in named},
    }
    write_sealed(folder / CONFIG, content)


def read_config(
    folder: Path, family: str, files: Collection[str], *, may_lack_hashes: bool = False
) -> tuple[Any, Tokenizer]:
    """The options and the tokenizer of a model whose `files` are whole.

    Raises ValueError with one sentence if a file is missing or damaged.
    """
    path = folder / CONFIG
    config = read_record(Config, path)
    if config.family != family:
        raise ValueError(f"{folder} holds a model of family {shown(config.family)}, not {family}")
    options: Any = fill(find(family).options, config.options, f"{path} is damaged: options")
    if config.files is not None or not may_lack_hashes:
        check_hashes(folder, config.files, files, TOKENIZER_FILES)
    tokenizer = load_tokenizer(folder)
    if config.vocabulary != tokenizer.fingerprint():
        raise ValueError(f"the vocabulary in {folder} is not the one its model was made with")
    return options, tokenizer
