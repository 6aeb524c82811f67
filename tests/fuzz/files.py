"""Attack: a damaged file of a model, run, checkpoint, corpus, labels or of a user's input."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bighmm.data.tokenizers import load_tokenizer

from .mutations import mutate, refit_hashes
from .originals import Original, Originals, as_json
from .outcome import Case, Failure, Say


def attack(originals: Originals, case: Case, draw: random.Random, place: Path, say: Say) -> str:
    """Damage one file, or two, and ask a question."""
    original = draw.choice(originals.every)
    name, question = draw.choice(sorted(original.questions.items()))
    say(f"{original.name}, question {name}")
    path = _copied(original, place)
    os.environ["BIGHMM_CACHE"] = str(place / "cache")
    if original.saved and path.is_dir() and draw.random() < 0.06:
        return trapped(
            draw, path, lambda: question(path), originals.answers[original.name, name], say
        )
    others = [each.path.parent / file for each in originals.every for file in each.files()]
    damaged = draw.sample(
        original.files(), min(len(original.files()), draw.choice((1, 1, 1, 1, 2)))
    )
    for file in damaged:
        # A user may name a pipe, such as <(command) of a shell, and waits for its other end then.
        said = mutate(draw, place / file, others, pipes=original.saved)
        say(f"{file.parent}/{said}")
    refitted = original.saved and draw.random() < 0.6
    if refitted:
        sealed = draw.random() < 0.7
        say("hashes corrected" if sealed else "hashes corrected, seals left out")
        _refit_vocabulary(place)
        refit_hashes(place, sealed=sealed)
    return judge(
        as_json(question(path)),
        originals.answers[original.name, name],
        "forged" if refitted else None if original.saved else "other input",
    )


OWN_NAMES = (".bighmm-lock", "log.jsonl", "model", "checkpoint", "result.json", "labels.bin")


def trapped(
    draw: random.Random, folder: Path, ask: Callable[[], Any], expected: Any, say: Say
) -> str:
    """Ask with a link to a bystander's file or folder in the place of something of the folder.

    Raises `Failure` if the bystander's is not as it was afterwards.
    """
    theirs = folder.parent.parent / "bystander"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("precious")
    inside = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
    names = [*map(str, inside), *OWN_NAMES]
    name = draw.choice((*names, *(f".{Path(n).name}.bighmm-lock" for n in OWN_NAMES)))
    if draw.random() < 0.2:
        name += ".previous"
    target = draw.choice((theirs, theirs / "thesis.txt", theirs / "new.txt"))
    say(f"{name}: link to {target.name} of a bystander")
    place = folder / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    try:
        return judge(as_json(ask()), expected, None)
    finally:
        found = {path.name: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
        if found != {"thesis.txt": b"precious"}:
            raise Failure(f"a bystander's files have become {sorted(found.items())[:3]}")


def judge(answer: Any, expected: Any, other: str | None) -> str:
    """The status of an answer; `other` if it is another one.

    Raises `Failure` if it has NaN in it, and for another one where `other` is None.
    """
    if answer == expected:
        return "same"
    if _has_nan(answer):
        raise Failure(f"there is NaN in the answer: {_difference(answer, expected)}")
    if other is None:
        raise Failure(f"another answer, in silence: {_difference(answer, expected)}")
    return other


def _copied(original: Original, place: Path) -> Path:
    path = place / original.path.name
    if original.path.is_file():
        shutil.copyfile(original.path, path)
    else:
        shutil.copytree(original.path, path)
    return path


def _refit_vocabulary(place: Path) -> None:
    """Correct the fingerprints of vocabularies, where the vocabulary can still be read."""
    for path in sorted(place.rglob("*.json")):
        with contextlib.suppress(Exception):
            if path.is_symlink() or not path.is_file():
                continue
            document = json.loads(path.read_bytes())
            where = document if "vocabulary" in document else document["tokenizer"]
            key = "vocabulary" if "vocabulary" in document else "fingerprint"
            if len(where[key]) == 64:
                where[key] = load_tokenizer(path.parent).fingerprint()
                path.write_text(json.dumps(document), encoding="utf-8")


def _has_nan(answer: Any) -> bool:
    if isinstance(answer, float):
        return math.isnan(answer)
    if isinstance(answer, dict):
        answer = list(answer.values())
    return isinstance(answer, list) and any(map(_has_nan, answer))


def _difference(answer: Any, expected: Any, where: str = "") -> str:
    """The first place where two answers differ."""
    if isinstance(answer, dict) and isinstance(expected, dict) and answer.keys() == expected.keys():
        for key in answer:
            if answer[key] != expected[key]:
                return _difference(answer[key], expected[key], f"{where}/{key}")
    if isinstance(answer, list) and isinstance(expected, list) and len(answer) == len(expected):
        for place, (one, other) in enumerate(zip(answer, expected, strict=True)):
            if one != other:
                return _difference(one, other, f"{where}/{place}")
    return f"{where} is {str(answer)[:120]}, not {str(expected)[:120]}"
