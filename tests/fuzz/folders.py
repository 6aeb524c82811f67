"""Models, runs, corpora and labels, tiny, with the questions that are asked of each."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bighmm.data.corpus import Corpus, describe, open_corpus, prepare
from bighmm.data.labels import open_labels
from bighmm.data.tokenizers import Tokenizer, load_tokenizer
from bighmm.distill.corpus_labels import label_corpus
from bighmm.distill.labelling import LabelSettings
from bighmm.distill.settings import WriteSettings
from bighmm.distill.shards import shard_paths
from bighmm.distill.teachers import Reading
from bighmm.distill.writing import open_teachers, write_text
from bighmm.lm import baselines
from bighmm.lm.gaps import gap_words
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_model
from bighmm.lm.protocol import LM
from bighmm.lm.questions import sample, score
from bighmm.model.params import find
from bighmm.model.support import Blocked, Dense, PerToken, Support
from bighmm.train.checkpoint import load_checkpoint
from bighmm.train.loop import Stopped
from bighmm.train.recipe import CorpusSettings, ModelSettings, Recipe
from bighmm.train.run import saved_recipe, train_run

from .commands import ask, call, check
from .inputs import add_inputs
from .originals import Original, Originals, Question, check_sums, on_a_copy, tokenizer_folder
from .outcome import Failure, Refused
from .sequence_folders import add_sequences

LINES = ["w01 w07 w09", "w03", "w39 w02 nowhere"]


def build(place: Path) -> Originals:
    """Write all originals into a folder, and ask all questions of them."""
    os.environ["BIGHMM_CACHE"] = str(place / "cache")
    text = place / "tiny.txt"
    text.write_text(tiny_text(), encoding="utf-8")
    corpus = prepare(text)
    originals = Originals(place, text, corpus)
    _add_models(originals)
    _add_mixture(originals)
    _add_baselines(originals)
    _add_runs(originals)
    _add_corpora(originals)
    _add_written(originals)
    add_sequences(originals)
    add_inputs(originals)
    return originals


def tiny_text() -> str:
    """100 lines of 40 words; each word is followed by one of three others."""
    draw = random.Random(0)
    lines = []
    for _ in range(100):
        words = [draw.randrange(40)]
        for _ in range(5):
            words.append((7 * words[-1] + draw.randrange(3)) % 40)
        lines.append(" ".join(f"w{word:02}" for word in words))
    return "\n".join(lines) + "\n"


# Models.


def _add_models(originals: Originals) -> None:
    size = originals.corpus.tokenizer.size
    words = originals.corpus.tokenizer
    blocked = Blocked.of(torch.arange(size) % 4, 12)
    subwords = load_tokenizer(tokenizer_folder(originals.place, "bpe"))
    pieces = load_tokenizer(tokenizer_folder(originals.place, "sentencepiece"))
    small = {"width": 4, "layers": 1}
    made: dict[str, tuple[str, dict[str, Any], Support, Tokenizer]] = {
        "blocked-flat": ("neural", {**small, "transitions": "flat"}, blocked, words),
        "blocked-two-level": ("neural", {**small, "transitions": "two-level"}, blocked, words),
        "two-level-scalar": ("scalar", {"transitions": "two-level"}, blocked, words),
        "dense-scalar": ("scalar", {}, Dense(5, size), words),
        "dense-neural": ("chiu-rush", {"width": 4}, Dense(6, subwords.size), subwords),
        "dense-transformer": (
            "transformer",
            {"width": 8, "layers": 1, "heads": 2},
            Dense(6, size),
            words,
        ),
        "per-token": ("neural", small, PerToken.random(size, 9, 3, 1), words),
        "words-as-blocks": (
            "neural",
            small,
            Blocked.of(torch.arange(pieces.size), 2 * pieces.size),
            pieces,
        ),
    }
    for name, (kind, options, support, tokenizer) in made.items():
        lm = HMMLM(kind, find(kind).options(**options), support, tokenizer, seed=1)
        folder = originals.place / name / "model"
        lm.save_pretrained(folder)
        originals.add(Original(name, folder, _model_questions(originals.text)))


def _add_mixture(originals: Originals) -> None:
    model = originals.path("blocked-two-level")
    folder = originals.place / "mixture" / "model"
    ask("mix", model, model, "--weights", 0.25, 0.75, "--out", folder)
    originals.add(Original("mixture", folder, _model_questions(originals.text)))


def _add_baselines(originals: Originals) -> None:
    corpus = originals.corpus
    small: dict[str, dict[str, Any]] = {
        "ngram": {"order": 3},
        "lstm": {"width": 4, "layers": 1},
        "awd-lstm": {"width": 5, "embedding": 4, "layers": 2},
        "recurrent-hmm": {"width": 5, "embedding": 4},
        "feed-forward": {"width": 4, "layers": 1, "order": 3},
        "transformer": {"width": 8, "layers": 1, "heads": 2, "context": 4},
    }
    for name, options in small.items():
        kind = baselines.find(name)
        made: Any = kind.model
        filled = kind.options(**options)
        lm = made.fit(filled, corpus) if kind.fit else made(filled, corpus.tokenizer, seed=1)
        folder = originals.place / name / "model"
        lm.save_pretrained(folder)
        questions = _model_questions(originals.text)
        asked = {name: questions[name] for name in ("library", "score", "next", "eval", "sample")}
        originals.add(Original(name, folder, asked))


def _model_questions(text: Path) -> dict[str, Question]:
    lines = "\n".join(LINES).encode()
    return {
        "library": answers_of_model,
        "score": lambda path: ask("score", path, stdin=lines),
        "next": lambda path: ask("next", path, "w01 w07", "--n", 3),
        "sample": lambda path: ask("sample", path, "--n", 2, "--length", 5, "--seed", 1),
        "eval": lambda path: ask("eval", path, "--data", text, "--check-normalised"),
        "tag": lambda path: ask("tag", path, "w01 w07 w03"),
        "fill": lambda path: ask("fill", path, "w01 ___ w07 ___1-2", "--best", "--n", 2),
        "rule": lambda path: ask("next", path, "--regex", ". .?", "--words", "..4"),
    }


def answers_of_model(path: Path) -> dict[str, Any]:
    """What a model of any family says in the library, checked to be probabilities."""
    lm = open_model(path)
    found = {
        "score": [line.log_prob for line in score(lm, LINES)],
        "sample": [one.text for one in sample(lm, 2, "w01", 5, seed=1)],
        "parameters": lm.num_parameters,
        "next": next_probs(lm),
    }
    if isinstance(lm, HMMLM):
        ids = lm.encode("w01 w07 w03\n")
        found["states"] = lm.hmm().viterbi([ids]).states.tolist()
        found["posterior"] = lm.hmm().posterior([ids]).marginals.tolist()
        found["gaps"] = dataclasses.asdict(gap_words(lm, "w01 ___ w03", 2))
    return found


def next_probs(lm: LM) -> list[float]:
    """p(next token | a text), which must be a distribution."""
    ids = torch.tensor([lm.encode("w01 w07")])
    found = lm.predictor().next_token(ids).double().exp()
    check_sums(found.sum(1).tolist(), lm.predictor().log_prob(ids).tolist())
    return [float(f"{prob:.4g}") for prob in found[0].tolist()]


# Runs, checkpoints, corpora, labels.


def _add_runs(originals: Originals) -> None:
    recipe = Recipe().changed(
        corpus={"data": str(originals.text)},
        model={"states": 12, "blocks": 4},
        options={"width": 4, "layers": 1},
        training={"epochs": 0.5, "batch": 4, "window": 8, "device": "cpu", "checks_per_epoch": 8.0},
    )
    folder = originals.place / "unfinished" / "run"
    seen: list[int] = []

    def enough() -> bool:
        seen.append(1)
        return len(seen) > 6

    try:
        train_run(folder, recipe, should_stop=enough)
    except Stopped:
        pass
    else:
        raise AssertionError("the run was to stop on its way")
    questions = {
        "checkpoint": _checkpoint,
        "recipe": lambda path: [saved_recipe(path)[0].to_dict(), saved_recipe(path)[1]],
        "resume": _resume,
        "model": answers_of_model,
        "eval": lambda path: ask("eval", path),
        "resume command": lambda path: _result(ask("train", "--resume", "--out", path)),
        "compare": _compared,
    }
    originals.add(Original("run", folder, on_a_copy(questions)))


def _checkpoint(path: Path) -> Any:
    found, warning = load_checkpoint(path)
    if warning is not None and not (path / "checkpoint.previous").is_dir():
        raise Failure(f"an older checkpoint was taken, but there is none: {warning}")
    sums = {name: float(tensor.double().sum()) for name, tensor in found.tensors.items()}
    if warning is not None:
        raise Refused(warning)
    return [sums, found.state]


def _resume(path: Path) -> Any:
    return _result(train_run(path, saved_recipe(path)[0], resume=True))


def _compared(path: Path) -> Any:
    """What `compare` says of a run and itself, without what the log says, which has no hash."""
    check(call(["compare", str(path)]))
    found = ask("compare", path, path)
    finished = [run["figures"]["finished"] for run in found["runs"]]
    return [finished, found["differs"], found["same_text"]]


def _result(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run that do not depend on where and how fast it ran."""
    return {name: found[name] for name in ("valid", "test", "samples", "steps", "num_parameters")}


def _add_corpora(originals: Originals) -> None:
    corpus = originals.corpus
    folder = originals.place / "prepared" / "corpus"
    shutil.copytree(corpus.folder, folder)
    questions = {
        "describe": lambda path: _without_folder(describe(open_corpus(path))),
        "verified": lambda path: _without_folder(describe(open_corpus(path, verify=True))),
        "read": _all_tokens,
        "data": lambda path: _without_folder(ask("data", "--data", path)),
        "cluster": lambda path: ask("cluster", "--data", path, "--classes", 3),
    }
    originals.add(Original("corpus", folder, questions))
    for support, pca in (("dense", None), ("blocked", 2)):
        labels = originals.place / f"labels-{support}" / "labels"
        settings = LabelSettings(
            pca=pca, cluster_tokens=200, label_tokens=300, reading=Reading(16, 8), iterations=5
        )
        source = CorpusSettings(data=str(originals.text))
        student = ModelSettings(states=8, support=support, blocks=4)
        made = label_corpus("random", source, student, settings, out=labels)
        key = made.manifest["states"]
        asked: dict[str, Question] = {"library": lambda path, key=key: _labels(path, corpus, key)}
        originals.add(Original(f"labels-{support}", labels, asked))


def _add_written(originals: Originals) -> None:
    """A text of a model, and one that is still being written."""
    teachers = open_teachers([originals.path("blocked-flat")])
    settings = WriteSettings(tokens=400, rows=4, stream=20, seed=1)
    folder = originals.place / "written" / "text"
    write_text(teachers, settings, folder)
    questions: dict[str, Question] = {
        "read": _all_tokens,
        "data": lambda path: _without_folder(ask("data", "--data", path)),
    }
    originals.add(Original("written", folder, questions))
    folder = originals.place / "being-written" / "text"

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 100:
            raise Enough

    with contextlib.suppress(Enough):
        write_text(teachers, settings, folder, progress=stop)
    partial = folder.with_name("text.partial")
    assert shard_paths(partial) and not folder.exists(), "it was to stop on its way"
    for path in partial.glob(".*"):
        path.unlink()  # locks and the like, which are no files of the format

    def go_on(path: Path) -> Any:
        write_text(teachers, settings, path.with_name("text"))
        return _all_tokens(path.with_name("text"))

    originals.add(Original("being-written", partial, on_a_copy({"library": go_on})))


def _without_folder(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "folder"}


def _all_tokens(path: Path) -> Any:
    corpus = open_corpus(path)
    found = {}
    for split in ("train", "valid", "test"):
        tokens = corpus.split(split)
        counts = np.bincount(tokens, minlength=corpus.tokenizer.size).tolist()
        if len(counts) > corpus.tokenizer.size:
            raise Failure(f"{split} has ids outside the vocabulary")
        found[split] = [counts, corpus.documents(split).tolist()]
    return found


def _labels(path: Path, corpus: Corpus, key: dict[str, Any]) -> Any:
    labels = open_labels(path, corpus)
    labels.check_states(key)
    counts = np.bincount(labels.between(0, 400) + 1, minlength=labels.num_states + 1)
    if len(counts) > labels.num_states + 1:
        raise Failure(f"there are labels of states beyond {labels.num_states}")
    centroids = {name: t.double().sum().item() for name, t in labels.centroids().items()}
    return [counts.tolist(), centroids, labels.num_states]
