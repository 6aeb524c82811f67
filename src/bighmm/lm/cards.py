"""Model cards: what a model is, how it is loaded, and the figures of its run.

A card says nothing that is not known: a licence only where one is given, figures only of finished
runs.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from bighmm.base.files import write_atomically
from bighmm.base.reading import read_text
from bighmm.model.calibration import UNCALIBRATED

CARD = "README.md"
MARK = "<!-- card of bighmm -->"  # a card with it may be replaced by one that says more
MOST_CARD = 1 << 20  # bytes
HMM = "Hidden Markov language model"  # what the title of its card begins with
BEGINNINGS = {  # settings of what a model began with, and how a card says it
    "init_from": "the model `{}`",
    "pretrained": "the transformer of `{}`",
    "labels": "the labels `{}`",
    "head": "the output weights of `{}`",
}


def about_model(lm: Any) -> str:
    """What can be said of a model alone."""
    params = getattr(lm, "params", None)
    support = getattr(params, "support", None)
    if support is None:
        title = f"Language model ({type(lm).__name__})"
    else:
        title = f"{HMM} of {support.num_states:,} states"
        if support.partition is not None:
            title += f" in {support.partition.num_blocks:,} blocks"
    entries = "words" if lm.tokenizer.kind == "words" else "tokens"
    return f"""# {title}

Made with bighmm; a vocabulary of {lm.tokenizer.size:,} {entries}, {lm.num_parameters:,} parameters.
{_calibration(params)}
## Load it

```python
from bighmm.lm import open_model

lm = open_model("FOLDER")  # the folder of this file, or OWNER/NAME once it is on the hub
```

On the command line: `bighmm sample FOLDER`.
"""


def _calibration(params: Any) -> str:
    """A sentence about the calibration of an HMM; empty where there is none."""
    own = getattr(params, "calibration", UNCALIBRATED)
    if own == UNCALIBRATED:
        return ""
    factors = ", ".join(f"{name} {factor:.4g}" for name, factor in asdict(own).items())
    return f"Its logits are multiplied by factors that were fitted on held-out text: {factors}.\n"


def about_run(lm: Any, result: dict[str, Any], tokens: int) -> str:
    """What can be said of the model of a finished run.

    result: the contents of result.json.
    tokens: of the training text.
    """
    corpus = result["recipe"]["corpus"]["data"]
    training = result["recipe"]["training"]
    steps = f" in {training['epochs']:g} epochs at most" if result["steps"] else ""
    more = result["recipe"]["mixed"]["more"]
    counted = result["kneser_ney"]  # None where the model is an n-gram model itself
    columns = ["held-out text", "tokens", "perplexity", "unigram"]
    columns += ["Kneser-Ney"] if counted else []
    lines = [
        about_model(lm),
        "## How it was made\n",
        f"Trained on the text `{Path(corpus).name}`, {tokens:,} tokens{steps}"
        + (f", and on `{Path(more).name}`." if more else "."),
        *_beginnings(result["recipe"]["initial"]),
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for split in ("valid", "test"):
        found = result[split]
        figures = [found["perplexity"], found["unigram_perplexity"]]
        figures += [counted[split]] if counted else []
        shown = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {split} | {found['tokens']:,} | {shown} |")
    after = "starts anew" if lm.convention == "reset" else "carries its state on"
    lines.append(
        "\nPerplexities count every token, end marks and unknown words included; after an end mark "
        f"the model {after}."
    )
    return "\n".join(lines) + "\n"


def about_mixture(lm: Any, weights: dict[str, float]) -> str:
    """What can be said of a mixture; its parts are given by their names, with their weights."""
    rows = [f"| `{name}` | {weight:.4f} |" for name, weight in weights.items()]
    table = "\n".join(["| model | weight |", "|---|---|", *rows])
    return f"{about_model(lm)}\n## How it was made\n\nA mixture of several models:\n\n{table}\n"


def card_of(body: str, license: str | None = None) -> str:
    """A card with this text and the metadata that the hub reads."""
    metadata = ["library_name: bighmm", "pipeline_tag: text-generation"]
    if body.startswith(f"# {HMM}"):
        metadata += ["tags:", "- hmm"]
    if license is not None:
        metadata.append(f"license: {license}")
    return "\n".join(["---", *metadata, "---", MARK, "", body])


def _beginnings(initial: dict[str, Any]) -> list[str]:
    """A sentence about what a model began with, in a list; none where that was chance."""
    found = [
        said.format(Path(initial[name]).name)
        for name, said in BEGINNINGS.items()
        if initial.get(name)
    ]
    if initial.get("centroids"):
        found.append("the centroids of the labels")
    return [f"It began with {', '.join(found)}."] if found else []


def write_card(folder: Path, body: str) -> None:
    """Write the card of a model's folder, unless somebody else has written one there."""
    path = folder / CARD
    if not path.exists() or written_by_us(path) is not None:
        write_atomically(path, card_of(body).encode())


def written_by_us(path: Path) -> str | None:
    """The text of a card that this library wrote; None where there is no such card."""
    try:
        text = read_text(path, MOST_CARD)
    except ValueError:
        return None
    _, mark, body = text.partition(f"{MARK}\n")
    return body.lstrip("\n") if mark else None
