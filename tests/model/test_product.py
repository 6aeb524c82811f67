"""Parts of the transition matrix against the whole of it."""

import pytest
import torch

from bighmm.model.transitions import TiledProduct, product
from bighmm.ops import memory
from models import random_hmm


@pytest.fixture
def pool(monkeypatch):
    made = product._Pool()
    monkeypatch.setattr(product, "_POOL", made)
    return made


@pytest.mark.parametrize("kind", ["dense-table", "dense-flat", "blocked-two_level"])
@pytest.mark.parametrize("tile", [1, 20, 2**20])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (slice(2, 5), slice(0, 12)),
        (slice(0, 12), slice(3, 6)),
        (torch.tensor([7, 1]), slice(0, 12)),
        (slice(4, 11), torch.tensor([3, 3, 0])),
    ],
)
def test_products(kind, tile, before, after, pool):
    hmm = random_hmm(kind, states=12)
    whole = hmm.tables()[1][before][:, after]
    ahead, back = torch.randn(2, len(whole)).double(), torch.randn(2, whole.shape[1]).double()
    for _ in range(2):  # the second time in the memory of the first
        part = TiledProduct(hmm.transitions, before, after, tile)
        assert torch.allclose(part.ahead(ahead).exp(), ahead.exp() @ whole)
        assert torch.allclose(part.back(back).exp(), back.exp() @ whole.T)
        assert torch.allclose(part.ahead(ahead).exp(), ahead.exp() @ whole)
        del part
        assert [space.numel() for space in pool.free] == [whole.numel()]


def test_memory_is_used_again_but_not_hoarded(pool, monkeypatch):
    hmm = random_hmm("dense-table", states=12)

    def used(width):
        part = TiledProduct(hmm.transitions, slice(0, 12), slice(0, width), memory.TILE)
        part.ahead(torch.zeros(1, 12).double())
        return part.memory.data_ptr(), part

    place, part = used(4)
    _, other = used(4)
    del part
    assert used(4)[0] == place
    assert used(5)[0] != place
    del other
    monkeypatch.setattr(memory, "POOLED", 100)
    used(6)
    assert sum(space.numel() for space in pool.free) <= 100
    monkeypatch.setattr(memory, "POOLED", 40)
    used(12)
    assert all(space.numel() < 144 for space in pool.free)
