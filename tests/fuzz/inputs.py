"""What users bring: ARPA files, paths of clusters, recipes, tokenizers."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bighmm.data import brown
from bighmm.data.clusters import brown_clusters
from bighmm.data.tokenizers import open_tokenizer
from bighmm.lm.baselines.arpa import read_arpa, write_arpa
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.opening import open_model
from bighmm.train.recipe import find_recipe

from .commands import ask
from .originals import Original, Originals, Question, tokenizer_folder
from .outcome import Failure


def add_inputs(originals: Originals) -> None:
    place, corpus = originals.place / "inputs", originals.corpus
    place.mkdir()
    words, counts = corpus.words_and_counts()
    arpa = place / "model.arpa"
    ngram: Any = open_model(originals.path("ngram"))
    write_arpa(ngram.model, arpa, words)
    end = corpus.tokenizer.end
    asked: dict[str, Question] = {
        "library": lambda path: _checked(read_arpa(path, words, end)),
        "command": _imported,
    }
    originals.add(Original("arpa", arpa, asked, saved=False))
    for suffix in ("gz", "xz"):
        packed = place / f"packed.arpa.{suffix}"
        ngram.to_arpa(packed)
        asked = {
            "library": lambda path: _checked(NgramLM.from_arpa(path).model),
            "command": _imported,
        }
        originals.add(Original(f"arpa-{suffix}", packed, asked, saved=False))
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
        path = next(tokenizer_folder(originals.place, kind).iterdir())
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


def _tokens(path: Path) -> Any:
    tokenizer = open_tokenizer(path)
    ids = tokenizer.encode("the cat sat w01\nw02 é")
    last = [tokenizer.token(id) for id in (0, tokenizer.size - 1)]
    if not all(0 <= id < tokenizer.size for id in ids):
        raise Failure(f"ids {ids} are not all below {tokenizer.size}")
    return [ids, tokenizer.decode(ids), tokenizer.end, tokenizer.unknown, last]


def _imported(path: Path) -> Any:
    """What the model of an ARPA file says, once the command has made one of it."""
    out = path.parent / f"imported-{path.name}"
    shutil.rmtree(out, ignore_errors=True)
    found = ask("arpa", "import", path, "--out", out)
    del found["out"]
    return [found, ask("score", out, stdin=b"w01 w07\n"), ask("next", out, "w01", "--n", 3)]


def _checked(model: KneserNey) -> Any:
    found = model.next_probs([1, 2])
    if not (np.isfinite(found).all() and found.min() >= 0):
        raise Failure(f"probabilities are {found.min()} to {found.max()}")
    total = model.log_probs(np.array([1, 2, 3])).sum()
    if math.isnan(total):
        raise Failure("a log-probability is NaN")
    return [found.tolist(), float(total)]
