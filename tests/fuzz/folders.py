"""The undamaged files and folders, tiny, with the questions that are asked of each.

A question is a function of a path that returns a JSON value. The answers to all questions about
the undamaged files are kept, to be compared with those about damaged ones.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bighmm import SequenceHMM
from bighmm.data import brown
from bighmm.data.clusters import brown_clusters
from bighmm.data.corpus import Corpus, describe, open_corpus, prepare
from bighmm.data.labels import open_labels
from bighmm.data.tokenizers import Tokenizer, load_tokenizer, open_tokenizer
from bighmm.distill.corpus_labels import label_corpus
from bighmm.distill.labelling import LabelSettings
from bighmm.distill.teachers import Reading
from bighmm.hmm import HMM
from bighmm.interop import from_ctrlg, to_ctrlg
from bighmm.lm import baselines
from bighmm.lm.baselines.arpa import read_arpa, write_arpa
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.gaps import gap_words
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_model
from bighmm.lm.protocol import LM
from bighmm.lm.questions import sample, score
from bighmm.model.params import find
from bighmm.model.support import Blocked, Dense, PerToken, Support
from bighmm.train.checkpoint import load_checkpoint
from bighmm.train.loop import Stopped
from bighmm.train.recipe import CorpusSettings, ModelSettings, Recipe, find_recipe
from bighmm.train.run import saved_recipe, train_run

from .commands import ask
from .outcome import Failure, Refused

sys.path.insert(0, str(Path(__file__).parents[1]))
from tokenizer_files import bpe, sentencepiece_model

Question = Callable[[Path], Any]
LINES = ["w01 w07 w09", "w03", "w39 w02 nowhere"]
ENOUGH = 1e-4  # deviation of the sum of probabilities from one


@dataclass(frozen=True)
class Original:
    """A file or folder and the questions about it.

    saved: whether the library wrote it and vouches for it. Then a damaged one never gives another
        answer, unless its hashes were corrected too. Otherwise it is a user's input, and another
        content may give another answer.
    """

    name: str
    path: Path
    questions: Mapping[str, Question]
    saved: bool = True
    unguarded: tuple[str, ...] = ()  # names of files that may be edited

    def files(self) -> list[Path]:
        """All its files, relative to its path's parent."""
        if self.path.is_file():
            return [Path(self.path.name)]
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file())
        return [path.relative_to(self.path.parent) for path in found]


@dataclass
class Originals:
    """All originals, and the answers about them."""

    place: Path
    text: Path
    corpus: Corpus
    every: list[Original] = field(default_factory=list)
    answers: dict[tuple[str, str], Any] = field(default_factory=dict)

    def add(self, original: Original) -> None:
        self.every.append(original)
        for name, question in original.questions.items():
            self.answers[original.name, name] = as_json(question(original.path))

    def path(self, name: str) -> Path:
        return next(original.path for original in self.every if original.name == name)


def build(place: Path) -> Originals:
    """Write all originals into a folder, and ask all questions of them."""
    os.environ["BIGHMM_CACHE"] = str(place / "cache")
    text = place / "tiny.txt"
    text.write_text(tiny_text(), encoding="utf-8")
    corpus = prepare(text)
    originals = Originals(place, text, corpus)
    _add_models(originals)
    _add_baselines(originals)
    _add_runs(originals)
    _add_corpora(originals)
    _add_sequences(originals)
    _add_inputs(originals)
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


def as_json(answer: Any) -> Any:
    """An answer as it is read back from JSON, with numbers rounded to what is the same anywhere."""
    return json.loads(json.dumps(answer), parse_float=lambda number: float(f"{float(number):.5g}"))


# Models.


def _add_models(originals: Originals) -> None:
    size = originals.corpus.tokenizer.size
    words = originals.corpus.tokenizer
    blocked = Blocked.of(torch.arange(size) % 4, 12)
    subwords = load_tokenizer(_tokenizer_folder(originals.place, "bpe"))
    pieces = load_tokenizer(_tokenizer_folder(originals.place, "sentencepiece"))
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


def check_sums(totals: list[float], log_probs: list[float]) -> None:
    """`Failure` if probabilities do not sum to one after a text, unless that is impossible."""
    for total, log_prob in zip(totals, log_probs, strict=True):
        if not abs(total - 1) < ENOUGH and not (total == 0 and log_prob == -math.inf):
            raise Failure(f"the probabilities of the next token sum to {total}")


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
    }
    originals.add(Original("run", folder, _on_a_copy(questions), unguarded=("recipe.json",)))


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


def _result(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run that do not depend on where and how fast it ran."""
    return {name: found[name] for name in ("valid", "test", "samples", "steps", "num_parameters")}


def _on_a_copy(questions: dict[str, Question]) -> dict[str, Question]:
    """The same questions about a copy, as they change the folder."""

    def about_copy(question: Question) -> Question:
        def ask_copy(path: Path) -> Any:
            copy = path.with_name("copy") / path.name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(path, copy, symlinks=True, copy_function=_copy)
            return question(copy)

        return ask_copy

    return {name: about_copy(question) for name, question in questions.items()}


def _copy(source: str, target: str) -> None:
    """Copy a file; what is neither a file nor a link is made anew."""
    if not os.path.isfile(source) and not os.path.islink(source):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


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


# Sequence HMMs.


def _add_sequences(originals: Originals) -> None:
    rows = [[0, 1, 2, 3, 4, 0, 1], [2, 2, 3], [4, 3, 1, 0]]
    for support in ("dense", "blocked", "per-symbol"):
        model = SequenceHMM(
            4,
            5,
            support=support,  # type: ignore[arg-type]
            n_blocks=2,
            n_states_per_symbol=2,
            iterations=2,
            random_state=0,
        )
        folder = originals.place / f"sequence-{support}" / "hmm"
        model.fit(rows).save(folder)
        originals.add(Original(f"sequence-{support}", folder, {"library": _sequence}))
    folder = originals.place / "ctrlg" / "hmm"
    to_ctrlg(tiny_hmm(), folder)
    # The format is Ctrl-G's and has no hashes.
    originals.add(Original("ctrlg", folder, {"library": _ctrlg}, saved=False))


def _sequence(path: Path) -> Any:
    model = SequenceHMM.load(path)
    rows = [[0, 1, 2, 3], [4, 4]]
    following = model.next_proba(rows)
    check_sums(following.sum(1).tolist(), model.score_sequences(rows).tolist())
    return {
        "scores": model.score_sequences(rows).tolist(),
        "states": [path.tolist() for path in model.predict(rows)],
        "next": following.round(6).tolist(),
        "settings": model.get_params(),
        "history": model.history_,
    }


def _ctrlg(path: Path) -> Any:
    hmm = from_ctrlg(path)
    rows = [[1, 2], [3]]
    following = hmm.next_token(rows).exp()
    check_sums(following.sum(1).tolist(), hmm.log_prob(rows).tolist())
    return {"log_prob": hmm.log_prob([[1, 2, 0]]).tolist(), "next": following.tolist()}


def tiny_hmm() -> HMM:
    draw = torch.Generator().manual_seed(1)
    tables = [torch.rand(*shape, generator=draw) + 0.1 for shape in ((3,), (3, 3), (3, 5))]
    start, transition, emission = (table / table.sum(-1, keepdim=True) for table in tables)
    return HMM.from_probs(start, transition, emission, end=0)


# What users bring.


def _add_inputs(originals: Originals) -> None:
    place, corpus = originals.place / "inputs", originals.corpus
    place.mkdir()
    words, counts = corpus.words_and_counts()
    arpa = place / "model.arpa"
    ngram: Any = open_model(originals.path("ngram"))
    write_arpa(ngram.model, arpa, words)
    end = corpus.tokenizer.end
    originals.add(
        Original("arpa", arpa, {"library": lambda path: _arpa(path, words, end)}, saved=False)
    )
    packed = place / "packed.arpa.gz"
    ngram.to_arpa(packed)
    asked = {"library": lambda path: _checked(NgramLM.from_arpa(path).model)}
    originals.add(Original("packed-arpa", packed, asked, saved=False))
    paths = place / "words.paths"
    brown.write_paths(paths, brown_clusters(corpus, 4), words, counts)

    def clusters(path: Path) -> Any:
        found = brown.read_paths(path, words, corpus.split("train"))
        return [found.classes.tolist(), list(found.paths), found.information]

    originals.add(Original("paths", paths, {"library": clusters}, saved=False))
    recipe = place / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    asked = {"library": lambda path: find_recipe(path).to_dict()}
    originals.add(Original("recipe", recipe, asked, saved=False))
    for kind in ("bpe", "sentencepiece"):
        path = next(_tokenizer_folder(originals.place, kind).iterdir())
        originals.add(Original(kind, path, {"library": _tokens}, saved=False))
    vocabulary = place / "vocab.json"
    shutil.copyfile(corpus.folder / "vocab.json", vocabulary)
    originals.add(Original("vocabulary", vocabulary, {"library": _tokens}, saved=False))


RECIPE = """[corpus]
data = "pydoc"
min_count = 2
lowercase = true

[model]
family = "hmm"
states = 64
blocks = 8
support = "blocked"
parameterisation = "neural"

[options]
width = 16
layers = 2
transitions = "two-level"
init_scale = 0.1

[training]
epochs = 2.0
batch = 16
window = 32
state_dropout = 0.5
optimizer = "adamw"
lr = 0.01
schedule = "cosine"
seed = 1
device = "cpu"

[initial]
labelled_tokens = 1000
centroids = false
"""


def _tokenizer_folder(place: Path, kind: str) -> Path:
    folder = place / kind / "tokenizer"
    if not folder.exists():
        folder.mkdir(parents=True)
        if kind == "bpe":
            bpe(folder / "tokenizer.json")
        else:
            sentencepiece_model(folder / "tokenizer.model")
    return folder


def _tokens(path: Path) -> Any:
    tokenizer = open_tokenizer(path)
    ids = tokenizer.encode("the cat sat w01\nw02 é")
    last = [tokenizer.token(id) for id in (0, tokenizer.size - 1)]
    if not all(0 <= id < tokenizer.size for id in ids):
        raise Failure(f"ids {ids} are not all below {tokenizer.size}")
    return [ids, tokenizer.decode(ids), tokenizer.end, tokenizer.unknown, last]


def _arpa(path: Path, words: list[str], end: int | None) -> Any:
    return _checked(read_arpa(path, words, end))


def _checked(model: KneserNey) -> Any:
    found = model.next_probs([1, 2])
    if not (np.isfinite(found).all() and found.min() >= 0):
        raise Failure(f"probabilities are {found.min()} to {found.max()}")
    total = model.log_probs(np.array([1, 2, 3])).sum()
    if math.isnan(total):
        raise Failure("a log-probability is NaN")
    return [found.tolist(), float(total)]
