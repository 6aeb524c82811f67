"""`bighmm data` and `bighmm cluster`: questions about a corpus."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from bighmm.base import launch
from bighmm.cli.common import AsJson, flag_value, out, parse, print_json, printable
from bighmm.train.recipe import CorpusSettings


@dataclass(frozen=True)
class DataArguments:
    """What is known about a corpus: counts, vocabulary, where it came from."""

    path: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[TEXT]", help="The corpus, as for --data."),
    ] = None
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    as_json: AsJson = False


def data_command(argv: list[str]) -> None:
    """Print what is known about a corpus."""
    arguments = parse(DataArguments, argv, "data")
    settings = arguments.corpus
    if arguments.path is not None:
        if flag_value(argv, "--data") is not None:
            raise ValueError(
                f"two corpora are named, {arguments.path} and {settings.data}; give one"
            )
        settings = replace(settings, data=arguments.path)
    from rich.markup import escape
    from rich.table import Table

    from bighmm.data.corpus import SPLITS, describe
    from bighmm.train.setup import open_data

    known = describe(open_data(settings))
    if arguments.as_json:
        print_json(known)
        return
    console = out()
    console.print(f"[bold]{escape(known['source']['name'])}[/] ({known['source']['kind']})")
    if known["source"].get("cut"):
        console.print("its lines are very long, so they were cut into sentences")
    vocabulary = known["tokenizer"]
    console.print(f"vocabulary: {vocabulary['size']:,} ({vocabulary['kind']})")
    table = Table("", "tokens", "lines", "documents", "unknown", "longest line")
    for name in SPLITS:
        split = known["splits"][name]
        numbers = (split[key] for key in ("tokens", "lines", "documents"))
        unknown = f"{100 * split['unknown_rate']:.2f} %"
        table.add_row(name, *(f"{n:,}" for n in numbers), unknown, f"{split['longest_line']:,}")
    console.print(table)
    words = (str(entry["token"]) for entry in known["most_frequent"])
    console.print("most frequent: " + "  ".join(repr(word)[1:-1] for word in words), markup=False)
    console.print(f"token files: {known['folder']}", markup=False)


@dataclass(frozen=True)
class ClusterArguments:
    """Brown clusters of a corpus' training text."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    classes: Annotated[int, tyro.conf.arg(help="Number of classes.")] = 128
    out: Annotated[
        Path | None, tyro.conf.arg(help="Where to write the paths file: bits, word, count.")
    ] = None
    as_json: AsJson = False


def cluster_command(argv: list[str]) -> None:
    """Print Brown clusters of a corpus, and write their paths file."""
    arguments = parse(ClusterArguments, argv, "cluster")
    if arguments.out is not None and not arguments.out.parent.is_dir():
        raise ValueError(f"there is no folder {arguments.out.parent} to write {arguments.out} to")
    if arguments.out is not None and arguments.out.is_dir():
        raise ValueError(f"{arguments.out} is a folder; --out must name a file")
    from rich.table import Table

    from bighmm.base import processes
    from bighmm.cli.progress import clustering_progress
    from bighmm.data import brown
    from bighmm.train.setup import brown_clusters, open_data

    corpus = open_data(arguments.corpus)
    processes.current().require_alike({"text": corpus.fingerprint})
    with clustering_progress() as progress:
        clusters = brown_clusters(corpus, arguments.classes, progress)
    if not launch.is_first():
        return
    words, counts = corpus.words_and_counts()
    if arguments.out is not None:
        brown.write_paths(arguments.out, clusters, words, counts)
    rows = brown.class_table(clusters, words, counts)
    if arguments.as_json:
        classes = [asdict(row) for row in rows]
        print_json({"information_nats": clusters.information, "classes": classes})
        return
    console = out()
    table = Table("path", "words", "most frequent")
    for row in rows:
        table.add_row(row.path, str(row.size), printable(row.words))
    console.print(table)
    console.print(f"average mutual information: {clusters.information:.4f} nats")
