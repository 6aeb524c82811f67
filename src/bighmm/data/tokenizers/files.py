"""Opening tokenizers of all kinds from their files."""

from __future__ import annotations

from pathlib import Path

from bighmm.base.json_files import parse_json
from bighmm.base.reading import read_bytes, unpacked_name
from bighmm.base.settings import shown
from bighmm.data.tokenizers.protocol import Tokenizer
from bighmm.data.tokenizers.sentencepieces import SentencePieces
from bighmm.data.tokenizers.subwords import Subwords
from bighmm.data.tokenizers.words import Words

TOKENIZER_FILES = ("vocab.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer saved in a folder; ValueError if there is none or it is damaged."""
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        return open_tokenizer(folder / "tokenizer.json")
    for name in ("tokenizer.model", "vocab.json"):
        if (folder / name).is_file():
            return open_tokenizer(folder / name)
    raise ValueError(
        f"there is no tokenizer in {folder}: one of vocab.json, tokenizer.json and "
        "tokenizer.model is expected"
    )


def open_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a file (.json or .model, plain, .xz or .gz) or of a folder that holds one.

    The end mark of a tokenizer.json is that of the tokenizer_config.json beside it, if any.

    Raises ValueError if there is no such file, or it is not a tokenizer of a known kind.
    """
    path = Path(path)
    if path.is_dir():
        return load_tokenizer(path)
    if not path.is_file():
        raise ValueError(
            f"the tokenizer {path} does not exist; give a tokenizers file (.json), a "
            "SentencePiece model (.model) or a folder with one of them"
        )
    name = unpacked_name(path.name)
    if name.endswith(".model"):
        return SentencePieces(read_bytes(path), name=str(path))
    if not name.endswith(".json"):
        raise ValueError(
            f"the tokenizer {path} is of an unknown kind; a tokenizers file (.json) or a "
            "SentencePiece model (.model) is expected"
        )
    content = read_bytes(path)
    if (settings := _json(path, content)).get("kind") == "words":
        return Words.from_json(settings, path)
    end = _configured_end(path.parent) if name == "tokenizer.json" else None
    return Subwords(content, end=end, name=str(path))


def _configured_end(folder: Path) -> str | None:
    """The end mark that a folder's tokenizer_config.json names, if it names one."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return None
    end = _json(path, read_bytes(path)).get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    if end is not None and not isinstance(end, str):
        raise ValueError(f"{path} is damaged: eos_token must be a token, not {shown(end)}")
    return end


def _json(path: Path, content: bytes) -> dict:
    """A JSON object; ValueError that names `path` if the content is something else."""
    value = parse_json(content, f"{path} is damaged")
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return value
