"""The family of `params.neural`: every variant and mixture of parts makes distributions."""

import dataclasses
import itertools
import json

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.model import params
from bighmm.model.networks import BackboneConfig
from bighmm.model.options import VARIANTS, NeuralOptions
from bighmm.model.support import Blocked, Dense
from models import random_support

STATES, VOCABULARY, WIDTH, END = 12, 7, 4, 0
FORMS = ("start", "transition", "emission")


def options_of(name, **changes):
    """With flat transitions; test_two_level has the others."""
    flat = {"width": WIDTH, "heads": 2, "transitions": "flat"}
    return params.find(name).options(**{**flat, **changes})


def build(name, support="dense", **changes):
    made = random_support(support, STATES, VOCABULARY)
    return params.build(name, options_of(name, **changes), made, END, seed=1).double()


def chosen(forms):
    """The options for "factored" or "direct" start, transition and emission."""
    start, transition, emission = forms
    transitions = "flat" if transition == "factored" else "table"
    return {"start": start, "transitions": transitions, "emission": emission}


def assert_is_a_model(module):
    hmm = HMM.of(module())
    for table in hmm.tables():
        total = table.sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total))
    tokens = torch.randint(VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(0))
    hmm.log_prob(tokens).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("support", ["dense", "blocked", "per_token"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name, support):
    assert_is_a_model(build(name, support))


@pytest.mark.parametrize("support", ["dense", "blocked"])
@pytest.mark.parametrize("entering", ["embedding", "mlp"])
@pytest.mark.parametrize("forms", list(itertools.product(["factored", "direct"], repeat=3)))
def test_every_part_is_factored_or_direct(forms, entering, support):
    module = build("neural", support, entering=entering, **chosen(forms))
    assert_is_a_model(module)
    names = {name for name, _ in module.named_parameters()}
    for part, form in zip(FORMS, forms, strict=True):
        assert (part in names) == (form == "direct")


@pytest.mark.parametrize("name", VARIANTS)
def test_dropout_restricts_and_renormalises(name):
    module = build(name, "blocked", start="direct")
    kept = module.support.draw_kept(0.5, torch.tensor(5))
    start, transition, emission = HMM.of(module()).tables()
    start, transition = start[kept], transition[kept][:, kept]
    restricted = HMM.of(module(kept)).tables()
    torch.testing.assert_close(restricted[0], start / start.sum())
    torch.testing.assert_close(restricted[1], transition / transition.sum(1, keepdim=True))
    torch.testing.assert_close(restricted[2], emission[kept])


def test_direct_parts_under_dropout():
    for support in ("dense", "blocked", "per_token"):
        module = build("neural", support, **chosen(["direct"] * 3))
        kept = module.support.draw_kept(0.5, torch.tensor(5))
        transition, emission = HMM.of(module()).tables()[1:]
        restricted = HMM.of(module(kept)).tables()
        expected = transition[kept][:, kept]
        torch.testing.assert_close(restricted[1], expected / expected.sum(1, keepdim=True))
        torch.testing.assert_close(restricted[2], emission[kept])


def test_ablation_a_is_symmetric_and_b_is_not():
    for name, symmetric in (("ablation-a", True), ("ablation-b", False)):
        leaving, entering = build(name)().transitions.operands
        logits = leaving @ entering.T
        assert torch.allclose(logits, logits.T) == symmetric


def test_ablation_b_is_three_tables():
    names = {name for name, _ in build("ablation-b").named_parameters()}
    tables = {f"state.tables.{role}" for role in ("leaving", "entering", "emit")}
    assert names == tables | {"words", "word_bias", "before_first"}


def test_one_network_for_all():
    one, each = build("monolithic-mlp"), build("chiu-rush")
    assert list(one.networks) == ["all"] and list(each.networks) == ["leaving", "entering", "emit"]
    split = build("split-monolithic-two-skip-relu")
    table = split.state.tables["leaving"]
    torch.testing.assert_close(split().transitions.leaving, split.networks["all"](table))


def test_mlp_with_and_without_its_parts():
    module = build("neural", layers=3, skip=False, relu=False, layer_norm=False)
    x = module.state.table
    for layer in module.networks["leaving"].layers:
        x = x @ layer.weight.T + layer.bias
    torch.testing.assert_close(module().transitions.leaving, x)


@pytest.mark.parametrize("name", ["ablation-b", "chiu-rush", "monolithic-transformer"])
@pytest.mark.parametrize("exponent", [18, 20, 22, 26])
def test_a_size_can_be_asked_for(name, exponent):
    support = Dense(512, 32_000)
    with torch.device("meta"):
        options = options_of(name, size=2**exponent)
        module = params.build(name, options, support, END)
    found = sum(p.numel() for p in module.parameters())
    assert abs(found / 2**exponent - 1) < 0.35  # one more number of width is 32,000 more


def test_size_too_small():
    with pytest.raises(ValueError, match=r"at least .* parameters, more than the size 10,000"):
        params.build("ablation-b", options_of("ablation-b", size=10_000), Dense(8, 32_000), END)


BACKBONE = json.dumps(dataclasses.asdict(BackboneConfig.of(64, 1, 2)))


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"layers": -1}, "layers must be from 0 to 256, not -1"),
        ({"network": "transformer", "layers": 0}, "at least one layer"),
        ({"network": "transformer", "width": 6, "heads": 4}, "multiple of its heads"),
        ({"network": "transformer", "backbone": "{}"}, "the backbone has no field 'width'"),
        ({"network": "transformer", "backbone": BACKBONE}, "64 wide and embeddings are"),
    ],
)
def test_wrong_options(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        build("neural", **changes)


@pytest.mark.parametrize("width, divisor", [(4, 2), (6, 2), (12, 4), (256, 16)])
def test_scaled_transition_logits(width, divisor):
    plain, scaled = (build("chiu-rush", width=width, scaled=scaled) for scaled in (False, True))
    for operands in ("float32", "bfloat16"):
        plain.matmul_dtype = scaled.matmul_dtype = operands
        logits, found = (
            m.leaving @ m.entering.T for m in (plain().transitions, scaled().transitions)
        )
        torch.testing.assert_close(found, logits / divisor)


def test_variants_are_options_with_other_defaults():
    for name, changes in VARIANTS.items():
        options = params.find(name).options()
        assert isinstance(options, NeuralOptions)
        for field in dataclasses.fields(NeuralOptions):
            expected = changes.get(field.name, field.default)
            assert getattr(options, field.name) == expected


def test_rounded_operands_have_the_values_of_bfloat16():
    blocks = Blocked.of(torch.arange(VOCABULARY) % 3, STATES)
    for name in VARIANTS:
        module = params.build(name, options_of(name), blocks, END, seed=1)
        module.matmul_dtype = "bfloat16"
        for x in module().transitions.operands:
            assert torch.equal(x, x.bfloat16().float())
