"""Model cards: what a model is, how it is loaded, and the figures of its run.

A card says nothing that is not known: a licence only where one is given, figures only of finished
runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bighmm.base.files import write_atomically
from bighmm.base.reading import read_text

CARD = "README.md"
MARK = "<!-- card of bighmm -->"  # a card with it may be replaced by one that says more
MOST_CARD = 1 << 20  # bytes


def about_model(lm: Any) -> str:
    """What can be said of a model alone."""
    params = getattr(lm, "params", None)
    support = getattr(params, "support", None)
    if support is None:
        title = f"Language model ({type(lm).__name__})"
    else:
        title = f"Hidden Markov language model of {support.num_states:,} states"
        if support.partition is not None:
            title += f" in {support.partition.num_blocks:,} blocks"
    entries = "words" if lm.tokenizer.kind == "words" else "tokens"
    return f"""# {title}

Made with bighmm; a vocabulary of {lm.tokenizer.size:,} {entries}, {lm.num_parameters:,} parameters.

## Load it

```python
from bighmm.lm import open_model

lm = open_model("FOLDER")  # the folder of this file, or OWNER/NAME once it is on the hub
```

On the command line: `bighmm sample FOLDER`.
"""


def about_run(lm: Any, result: dict[str, Any], tokens: int) -> str:
    """What can be said of the model of a finished run.

    result: the contents of result.json.
    tokens: of the training text.
    """
    corpus = result["recipe"]["corpus"]["data"]
    training = result["recipe"]["training"]
    steps = f" in {training['epochs']:g} epochs at most" if result["steps"] else ""
    more = result["recipe"]["mixed"]["more"]
    lines = [
        about_model(lm),
        "## How it was made\n",
        f"Trained on the text `{Path(corpus).name}`, {tokens:,} tokens{steps}"
        + (f", and on `{Path(more).name}`." if more else "."),
        "",
        "| held-out text | tokens | perplexity | unigram | Kneser-Ney |",
        "|---|---|---|---|---|",
    ]
    for split in ("valid", "test"):
        found = result[split]
        counted = (result["kneser_ney"] or {}).get(split)
        lines.append(
            f"| {split} | {found['tokens']:,} | {found['perplexity']:.2f} | "
            f"{found['unigram_perplexity']:.2f} | "
            + (f"{counted:.2f} |" if counted is not None else "not measured |")
        )
    after = "starts anew" if lm.convention == "reset" else "carries its state on"
    lines.append(
        "\nPerplexities count every token, end marks and unknown words included; after an end mark "
        f"the model {after}."
    )
    return "\n".join(lines) + "\n"


def card_of(body: str, license: str | None = None) -> str:
    """A card with this text and the metadata that the hub reads."""
    metadata = ["library_name: bighmm", "pipeline_tag: text-generation", "tags:", "- hmm"]
    if license is not None:
        metadata.append(f"license: {license}")
    return "\n".join(["---", *metadata, "---", MARK, "", body])


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
