"""The family of parameterisations of Chiu & Rush 2020 and Lee & Berg-Kirkpatrick 2025.

States and words are embedded; networks make from a state's embedding what it is to leave it, to
enter it and to emit from it, and logits are inner products of what they make:

    transitions  s = leaving · enteringᵀ        emissions  φ = emit · wordsᵀ + bias

Every part is a setting: one embedding per state or one per role; a network per role, one for all,
or none; an MLP of any depth with or without its parts, or a transformer over the states; and start,
transitions and emissions may each be a table of logits instead ("direct"). `VARIANTS` are settings
with names; each is a parameterisation.

`entering = "embedding"` uses the raw state embedding as the entering vector, as Chiu & Rush's code
does; `"mlp"` passes it through a network, as their paper prints it, and takes the start logits from
one more leaving vector, that of the state before the first.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from bighmm.base.json_files import parse_json
from bighmm.base.settings import check_at_least_one, check_range, fill, shown
from bighmm.model.emissions import Emissions, EmissionTable, FactoredEmission
from bighmm.model.model import Model
from bighmm.model.networks import Backbone, BackboneConfig
from bighmm.model.networks.backbone import MOST_LAYERS
from bighmm.model.networks.state_networks import MLP, MLPShape, StateTransformer, apply
from bighmm.model.options import OPTIONS, VARIANTS, NeuralOptions
from bighmm.model.params import Parameterisation, embeddings, register
from bighmm.model.support import Support
from bighmm.model.transitions import Flat, Table, Transitions
from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.residual import scores
from bighmm.ops.rounding import round_to_bfloat16

WIDEST = 512  # vectors that the kernels can multiply; wider ones are multiplied by the library


class Neural(Parameterisation):
    drops_features = True
    calibrates: tuple[str, ...] = ("moves", "words")

    def __init__(self, options: NeuralOptions, support: Support, end: int | None) -> None:
        super().__init__()
        _check(options)
        if options.size is not None:
            options = dataclasses.replace(options, size=None, width=width_for(options, support))
        self.support, self.end, self.options = support, end, options
        width, scale = options.width, options.init_scale
        raw = ["entering"] if options.entering == "embedding" else []
        self.roles = self._roles()
        self.made = [role for role in self.roles if role not in raw]
        if self.roles:
            kind = embeddings.KINDS[options.embeddings]
            self.state: embeddings.StateEmbedding = kind(support, self.roles, width, scale)
            names = ["all"] if options.monolithic else self.made
            self.networks = nn.ModuleDict({name: _network(options, support) for name in names})
            if options.monolithic and options.embeddings == "independent":
                self.parts = nn.Linear(width, len(self.made) * width)
        self._add_start()
        states, words = support.num_states, support.vocabulary_size
        if options.transitions == "table":
            self.transition = nn.Parameter(torch.randn(states, states) * options.direct_scale)
        if options.emission == "direct":
            self.emission = nn.Parameter(
                torch.randn(words, support.states_per_token) * options.direct_scale
            )
        else:
            self.words = nn.Parameter(torch.randn(words, width) * scale)
            if options.word_bias:
                self.word_bias = nn.Parameter(torch.zeros(words))

    def forward(self, kept: Tensor | None = None) -> Model:
        support = self.support if kept is None else self.support.restrict(kept)
        vectors = self._vectors(kept)
        start = self._start(vectors, kept).log_softmax(0)
        transitions = self._transitions(vectors, kept)
        emissions = self._emissions(vectors, support, kept)
        return Model(start, transitions, emissions, support, self.end)

    def embeddings(self) -> list[nn.Parameter]:
        of_states = list(self.state.parameters()) if self.roles else []
        words = self.word_embedding()
        return of_states + ([] if words is None else [words])

    def state_embeddings(self) -> list[nn.Parameter]:
        return self.state.own_vectors() if self.roles else []

    def word_embedding(self) -> nn.Parameter | None:
        return self.words if self.options.emission == "factored" else None

    def backbones(self) -> list[Backbone]:
        return [m.backbone for m in self.modules() if isinstance(m, StateTransformer)]

    @property
    def splits_states(self) -> bool:
        """Not where a state's vectors depend on all others."""
        return self.options.network == "mlp"

    @property
    def impl(self) -> Impl:
        return "auto" if self.rounds else "torch"

    def _roles(self) -> list[str]:
        """What a state is embedded for."""
        options = self.options
        roles = ["leaving", "entering"] if options.transitions != "table" else []
        if options.emission == "factored":
            roles.append("emit")
        by_entering = options.transitions != "table" and options.entering == "mlp"
        if options.start == "factored" and not by_entering:
            roles.append("start")
        return roles

    def _add_start(self) -> None:
        """The parameters of the start distribution."""
        options = self.options
        if "start" in self.roles:
            self.starting = nn.Linear(options.width, 1)
        elif options.start == "factored":
            self.before_first = nn.Parameter(torch.randn(options.width) * options.init_scale)
        if options.start == "direct":
            number = self.support.num_states
            self.start = nn.Parameter(torch.randn(number) * options.direct_scale)

    def _vectors(self, kept: Tensor | None, present: Tensor | None = None) -> dict[str, Tensor]:
        """The vectors of every role, rounded where their products are logits."""
        if not self.roles:
            return {}
        over_states = self.options.network == "transformer"  # a state's vector depends on others
        taken = None if over_states else kept
        state = self.state(taken, self.impl, present, self.row_gradients)
        vectors = {role: state[role] for role in self.roles}
        vectors |= self._through_networks([state[role] for role in self.made], taken)
        if over_states and kept is not None:
            vectors = {role: x.index_select(0, kept) for role, x in vectors.items()}
        if self.feature_dropout is not None:
            vectors = self.feature_dropout.vectors(vectors, kept, self.impl)
        if self.rounds:
            kernels = use_triton(next(iter(vectors.values()))) and self._fused()
            for role in self.roles:
                if role != "start" and not (kernels and role in self.made):  # which round already
                    vectors[role] = round_to_bfloat16(vectors[role])
        return vectors

    def _through_networks(self, inputs: list[Tensor], kept: Tensor | None) -> dict[str, Tensor]:
        """The vectors of the roles that are `made`, from the embeddings of each."""
        if self.feature_dropout is not None:
            inputs = self.feature_dropout.embeddings(inputs, kept, self.impl)
        if not self.options.monolithic:
            found = apply(self.networks.values(), inputs, self.impl)
        elif self.options.embeddings == "independent":
            (whole,) = apply(self.networks.values(), inputs[:1], self.impl)
            found = list(self.parts(whole).chunk(len(self.made), dim=1))
        else:
            (whole,) = apply(self.networks.values(), [torch.cat(inputs)], self.impl)
            found = list(whole.chunk(len(self.made)))
        return dict(zip(self.made, found, strict=True))

    def _fused(self) -> bool:
        shared = self.options.monolithic and self.options.embeddings == "independent"
        networks = self.networks.values()
        return not shared and all(isinstance(n, MLP) and n.fused() for n in networks)

    def _start(self, vectors: dict[str, Tensor], kept: Tensor | None) -> Tensor:
        if self.options.start == "direct":
            return self.start if kept is None else self.start.index_select(0, kept)
        if "start" in vectors:
            weight, bias = self.starting.parameters()
            return scores(vectors["start"].contiguous(), weight.squeeze(0), self.impl) + bias
        return scores(vectors["entering"].contiguous(), self.before_first, self.impl)

    def _transitions(self, vectors: dict[str, Tensor], kept: Tensor | None) -> Transitions:
        if self.options.transitions == "table":
            table = Table(self.calibrated(self.transition, "moves"), self.rounds)
            return table if kept is None else table.restrict(kept)
        leaving, entering = vectors["leaving"], vectors["entering"]
        if self.options.scaled:
            # A power of two leaves rounded numbers what they are.
            leaving = leaving * 2.0 ** -round(math.log2(self.options.width) / 2)
        leaving = self.calibrated(leaving, "moves", rounds=True)
        wide = self.options.width > WIDEST
        if wide and self.rounds and self.support.is_dense:
            return Table(leaving @ entering.T, rounded=True)
        return Flat(leaving, entering, self.rounds and not wide)

    def _emissions(
        self, vectors: dict[str, Tensor], support: Support, kept: Tensor | None
    ) -> Emissions:
        """Over `support`, which is that of the states `kept`."""
        if self.options.emission == "direct":
            cells: Tensor = self.emission
            if kept is not None:
                cells = self.support.restrict_cells(cells, kept)
            return EmissionTable(support.normalise(self.calibrated(cells, "words")))
        words = self.calibrated(self.words, "words")
        if self.feature_dropout is not None:
            words = self.feature_dropout.words(words, self.impl)
        words = round_to_bfloat16(words) if self.rounds else words
        bias = self.word_bias if self.options.word_bias else words.new_zeros(len(words))
        bias = self.calibrated(bias, "words")
        wide = self.options.width > WIDEST
        if self.rounds and not wide and support.is_dense:
            return FactoredEmission(vectors["emit"], words, bias)
        impl = "torch" if wide else self.impl
        return EmissionTable(support.factored_emission(vectors["emit"], words, bias, impl))


def width_for(options: NeuralOptions, support: Support) -> int:
    """The width whose number of parameters comes closest to `options.size`.

    It is a multiple of 8 where it is large, which products on a GPU are much faster with.
    """
    step = 2 * options.heads if options.network == "transformer" else 2

    def count(width: int) -> int:
        with torch.device("meta"):
            made = neural(dataclasses.replace(options, size=None, width=width), support, None)
        return sum(p.numel() for p in made.parameters())

    assert options.size is not None
    low, high = step, step
    if count(low) > options.size * 1.5:
        raise ValueError(
            f"a model with {support.num_states} states and {support.vocabulary_size} words has at "
            f"least {count(low):,} parameters, more than the size {options.size:,}"
        )
    while count(high) < options.size:
        high *= 2
    if high > 64:
        step = math.lcm(step, 8)
        low = step
    while high - low > step:
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if count(middle) < options.size else (low, middle)
    return min((low, high), key=lambda width: abs(count(width) - (options.size or 0)))


def _network(options: NeuralOptions, support: Support) -> MLP | StateTransformer:
    if options.network == "mlp":
        shape = MLPShape(options.layers, options.skip, options.relu, options.layer_norm)
        return MLP(options.width, shape)
    if options.backbone is None:
        config = BackboneConfig.of(options.width, options.layers, options.heads)
    else:
        config = _backbone(options.backbone)
    if config.width != options.width:
        raise ValueError(
            f"the backbone is {config.width} wide and embeddings are {options.width}; both must be "
            "the same"
        )
    return StateTransformer(config)


def _backbone(text: str) -> BackboneConfig:
    sizes = parse_json(text, f"the backbone {shown(text)} does not give its sizes")
    return fill(BackboneConfig, sizes, "the backbone")


def _check(options: NeuralOptions) -> None:
    """Raises ValueError for options that no model can have; `size` replaces the width."""
    for key in ("width", "heads"):
        check_at_least_one(getattr(options, key), key)
    check_range(options.layers, "layers", 0, MOST_LAYERS)
    for key in ("init_scale", "direct_scale"):
        check_range(getattr(options, key), key)
    wrong_width = options.size is None and options.width % options.heads
    if options.network == "transformer" and (options.layers < 1 or wrong_width):
        raise ValueError(
            f"a transformer needs at least one layer and a width that is a multiple of its heads, "
            f"not {options.layers}, {options.width} and {options.heads}"
        )


def neural(options: NeuralOptions, support: Support, end: int | None) -> Neural:
    """The module of these options: `Neural`, or with two levels `TwoLevelNeural`."""
    from bighmm.model.params.two_level import TwoLevelNeural

    if options.transitions == "auto":
        has_blocks = support.partition is not None
        options = dataclasses.replace(options, transitions="two-level" if has_blocks else "flat")
    kind = TwoLevelNeural if options.transitions == "two-level" else Neural
    return kind(options, support, end)


for _name in VARIANTS:
    register(_name, OPTIONS[_name])(neural)
