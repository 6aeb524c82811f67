"""Finding and loading Hugging Face models.

A model is a folder, a .gguf file, or a name on the hub that was downloaded before. This needs the
extra `bighmm[teachers]`. Weights are float32 on a CPU and bfloat16 on a GPU. Code that a model
brings is not run, and its pickles are not read (`base.foreign_models`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from torch import Tensor

from bighmm.base.files import sha256_of
from bighmm.base.foreign_models import SAFELY, WEIGHTS_SAFELY, check_foreign_folder, why_not_opened

SUFFIXES = (".json", ".safetensors", ".bin", ".gguf", ".model", ".txt")  # files that are hashed


@dataclass(frozen=True)
class Place:
    """The location of a model's files: a folder, and the name of its .gguf file if it has one."""

    name: str  # as the user gave it
    folder: Path
    gguf: str | None = None
    role: str = "teacher"  # the word for the model in messages

    def arguments(self) -> dict[str, Any]:
        """Where `from_pretrained` of transformers finds the model."""
        arguments = {"pretrained_model_name_or_path": str(self.folder)}
        return arguments if self.gguf is None else {**arguments, "gguf_file": self.gguf}

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of all files that can change the model's results, by name."""
        return self._hashes

    @cached_property
    def _hashes(self) -> dict[str, str]:
        if self.gguf is not None:
            return {self.gguf: sha256_of(self.folder / self.gguf)}
        files = sorted(path for path in self.folder.iterdir() if path.suffix in SUFFIXES)
        return {path.name: sha256_of(path) for path in files if path.is_file()}


def find_model(name: str, role: str = "teacher") -> Place:
    """The location of a model, given a folder, a .gguf file or a name on the hub.

    role: the word for the model in messages.

    Raises ValueError with one sentence if there is no such model.
    """
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return Place(name, path.parent, path.name, role)
    if path.is_dir():
        if (path / "config.json").is_file():
            return Place(name, path, role=role)
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return Place(name, path, found[0].name, role)
        raise ValueError(
            f"the {role} {name} is a folder without a model: it has no config.json, and "
            f"{len(found)} .gguf files where there should be one"
        )
    try:
        return Place(name, Path(snapshot_download(name, local_files_only=True)), role=role)
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        others = '"random", the folder of a network or' if role == "teacher" else "the folder"
        raise ValueError(
            f"there is no {role} {name}; give {others} of a Hugging Face model, a .gguf file, or a "
            "name on the Hugging Face hub that was downloaded before"
        ) from None


def is_causal(read: Callable[[Tensor], Tensor], tokens: int, device: torch.device) -> bool:
    """Whether the outputs of a model do not depend on later ids.

    It is tested with two inputs, because configurations do not say it reliably.
    read: the outputs (1, T, …) for ids (1, T) below `tokens`.
    """
    ids = torch.arange(8, device=device).unsqueeze(0) % tokens
    other = ids.clone()
    other[0, -1] = 0
    with torch.inference_mode():
        first, second = (read(each)[0, :-1].float() for each in (ids, other))
    return bool(torch.allclose(first, second, rtol=1e-3, atol=1e-3))


def load(
    place: Place, device: torch.device, *, fresh: int | None = None, head: bool = False
) -> tuple[Any, Any]:
    """The tokenizer and the network of transformers.

    fresh: a seed for new random weights; None for the weights of the files.
    head: whether the network has an output layer for logits.

    Raises ValueError with one sentence if a package or a weight is missing, a file is damaged, or
    the model asks for code.
    """
    try:
        import transformers

        if place.gguf is not None:
            import accelerate  # noqa: F401  transformers needs it
            import gguf  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"the {place.role} {place.name} needs the package {error.name}: install "
            '"bighmm[teachers]"'
        ) from None
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # no warnings, as about unused weights
    kind: Any = transformers.AutoModelForCausalLM if head else transformers.AutoModel
    missing: set[str] = set()
    try:
        if place.gguf is None:
            check_foreign_folder(place.folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**place.arguments(), **SAFELY)
        if fresh is None:
            model, report = kind.from_pretrained(
                **place.arguments(), **WEIGHTS_SAFELY, dtype=dtype, output_loading_info=True
            )
            missing = {name for name in report["missing_keys"] if "pooler" not in name}
        else:
            config = transformers.AutoConfig.from_pretrained(**place.arguments(), **SAFELY)
            with torch.random.fork_rng():
                torch.manual_seed(fresh)
                model = kind.from_config(config, trust_remote_code=False, dtype=torch.float32)
                model = model.to(dtype)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(
            f"the {place.role} {place.name} cannot be opened: {why_not_opened(error)}"
        ) from None
    if missing:
        raise ValueError(
            f"the {place.role} {place.name} is not complete: it has no {min(missing)}, and "
            f"{len(missing) - 1} other weights are missing"
        )
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer of the {place.role} {place.name} does not say where its pieces stand "
            "in a text; one with a tokenizer.json is needed"
        )
    return tokenizer, model.to(device).eval()


def marks_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    text = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    first = next(i for i in range(len(whole)) if whole[i : i + len(text)] == text)
    return whole[:first], whole[first + len(text) :]
