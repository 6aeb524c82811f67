"""The two torch forms of the two-level likelihood against each other, at odd sizes and extremes."""

import pytest
import torch

from bighmm.ops import memory
from bighmm.ops.two_level_chain import Vectors, two_level_chain
from bighmm.ops.windows import Windows

CASES = [(1, 1, 1, 2), (1, 3, 5, 4), (3, 4, 9, 5), (20, 3, 7, 6)]


def case(size, blocks, width, time, scale=1.0, batch=5):
    generator = torch.Generator().manual_seed(size * blocks)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    vocabulary = 2 * blocks
    ids = torch.randint(vocabulary, (batch, time), generator=generator)
    lengths = torch.randint(time + 1, (batch,), generator=generator)
    lengths[0], lengths[1] = time, 0
    windows = Windows(
        ids,
        torch.rand(batch, time, generator=generator) < 0.3,
        lengths,
        torch.arange(vocabulary) % blocks,
        normal(batch, size).log_softmax(1),
        torch.randint(vocabulary, (batch,), generator=generator),
        torch.arange(batch) % 3 == 2,
    )
    states = size * blocks
    operands = [
        normal(states).log_softmax(0),
        normal(batch, time, size) * scale,
        normal(states, width) * scale,
        normal(states, width),
        (normal(states, blocks) * scale).log_softmax(1),
    ]
    return windows, operands


def answers(windows, operands, impl, dtype=torch.float64):
    given = [x.to(dtype).detach().clone().requires_grad_() for x in operands]
    windows = windows._replace(carried=windows.carried.to(dtype))
    log_prob, log_alpha = two_level_chain(windows, *given[:2], Vectors(*given[2:]), impl)
    weights = torch.tensor([1.0, 0.5, 2.0, -1.0, 0.3], dtype=dtype)
    return log_prob, log_alpha, *torch.autograd.grad((log_prob * weights).sum(), given)


@pytest.mark.parametrize("limit", [memory.TILE, 0], ids=["gathered at once", "step by step"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("size, blocks, width, time", CASES)
def test_forms_agree(size, blocks, width, time, scale, limit, monkeypatch):
    monkeypatch.setattr(memory, "TILE", limit)
    windows, operands = case(size, blocks, width, time, scale)
    expected = answers(windows, operands, "torch")
    for got, truth in zip(answers(windows, operands, "pairs"), expected, strict=True):
        torch.testing.assert_close(got, truth, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("size, blocks, width, time", CASES)
def test_single_precision(size, blocks, width, time, scale):
    """Also where a factor of the expected moves alone is too large for the type."""
    windows, operands = case(size, blocks, width, time, scale)
    found = answers(windows, operands, "pairs", torch.float32)
    truth = answers(windows, operands, "torch")
    largest = max(float(x.abs().max()) for x in operands)
    for got, expected in zip(found, truth, strict=True):
        assert got.isfinite().all()
        tolerance = 1e-5 * max(1.0, float(expected.detach().norm())) * max(1.0, largest)
        assert float((got - expected).norm()) <= tolerance


def test_impossible_words():
    windows, operands = case(3, 4, 5, 6)
    operands[1][0, 2] = -torch.inf
    found = answers(windows, operands, "pairs")
    assert found[0][0] == -torch.inf and found[0][2:].isfinite().all()
    for got, expected in zip(found[2:], answers(windows, operands, "torch")[2:], strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, expected)
