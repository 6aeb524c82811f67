"""Opening models of strangers with transformers: their code is never run, no pickle is read.

A model's folder can name Python code of its own, which transformers runs if it is allowed to or if
somebody answers "y" to its question, and attention kernels on the hub, which are code as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bighmm.base.json_files import read_json

# Arguments of every `from_pretrained`; False also means that nobody is asked.
SAFELY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
WEIGHTS_SAFELY: dict[str, Any] = {**SAFELY, "use_safetensors": True}  # of networks

NEVER_RUN = "code of a model is never run; use a model that transformers itself knows"


def check_foreign_folder(folder: Path) -> None:
    """Raise ValueError if a model's folder asks for code from the hub, or has only pickled weights.

    Its config.json, if there is one, must be one that we can read, so that nothing in it is missed.
    It is otherwise left to transformers.
    """
    path = folder / "config.json"
    if not path.exists():
        return
    kernel = _kernel(read_json(path, finite=False))
    if kernel is not None:
        raise ValueError(f"its config.json names the kernel {kernel} on the hub, and {NEVER_RUN}")
    pickled = sorted(folder.glob("*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"its weights are pickled ({pickled[0].name}), which can run code; they must be "
            "safetensors"
        )


def why_not_opened(error: Exception) -> str:
    """The reason why transformers could not open a model, on one line."""
    text = str(error).strip()
    if "trust_remote_code" in text:
        return f"it needs Python code of its own (auto_map), and {NEVER_RUN}"
    return text.split("\n")[0] or type(error).__name__


def _kernel(value: Any) -> str | None:
    """The first attention kernel on the hub that a configuration names, at any depth."""
    if isinstance(value, list):
        return next(filter(None, map(_kernel, value)), None)
    if not isinstance(value, dict):
        return None
    for key, item in value.items():
        if key.strip("_").removesuffix("_internal").endswith("implementation"):
            names = item.values() if isinstance(item, dict) else [item]
            found = next((name for name in names if isinstance(name, str) and "/" in name), None)
        else:
            found = _kernel(item)
        if found is not None:
            return found
    return None
