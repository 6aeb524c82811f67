"""Reading pretrained language models from files: a `Backbone`, word embeddings and a head."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from bighmm.base.files import check_hashes, model_folder
from bighmm.base.foreign_models import WEIGHTS_SAFELY, why_not_opened
from bighmm.base.json_files import read_object
from bighmm.base.settings import Between, Positive, fill, shown
from bighmm.base.tensor_files import read_tensors
from bighmm.model.networks.backbone import MOST_LAYERS, Backbone, BackboneConfig, Style

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

T = TypeVar("T")
Layers = Annotated[int, Between(1, MOST_LAYERS)]


@dataclass(frozen=True)
class Pretrained:
    """A language model in parts: logits are `backbone(words[tokens]) @ head.T`."""

    backbone: Backbone
    words: Tensor  # (V, H) input embeddings
    head: Tensor  # (V, H) output weights; the same tensor as `words` if they are tied

    @property
    def config(self) -> BackboneConfig:
        return self.backbone.config


def load_pretrained(path: str | Path) -> Pretrained:
    """A model of this library, as `load_own`, or one of Hugging Face, as `load_hugging_face`."""
    folder = model_folder(Path(path))
    if (folder / CONFIG).is_file() and "family" in _settings(folder):
        return load_own(folder)
    return load_hugging_face(folder)


def load_own(folder: str | Path) -> Pretrained:
    """The `TransformerLM` in a model's folder or in a run's.

    Raises ValueError with one sentence if it is missing, damaged, or of another family.
    """
    folder = model_folder(Path(folder))
    if not folder.is_dir():
        raise ValueError(f"there is no model at {folder}; give a model's folder or a run's")
    settings = _settings(folder)
    if settings.get("family") != "transformer":
        family = settings.get("family", "unknown")
        raise ValueError(f"the model in {folder} is of the family {family}, not transformer")
    files = settings.get("files")
    weights_hash = files.get(WEIGHTS) if isinstance(files, dict) else None
    check_hashes(folder, {WEIGHTS: weights_hash}, [WEIGHTS])
    options = fill(OwnOptions, settings.get("options"), f"{folder / CONFIG} is damaged: options")
    config = own_config(**dataclasses.asdict(options))
    weights = {
        name.removeprefix("backbone."): tensor
        for name, tensor in read_tensors(folder / WEIGHTS).items()
    }
    words = weights.pop("words", torch.empty(0))
    if words.dim() != 2 or words.shape[1] != config.width:
        raise ValueError(_shape_message(folder, "words", words, ("words", config.width)))
    return Pretrained(_filled(config, weights, folder), words, words)


@dataclass(frozen=True)
class OwnOptions:
    """The options of a `TransformerLM` as its file has them."""

    width: Positive
    layers: Positive
    heads: Positive
    context: Positive
    style: Style
    dropout: float


def own_config(
    width: int, layers: int, heads: int, context: int, style: Style, **_: Any
) -> BackboneConfig:
    """The configuration of the backbone of a `TransformerLM` with these options."""
    return BackboneConfig.of(width, layers, heads, style).with_context(context)


def load_hugging_face(path: str | Path) -> Pretrained:
    """A Hugging Face model of the type llama, mistral or gpt2.

    path: a folder with config.json and safetensors, a .gguf file, or a folder with one .gguf file
        (GGUF needs the extra `bighmm[teachers]`).

    Raises ValueError with one sentence if it is missing, damaged, or of another type.
    """
    path = Path(path)
    if path.suffix == ".gguf" and path.is_file():
        return _load_gguf(path)
    if not path.is_dir():
        raise ValueError(
            f"there is no pretrained model at {path}; give a folder with {CONFIG} and safetensors, "
            "or a .gguf file"
        )
    if (path / CONFIG).is_file():
        return _converted(_settings(path), _read_weights(path), path)
    files = list(path.glob("*.gguf"))
    if len(files) != 1:
        raise ValueError(f"{path} has no {CONFIG} and {len(files)} .gguf files; one is needed")
    return _load_gguf(files[0])


def _load_gguf(path: Path) -> Pretrained:
    """The model in a .gguf file, by way of transformers."""
    try:
        import accelerate  # noqa: F401  transformers needs it
        import gguf  # noqa: F401
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ValueError(
            f"{path} is a GGUF file, which needs the package {error.name}: install "
            '"bighmm[teachers]"'
        ) from None
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, **WEIGHTS_SAFELY
        )
    except Exception as error:  # the library raises no narrower class
        reason = why_not_opened(error)
        raise ValueError(f"{path} is damaged or is not a known GGUF file: {reason}") from None
    return _converted(model.config.to_dict(), model.state_dict(), path)


def _converted(settings: dict[str, Any], tensors: Mapping[str, Tensor], path: Path) -> Pretrained:
    """A Hugging Face model from its configuration and its tensors; `path` is for messages."""
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"{path} holds a model of the type {shown(kind)}; known are {', '.join(sorted(KINDS))}"
        )
    read_config, convert_weights, embeddings = KINDS[kind]
    try:
        config = read_config(settings, path)
        # Names have these prefixes only in models with an output layer.
        tensors = {
            name.removeprefix("model.").removeprefix("transformer."): tensor
            for name, tensor in tensors.items()
        }
        weights = convert_weights(config, tensors)
        words = tensors[embeddings].float()
        tied = settings.get("tie_word_embeddings", kind == "gpt2")
        head = words if tied else tensors["lm_head.weight"].float()
    except KeyError as error:
        raise ValueError(f"{path} is not complete: it has no {error.args[0]}") from None
    for name, tensor in (("embeddings", words), ("output weights", head)):
        if tensor.dim() != 2 or tensor.shape[1] != config.width:
            raise ValueError(_shape_message(path, name, tensor, (len(words), config.width)))
    return Pretrained(_filled(config, weights, path), words, head)


@dataclass(frozen=True)
class _Llama:
    """The settings of a Llama or Mistral model that matter here."""

    num_attention_heads: Positive
    num_hidden_layers: Layers
    hidden_size: Positive
    intermediate_size: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    max_position_embeddings: Positive = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    sliding_window: Positive | None = None


@dataclass(frozen=True)
class _GPT2:
    """The settings of a GPT-2 model that matter here."""

    n_embd: Positive
    n_head: Positive
    n_layer: Layers
    n_positions: Positive
    n_inner: Positive | None = None
    layer_norm_epsilon: float = 1e-5


def _known(cls: type[T], settings: dict[str, Any], path: Path) -> T:
    """Those of a model's settings that are fields of `cls`, checked."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return fill(cls, {k: v for k, v in settings.items() if k in names}, f"{path / CONFIG}")


def _llama_config(settings: dict[str, Any], path: Path) -> BackboneConfig:
    _check_supported(settings, path, hidden_act="silu", attention_bias=False, mlp_bias=False)
    found = _known(_Llama, settings, path)
    rope = found.rope_parameters or found.rope_scaling or {}
    _check_supported(rope, path, rope_type="default", type="default")
    heads, layers, width = found.num_attention_heads, found.num_hidden_layers, found.hidden_size
    if (found.head_dim or width // heads) != width // heads:
        raise ValueError(f"{path} has heads that do not divide its width, which is not known here")
    theta = rope.get("rope_theta") or found.rope_theta or 10_000.0
    if not isinstance(theta, int | float):
        raise ValueError(f"{path / CONFIG}: rope_theta = {shown(theta)} is not a number")
    window = found.sliding_window if settings["model_type"] == "mistral" else None
    return BackboneConfig(
        width,
        layers,
        heads,
        found.num_key_value_heads or heads,
        found.intermediate_size,
        found.max_position_embeddings,
        rope_theta=float(theta),
        norm_eps=found.rms_norm_eps,
        reach=() if window is None else (window - 1,) * layers,
    )


def _gpt2_config(settings: dict[str, Any], path: Path) -> BackboneConfig:
    _check_supported(
        settings,
        path,
        activation_function="gelu_new",
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    found = _known(_GPT2, settings, path)
    return BackboneConfig(
        found.n_embd,
        found.n_layer,
        found.n_head,
        found.n_head,
        found.n_inner or 4 * found.n_embd,
        found.n_positions,
        style="gpt2",
        rope_theta=None,
        norm_eps=found.layer_norm_epsilon,
    )


def _check_supported(settings: dict[str, Any], path: Path, **supported: Any) -> None:
    """Raise ValueError if a setting has another value than the one that is supported."""
    for name, value in supported.items():
        if settings.get(name, value) != value:
            raise ValueError(
                f"{path} has {name} = {shown(settings[name])}; only {value!r} is known here"
            )


LLAMA_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "network_norm": "post_attention_layernorm",
    "network.gate": "mlp.gate_proj",
    "network.up": "mlp.up_proj",
    "network.down": "mlp.down_proj",
}
GPT2_NORMS = {"attention_norm": "ln_1", "network_norm": "ln_2"}
GPT2_LINEAR = {
    "attention.out": "attn.c_proj",
    "network.up": "mlp.c_fc",
    "network.down": "mlp.c_proj",
}


def _llama_weights(config: BackboneConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `Backbone` from those of a Llama model."""
    weights = {"norm.weight": theirs["norm.weight"]}
    for i in range(config.layers):
        for ours, name in LLAMA_LAYER.items():
            weights[f"layers.{i}.{ours}.weight"] = theirs[f"layers.{i}.{name}.weight"]
    return weights


def _gpt2_weights(config: BackboneConfig, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a `Backbone` from those of a GPT-2 model.

    GPT-2's matrices are transposed, (in, out), and those of query, key and value are concatenated.
    """
    weights = {"positions": theirs["wpe.weight"]}
    for part in ("weight", "bias"):
        weights[f"norm.{part}"] = theirs[f"ln_f.{part}"]
        for i in range(config.layers):
            for ours, name in GPT2_NORMS.items():
                weights[f"layers.{i}.{ours}.{part}"] = theirs[f"h.{i}.{name}.{part}"]
            for ours, name in GPT2_LINEAR.items():
                weights[f"layers.{i}.{ours}.{part}"] = theirs[f"h.{i}.{name}.{part}"].t()
            joined = theirs[f"h.{i}.attn.c_attn.{part}"].t().chunk(3)
            for ours, tensor in zip(("query", "key", "value"), joined, strict=True):
                weights[f"layers.{i}.attention.{ours}.{part}"] = tensor
    return weights


KINDS = {
    "llama": (_llama_config, _llama_weights, "embed_tokens.weight"),
    "mistral": (_llama_config, _llama_weights, "embed_tokens.weight"),
    "gpt2": (_gpt2_config, _gpt2_weights, "wte.weight"),
}


def _filled(config: BackboneConfig, weights: Mapping[str, Tensor], path: Path) -> Backbone:
    """A backbone with these weights in float32; ValueError if one is missing or misshapen."""
    with torch.device("meta"):
        backbone = Backbone(config)
    for name, expected in backbone.state_dict().items():
        if name not in weights:
            raise ValueError(f"{path} is not complete: it has no {name}")
        if weights[name].shape != expected.shape:
            raise ValueError(_shape_message(path, name, weights[name], expected.shape))
    backbone.load_state_dict({k: v.float().contiguous() for k, v in weights.items()}, assign=True)
    return backbone


def _shape_message(path: Path, name: str, tensor: Tensor, expected: Any) -> str:
    return f"{path} has {name} of shape {tuple(tensor.shape)}, where {tuple(expected)} is expected"


def _settings(folder: Path) -> dict[str, Any]:
    """The JSON object in config.json; ValueError if it is missing or damaged."""
    return read_object(folder / CONFIG)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the files that its index lists."""
    names = [WEIGHTS]
    if (folder / INDEX).is_file():
        found = read_object(folder / INDEX).get("weight_map")
        if not isinstance(found, dict) or not all(_is_file_name(n) for n in found.values()):
            raise ValueError(f"{folder / INDEX} is damaged: weight_map must name files beside it")
        names = sorted(set(found.values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}; it is not complete")
        tensors |= read_tensors(folder / name)
    return tensors


def _is_file_name(value: Any) -> bool:
    """Whether a value of a file names a file beside it."""
    return isinstance(value, str) and Path(value).name == value
