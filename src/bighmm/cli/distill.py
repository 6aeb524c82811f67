"""`bighmm distill`: labels for training, one state for each token, from a teacher."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bighmm.cli.common import AsJson, Device, check_blocks, out, parse, print_json
from bighmm.train.recipe import CorpusSettings, ModelSettings

if TYPE_CHECKING:
    from bighmm.data.labels import Labels

TEACHER = "random, a network's folder, a Hugging Face model's folder or name, or a .gguf file."


@dataclass(frozen=True)
class StudentArguments:
    states: Annotated[int, tyro.conf.arg(help="Hidden states in all: clusters.")] = 512
    support: Annotated[
        Literal["dense", "blocked"],
        tyro.conf.arg(help="Whether all tokens are clustered together, or each block's alone."),
    ] = "dense"
    blocks: Annotated[
        int | Literal["words"],
        tyro.conf.arg(help="Blocks of a blocked model, or words: one for every word."),
    ] = 128
    paths: Annotated[
        str | None,
        tyro.conf.arg(help="A paths file to take the blocks from; without it they are computed."),
    ] = None
    model: Annotated[
        Path | None,
        tyro.conf.arg(help="A model or run to take states and blocks from instead."),
    ] = None

    def settings(self) -> ModelSettings:
        """The states and blocks of a model that is not trained yet."""
        return ModelSettings(
            states=self.states, support=self.support, blocks=self.blocks, paths=self.paths
        )


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
    seed: Annotated[int, tyro.conf.arg(help="The same seed, the same labels.")] = 1
    device: Device = "auto"
    out: Annotated[
        Path | None, tyro.conf.arg(help="The labels' folder; without it, one in the cache.")
    ] = None
    as_json: AsJson = False


def distill_command(argv: list[str]) -> None:
    """Write the labels of a corpus from the vectors of a teacher."""
    check_blocks(argv)
    arguments = parse(DistillArguments, argv, "distill")
    from bighmm.cli.progress import clustering_progress, stages_progress
    from bighmm.distill.corpus_labels import LabelWatch, label_corpus
    from bighmm.distill.labelling import LabelSettings
    from bighmm.distill.teachers import Reading

    settings = LabelSettings(
        pca=arguments.pca,
        cluster_tokens=arguments.cluster_tokens,
        label_tokens=arguments.label_tokens or None,
        pool=arguments.pool,
        reading=Reading(arguments.window, arguments.context),
        iterations=arguments.iterations,
        seed=arguments.seed,
    )
    student = arguments.student
    try:
        labels = label_corpus(
            arguments.teacher,
            arguments.corpus,
            student.settings() if student.model is None else student.model,
            settings,
            layer=arguments.layer,
            fresh=arguments.random,
            device=arguments.device,
            out=arguments.out,
            watch=LabelWatch(clustering_progress, stages_progress),
        )
    except KeyboardInterrupt:
        print("bighmm: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    if arguments.as_json:
        print_json(_result(labels))
    else:
        _show(labels)


def _result(labels: Labels) -> dict[str, Any]:
    manifest = labels.manifest
    names = ("teacher", "states", "tokens", "settings", "device", "result")
    return {"folder": str(labels.folder), **{name: manifest[name] for name in names}}


def _show(labels: Labels) -> None:
    from rich.markup import escape
    from rich.table import Table

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
