"""Dropout on the numbers of vectors: both forms are one function of the key."""

import pytest
import torch

from bighmm.base.randomness import key
from bighmm.ops.feature_dropout import chosen, drop_features
from bighmm.ops.matmul import as_operand, has_operand


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_the_share_that_is_kept():
    x = torch.ones(200, 50)
    for rate in (0.1, 0.5, 0.9):
        found = drop_features(x, rate, key(1, 2), 7)
        assert found.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)])
        assert float(found.mean()) == pytest.approx(1.0, abs=0.15)
    assert drop_features(x, 0.0, key(1, 2), 7) is x


def test_masks_are_of_rows_by_name():
    """A row loses the same numbers wherever it stands; another step, place or row loses others."""
    x, ids = torch.ones(6, 40), torch.tensor([4, 9, 1, 0, 3, 7])
    found = drop_features(x, 0.5, key(1, 2), 7, ids)
    again = drop_features(x[:3], 0.5, key(1, 2), 7, ids[:3].flip(0))
    assert torch.equal(again.flip(0), found[:3])
    everything = drop_features(torch.ones(10, 40), 0.5, key(1, 2), 7)
    assert torch.equal(everything[ids], found)
    for other in (key(1, 3), key(2, 2)):
        assert not torch.equal(drop_features(x, 0.5, other, 7, ids), found)
    assert not torch.equal(drop_features(x, 0.5, key(1, 2), 8, ids), found)
    assert len(found.unique(dim=0)) == 6
    shared = drop_features(x, 0.5, key(1, 2), 7, ids, shared=True)
    assert len(shared.unique(dim=0)) == 1 and 0 < int((shared[0] > 0).sum()) < 40


def test_chosen_positions():
    found = chosen(0.2, key(3, 4), 1, (60, 50))
    assert found.dtype == torch.bool and found.shape == (60, 50)
    assert float(found.float().mean()) == pytest.approx(0.2, abs=0.05)


def test_the_gradient():
    x = numbers(5, 6, dtype=torch.float64).requires_grad_()
    ids = torch.tensor([2, 0, 7, 1, 3])
    torch.autograd.gradcheck(lambda x: drop_features(x, 0.4, key(1, 1), 3, ids), (x,))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_triton(rate, named, shared):
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = numbers(37, 24).to(device).requires_grad_()
    weights = numbers(37, 24).to(device)
    ids = torch.arange(37, device=device) * 1_000_003 if named else None
    results = []
    for impl in ("triton", "torch"):
        found = drop_features(x, rate, key(5, 6).to(device), 9, ids, shared=shared, impl=impl)
        results.append((found, *torch.autograd.grad((found * weights).sum(), x)))
    (found, grad), (plain, expected) = results
    assert torch.equal(found == 0, plain == 0)
    assert torch.equal(found, found.bfloat16().float())
    torch.testing.assert_close(found, plain, rtol=2**-8, atol=0)
    torch.testing.assert_close(grad, expected)
    assert has_operand(found) and torch.equal(as_operand(found).float(), found)
