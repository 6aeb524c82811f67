"""`bighmm arpa`: n-gram models to and from ARPA files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bighmm.base.locks import is_unused
from bighmm.cli.common import AsJson, out, parse, print_json

if TYPE_CHECKING:
    from bighmm.lm.baselines.ngram import NgramLM


@dataclass(frozen=True)
class ArpaArguments:
    """An n-gram model as an ARPA file, which KenLM and SRILM read, or such a file as a model."""

    action: Annotated[
        Literal["export", "import"],
        tyro.conf.Positional,
        tyro.conf.arg(help="Write a file, or read one."),
    ]
    source: Annotated[
        Path,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="SOURCE", help="A model or its run; for import an ARPA file."),
    ]
    out: Annotated[
        Path,
        tyro.conf.arg(help="A new file; for import a new folder. Files are packed as .gz or .xz."),
    ]
    tokenizer: Annotated[
        Path | None,
        tyro.conf.arg(
            help="For import: a tokenizer or a model whose tokens are the words of the file; "
            "without it the vocabulary is that of the file, and texts are split at spaces."
        ),
    ] = None
    as_json: AsJson = False


def arpa_command(argv: list[str]) -> None:
    """Write or read an ARPA file."""
    arguments = parse(ArpaArguments, argv, "arpa")
    export = arguments.action == "export"
    if export and arguments.tokenizer is not None:
        raise ValueError("--tokenizer is for import; an exported model has its own tokens")
    if arguments.out.exists() if export else not is_unused(arguments.out):
        raise ValueError(f"{arguments.out} already exists; choose another --out")
    if export and not arguments.out.parent.is_dir():
        raise ValueError(f"there is no folder {arguments.out.parent} to write {arguments.out} to")
    lm = _export(arguments) if export else _import(arguments)
    n_grams = [len(level.keys) for level in lm.model.levels]
    if arguments.as_json:
        found = {"order": lm.model.order, "vocabulary": lm.tokenizer.size, "n_grams": n_grams}
        print_json({"out": str(arguments.out), **found})
        return
    console = out()
    console.print(f"{lm.tokenizer.size:,} words, {sum(n_grams):,} n-grams up to {lm.model.order}")
    console.print(f"{'file' if export else 'model'}: {arguments.out}", markup=False)


def _export(arguments: ArpaArguments) -> NgramLM:
    from bighmm.lm.baselines.ngram import NgramLM
    from bighmm.lm.opening import open_model

    lm = open_model(arguments.source)
    if not isinstance(lm, NgramLM):
        raise ValueError(f"{arguments.source} is not an n-gram model, so it has no ARPA file")
    lm.to_arpa(arguments.out)
    return lm


def _import(arguments: ArpaArguments) -> NgramLM:
    from bighmm.base.files import model_folder
    from bighmm.data.tokenizers import open_tokenizer
    from bighmm.lm.baselines.ngram import NgramLM

    given = arguments.tokenizer
    tokenizer = None if given is None else open_tokenizer(model_folder(given))
    lm = NgramLM.from_arpa(arguments.source, tokenizer)
    lm.save_pretrained(arguments.out)
    return lm
