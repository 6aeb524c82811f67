"""The script that wrote `format-1.tar.xz`, with the code of commit 75f3a83.

The archive has a finished and an interrupted run of every kind that existed then, SequenceHMMs, a
Ctrl-G folder and labels, all tiny. Its `answers.json` has the results of that code for these models
and the losses of the continued runs. The script does not run with later code;
`tests/test_old_files.py` reads the archive.
"""

import io
import json
import os
import random
import shlex
import shutil
import sys
import tarfile
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["HF_HUB_OFFLINE"] = "1"

from bighmm.learn.loop import Stopped
from bighmm.learn.run import train_run
from bighmm.models import open_model
from bighmm.recipe import from_dict
from distill.tiny_lm import save_language_model
from test_text import bpe, sentencepiece_model

from bighmm import HMMLM, SequenceHMM
from bighmm.cli.main import main
from bighmm.interop import to_ctrlg

SMALL = {"batch": 8, "window": 8, "epochs": 1.0, "device": "cpu", "checks_per_epoch": 2.0}


def tiny_text():
    """120 lines of 30 words; each word is followed by one of three others."""
    draw = random.Random(0)
    lines = []
    for _ in range(120):
        words = [draw.randrange(30)]
        for _ in range(5):
            words.append((7 * words[-1] + draw.randrange(3)) % 30)
        lines.append(" ".join(f"w{word:02}" for word in words))
    return "\n".join(lines) + "\n"


def kind(model=None, parameters=None, training=None, initial=None, corpus=None):
    return {
        "corpus": {"data": "tiny.txt", **(corpus or {})},
        "model": {"states": 24, "blocks": 4, "alive": 6, **(model or {})},
        "parameters": parameters or {},
        "training": {**SMALL, **(training or {})},
        "initial": initial or {},
    }


DENSE = {"support": "dense", "states": 8}
NARROW = {"width": 8}
EM = {"optimizer": "baum-welch", "state_dropout": 0.0, "step_size": 0.5, "smoothing": 0.01}
RUNS = {
    "blocked": kind(parameters=NARROW),
    "blocked-ordered": kind(
        parameters=NARROW, training={"batches": "ordered", "schedule": "plateau"}
    ),
    "blocked-factored": kind(parameters={"width": 8, "embeddings": "factored"}),
    "blocked-scalar": kind({"parameters": "scalar"}, training={"lr": 0.3, "batches": "sentences"}),
    "blocked-em": kind({"parameters": "scalar"}, training=EM),
    "free": kind({"support": "free"}, NARROW),
    "free-scalar": kind({"support": "free", "parameters": "scalar"}, training={"lr": 0.3}),
    "dense": kind(DENSE, NARROW, {"state_dropout": 0.0}),
    "dense-dropout": kind(DENSE, NARROW),
    "dense-scalar": kind({**DENSE, "parameters": "scalar"}, training={"lr": 0.3}),
    "dense-em": kind({**DENSE, "parameters": "scalar"}, training=EM),
    "dense-em-full": kind(
        {**DENSE, "parameters": "scalar"}, training={**EM, "full_batch": True, "epochs": 6.0}
    ),
    "dense-linear": kind({**DENSE, "parameters": "ablation-b"}, NARROW, {"batches": "windows"}),
    "dense-transformer": kind(
        {**DENSE, "parameters": "monolithic-transformer"},
        {"width": 8, "heads": 2, "layers": 1},
        {"state_dropout": 0.0, "lr": 0.003},
    ),
    "dense-direct": kind(DENSE, {"width": 8, "transition": "direct", "start": "direct"}),
    "labelled": kind(
        DENSE,
        NARROW,
        {"state_dropout": 0.0},
        {"labels": "labels", "labelled_tokens": 400, "frozen_tokens": 200},
    ),
    "labelled-em": kind(
        {**DENSE, "parameters": "scalar"},
        training=EM,
        initial={"labels": "labels", "labelled_tokens": 400},
    ),
    "subwords": kind(DENSE, NARROW, {"state_dropout": 0.0}, corpus={"tokenizer": "tiny.json"}),
    "sentencepiece": kind(
        DENSE, NARROW, {"state_dropout": 0.0}, corpus={"tokenizer": "tiny.model"}
    ),
    "feed-forward": kind({"family": "feed-forward"}, {"width": 8, "order": 3}),
    "lstm": kind({"family": "lstm"}, NARROW),
    "transformer": kind(
        {"family": "transformer"}, {"width": 8, "layers": 2, "heads": 2, "context": 8}
    ),
    "ngram": kind({"family": "ngram"}, {"order": 3}),
}
DISTILL = (
    "distill-lm lm --tokens 600 --length 12 --at-once 20 --prompt the --states 6 --width 8 "
    "--epochs 3 --labelled-epochs 1 --batch 8 --device cpu"
)
COMMANDS = [
    "eval runs/blocked --check-normalised --json",
    "eval runs/blocked --carry --split valid --json",
    "eval runs/lstm --json",
    "next runs/blocked w03 --n 4 --json",
    "next runs/lstm w03 --n 4 --json",
    "next runs/blocked w03 --must w05 --remaining 5 --json",
    "sample runs/blocked --n 3 --seed 1 --json",
    "sample runs/blocked --n 3 --seed 1 --must w05 --length 8 --json",
    "sample runs/dense --n 3 --seed 1 --temperature 0.5 --json",
    "sample runs/ngram --n 2 --seed 1 --json",
    "tag runs/blocked 'w03 w05 w07' --json",
    "posterior runs/blocked 'w03 w05 w07' --json",
    "states runs/blocked --top 3 --json",
    "states runs/dense --state 2 5 --sort number --json",
    "fill runs/blocked 'w03 ___1-2 w07' --seed 1 --json",
    "fill runs/blocked 'w03 ___1-2 w07' --best --json",
    "fill runs/blocked 'w03 ___1-2 w07' --probs --json",
    "data --data tiny.txt --json",
    "cluster --data tiny.txt --classes 4 --json",
]


def run_command(line):
    words = shlex.split(line)
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(words)
    return words, json.loads(printed.getvalue())


def answers(lm):
    """The results of a model for some texts, JSON-serialisable."""
    text = "w03 w21 w28\nw05 w06" if "w03" in getattr(lm.tokenizer, "words", []) else "w03 w21"
    ids = lm.encode(text)
    tokens = torch.tensor([ids, [*ids[:2], *[0] * (len(ids) - 2)]])
    lengths = torch.tensor([len(ids), 2])
    predictor = lm.predictor()
    found = {
        "text": text,
        "ids": ids,
        "size": lm.size,
        "log_prob": predictor.log_prob(tokens, lengths).tolist(),
        "next_token": predictor.next_token(tokens, lengths).exp().tolist(),
    }
    found["sample"] = predictor.sample(2, 6, ids[:2], torch.Generator().manual_seed(1)).tolist()
    if not isinstance(lm, HMMLM):
        return found
    hmm = lm.hmm()
    gapped = tokens.clone()
    gapped[:, 1] = -1
    end = lm.tokenizer.end
    rule = lm.rule(words=(2, 4))
    posterior, paths = hmm.posterior(tokens, lengths), hmm.best_paths(tokens, 3, lengths)
    best = hmm.best_fill(gapped, 2, lengths)
    counts = hmm.expected_counts(tokens, lengths)
    return {
        **found,
        "posterior": posterior.marginals.tolist(),
        "states": posterior.states.tolist(),
        "viterbi": hmm.viterbi(tokens, lengths).states.tolist(),
        "best_paths": paths.states.tolist(),
        "best_paths_log_prob": paths.log_prob.tolist(),
        "fill_probs": hmm.fill_probs(gapped, lengths).words.exp().tolist(),
        "fill": hmm.fill(gapped, 2, torch.Generator().manual_seed(1), lengths).tolist(),
        "best_fill": best.words.tolist(),
        "known_log_prob": hmm.known_log_prob(gapped, lengths).tolist(),
        "rule_log_prob": lm.rule_log_prob(rule, 4),
        "rule_sample": lm.sample(3, 4, rule=rule, generator=torch.Generator().manual_seed(1)),
        "rule_next": lm.next_token("", rule, 4).exp().tolist(),
        "counts": [t.sum().item() for t in counts[1:]] + [counts.transition.square().sum().item()],
        "cold": hmm.sample(2, None, ids[:2], torch.Generator().manual_seed(1), 0.5, 8).tolist(),
        "perplexity": lm.perplexity([*ids, end]).perplexity,
        "carried": lm.perplexity([*ids, end], convention="carry").perplexity,
    }


def losses(run):
    path = run / "log.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [entry["loss"] for entry in entries if entry["kind"] == "step"]


def stop_after(number):
    calls = iter(range(number))
    return lambda: next(calls, None) is None


def sequences(folder):
    draw = np.random.default_rng(0)
    clicks = [draw.integers(0, 9, length) for length in (40, 25, 60)]
    settings = {
        "dense": {},
        "blocked": {"support": "blocked", "n_blocks": 2},
        "free": {"support": "free", "n_alive": 3},
        "neural": {"parameters": "neural", "optimizer": "adamw", "options": {"width": 4}},
        "blocked-neural": {
            "support": "blocked",
            "n_blocks": 2,
            "parameters": "neural",
            "optimizer": "adamw",
            "options": {"width": 4},
        },
    }
    found = {"clicks": [row.tolist() for row in clicks]}
    for name, options in settings.items():
        model = SequenceHMM(4, iterations=5, random_state=3, **options).fit(clicks)
        model.save(folder / name)
        found[name] = {
            "options": options,
            "history": model.history_,
            "scores": model.score_samples(clicks).tolist(),
            "predict": [row.tolist() for row in model.predict(clicks)],
            "next": model.next_proba(clicks).tolist(),
            "sample": model.sample(2, 5, random_state=1).tolist(),
        }
    return found


def make(home):
    os.chdir(home)
    os.environ["BIGHMM_CACHE"] = str(home / "cache")
    torch.set_num_threads(1)
    Path("tiny.txt").write_text(tiny_text())
    bpe(Path("tiny.json"))
    sentencepiece_model(Path("tiny.model"))
    save_language_model(Path("lm"))
    main(
        [
            "distill",
            "random",
            "--data",
            "tiny.txt",
            "--states",
            "8",
            "--cluster-tokens",
            "400",
            "--out",
            "labels",
            "--device",
            "cpu",
        ]
    )
    found = {"models": {}, "half": {}, "sequences": {}, "commands": []}
    for name, sections in RUNS.items():
        recipe = from_dict(sections, name)
        if name != "ngram":
            try:
                train_run(Path("half") / name, recipe, should_stop=stop_after(4))
            except Stopped as stopped:
                found["half"][name] = {"step": stopped.step}
            shutil.rmtree(Path("half") / name / "checkpoint.previous", ignore_errors=True)
        result = train_run(Path("runs") / name, recipe)
        found["models"][name] = {
            **answers(open_model(Path("runs") / name)),
            "valid": result["valid"]["perplexity"],
            "test": result["test"]["perplexity"],
            "samples": result["samples"],
        }
        if name != "ngram":
            found["half"][name] |= {"losses": losses(Path("runs") / name)}
            shutil.rmtree(Path("runs") / name / "checkpoint", ignore_errors=True)
            shutil.rmtree(Path("runs") / name / "checkpoint.previous", ignore_errors=True)
    main([*DISTILL.split(), "--out", "distilled"])
    found["distilled"] = {
        "command": DISTILL,
        "losses": losses(Path("distilled")),
        "test": json.loads(Path("distilled/result.json").read_text())["test"]["perplexity"],
    }
    shutil.copytree("distilled", "distilling")
    for part in (
        "recipe.json",
        "log.jsonl",
        "result.json",
        "stages.json",
        "samples/00002.safetensors",
    ):
        Path("distilling", part).unlink()
    for part in ("checkpoint", "checkpoint.previous", "model", "corpus", "labels"):
        shutil.rmtree(Path("distilling", part), ignore_errors=True)
    shutil.rmtree("distilled")
    found["sequences"] = sequences(Path("sequences"))
    to_ctrlg(HMMLM.from_pretrained("runs/dense").hmm(), "ctrlg")
    for line in COMMANDS:
        words, printed = run_command(line)
        found["commands"].append({"words": words, "printed": printed})
    Path("answers.json").write_text(json.dumps(found))
    shutil.rmtree("cache")


if __name__ == "__main__":
    home = Path(sys.argv[1]).resolve()
    home.mkdir()
    make(home)
    with tarfile.open(Path(__file__).parent / "format-1.tar.xz", "w:xz") as archive:
        for path in sorted(home.rglob("*")):
            archive.add(path, path.relative_to(home).as_posix(), recursive=False)
