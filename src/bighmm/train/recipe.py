"""Recipes: everything that describes a training run, as a TOML file or as flags.

    [corpus]    where the text comes from and how it is cut into tokens
    [model]     states, blocks, and which parameterisation
    [options]   the options of that parameterisation, or of a baseline
    [initial]   what the parameters are initialised with
    [mixed]     a second text to train on, and how much of it
    [training]  batches, optimiser, schedule

Every field has a default; a file names only what differs. A file that begins with

    extends = "other.toml"

names what differs from that recipe, whose path is relative to its own. Older names of fields
(`RENAMED`) are read too. Some recipes are in the package and found by name, QUICKSTART among them.
This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from bighmm.base.reading import read_text
from bighmm.base.settings import closest, fill, reason_of, shown
from bighmm.data.options import BatchKind
from bighmm.lm.options import OPTIONS as BASELINE_OPTIONS
from bighmm.lm.options import Convention
from bighmm.model.options import OPTIONS as PARAMETERISATION_OPTIONS
from bighmm.model.options import NeuralOptions, with_new_names
from bighmm.train.recipe_checks import check_recipe


@dataclass(frozen=True)
class CorpusSettings:
    data: str = "pydoc"
    """pydoc, a Penn Treebank or WikiText folder, or any text file or folder, also as .xz or .gz."""
    tokenizer: str | None = None
    """A Hugging Face tokenizer.json or a SentencePiece .model; without it, words."""
    min_count: int | None = None
    """Rarer words become <unk>. Left out: chosen for the corpus."""
    max_size: int | None = None
    """The largest word vocabulary, with <unk> and <eos>."""
    lowercase: bool | None = None
    """Fold words to lower case. Left out: chosen for the corpus."""


@dataclass(frozen=True)
class ModelSettings:
    family: str = "hmm"
    """hmm, or a baseline: ngram, feed-forward, lstm, awd-lstm, recurrent-hmm or transformer."""
    states: int = 4096
    """Hidden states in all."""
    support: str = "blocked"
    """Which states may emit a word: blocked (those of its block), dense (all), or per-token (a
    random list of its own)."""
    blocks: int | Literal["words"] = 128
    """Blocks of a blocked model, or words: one for every word, with states of its own. States must
    be a multiple. With paths there are the file's."""
    states_per_token: int = 128
    """States that may emit a word, with per-token support."""
    paths: str | None = None
    """A Brown clustering's paths file to take the blocks from; without it one is computed."""
    parameterisation: str = "neural"
    """What the probabilities are computed from: neural, scalar, or a variant (ablation-b, …)."""


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained."""

    epochs: float = 10.0
    """Passes over the training text."""
    batches: BatchKind = "streams"
    """streams: shuffled text in windows with the state carried; ordered: the same as it was
    written; rotated: the same, from another place in every epoch; sentences; windows: independent
    ones; documents: whole ones of a window at most."""
    batch: int = 16
    """Rows of a batch."""
    window: int = 32
    """Tokens per row."""
    state_dropout: float = 0.5
    """Share of every block's states that a step does without."""
    embedding_dropout: float = 0.0
    """Share of the numbers of state embeddings, as networks read them, that a step does without."""
    vector_dropout: float = 0.0
    """The same of the vectors that states have for leaving, entering, choosing and emitting."""
    word_dropout: float = 0.0
    """The same of word embeddings."""
    dropout_masks: Literal["own", "shared"] = "own"
    """Whether every state and word loses numbers of its own, or all lose the same columns."""
    hidden_words: float = 0.0
    """Share of words of which a step is told only the block; needs a blocked model."""
    convention: Convention = "reset"
    """After an end mark: reset: the state is drawn anew; carry: it follows from the one before.
    Training, validation and the saved model keep to it. For carry use batches rotated."""
    optimizer: Literal["adamw", "baum-welch"] = "adamw"
    """adamw: gradient descent; baum-welch: expected counts, of scalar parameters only."""
    rows: Literal["all", "touched"] = "all"
    """Which rows of the embeddings a step of AdamW changes: all, or those that had a gradient."""
    shard_optimizer: bool = False
    """With several processes, each keeps AdamW's moments of some rows only, which saves memory and
    costs time; the same model comes of it."""
    step_size: float = 1.0
    """Baum-Welch: how far to go from the old probabilities (0) to the batch's (1); follows the
    learning rate's schedule."""
    smoothing: float = 0.0
    """Baum-Welch: what is added to every expected count."""
    full_batch: bool = False
    """Baum-Welch: a step reads the whole text, batch by batch, the same every time."""
    lr: float = 0.01
    """Learning rate (the highest one, with warm-up)."""
    beta1: float = 0.9
    """AdamW: decay of the average of gradients."""
    beta2: float = 0.999
    """AdamW: decay of the average of their squares."""
    weight_decay: float = 0.0
    """Share of every parameter that a step takes away, times the rate; bad for tables of logits."""
    weight_decay_states: float | None = None
    """The same for state embeddings; left out: weight_decay."""
    weight_decay_words: float | None = None
    """The same for word embeddings; left out: weight_decay."""
    weight_decay_networks: float | None = None
    """The same for all other parameters; left out: weight_decay."""
    clip: float = 5.0
    """Largest norm of the gradient; 0 turns clipping off."""
    averaging: float = 0.0
    """Decay per step of the average of the parameters that is validated and saved; 0: none."""
    schedule: Literal["plateau", "cosine", "constant"] = "cosine"
    """plateau: divide the rate when validation stops improving; cosine: warm-up, then down."""
    plateau_factor: float = 4.0
    """What the rate is divided by."""
    plateau_patience: int = 8
    """Checks without improvement before it is."""
    warmup: float = 0.0
    """Share of the steps over which the rate rises (cosine and constant)."""
    final_lr: float = 0.0
    """Where the cosine ends, as a share of lr."""
    checks_per_epoch: float = 4.0
    """Validations per epoch, below 1 for fewer; the best model is kept."""
    checkpoint_at_checks: bool = True
    """Save a checkpoint at every validation too, not only every minute."""
    seed: int = 1
    """The same seed, the same run."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    calibrate: bool = False
    """At the end, make the best model as sure of the next block, state and word as the validation
    text says it should be, by a factor for the logits of each."""
    matmul_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the vectors whose products are logits; auto: bfloat16 on a GPU, else float32."""
    capture: bool = True
    """On a GPU, capture the step as a graph where its shape allows."""


@dataclass(frozen=True)
class InitialSettings:
    pretrained: str | None = None
    """A language model (a folder or .gguf) whose transformer that over the states begins with."""
    labels: str | None = None
    """A folder that `bighmm distill` made: the first tokens are trained on with their states."""
    labelled_tokens: int = 10_000_000
    """How many, where there are labels; they count as training tokens like any other."""
    centroids: bool = False
    """State embeddings begin with the labels' centroids; for `head`, those of the last layer."""
    head: str | None = None
    """A language model whose output weights the word embeddings begin with."""
    frozen_tokens: int = 0
    """For so many tokens state and word embeddings stay as they began."""
    init_from: str | None = None
    """A run, or a model's folder, whose parameters the model begins with. It has the same blocks
    and as many states, or a multiple: then each state is split into several."""
    split_noise: float = 0.01
    """What is added to the parameters of split states, as a share of their spread."""

    FOLDERS: ClassVar[tuple[str, ...]] = ("labels", "pretrained", "head", "init_from")

    def folders(self) -> list[str]:
        """What the model begins with, on the disk."""
        return [folder for name in self.FOLDERS if (folder := getattr(self, name))]


@dataclass(frozen=True)
class MixedSettings:
    more: str | None = None
    """More training text of the same vocabulary: a folder that `bighmm write` made, or any text.
    Epochs then count tokens of both texts, in units of the training text of data."""
    share: float = 0.9
    """Share of the rows of every batch that are from it, rounded to whole rows."""
    real_epochs: float = 0.0
    """How many epochs, the last of all, are trained without it."""


@dataclass(frozen=True)
class Recipe:
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    options: Any = None  # of model.parameterisation or the baseline; its defaults where None
    training: TrainingSettings = field(default_factory=TrainingSettings)
    initial: InitialSettings = field(default_factory=InitialSettings)
    mixed: MixedSettings = field(default_factory=MixedSettings)

    def __post_init__(self) -> None:
        if self.options is None:
            object.__setattr__(self, "options", options_of(self.model)())
        check_recipe(self)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def changed(self, **sections: dict[str, Any]) -> Recipe:
        """A recipe with other values, as in `recipe.changed(model={"states": 64})`.

        A model of another kind has the default options of that kind, except those given.

        Raises ValueError for an unknown section or field and for a wrong value.
        """
        found = self.to_dict()
        for section, values in sections.items():
            found[section] = found.get(section, {}) | values
        model = fill(ModelSettings, found["model"], "the changed recipe [model]")
        if options_of(model) is not type(self.options):
            found["options"] = sections.get("options", {})
        return from_dict(found, "the changed recipe")


MOST_RECIPE = 1 << 16  # bytes of its file
LONGEST_LINE = 1 << 12  # characters
MOST_EXTENDED = 32  # recipes, each of which extends the next
QUICKSTART = "quickstart"  # the packaged recipe of `bighmm train` without settings
SECTIONS = {
    "corpus": CorpusSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "initial": InitialSettings,
    "mixed": MixedSettings,
}
PATHS = (  # fields that name files or folders
    ("corpus", "data"),
    ("corpus", "tokenizer"),
    ("model", "paths"),
    *(("initial", name) for name in InitialSettings.FOLDERS),
    ("mixed", "more"),
)
RENAMED = {  # names of the first version, and what they are called now
    "model": {"parameters": "parameterisation", "alive": "states_per_token"},
    "training": {"operands": "matmul_dtype"},
}


def options_of(model: ModelSettings) -> type:
    """The dataclass of the [options] that such a model has."""
    if model.family == "hmm":
        if model.parameterisation in PARAMETERISATION_OPTIONS:
            return PARAMETERISATION_OPTIONS[model.parameterisation]
        from bighmm.model import params

        return params.find(model.parameterisation).options
    if model.family in BASELINE_OPTIONS:
        return BASELINE_OPTIONS[model.family]
    from bighmm.lm import baselines

    try:
        return baselines.find(model.family).options
    except ValueError as error:
        raise ValueError(f"{error}, or hmm") from None


def find_recipe(name: str | Path) -> Recipe:
    """The recipe in a file, or the packaged recipe of that name where there is no such file.

    Raises ValueError with one sentence if there is neither, and as `read_recipe` does.
    """
    packaged = packaged_recipes()
    if str(name) in packaged and not Path(name).is_file():
        file = importlib.resources.files("bighmm") / "recipes" / f"{name}.toml"
        with importlib.resources.as_file(file) as path:
            return read_recipe(path)
    if not Path(name).exists():
        if close := difflib.get_close_matches(str(name), packaged, n=1):
            raise ValueError(f"there is no recipe {name}; did you mean {close[0]}?")
        known = ", ".join(packaged)
        raise ValueError(f"there is no recipe {name}; name a file, or a packaged recipe: {known}")
    return read_recipe(name)


def packaged_recipes() -> list[str]:
    """The names of the recipes in the package."""
    folder = importlib.resources.files("bighmm") / "recipes"
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def recipe_text(name: str | Path) -> str:
    """The text of a recipe's file, or of the packaged recipe of that name.

    Raises ValueError if there is neither.
    """
    if str(name) in packaged_recipes() and not Path(name).is_file():
        file = importlib.resources.files("bighmm") / "recipes" / f"{name}.toml"
        return file.read_text(encoding="utf-8")
    return read_text(Path(name), MOST_RECIPE, pipes=True)


def about_recipe(name: str) -> str:
    """What a packaged recipe is for: the first sentence of the comment that it begins with."""
    lines = []
    for line in recipe_text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    sentence, dot, _ = " ".join(lines).partition(". ")
    return sentence + dot.strip()


def read_recipe(path: str | Path) -> Recipe:
    """The recipe in a TOML file.

    Raises ValueError with one sentence for an unreadable file or an unknown or wrong field.
    """
    return from_dict(_sections(Path(path)), str(path))


def _sections(path: Path, asked_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The sections of a file, merged over those of the recipes that it extends."""
    try:
        found = tomllib.loads(_with_short_lines(read_text(path, MOST_RECIPE, pipes=True)))
    except (ValueError, RecursionError) as error:
        if not path.exists():
            why = f", which {asked_by[-1]} extends" if asked_by else ""
            raise ValueError(f"there is no recipe {path}{why}") from None
        deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if deep else reason_of(error)
        raise ValueError(f"the recipe {path} cannot be read: {reason}") from None
    extended = found.pop("extends", found.pop("like", None))
    found = _with_new_names(found)
    if extended is None:
        return found
    if not isinstance(extended, str):
        raise ValueError(f"{path}: extends names another recipe's file, not {shown(extended)}")
    asked_by = (*asked_by, path)
    other = path.parent / extended
    if other.resolve() in [asking.resolve() for asking in asked_by]:
        raise ValueError(f"the recipe {path} extends {other}, which then extends itself")
    if len(asked_by) > MOST_EXTENDED:
        raise ValueError(f"the recipe {asked_by[0]} extends more than {MOST_EXTENDED} others")
    base = _sections(other, asked_by)
    for section, fields in found.items():
        both = isinstance(fields, dict) and isinstance(base.get(section), dict)
        base[section] = base[section] | fields if both else fields
    return base


def _with_short_lines(text: str) -> str:
    """The same text; ValueError for a line that is too long, as the parser is slow with these."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has more than {LONGEST_LINE:,} characters")
    return text


def _with_new_names(found: dict[str, Any]) -> dict[str, Any]:
    """Sections in which fields of the first version have the names and values of today."""
    result = {("options" if key == "parameters" else key): value for key, value in found.items()}
    for section, names in RENAMED.items():
        if isinstance(result.get(section), dict):
            result[section] = {names.get(k, k): v for k, v in result[section].items()}
    if isinstance(result.get("options"), dict):
        result["options"] = with_new_names(result["options"])
    model = result.get("model")
    if isinstance(model, dict) and model.get("support") == "free":
        model["support"] = "per-token"
    return result


def from_dict(found: dict[str, Any], name: str) -> Recipe:
    """A recipe from nested dictionaries; `name` says in errors where they came from."""
    found = _with_new_names(found)
    known = (*SECTIONS, "options")
    for section in found:
        if section not in known:
            raise ValueError(f"{name} has an unknown section [{section}]{closest(section, known)}")
    made: dict[str, Any] = {
        key: fill(cls, found.get(key, {}), f"{name} [{key}]") for key, cls in SECTIONS.items()
    }
    options = options_of(made["model"])
    made["options"] = fill(options, found.get("options", {}), f"{name} [options]")
    return Recipe(**made)


def from_saved(found: dict[str, Any], name: str) -> Recipe:
    """A recipe as a run or a result saved it, with all its fields.

    Where transitions are not among them it is older than the choice, and they were flat.
    """
    found = _with_new_names(found)
    options, model = found.get("options"), found.get("model")
    if isinstance(options, dict) and isinstance(model, dict) and "transitions" not in options:
        kind = options_of(fill(ModelSettings, model, f"{name} [model]"))
        if issubclass(kind, NeuralOptions):
            found = found | {"options": options | {"transitions": "flat"}}
    return from_dict(found, name)


def located(recipe: Recipe, base: Path = Path()) -> Recipe:
    """A recipe with absolute paths, so that it means the same in every folder.

    base: the folder that relative paths start from, by default the current one. Names that are not
        of a file or folder there stay, such as pydoc or a model on the hub.
    """
    sections: dict[str, Any] = {}
    for section, key in PATHS:
        fields = sections.get(section, getattr(recipe, section))
        name = getattr(fields, key)
        if name is None or (key in ("data", "more") and name == CorpusSettings.data):
            continue
        path = os.path.join(base, os.path.expanduser(name))
        if os.path.exists(path):
            sections[section] = dataclasses.replace(fields, **{key: os.path.abspath(path)})
    return dataclasses.replace(recipe, **sections)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The fields in which two recipes differ, as 'section.field (old, new)'."""
    result = []
    before, after = old.to_dict(), new.to_dict()
    for section, fields in before.items():
        for key in sorted({*fields, *after[section]}):
            was, now = fields.get(key), after[section].get(key)
            if was != now:
                result.append(f"{section}.{key} ({was}, {now})")
    return result
