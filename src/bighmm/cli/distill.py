"""`bighmm distill`: labels for training, one state for each token, from a teacher."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from bighmm.cli.common import AsJson, out, parse, print_json
from bighmm.cli.progress import clustering_progress, stages_progress
from bighmm.data.corpus import Corpus
from bighmm.data.labels import Labels
from bighmm.distill.making import LabelSettings, make_labels
from bighmm.distill.teachers import Reading, open_teacher
from bighmm.lm.opening import find_device, open_hmm
from bighmm.model.support import Support
from bighmm.train.recipe import CorpusSettings, ModelSettings, Recipe
from bighmm.train.setup import make_support, open_data

TEACHER = "random, a network's folder, a Hugging Face model's folder or name, or a .gguf file."


@dataclass(frozen=True)
class StudentArguments:
    states: Annotated[int, tyro.conf.arg(help="Hidden states in all: clusters.")] = 512
    support: Annotated[
        Literal["dense", "blocked"],
        tyro.conf.arg(help="Whether all tokens are clustered together, or each block's alone."),
    ] = "dense"
    blocks: Annotated[int, tyro.conf.arg(help="Blocks of a blocked model.")] = 128
    paths: Annotated[
        str | None,
        tyro.conf.arg(help="A paths file to take the blocks from; without it they are computed."),
    ] = None
    model: Annotated[
        Path | None,
        tyro.conf.arg(help="A model or run to take states and blocks from instead."),
    ] = None


@dataclass(frozen=True)
class DistillArguments:
    """Cluster a teacher's vectors of the training tokens: one state for each token."""

    teacher: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEACHER", help=TEACHER)]
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    student: StudentArguments = field(default_factory=StudentArguments)
    pca: Annotated[
        int | None, tyro.conf.arg(help="Cluster so many principal components of the vectors.")
    ] = None
    cluster_tokens: Annotated[
        int, tyro.conf.arg(help="Tokens to find the clusters with, at most.")
    ] = 1_000_000
    label_tokens: Annotated[
        int, tyro.conf.arg(help="Tokens to label, from the first on; 0 for all.")
    ] = 10_000_000
    layer: Annotated[
        int | None,
        tyro.conf.arg(
            help="Layer of a transformer; -1 is the last, 0 the embeddings. Left out: two thirds "
            "up in a causal one, the last in a bidirectional one."
        ),
    ] = None
    random: Annotated[bool, tyro.conf.arg(help="Give the teacher new random weights first.")] = (
        False
    )
    window: Annotated[int, tyro.conf.arg(help="Tokens that the teacher reads at once.")] = 256
    context: Annotated[
        int, tyro.conf.arg(help="How many of them only serve as context of the others.")
    ] = 64
    pool: Annotated[
        Literal["last", "mean"],
        tyro.conf.arg(help="Which of the teacher's pieces of a word count, if it cuts finer."),
    ] = "last"
    iterations: Annotated[int, tyro.conf.arg(help="Passes of k-means, at most.")] = 40
    seed: int = 1
    device: Annotated[str, tyro.conf.arg(help="cpu, cuda, or auto: a GPU if there is one.")] = (
        "auto"
    )
    out: Annotated[
        Path | None, tyro.conf.arg(help="The labels' folder; without it, one in the cache.")
    ] = None
    as_json: AsJson = False


def distill_command(argv: list[str]) -> None:
    arguments = parse(DistillArguments, argv, "distill")
    device = find_device(arguments.device)
    settings = LabelSettings(
        pca=arguments.pca,
        cluster_tokens=arguments.cluster_tokens,
        label_tokens=arguments.label_tokens or None,
        pool=arguments.pool,
        reading=Reading(arguments.window, arguments.context),
        iterations=arguments.iterations,
        seed=arguments.seed,
    )
    _settings(arguments.student)
    corpus = open_data(arguments.corpus)
    teacher = open_teacher(
        arguments.teacher,
        corpus.tokenizer,
        layer=arguments.layer,
        fresh=arguments.random,
        seed=arguments.seed,
        device=device,
    )
    support = _support(arguments.student, corpus)
    try:
        with stages_progress() as progress:
            labels = make_labels(
                corpus,
                teacher,
                support,
                settings,
                out=arguments.out,
                device=device,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("bighmm: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    if arguments.as_json:
        print_json(_result(labels))
    else:
        _show(labels)


def _support(student: StudentArguments, corpus: Corpus) -> Support:
    if student.model is not None:
        lm = open_hmm(student.model, "states to label")
        if lm.tokenizer.fingerprint() != corpus.tokenizer.fingerprint():
            raise ValueError(
                f"the model {student.model} has another vocabulary than the corpus; give the "
                "corpus that it was trained on, with the same --tokenizer, --min-count and so on"
            )
        return lm.params.support
    with clustering_progress() as progress:
        return make_support(_settings(student), corpus, seed=0, progress=progress)


def _settings(student: StudentArguments) -> ModelSettings:
    """ValueError for numbers that do not go together."""
    model = ModelSettings(
        states=student.states,
        support=student.support,
        blocks=student.blocks,
        paths=student.paths,
    )
    return Recipe(model=model).model


def _result(labels: Labels) -> dict[str, Any]:
    manifest = labels.manifest
    names = ("teacher", "states", "tokens", "settings", "device", "result")
    return {"folder": str(labels.folder), **{name: manifest[name] for name in names}}


def _show(labels: Labels) -> None:
    manifest, result = labels.manifest, labels.manifest["result"]
    console = out()
    table = Table(show_header=False)
    rows = {
        "teacher": manifest["teacher"].get("name", manifest["teacher"]["kind"]),
        "tokens clustered": f"{result['clustered']:,}",
        "tokens labelled": f"{manifest['tokens']:,}",
        "inertia per token": f"{result['inertia']:.4g}",
        "states used": f"{result['used']:,} of {labels.num_states:,}",
        "largest state": f"{100 * result['largest_share']:.2f} % of the tokens",
        "seconds": f"{result['seconds']:.1f}",
    }
    if result["variance_kept"] is not None:
        rows["variance kept"] = f"{100 * result['variance_kept']:.1f} %"
    for name, value in rows.items():
        table.add_row(name, escape(value))
    console.print(table)
    console.print(f"labels: {labels.folder}", markup=False)
