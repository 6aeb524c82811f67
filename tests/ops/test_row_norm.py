"""The streamed row normaliser against a logsumexp of the whole matrix."""

import pytest
import torch

from bighmm.ops import memory
from bighmm.ops.row_norm import row_norm

SIZES = [(1, 1, 1), (5, 7, 3), (13, 1, 4), (9, 32, 5)]  # rows, states, width


def operands(rows, states, width, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(rows + states)
    leaving = torch.randn(rows, width, generator=generator, dtype=dtype) * scale
    entering = torch.randn(states, width, generator=generator, dtype=dtype)
    return leaving.requires_grad_(), entering.requires_grad_()


@pytest.mark.parametrize("chunk", [1, 16, 2**22])
@pytest.mark.parametrize("sizes", SIZES)
def test_gradcheck(sizes, chunk, monkeypatch):
    monkeypatch.setattr(memory, "STREAMED", chunk)
    leaving, entering = operands(*sizes)
    assert torch.autograd.gradcheck(row_norm, (leaving, entering))
    torch.testing.assert_close(row_norm(leaving, entering), (leaving @ entering.T).logsumexp(1))


@pytest.mark.parametrize("scale", [1.0, 200.0, 2000.0])
def test_float32_against_float64(scale):
    leaving, entering = operands(33, 65, 7, scale, torch.float32)
    exact = [t.detach().double().requires_grad_() for t in (leaving, entering)]
    weights = torch.linspace(-1, 1, 33)
    norm = row_norm(leaving, entering)
    truth = (exact[0] @ exact[1].T).logsumexp(1)
    torch.testing.assert_close(norm.double(), truth, rtol=1e-6, atol=1e-5)
    got = torch.autograd.grad((norm * weights).sum(), (leaving, entering))
    expected = torch.autograd.grad((truth * weights).sum(), exact)
    for g, e in zip(got, expected, strict=True):
        assert (g - e).abs().max() <= 1e-3 * e.abs().max()


def test_without_gradient_nothing_is_kept():
    leaving, entering = operands(5, 7, 3)
    with torch.no_grad():
        assert not row_norm(leaving, entering).requires_grad
    assert not row_norm(leaving.detach(), entering.detach()).requires_grad


def test_second_derivatives_are_refused():
    leaving, entering = operands(5, 7, 3)
    total = row_norm(leaving, entering).square().sum()
    (grad,) = torch.autograd.grad(total, leaving, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
