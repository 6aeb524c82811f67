"""Fast products on a CPU: what is rounded already stays exact, and sweeps are never rounded.

Where the processor has no instructions for bfloat16 nothing is rounded, and the first two tests
compare two libraries.
"""

import pytest
import torch

from bighmm.base import randomness
from bighmm.model import params
from bighmm.model.options import NeuralOptions
from bighmm.ops.log_matmul import log_matmul
from bighmm.ops.matmul import exact_products, fast_products, medium_rounds
from bighmm.train.losses import Likelihood, Window
from models import random_support

WORDS, STATES = 60, 256
CPU = torch.device("cpu")


def module(support, **options):
    """Large enough that products go to the library that rounds; without networks, all of whose
    products would be rounded."""
    given = NeuralOptions(width=64, layers=0, init_scale=0.5, start="direct", **options)
    made = params.build("neural", given, random_support(support, STATES, WORDS), 0, 1)
    made.matmul_dtype = "bfloat16"
    return made


def step(made):
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(1, WORDS, (24, 16), generator=draw)
    loss = Likelihood(made)
    state = loss.initial_state(len(ids))
    made.zero_grad()
    value, _ = loss(Window(ids, torch.full((len(ids),), 16)), state, randomness.key(1, 1))
    value.backward()
    grads = [p.grad.flatten() for p in made.parameters() if p.grad is not None]
    return value.detach(), torch.cat(grads)


@pytest.mark.parametrize(
    "support, options",
    [("blocked", {}), ("blocked", {"transitions": "flat"}), ("dense", {})],
    ids=["two-level", "flat", "dense"],
)
def test_the_likelihood_is_the_same(support, options):
    made = module(support, **options)
    exact, gradient = step(made)
    with Likelihood(made).precision():
        found, rounded = step(made)
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=0)
    assert (rounded - gradient).norm() < 0.01 * gradient.norm()


def test_sums_over_states_keep_their_digits():
    draw = torch.Generator().manual_seed(1)
    left, right = (torch.randn(4, 64, 64, generator=draw) * 3 for _ in range(2))
    exact = log_matmul(left, right)
    with fast_products(CPU, may_round=True):
        torch.testing.assert_close(log_matmul(left, right), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("rounds", [False, True])
def test_precision_is_put_back(monkeypatch, rounds):
    monkeypatch.setattr("bighmm.ops.matmul.medium_rounds", lambda: rounds)
    now = torch.get_float32_matmul_precision
    before = now()
    with pytest.raises(KeyError), fast_products(CPU, may_round=True):
        assert now() == "medium"
        with exact_products():
            assert now() == ("highest" if rounds else "medium")
        assert now() == "medium"
        raise KeyError
    assert now() == before
    with exact_products():
        assert now() == before
    with fast_products(CPU):
        assert now() == (before if rounds else "medium")
    assert now() == before
    with fast_products(torch.device("cuda"), may_round=True):
        assert now() == before


def test_what_is_said_of_rounding():
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.rand(256, 256, generator=draw) for _ in range(2))
    exact = a @ b
    with fast_products(CPU, may_round=True):
        close = torch.allclose(a @ b, exact, rtol=1e-5)
    assert close == (not medium_rounds())
