"""Shapes of modules without memory: the same as those of the modules themselves."""

import torch
from torch import nn

from bighmm.base.shapes import shapes_of


class Made(nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self.table = nn.Parameter(torch.randn(size, 2) * 0.1)
        self.scaled = nn.Parameter(2 * torch.rand(size).mul_(3.0))
        self.outer = nn.Parameter(torch.ones(size, 1) * torch.zeros(4))
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.LSTM(2, 3), nn.LayerNorm(7)])
        nn.init.normal_(self.table, std=0.02)
        self.register_buffer("numbers", torch.zeros(2, dtype=torch.long))


def test_shapes_are_those_of_the_module():
    before = torch.get_rng_state()
    assert shapes_of(Made) == {name: t.shape for name, t in Made().state_dict().items()}
    torch.set_rng_state(before)
    shapes_of(Made)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_memory_is_taken():
    assert shapes_of(lambda: Made(2**50))["table"] == (2**50, 2)
