"""What is taken along from a machine that keeps nothing: results, logs, models of some runs.

    FOLDER/results.tar.gz      stored results, and result.json, log.jsonl and the output of all runs
    FOLDER/NAME.00, NAME.01 …  the folder of a run with its best model, without its checkpoints

Weights are rounded to the values of bfloat16, and their bytes are put in another order, in which
they are compressed to about 12 bits each; the model is otherwise as it was saved. A run that was
taken along is finished: it can write text or be mixed, and is not trained again. Files are small
enough to be copied one by one (`LARGEST`).
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bighmm.base.files import replace_folder
from bighmm.lm.opening import open_model
from papers.results import read_folder, read_results, store_result
from papers.rows import Paper

LARGEST = 15 * 2**20  # bytes of a file
MOST = 56 * 2**20  # bytes of all files
RESULTS = "results.tar.gz"
OF_A_RUN = ("recipe.json", "result.json", "log.jsonl")
SHUFFLED = ".shuffled"  # ending of a file whose bytes are in another order

Say = Callable[[str], None]


def keep(paper: Paper, folder: Path, say: Say, most: int = MOST) -> list[str]:
    """Write results and models of finished runs to a folder and return the names of the runs.

    They are taken in the order of the plan, those first that were not taken before, as long as all
    files have `most` bytes together.
    """
    folder.mkdir(parents=True, exist_ok=True)
    used = _keep_results(paper, folder)
    names = [Path(step.makes).name for step in paper.plan if step.keep]
    finished = [name for name in names if (paper.runs / name / "result.json").is_file()]
    kept = []
    for name in sorted(finished, key=lambda name: _mark(paper, name).exists()):
        packed = _packed(paper.runs / name)
        if used + len(packed) > most:
            say(f"{name}: {len(packed) / 2**20:.0f} MiB are too many to be kept this time")
            continue
        for number, begin in enumerate(range(0, len(packed), LARGEST)):
            (folder / f"{name}.{number:02}").write_bytes(packed[begin : begin + LARGEST])
        used += len(packed)
        _mark(paper, name).touch()
        kept.append(name)
    say(f"kept in {folder}: {', '.join(['results', *kept])}, {used / 2**20:.0f} MiB")
    return kept


def restore(paper: Paper, folder: Path, say: Say) -> list[str]:
    """Put back what `keep` has written; returns the names of the runs that were not there.

    Results of runs that are stored here already stay as they are. Raises ValueError for files that
    are damaged or incomplete.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} to restore runs from")
    names = sorted({path.stem for path in folder.glob("*.[0-9][0-9]")})
    restored = []
    for name in names:
        target = paper.runs / name
        if (target / "result.json").is_file():
            continue
        parts = sorted(folder.glob(f"{name}.[0-9][0-9]"))
        packed = b"".join(path.read_bytes() for path in parts)
        try:
            replace_folder(target, partial(_unpack, packed), keep_previous=False)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ValueError(f"{parts[0]} and its further parts are damaged: {error}") from None
        restored.append(name)
    if (folder / RESULTS).is_file():
        _restore_results(paper, folder / RESULTS)
    say(f"restored from {folder}: {', '.join(['results', *restored])}")
    return restored


def _packed(run: Path) -> bytes:
    """The folder of a finished run, its weights rounded, as a compressed archive."""
    lm: Any = open_model(run)
    with torch.no_grad():
        for parameter in lm.params.parameters():
            parameter.copy_(parameter.bfloat16().float())
    file = io.BytesIO()
    with (
        tempfile.TemporaryDirectory() as temporary,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive,
    ):
        model = Path(temporary) / "model"
        lm.save_pretrained(model)
        for path in model.glob("*.safetensors"):
            path.with_name(path.name + SHUFFLED).write_bytes(_shuffled(path.read_bytes()))
            path.unlink()
        archive.add(model, "model")
        for name in OF_A_RUN:
            if (run / name).is_file():
                archive.add(run / name, name)
    return file.getvalue()


def _unpack(packed: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")
    for path in folder.glob(f"*/*{SHUFFLED}"):
        path.with_name(path.name.removesuffix(SHUFFLED)).write_bytes(_restored(path.read_bytes()))
        path.unlink()


def _shuffled(content: bytes) -> bytes:
    """First bytes 0, 4, 8 …, then 1, 5, 9 … and so on: of rounded numbers, half of them are 0."""
    whole = len(content) // 4 * 4
    planes = np.frombuffer(content, np.uint8, whole).reshape(-1, 4).T
    return planes.tobytes() + content[whole:]


def _restored(content: bytes) -> bytes:
    """What `_shuffled` was given."""
    whole = len(content) // 4 * 4
    planes = np.frombuffer(content, np.uint8, whole).reshape(4, -1)
    return planes.T.tobytes() + content[whole:]


def _mark(paper: Paper, name: str) -> Path:
    """The file that says that a run was taken along before."""
    return paper.runs / name / "kept"


def _keep_results(paper: Paper, folder: Path) -> int:
    """Write the archive of results and logs; its size in bytes."""
    with tarfile.open(folder / RESULTS, mode="w:gz") as archive:
        for path in _with_results(paper):
            archive.add(path, path.relative_to(paper.root))
        if paper.results_folder.is_dir():
            for path in sorted(paper.results_folder.glob("*.jsonl")):
                archive.add(path, f"results/{path.name}")
    return (folder / RESULTS).stat().st_size


def _with_results(paper: Paper) -> list[Path]:
    runs = [path for path in sorted(paper.runs.glob("*")) if not path.name.startswith(".")]
    files = [path for path in runs if path.suffix == ".log"]
    for run in runs:
        files += [run / name for name in OF_A_RUN if (run / name).is_file()]
    return files


def _restore_results(paper: Paper, path: Path) -> None:
    """Store the results of an archive that are not stored here."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            _unpack(path.read_bytes(), Path(temporary))
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        here = read_results(paper)
        for run in read_folder(Path(temporary) / "results").runs.values():
            fields = dict(run.fields)
            rows = paper.rows_of(fields.pop("recipe"), fields.pop("corpus"))
            seed = fields.pop("seed")
            if rows and seed not in here.of(rows[0]):
                record = {"recipe": fields.pop("settings"), **fields}
                store_result(paper, rows[0], seed, record)
