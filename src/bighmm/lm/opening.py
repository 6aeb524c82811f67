"""Finding and opening models of any family, the device to use, and the corpus of a run.

Nothing here imports torch before it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bighmm.base import files
from bighmm.base.json_files import read_object

if TYPE_CHECKING:
    import torch

    from bighmm.data.corpus import Corpus
    from bighmm.lm.hmmlm import HMMLM
    from bighmm.lm.protocol import LM, MatmulDtype

WHOLE = "all"  # the name of a text that is not divided
RECIPE = "recipe.json"  # in the folder of every run, from its beginning on


def find_model(path: str | Path) -> Path:
    """The folder of a model, given that folder or that of the run that trained it.

    What is no folder and has the form OWNER/NAME is a model on the Hugging Face hub, which is
    downloaded if it is not cached.
    """
    if not str(path).strip():
        raise ValueError("the name of the model is empty; give a model's folder or a run's")
    path = Path(path).expanduser()
    if not path.name:  # the current folder
        path = path.absolute()
    if _may_be_on_hub(path):
        return files.hub_folder(str(path))
    if not path.name or files.existing_folder(path) is None:
        raise ValueError(f"there is no model at {path}; give a model's folder or a run's")
    found = files.model_folder(path)
    if found == path and (path / RECIPE).exists():
        raise ValueError(f"the run {path} has not saved a model yet; resume it first")
    return found


def _may_be_on_hub(path: Path) -> bool:
    """Whether a path has the form OWNER/NAME and there is neither such a file nor that folder."""
    named = len(path.parts) == 2 and path.parts[0] not in (path.anchor, "..")
    return named and not path.exists() and not path.parent.exists()


def open_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    matmul_dtype: MatmulDtype = "auto",
) -> LM:
    """The model of a folder or a run, or of a name on the hub, whatever its family, on a device.

    device: as for `find_device`. matmul_dtype: as for `HMMLM.to`. Raises ValueError with one
    sentence if there is no such model or device, or a file is missing or damaged.
    """
    where = find_device(device)
    return files.read_current(lambda: find_model(path), _load).to(where, matmul_dtype)


def _load(folder: Path) -> LM:
    """The model in a folder, of whichever family."""
    from bighmm.lm import baselines
    from bighmm.lm.hmmlm import HMMLM

    family = read_object(folder / "config.json").get("family", "hmm")
    if family == "hmm":
        return HMMLM.load(folder)
    try:
        kind = baselines.find(family)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} is damaged: {error}") from None
    return kind.model.load(folder)


def open_hmm(
    path: str | Path,
    what: str,
    device: str | torch.device = "cpu",
    matmul_dtype: MatmulDtype = "auto",
) -> HMMLM:
    """As `open_model`, for a question about `what` that only an HMM answers.

    Raises ValueError if the model is of another family.
    """
    return as_hmm(open_model(path, device, matmul_dtype), path, what)


def as_hmm(lm: LM, path: str | Path, what: str) -> HMMLM:
    """The model of `path`, which is asked about `what`; ValueError if it is no HMM."""
    from bighmm.lm.hmmlm import HMMLM

    if not isinstance(lm, HMMLM):
        raise ValueError(f"{path} is not a hidden Markov model, so it has no {what}")
    return lm


def corpus_for(path: str | Path, data: str | None = None) -> Corpus:
    """The corpus `data` in the tokens of a model; without it, the one its run was trained on.

    Raises ValueError if there is no such corpus, or it is not known what the model was trained on.
    """
    from bighmm.data.corpus import prepare

    _check_name(data)
    return prepare(trained_on(path) if data is None else data, tokenizer=find_model(path))


def text_for(path: str | Path, data: str | None, split: str | None) -> tuple[Any, str]:
    """What a model is evaluated on, in its tokens, and which part of it.

    Text without splits of its own is taken whole, unless a split is asked for: then it is divided
    as for training. Without `data` it is the test split of what the run was trained on, or `split`.
    """
    from bighmm.data.whole import encode_whole, has_splits

    _check_name(data)
    if data is not None and split is None and not has_splits(data):
        from bighmm.data.tokenizers import load_tokenizer

        return encode_whole(data, load_tokenizer(find_model(path))), WHOLE
    return corpus_for(path, data), split or "test"


def _check_name(data: str | None) -> None:
    """Raises ValueError for an empty name, which would be the current folder."""
    if data is not None and not data.strip():
        raise ValueError("the name of the corpus is empty; give pydoc, a text file or a folder")


def trained_on(run: str | Path) -> str:
    """The corpus that a run was trained on; ValueError if that is not known."""
    path = Path(run) / RECIPE
    if not path.exists():
        raise ValueError(f"{run} does not say what it was trained on; give --data")
    saved = read_object(path)
    try:
        data = saved["recipe"]["corpus"]["data"]
    except (KeyError, TypeError):
        data = None
    if not isinstance(data, str):
        raise ValueError(f"{path} is damaged: it does not say what the run was asked for")
    return data


def training_texts(run: str | Path) -> tuple[str | None, str | None]:
    """Fingerprints of the text that a run was trained on and of its second one, where known."""
    path = Path(run) / RECIPE
    if not path.exists():
        return None, None
    saved = read_object(path)
    found, more = saved.get("corpus"), saved.get("more")
    if not isinstance(found, str) or not isinstance(more, str | None):
        raise ValueError(f"{path} is damaged: it does not say what the run was trained on")
    return found, more


def find_device(name: str | torch.device) -> torch.device:
    """cpu, cuda (or cuda:1, …), or auto: a GPU if there is one. ValueError if it is not there."""
    import torch

    from bighmm.base.processes import local_device

    name = local_device(str(name))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"there is no device {str(name)!r}; use cpu, cuda or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no GPU {str(name)!r} that torch can use here; use --device cpu")
    return device
