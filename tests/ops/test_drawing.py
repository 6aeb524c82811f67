"""Choices at given places of the sums of probabilities."""

import pytest
import torch

from bighmm.base import randomness
from bighmm.ops.drawing import draw_at


@pytest.mark.parametrize("columns", [1, 5, 127, 128, 129, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_places_of_the_sum(columns, dtype):
    """Against sums over all columns, at places where rounding decides nothing."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(40, columns, generator=generator, dtype=dtype)
    weights[:, 1:] *= torch.rand(40, columns - 1, generator=generator) < 0.3
    probs = weights / weights.sum(1, keepdim=True)
    chosen = torch.rand(40, generator=generator, dtype=torch.float64)
    sums = probs.double().cumsum(1)
    expected = torch.searchsorted(sums, chosen.unsqueeze(1) * sums[:, -1:], right=True).squeeze(1)
    found = draw_at(probs.log(), chosen)
    assert torch.equal(found, expected)
    assert bool((probs.gather(1, found.unsqueeze(1)) > 0).all())


def test_the_ends_have_probability():
    """The first and the last place there can be, where both ends have probability zero."""
    probs = torch.zeros(1, 400)
    probs[0, [130, 135, 250]] = torch.tensor([0.1, 0.2, 0.7])
    for chosen, expected in ((0.0, 130), (1 - 2**-53, 250), (0.1001, 135), (0.2999, 135)):
        assert int(draw_at(probs.log(), torch.tensor([chosen], dtype=torch.float64))) == expected


def test_uniform_numbers():
    numbers = randomness.uniform(randomness.key(0, 0), 4096)
    assert numbers.dtype == torch.float64 and float(numbers.min()) >= 0 and float(numbers.max()) < 1
    counts = torch.histc(numbers, 16, 0, 1)
    assert abs(float(counts.min()) - 256) < 70 and abs(float(counts.max()) - 256) < 70
    assert not torch.equal(numbers, randomness.uniform(randomness.key(0, 1), 4096))
