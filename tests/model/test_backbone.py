"""The backbone alone: it is causal, and sees as far back as it should."""

import dataclasses

import pytest
import torch

from bighmm.model.networks import Backbone, BackboneConfig


def make(style="llama", **changes):
    torch.manual_seed(0)
    config = BackboneConfig.of(16, 2, heads=2, style=style, context=32)
    backbone = Backbone(dataclasses.replace(config, **changes))
    with torch.no_grad():
        for parameter in backbone.parameters():  # as large as trained ones, so that it all counts
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return backbone


@pytest.mark.parametrize("style", ["llama", "gpt2"])
def test_later_positions_make_no_difference(style):
    backbone, x = make(style), torch.randn(2, 9, 16)
    whole = backbone(x)
    torch.testing.assert_close(backbone(x[:, :5]), whole[:, :5])
    assert not torch.allclose(backbone(x[:, 1:6])[:, -1], whole[:, 5])


def test_rotary_positions_are_relative_and_learned_ones_are_not():
    x = torch.randn(2, 9, 16)
    llama, gpt2 = make("llama"), make("gpt2")
    torch.testing.assert_close(llama(x, first=7), llama(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(gpt2(x, first=7), gpt2(x), rtol=1e-2, atol=1e-2)
    gpt2(x, first=23)
    with pytest.raises(ValueError, match="has 32 positions; 33 are too many"):
        gpt2(x, first=24)


@pytest.mark.parametrize("layers", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("words", [1, 2, 5, 64])
def test_reaches_add_up_to_what_is_seen(layers, words):
    reach = BackboneConfig.of(16, layers, heads=2).with_context(words).reach
    assert len(reach) == layers and sum(reach) == words - 1
    if words == 64:
        assert min(reach) >= 1 and reach[-1] == max(reach)


@pytest.mark.parametrize("style", ["llama", "gpt2"])
def test_what_is_seen(style):
    config = BackboneConfig.of(16, 2, heads=2, style=style).with_context(6)
    backbone = make(**dataclasses.asdict(config))
    x = torch.randn(1, 10, 16, requires_grad=True)
    (slope,) = torch.autograd.grad(backbone(x)[0, -1].square().sum(), x)
    used = slope[0].abs().sum(1) > 0
    assert used.tolist() == [False] * 4 + [True] * 6
    torch.testing.assert_close(backbone(x[:, 4:])[:, -1], backbone(x)[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("words", [None, 6])
def test_missing_positions_are_not_seen(words):
    config = BackboneConfig.of(16, 2, heads=2)
    backbone = make(**dataclasses.asdict(config if words is None else config.with_context(words)))
    x, missing = torch.randn(3, 8, 16), torch.tensor([0, 2, 7])
    padded = backbone(x, missing=missing)
    assert bool(padded.isfinite().all())
    for row in range(3):
        begin = int(missing[row])
        alone = backbone(x[row : row + 1, begin:])
        torch.testing.assert_close(padded[row : row + 1, begin:], alone, rtol=1e-4, atol=1e-5)


def test_shared_keys_and_values():
    """Two heads with one key and value are as two that have the same ones."""
    shared, apart = make(kv_heads=1), make()
    weights = shared.state_dict()
    for name in weights:
        if "attention.key" in name or "attention.value" in name:
            weights[name] = weights[name].repeat(2, 1)
    apart.load_state_dict(weights)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(shared(x), apart(x))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"heads": 3}, "width of 16 must be a multiple of the 3 heads"),
        ({"kv_heads": 3}, "multiple of the 3 heads of keys"),
        ({"heads": 16, "kv_heads": 16}, "heads of an even width, not 1"),
        ({"layers": 0}, "at least 1"),
        ({"style": "bert"}, "use llama or gpt2"),
        ({"reach": (1, 2, 3)}, "each of 2 layers needs its reach"),
    ],
)
def test_sizes_that_do_not_go_together(wrong, message):
    with pytest.raises(ValueError, match=message):
        make(**wrong)
    with pytest.raises(ValueError, match="at least 1 word"):
        BackboneConfig.of(16, 2).with_context(0)
