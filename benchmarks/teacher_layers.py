"""Which layer of a language model gives the best labels, measured without training.

    python benchmarks/teacher_layers.py models/smollm2 TEXT --keep FOLDER

The model reads the first `--tokens` of a text in windows of 256. Its vectors after some layers are
clustered, with as many clusters as states. An HMM is estimated from the counts of the labels in
nine tenths of the windows, and improved by iterations of EM; its perplexity is measured on the last
tenth. For comparison there are random vectors of tokens, mixed with those of previous tokens.

With `--keep` the vectors are stored and reused by the next run. The same tokens are written as a
corpus, FOLDER/corpus, and the labels of its training part for each layer as FOLDER/layer-N and
FOLDER/random, for `bighmm train --data FOLDER/corpus --min-count 3 --labels …`.
"""

from __future__ import annotations

import lzma
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor

from bighmm import HMM
from bighmm.base.files import write_json
from bighmm.data.corpus import prepare
from bighmm.data.labels import FORMAT, LABELS, MANIFEST
from bighmm.distill.kmeans import kmeans, nearest
from bighmm.distill.teachers import RandomTeacher
from bighmm.interop.hugging_face import find_model, load
from bighmm.model.support import Dense
from record import save, settings_of, surroundings

WINDOW, RARE = 256, 3  # tokens of a window; a token that occurs less often counts as unknown
SMOOTHING = 20.0  # added to the counts of every state, distributed as in the whole text
SAMPLE = 60_000  # number of vectors that are clustered


@dataclass(frozen=True)
class Arguments:
    language_model: Annotated[str, tyro.conf.Positional]
    text: Annotated[Path, tyro.conf.Positional]
    tokens: int = 256_000
    layers: tuple[int, ...] = (0, 5, 10, 15, 20, 25, 30)
    states: int = 128
    iterations: int = 3
    """Number of iterations of EM."""
    keep: Path | None = None
    out: str = "bench/teacher_layers.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    ids, vectors = _read(arguments)
    trained = len(ids) * 9 // 10
    words = _renumbered(ids, trained)
    rows: list[dict[str, Any]] = []
    for name, found in vectors.items():
        labels = _label(found, arguments.states).view(ids.shape)
        perplexities = _perplexities(words, labels, trained, arguments)
        rows.append({"vectors": name, "perplexities": perplexities})
        print(name, *(f"{value:.1f}" for value in perplexities))
        if arguments.keep is not None:
            _keep(arguments.keep, name, ids, labels, trained, arguments.states)
    settings = {**settings_of(arguments), "text": arguments.text.name, "keep": None}
    settings["language_model"] = Path(arguments.language_model).name
    kept = {"operation": "labels of layers", **settings, "words": int(words.max()) + 1}
    print(f"saved to {save(arguments.out, {**kept, 'rows': rows, **surroundings()})}")


def _read(arguments: Arguments) -> tuple[Tensor, dict[str, Tensor]]:
    """Windows of token ids (B, 256), and their vectors (B · 256, H) by name of the layer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, model = load(find_model(arguments.language_model), device)
    opened = lzma.open if arguments.text.suffix == ".xz" else open
    with opened(arguments.text, "rt", encoding="utf-8") as file:
        text = file.read(8 * arguments.tokens)
    found = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    ids = torch.tensor(found[: arguments.tokens // WINDOW * WINDOW]).view(-1, WINDOW)
    vectors: dict[str, list[Tensor]] = {f"layer-{n}": [] for n in arguments.layers}
    files = {n: (arguments.keep or Path()) / f"{n}.npy" for n in vectors}
    if arguments.keep is not None and all(file.is_file() for file in files.values()):
        kept = {n: torch.from_numpy(np.load(file)) for n, file in files.items()}
    else:
        for first in range(0, len(ids), 8):
            with torch.inference_mode():
                made = model(input_ids=ids[first : first + 8].to(device), output_hidden_states=True)
            for layer in arguments.layers:
                vectors[f"layer-{layer}"].append(
                    made.hidden_states[layer].half().flatten(0, 1).cpu()
                )
            if first % 80 == 0:
                print(f"read {first * WINDOW:,} of {ids.numel():,} tokens", flush=True)
        kept = {n: torch.cat(parts) for n, parts in vectors.items()}
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            for n, file in files.items():
                np.save(file, kept[n].numpy())
    random = RandomTeacher(len(tokenizer), device=torch.device("cpu"))
    return ids, {"random": random.hidden(ids).flatten(0, 1), **kept}


def _renumbered(ids: Tensor, trained: int) -> Tensor:
    """New ids of tokens: 1, 2, … for tokens that are not rare in the training part, else 0."""
    known = torch.bincount(ids[:trained].flatten(), minlength=int(ids.max()) + 1) >= RARE
    return (known.cumsum(0) * known)[ids]


def _label(vectors: Tensor, states: int) -> Tensor:
    chosen = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
    centroids = kmeans(vectors.numpy(), states, rows=np.sort(chosen)).centroids
    return torch.cat([nearest(part.float(), centroids)[0] for part in vectors.split(20_000)])


def _perplexities(words: Tensor, labels: Tensor, trained: int, arguments: Arguments) -> list[float]:
    """Perplexities of the HMM from the counts of the labels, and after each iteration of EM."""
    states, size = arguments.states, int(words.max()) + 1
    text, states_of, rest = words[:trained], labels[:trained], words[trained:]
    of_word = torch.bincount(text.flatten(), minlength=size).double() + 0.5
    of_state = torch.bincount(states_of.flatten(), minlength=states).double() + 1
    moves = states * states_of[:, :-1] + states_of[:, 1:]
    uses = size * states_of + text
    start = of_state
    transition = torch.bincount(moves.flatten(), minlength=states**2).view(states, states)
    emission = torch.bincount(uses.flatten(), minlength=states * size).view(states, size)
    result = []
    for iteration in range(arguments.iterations + 1):
        hmm = HMM.from_probs(
            (start / start.sum()).float(),
            _smoothed(transition, of_state).float(),
            _smoothed(emission, of_word).float(),
        )
        log_prob = float(hmm.log_prob(rest).double().sum())
        result.append(math.exp(-log_prob / rest.numel()))
        if iteration < arguments.iterations:
            counts = hmm.expected_counts(text)
            start = counts.start + 1
            transition, emission = counts.transition, counts.emission.T
    return result


def _smoothed(counts: Tensor, of_all: Tensor) -> Tensor:
    counts = counts.double() + SMOOTHING * of_all / of_all.sum()
    return counts / counts.sum(1, keepdim=True)


def _keep(folder: Path, name: str, ids: Tensor, labels: Tensor, trained: int, states: int) -> None:
    """Write the windows as lines of words, and the labels in the format of `bighmm distill`."""
    half = (len(ids) - trained) // 2
    parts = ids.split([trained, half, len(ids) - trained - half])
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    for split, part in zip(("train", "valid", "test"), parts, strict=True):
        lines = [" ".join(f"t{token}" for token in line) for line in part.tolist()]
        (folder / "corpus" / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = prepare(str(folder / "corpus"), min_count=RARE)
    found = labels[:trained]
    found = torch.cat([found, found[:, -1:]], 1).numpy().astype("<u2")  # for the end mark of a line
    (folder / name).mkdir(exist_ok=True)
    found.tofile(folder / name / LABELS)
    manifest = {
        "format": FORMAT,
        "corpus": {"fingerprint": corpus.fingerprint, "name": "corpus"},
        "states": Dense(states, corpus.tokenizer.size).label_key(),
        "tokens": found.size,
        "dtype": "<u2",
    }
    write_json(folder / name / MANIFEST, manifest)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
