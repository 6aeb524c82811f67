"""`bighmm write`: a corpus that models of this library write."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bighmm.cli.common import AsJson, DeviceFlags, out, parse, print_json
from bighmm.distill.settings import WriteSettings

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True)
class WriteArguments:
    """Sample a corpus from a model, or from the mean of the probabilities of several."""

    teachers: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TEACHER...", help="Folders of models or runs of one vocabulary."),
    ]
    out: Annotated[Path, tyro.conf.arg(help="The corpus' folder; what is begun there goes on.")]
    tokens: Annotated[
        str, tyro.conf.arg(metavar="N", help="How many, at least; 100M is a hundred million.")
    ] = "10M"
    temperature: Annotated[
        float, tyro.conf.arg(help="Below 1 likely words get likelier; 1: the models' own.")
    ] = 1.0
    top_p: Annotated[
        float, tyro.conf.arg(help="Sample from the likeliest tokens of this probability in all.")
    ] = 1.0
    batch: Annotated[
        int | None,
        tyro.conf.arg(help="Texts at once. Left out: 4,096 on a GPU, else 64."),
    ] = None
    stream: Annotated[
        int,
        tyro.conf.arg(help="Tokens of a text, before its last sentence ends and it begins anew."),
    ] = WriteSettings.stream
    seed: Annotated[int, tyro.conf.arg(help="The same seed, the same text.")] = 1
    where: DeviceFlags = field(default_factory=DeviceFlags)
    as_json: AsJson = False


def write_command(argv: list[str]) -> None:
    """Write a corpus by models, or go on with one."""
    arguments = parse(WriteArguments, argv, "write")
    tokens = number_of(arguments.tokens)
    from bighmm.cli.progress import stages_progress
    from bighmm.distill.writing import open_teachers, write_text

    where = arguments.where
    teachers = open_teachers(arguments.teachers, where.device, where.matmul_dtype)
    settings = WriteSettings.on_device(
        teachers.device.type,
        arguments.batch,
        tokens=tokens,
        stream=arguments.stream,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )
    try:
        with stages_progress() as progress:
            corpus = write_text(
                teachers,
                settings,
                arguments.out,
                exact=where.matmul_dtype == "float32",
                progress=lambda done, total: progress("writing", done, total),
            )
    except KeyboardInterrupt:
        print("bighmm: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    result = _result(corpus)
    if arguments.as_json:
        print_json(result)
    else:
        _show(result, corpus)


def number_of(text: str) -> int:
    """A number such as 2000, 1_000, 20k, 1.5M or 2G; ValueError if it is none."""
    match = re.fullmatch(r"(\d[\d_,]{0,20}(?:\.\d{1,9})?)([kmg]?)", text.strip().lower())
    if match is None:
        raise ValueError(f"tokens must be a number such as 2000, 500k or 100M, not {text!r}")
    return round(float(re.sub("[_,]", "", match[1])) * UNITS[match[2]])


def _result(corpus: Corpus) -> dict[str, Any]:
    splits = corpus.manifest["splits"]
    return {
        "folder": str(corpus.folder),
        "fingerprint": corpus.fingerprint,
        "source": corpus.manifest["source"],
        "tokens": {name: splits[name]["tokens"] for name in splits},
    }


def _show(result: dict[str, Any], corpus: Corpus) -> None:
    console, source, tokens = out(), result["source"], result["tokens"]
    console.print(
        f"{sum(tokens.values()):,} tokens by {source['name']}, of which {tokens['valid']:,} and "
        f"{tokens['test']:,} are held out",
        markup=False,
    )
    if source["perplexity"] is not None:
        console.print(f"their perplexity to who wrote them: {source['perplexity']:.2f}")
    first = corpus.split("train")[:60].tolist()
    console.print(f"It begins: {corpus.tokenizer.decode(first)!r}", markup=False)
    console.print(
        f"\nTry next:\n  bighmm train --data TEXT --more {result['folder']} --share 0.9",
        markup=False,
    )
