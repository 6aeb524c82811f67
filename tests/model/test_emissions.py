"""Emissions of a sparse support against the masked dense softmax they stand for."""

import pytest
import torch

from bighmm.model.support import Blocked, Dense, PerToken
from bighmm.ops import cell_products as cells_module
from bighmm.ops import memory
from bighmm.ops.cell_products import cell_products
from models import normalised_emission, random_support

WIDTH = 5


def blocks_of_sizes(sizes, alive=3):
    block_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    order = torch.randperm(len(block_of), generator=torch.Generator().manual_seed(0))
    return Blocked.of(block_of[order], alive * len(sizes))


def restricted_lists():
    support = PerToken.random(20, 12, 4, seed=0)
    return support.restrict(support.draw_kept(0.5, torch.tensor(0)))


SUPPORTS = {
    "dense": Dense(6, 9),
    "even": blocks_of_sizes([4, 4, 4]),
    "ragged": blocks_of_sizes([1, 40, 3, 9, 100, 2, 13, 14]),
    "one and many": blocks_of_sizes([1, 300]),
    "one block": blocks_of_sizes([17]),
    "single tokens": blocks_of_sizes([1] * 10),
    "one state each": blocks_of_sizes([3, 30, 8], alive=1),
    "per token": PerToken.random(20, 12, 4, seed=0),
    "per token with gaps": restricted_lists(),
}


@pytest.fixture(params=SUPPORTS.values(), ids=SUPPORTS.keys())
def support(request):
    return request.param


def vectors(support, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (support.num_states, WIDTH), (support.vocabulary_size, WIDTH)
    made = [
        torch.randn(*shape, generator=generator, dtype=torch.float64) * scale
        for shape in (*shapes, (support.vocabulary_size,))
    ]
    return [t.requires_grad_() for t in made]


def masked_softmax(support, emit, words, bias):
    logits = words @ emit.T + bias.unsqueeze(1)
    states = support.states(torch.arange(support.vocabulary_size))
    allowed = torch.zeros(support.vocabulary_size, support.num_states + 1, dtype=torch.bool)
    allowed.scatter_(1, states.remainder(support.num_states + 1), True)
    every = logits.masked_fill(~allowed[:, :-1], -torch.inf).log_softmax(0)
    return every.gather(1, states.clamp(min=0)).masked_fill(states < 0, -torch.inf)


def weighted_gradients(cells, inputs):
    present = cells > -torch.inf
    weights = torch.randn(cells.shape, generator=torch.Generator().manual_seed(9)).double()
    return torch.autograd.grad((cells[present] * weights[present]).sum(), inputs)


def test_factored_emission_is_a_masked_softmax(support):
    inputs = vectors(support)
    cells, expected = support.factored_emission(*inputs), masked_softmax(support, *inputs)
    torch.testing.assert_close(cells, expected)
    for grad, right in zip(
        weighted_gradients(cells, inputs), weighted_gradients(expected, inputs), strict=True
    ):
        torch.testing.assert_close(grad, right)


def test_large_logits_do_not_overflow(support):
    inputs = [t.detach() for t in vectors(support, scale=60.0)]
    cells = support.factored_emission(*(t.float() for t in inputs))
    torch.testing.assert_close(
        cells.double(), masked_softmax(support, *inputs), rtol=1e-3, atol=0.05
    )


def some_logits(support):
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(support.vocabulary_size, support.states_per_token, generator=generator)


def test_normalise_cells(support):
    logits = some_logits(support).double().requires_grad_()
    cells, expected = support.normalise(logits), normalised_emission(support, logits)
    torch.testing.assert_close(cells, expected)
    torch.testing.assert_close(
        weighted_gradients(cells, [logits]), weighted_gradients(expected, [logits])
    )


def test_normalise_cells_ignores_the_size_of_logits():
    support = random_support("per_token", 6, 5)
    logits = some_logits(support)
    for shift in (-1e4, 1e4):
        torch.testing.assert_close(
            support.normalise(logits + shift),
            support.normalise(logits),
            rtol=0,
            atol=1e-2,
        )


def test_cells_gradcheck():
    generator = torch.Generator().manual_seed(0)
    words = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    emit = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    states = torch.tensor([[0, 1], [1, 1], [4, 0], [3, 1]])
    assert torch.autograd.gradcheck(cell_products, (words, emit, states))
    torch.testing.assert_close(
        cell_products(words, emit, states), (words @ emit.T).gather(1, states)
    )


@pytest.mark.parametrize("elements", [1, 3 * 4 * WIDTH, 7 * 4 * WIDTH])
def test_chunks_make_no_difference(monkeypatch, elements):
    support = PerToken.random(20, 12, 4, seed=0)
    inputs = vectors(support)
    whole = support.factored_emission(*inputs)
    expected = weighted_gradients(whole, inputs)
    monkeypatch.setattr(memory, "STREAMED", elements)
    tokens = max(1, elements // (4 * WIDTH))
    assert len(cells_module._chunks(inputs[1], 4 * WIDTH)) == -(-20 // tokens)
    cut = support.factored_emission(*inputs)
    torch.testing.assert_close(cut, whole)
    for grad, right in zip(weighted_gradients(cut, inputs), expected, strict=True):
        torch.testing.assert_close(grad, right)
