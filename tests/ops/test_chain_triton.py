"""The kernels for any chain of potentials, and what feeds them, against plain torch in float64."""

import math

import pytest
import torch

from bighmm.infer.reference import Enumeration
from bighmm.model.support import PerToken
from bighmm.ops import memory
from bighmm.ops.chain import chain_log_sum
from bighmm.ops.gather import take_square
from bighmm.ops.rounding import round_to_bfloat16
from models import gradients, ragged, random_hmm, random_support

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = [6, 1, 2, 4, 6, 6]  # positions, one more than tiles


def some_chain(alive, scale, gaps):
    """Potentials of LENGTHS; with `gaps` a third are -inf, and whole rows, columns and tiles."""
    generator = torch.Generator().manual_seed(alive)
    batch, steps = len(LENGTHS), max(LENGTHS) - 1
    first = torch.randn(batch, alive, generator=generator) * scale
    tiles = torch.randn(batch, steps, alive, alive, generator=generator) * scale
    if gaps:
        tiles[torch.rand(tiles.shape, generator=generator) < 0.3] = -torch.inf
        tiles[:, 2, alive // 2] = -torch.inf
        tiles[:, 3, :, alive // 3] = -torch.inf
        tiles[4, 1] = -torch.inf  # no path
        first[5] = -torch.inf
        first[5, -1] = 0.0
    return [t.to(DEVICE).requires_grad_() for t in (first, tiles)]


def log_sum_and_gradients(given, impl):
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    weights = torch.tensor([1.0, 0.5, 2.0, -1.0, 3.0, 1.0], device=DEVICE)
    log_sum, last = chain_log_sum(*given, lengths, impl)
    assert not last.requires_grad
    last = (last - last.logsumexp(1, keepdim=True))[log_sum > -torch.inf]
    return log_sum, last, *torch.autograd.grad((log_sum * weights).sum(), given)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("alive", [1, 2, 16, 21, 128, 130, 270])
def test_chain(alive, scale, gaps):
    given = some_chain(alive, scale, gaps)
    found = log_sum_and_gradients(given, "triton")
    truth = log_sum_and_gradients([t.detach().double().requires_grad_() for t in given], "loop")
    for f, t in zip(found, truth, strict=True):
        torch.testing.assert_close(f.double(), t, rtol=1e-4, atol=2e-4)


def test_chain_without_gradient_and_without_tiles():
    first, tiles = (t.detach() for t in some_chain(5, 1.0, False))
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    for given in (tiles, tiles[:, :0]):
        at = lengths.clamp(max=given.shape[1] + 1)
        for f, e in zip(
            chain_log_sum(first, given, at, "triton"),
            chain_log_sum(first, given, at, "loop"),
            strict=True,
        ):
            f, e = (x - x.amax(-1, keepdim=True) if x.dim() == 2 else x for x in (f, e))
            torch.testing.assert_close(f, e)


KINDS = ["blocked-table", "blocked-flat", "per_token-table", "per_token-flat"]


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_only_the_chain_fits(kind):
    hmm = random_hmm(kind, dtype=torch.float32, seed=3)
    tokens, lengths = ragged(hmm.vocabulary_size, [4, 1, 0, 3], seed=3)
    tokens[0, 1] = hmm.end
    rows = [row[:n].tolist() for row, n in zip(tokens, lengths.tolist(), strict=True)]
    expected = torch.tensor([math.log(Enumeration(hmm, row).prob) for row in rows])
    there = hmm.to(DEVICE)
    found = there.log_prob(tokens.to(DEVICE), lengths.to(DEVICE), impl="triton")
    torch.testing.assert_close(found.cpu(), expected)
    fast = gradients(there, tokens.to(DEVICE), lengths.to(DEVICE), impl="triton")
    plain = gradients(hmm.to("cpu", torch.float64), tokens, lengths, impl="loop")
    for f, p in zip(fast, plain, strict=True):
        torch.testing.assert_close(f.cpu().double(), p, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("elements", [1, 100, 2**22])
def test_emission_of_listed_states(rate, elements, monkeypatch):
    monkeypatch.setattr(memory, "STREAMED", elements)
    support = PerToken.random(23, 14, 5, seed=1).to(DEVICE)
    support = support.restrict(support.draw_kept(rate, torch.tensor(3, device=DEVICE)))
    generator = torch.Generator().manual_seed(0)
    shapes = ((support.num_states, 6), (23, 6), (23,))
    given = [
        round_to_bfloat16(torch.randn(*shape, generator=generator)).to(DEVICE).requires_grad_()
        for shape in shapes
    ]
    weights = torch.randn(23, 5, generator=generator).to(DEVICE)
    results = []
    for inputs, impl in ((given, "triton"), ([t.detach().double() for t in given], "torch")):
        inputs = [t.requires_grad_() for t in inputs]
        cells = support.factored_emission(*inputs, impl)
        present = cells > -torch.inf
        total = torch.where(present, cells, 0.0) * weights
        results.append((cells, *torch.autograd.grad(total.sum(), inputs)))
    coarse = 2e-2 if DEVICE.type == "cuda" else 1e-4
    for found, truth in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), truth, rtol=coarse, atol=coarse)


@pytest.mark.parametrize("size, count", [(1, 1), (5, 3), (70, 70), (1100, 300)])
def test_square(size, count):
    generator = torch.Generator().manual_seed(size)
    chosen = torch.randperm(size, generator=generator)[:count].sort().values.to(DEVICE)
    table = torch.randn(size, size, generator=generator).to(DEVICE).requires_grad_()
    weights = torch.randn(count, count, generator=generator).to(DEVICE)
    found, expected = take_square(table, chosen, "triton"), take_square(table, chosen, "torch")
    assert torch.equal(found, expected)
    grads = [torch.autograd.grad((s * weights).sum(), table)[0] for s in (found, expected)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("kind", ["dense", "blocked", "per_token"])
def test_masks_are_the_same_on_every_device(kind):
    support = random_support(kind, 3000, 40)  # more states than the kernel for masks takes
    for step in range(3):
        here = support.draw_kept(0.5, torch.tensor(step))
        there = support.to(DEVICE).draw_kept(0.5, torch.tensor(step, device=DEVICE))
        assert torch.equal(here, there.cpu())
