"""Every Triton kernel against plain torch in float64, at odd sizes.

On a machine without a GPU the kernels run in Triton's interpreter, in float32; on a GPU they
multiply bfloat16 numbers, and gradients, whose weights are rounded too, are that much coarser.
"""

import pytest
import torch

from bighmm.base.randomness import key
from bighmm.hmm import HMM
from bighmm.infer import dense
from bighmm.infer.sequences import Carry, validate
from bighmm.model.emissions import FactoredEmission
from bighmm.model.support import Blocked, Dense
from bighmm.model.transitions import Flat, Table, TwoLevel
from bighmm.ops import use_triton
from bighmm.ops.block_choice import block_choice
from bighmm.ops.carry import after_window
from bighmm.ops.gather import take_rows
from bighmm.ops.many_adamw import Places, update_many
from bighmm.ops.matmul import as_operand
from bighmm.ops.present_blocks import present_blocks
from bighmm.ops.residual import Network, residuals, scores
from bighmm.ops.rounding import round_to_bfloat16
from bighmm.ops.row_adamw import Moments, Rates, update_rows
from bighmm.ops.row_norm import row_norm
from bighmm.ops.state_dropout import draw_kept
from bighmm.ops.two_level_chain import Vectors, two_level_chain
from bighmm.ops.windows import Windows
from models import ragged

pytest.importorskip("triton")
from bighmm.ops.rounding.triton import to_bfloat16_values

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = 1e-5
GRADIENT = 1e-2 if DEVICE.type == "cuda" else 1e-3  # logits of some thousand in float32


def normal(*shape, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator) * scale
    return round_to_bfloat16(values).to(DEVICE).requires_grad_()


def exact(*tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def assert_near(got, expected, tolerance, plain=None, rounding=0.0):
    """Within `tolerance`, or a few times the error that plain torch makes in float32.

    `rounding` is what bfloat16 leaves of two larger sums that cancel.
    """
    for g, e, p in zip(got, expected, plain or expected, strict=True):
        assert torch.isfinite(g).all()
        assert (g - e).norm() <= tolerance * e.norm() + 5 * (p - e).norm() + rounding + 1e-5


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("scale", [0.3, 30.0])
@pytest.mark.parametrize(
    "rows, columns, width", [(1, 1, 1), (5, 7, 3), (70, 130, 64), (65, 33, 100), (3, 600, 30)]
)
def test_row_norm(rows, columns, width, scale, with_bias):
    leaving = normal(rows, width, seed=1, scale=scale)
    entering, bias = normal(columns, width, seed=2), normal(columns, seed=3)
    operands = [leaving, entering, bias] if with_bias else [leaving, entering]
    weights = normal(rows, seed=4).detach()
    norm = row_norm(*operands, impl="triton")
    twins = exact(*operands)
    truth = (twins[0] @ twins[1].T + (twins[2] if with_bias else 0.0)).logsumexp(1)
    assert_near([norm], [truth], CLOSE)
    assert_near(
        torch.autograd.grad((norm * weights).sum(), operands),
        torch.autograd.grad((truth * weights).sum(), twins),
        GRADIENT,
    )
    with torch.no_grad():
        torch.testing.assert_close(row_norm(*operands, impl="triton"), norm.detach())


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("rows, width", [(1, 8), (70, 24), (9, 32), (130, 65), (18, 1030)])
def test_residuals(rows, width, number):
    shapes = ((width, width), (width,), (width, width), (width,), (width,), (width,))
    x = normal(rows, width, seed=100)
    given = [
        [normal(*shape, seed=10 * n + i) for i, shape in enumerate(shapes)] for n in range(number)
    ]
    weights = [normal(rows, width, seed=200 + n).detach() for n in range(number)]
    results = []
    for impl, (mine, *theirs) in (
        ("triton", (x, *given)),
        ("torch", (exact(x)[0], *(exact(*network) for network in given))),
    ):
        found = residuals(mine, [Network(*network) for network in theirs], impl)
        total = sum((f * w).sum() for f, w in zip(found, weights, strict=True))
        flat = [mine, *(t for network in theirs for t in network)]
        results.append((found, torch.autograd.grad(total, flat)))
    coarse = 6e-2 if DEVICE.type == "cuda" else CLOSE
    assert_near(results[0][0], results[1][0], max(coarse, 4e-3))  # results are rounded
    assert_near(results[0][1], results[1][1], coarse)
    for found in results[0][0]:
        assert torch.equal(found, found.bfloat16().float())


def blocked_case(alive, blocks, vocabulary, width, scale=1.0, family="flat"):
    """Operands, and a function from (operands, impl) to an HMM."""
    states = alive * blocks
    block_of = (torch.arange(vocabulary) ** 2 % blocks).clamp(max=blocks - 1)
    block_of[:blocks] = torch.arange(blocks)
    support = Blocked.of(block_of, states).to(DEVICE)
    operands = [
        normal(states, width, seed=1, scale=scale),
        normal(states, width, seed=2),
        normal(states, width, seed=3),
        normal(vocabulary, width, seed=4),
        normal(vocabulary, seed=5),
        normal(states, seed=6),
    ]
    if family == "two-level":
        choice = width + 3
        operands += [
            normal(states, choice, seed=7, scale=scale),
            normal(blocks, choice, seed=8),
            normal(blocks, seed=9),
        ]

    def make(operands, impl):
        leaving, entering, emit, words, bias, start, *choice = operands
        emission = support.factored_emission(emit, words, bias, impl)
        kind = TwoLevel if choice else Flat
        transitions = kind(leaving, entering, *choice, rounded=impl == "triton")
        return HMM(start.log_softmax(0), transitions, emission, support, 0)

    return operands, make


CASES = [
    (1, 3, 5, 4),
    (3, 4, 9, 5),
    (16, 2, 11, 24),
    (20, 3, 70, 16),
    (130, 2, 7, 8),
    (270, 2, 5, 8),
]


@pytest.mark.parametrize("alive, blocks, vocabulary, width", CASES)
def test_blocked_emission(alive, blocks, vocabulary, width):
    operands, make = blocked_case(alive, blocks, vocabulary, width)
    twins = exact(*operands)
    weights = normal(vocabulary, alive, seed=8).detach()
    found, truth = make(operands, "triton").emission, make(twins, "torch").emission
    assert_near([found], [truth], CLOSE)
    assert_near(
        torch.autograd.grad((found * weights).sum(), operands[2:5]),
        torch.autograd.grad((truth * weights).sum(), twins[2:5]),
        GRADIENT,
    )


@pytest.mark.parametrize("family", ["flat", "two-level"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("alive, blocks, vocabulary, width", CASES)
def test_blocked_likelihood(alive, blocks, vocabulary, width, scale, family):
    operands, make = blocked_case(alive, blocks, vocabulary, width, scale, family)
    twins = exact(*operands)
    tokens, lengths = ragged(vocabulary, [7, 1, 0, 4], seed=1)
    tokens[0, 2] = 0  # a text that ends inside a row
    tokens, lengths = tokens.to(DEVICE), lengths.to(DEVICE)
    weights = torch.tensor([1.0, 0.5, 2.0, -1.0], device=DEVICE)
    single = [t.detach().requires_grad_() for t in operands]
    results = []
    for given, impl in ((operands, "triton"), (twins, "torch"), (single, "torch")):
        hmm = make(given, impl)
        found = hmm.log_prob(tokens, lengths, impl=impl)
        results.append((found, torch.autograd.grad((found * weights).sum(), given)))
        with torch.no_grad():
            again = hmm.log_prob(tokens, lengths, impl=impl)
            torch.testing.assert_close(again, found.detach(), rtol=1e-5, atol=1e-4)
    found, truth, plain = results
    assert_near(found[:1], truth[:1], CLOSE)
    moves = float((weights.abs() * lengths).sum())
    largest = max(float(t.detach().norm(dim=1).max()) for t in operands[:2])
    digits = 9 if DEVICE.type == "cuda" else 14  # logs of some hundred in float32, which cancel
    rounding = 2**-digits * moves * largest if scale > 1 else 0.0
    assert_near(found[1], truth[1], GRADIENT, plain[1], rounding)


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("states, blocks, width", [(1, 1, 1), (33, 5, 3), (70, 130, 40)])
def test_block_choice(states, blocks, width, some):
    operands = [normal(states, width, seed=1), normal(blocks, width, seed=2)]
    operands.append(normal(blocks, seed=3))
    present = torch.arange(blocks - 1, -1, -2, device=DEVICE) if some else None
    twins = exact(*operands)
    found = block_choice(*operands, present, impl="triton")
    truth = block_choice(*twins, present)
    weights = normal(*found.shape, seed=4).detach()
    assert_near([found], [truth], CLOSE)
    assert_near(
        torch.autograd.grad((found * weights).sum(), operands),
        torch.autograd.grad((truth * weights).sum(), twins),
        GRADIENT,
    )


@pytest.mark.parametrize(
    "blocks, words, tokens, count", [(1, 3, 2, 1), (37, 90, 20, 30), (40, 40, 5, 40)]
)
def test_present_blocks(blocks, words, tokens, count):
    generator = torch.Generator().manual_seed(blocks)
    block_of = (torch.arange(words) % blocks).to(DEVICE)
    ids = torch.randint(words, (tokens,), generator=generator).to(DEVICE)
    found = present_blocks(block_of, ids, blocks, count, impl="triton")
    for got, expected in zip(
        found, present_blocks(block_of, ids, blocks, count, "torch"), strict=True
    ):
        assert torch.equal(got, expected)
    here = set(block_of[ids].tolist())
    assert set(present_blocks(block_of, ids, blocks, None).blocks.tolist()) == here
    assert here <= set(found.blocks.tolist()) and len(set(found.blocks.tolist())) == count


@pytest.mark.parametrize("end", [None, 2])
def test_carry_after_a_window(end):
    ids = torch.tensor([[1, 2, 0], [2, 1, 2], [0, 0, 0], [1, 1, 1]], device=DEVICE)
    lengths = torch.tensor([2, 3, 0, 1], device=DEVICE)
    log_alpha = normal(4, 5, seed=1).detach()
    log_alpha[3] = -torch.inf
    before = (ids[:, 1], normal(4, 5, seed=2).detach(), lengths > 1)
    found = after_window(ids, lengths, log_alpha, before, end, impl="triton")
    for got, expected in zip(
        found, after_window(ids, lengths, log_alpha, before, end, "torch"), strict=True
    ):
        torch.testing.assert_close(got, expected)


def dense_case(states, vocabulary, width, scale=1.0):
    operands = [
        normal(states, width, seed=1, scale=scale),
        normal(states, width, seed=2),
        normal(states, width, seed=3),
        normal(vocabulary, width, seed=4),
        normal(vocabulary, seed=5),
        normal(states, seed=6),
    ]

    def make(operands, impl):
        leaving, entering, emit, words, bias, start = operands
        emissions = FactoredEmission(emit, words, bias)
        if impl == "torch":
            emissions = torch.addmm(bias.unsqueeze(1), words, emit.T).log_softmax(0)
        transitions = Flat(leaving, entering, rounded=impl == "triton")
        support = Dense(states, vocabulary)
        return HMM(start.log_softmax(0), transitions, emissions, support, 0)

    return operands, make


def with_tables(make, tables):
    """A dense model whose transitions or emissions are tables, made of the same operands."""

    def made(operands, impl):
        hmm = make(operands, impl)
        transitions, emissions = hmm.transitions, hmm.emissions
        if "moves" in tables:
            leaving, entering = transitions.operands
            transitions = Table(leaving @ entering.T, rounded=transitions.rounded)
        if "words" in tables:
            emissions = hmm.emission
        return HMM(hmm.start, transitions, emissions, hmm.support, 0)

    return made


@pytest.mark.parametrize("tables", ["", "moves", "words", "moves and words"])
@pytest.mark.parametrize("states, vocabulary, width", [(1, 3, 2), (5, 9, 4), (33, 20, 16)])
def test_dense_likelihood(states, vocabulary, width, tables):
    operands, make = dense_case(states, vocabulary, width)
    make = with_tables(make, tables)
    twins = exact(*operands)
    tokens, lengths = ragged(vocabulary, [7, 1, 0, 4], seed=1)
    tokens[0, 2] = 0
    tokens, lengths = tokens.to(DEVICE), lengths.to(DEVICE)
    weights = torch.tensor([1.0, 0.5, 2.0, -1.0], device=DEVICE)
    results = []
    for given, impl in ((operands, "triton"), (twins, "torch")):
        found = make(given, impl).log_prob(tokens, lengths, impl=impl)
        results.append((found, torch.autograd.grad((found * weights).sum(), given)))
    coarse = 2e-2 if DEVICE.type == "cuda" else CLOSE
    assert_near([results[0][0]], [results[1][0]], coarse)
    assert_near(results[0][1], results[1][1], 3 * coarse)


def test_dense_is_normalised_however_coarse():
    """All words there are after a context: their probabilities, by the fast path, sum to one."""
    operands, make = dense_case(40, 30, 8, scale=2.0)
    with torch.no_grad():
        hmm = make(operands, "triton")
        context = torch.tensor([3, 7, 1, 2, 9], device=DEVICE)
        every = torch.arange(30, device=DEVICE).unsqueeze(1)
        extended = torch.cat([context.expand(30, -1), every], dim=1)
        log_probs = hmm.log_prob(extended, impl="triton").double()
        alone = hmm.log_prob(context.unsqueeze(0), impl="triton").double()
        assert abs(float((log_probs - alone).exp().sum()) - 1) < 1e-4


def test_dense_with_lost_mass_is_done_again_in_log_space():
    operands, make = dense_case(12, 6, 8, scale=200.0)
    twins = exact(*operands)
    tokens = torch.tensor([[1, 5, 2, 2, 4, 3]], device=DEVICE)
    found = make(operands, "triton").log_prob(tokens, impl="triton")
    truth = make(twins, "torch").log_prob(tokens, impl="torch")
    assert_near([found], [truth], 1e-3)


def test_dense_rows_with_lost_mass_are_done_again_alone():
    """Each state emits one word and all but never leaves itself; two of the texts change words."""
    unit = torch.eye(5, device=DEVICE)
    hmm = HMM(
        torch.zeros(5, device=DEVICE).log_softmax(0),
        Flat(unit * 128, unit, rounded=True),
        (unit * 150).log_softmax(0).contiguous(),
        Dense(5, 5),
    )
    tokens = torch.tensor([[1, 1, 1, 1], [1, 2, 3, 0], [4, 4, 0, 0], [0, 3, 3, 0]], device=DEVICE)
    lengths = torch.tensor([4, 3, 2, 4], device=DEVICE)
    with torch.no_grad():
        found = hmm.log_prob(tokens, lengths, impl="triton")
        half = validate(hmm, tokens, lengths)
        carry = Carry.at_start(hmm, 4)
        parts = []
        for first, last in ((0, 2), (2, 4)):
            gained, carry = hmm.advance(half.window(first, last), carry, "triton")
            parts.append(gained)
    truth = hmm.to("cpu", torch.float64).log_prob(tokens.cpu(), lengths.cpu())
    for got in (found, sum(parts)):
        torch.testing.assert_close(got.cpu().double(), truth, rtol=1e-3, atol=1e-2)
    assert truth[1] < -200 and truth[2] > -10


@pytest.mark.parametrize("tables", [(), ("moves",)])
@pytest.mark.parametrize("scale", [20.0, 200.0, 2000.0])
def test_dense_steps_stay_finite_whatever_the_model_forbids(scale, tables):
    """Where a graph is captured there is no second try."""
    operands, make = dense_case(12, 6, 8, scale=scale)
    hmm = with_tables(make, tables)(operands, "triton")
    tokens = torch.tensor([[1, 5, 2, 2, 4, 3], [0, 1, 3, 5, 5, 2]], device=DEVICE)
    log_prob, _, _ = dense._with_kernels(hmm, validate(hmm, tokens), Carry.at_start(hmm, 2))
    assert log_prob.isfinite().all()
    for grad in torch.autograd.grad(log_prob.sum(), operands):
        assert grad.isfinite().all()


@pytest.mark.parametrize("case", [blocked_case(5, 3, 9, 4), dense_case(10, 9, 4)])
def test_windows_carry_the_state(case):
    operands, make = case
    hmm = make(operands, "triton")
    tokens, _ = ragged(9, [8, 8], seed=3)
    whole = validate(hmm, tokens.to(DEVICE))
    carry = Carry.at_start(hmm, 2)
    expected, _ = hmm.advance(whole, carry, "triton")
    halves = []
    for first, last in ((0, 3), (3, 8)):
        gained, carry = hmm.advance(whole.window(first, last), carry, "triton")
        halves.append(gained)
    coarse = 1e-2 if DEVICE.type == "cuda" else 1e-5
    torch.testing.assert_close(sum(halves), expected, rtol=coarse, atol=1e-4)


def test_impossible_sequences():
    operands, make = blocked_case(4, 2, 6, 3)
    hmm = make(operands, "triton")
    emission = hmm.emission.detach().clone()
    emission[3] = -torch.inf
    start = hmm.start.detach().requires_grad_()
    changed = HMM(start, hmm.transitions, emission, hmm.support, 0)
    tokens = torch.tensor([[1, 3, 2], [1, 2, 2]], device=DEVICE)
    found = changed.log_prob(tokens, impl="triton")
    assert found[0] == -torch.inf and torch.isfinite(found[1])
    (grad,) = torch.autograd.grad(found.sum(), start)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("groups, size", [(1, 1), (3, 5), (2, 100), (4, 256)])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.99])
def test_dropout_mask(groups, size, rate):
    for step in range(3):
        of_step = key(7, step)
        expected = draw_kept(groups, size, rate, of_step, "torch")
        found = draw_kept(groups, size, rate, of_step.to(DEVICE), "triton")
        assert torch.equal(found.cpu(), expected)


def test_scores_and_rows():
    table, weight = normal(50, 24, seed=1), normal(24, seed=2)
    chosen = torch.tensor([3, 49, 0, 17], device=DEVICE)
    weights = normal(4, seed=3).detach()
    results = []
    for (t, w), impl in (((table, weight), "triton"), (exact(table, weight), "torch")):
        found = scores(take_rows(t, chosen, impl), w, impl)
        results.append((found, torch.autograd.grad((found * weights).sum(), (t, w))))
    assert_near([results[0][0]], [results[1][0]], CLOSE)
    assert_near(results[0][1], results[1][1], CLOSE)


@pytest.mark.parametrize("sparse", [False, True])
def test_rounded_rows(sparse):
    table = normal(50, 24, seed=1)
    chosen = torch.tensor([3, 49, 0, 17], device=DEVICE)
    weights = normal(4, 24, seed=3).detach()
    found = take_rows(table, chosen, "triton", sparse=sparse, rounded=True)
    assert torch.equal(found, table[chosen].bfloat16().float())
    assert torch.equal(as_operand(found).float(), found)
    assert round_to_bfloat16(found) is found
    (grad,) = torch.autograd.grad((found * weights).sum(), table)
    expected = torch.zeros_like(table).index_copy_(0, chosen, weights)
    assert torch.equal(grad.to_dense() if sparse else grad, expected)


@pytest.mark.parametrize("chosen, scale", [("some", 3.0), ("some", None), ("all", 2.0)])
@pytest.mark.parametrize("rows, width", [(1, 1), (7, 3), (50, 100), (33, 256), (3, 2100)])
def test_adamw_of_rows(rows, width, chosen, scale):
    rates = Rates(0.01, 0.9, 0.999, 1e-8, 0.1)
    scaled = None if scale is None else torch.tensor(scale, device=DEVICE)
    zeros = torch.zeros(rows, width, device=DEVICE)
    steps = torch.arange(rows, dtype=torch.int32, device=DEVICE) * 1000
    start = normal(rows, width, seed=1).detach()
    results = []
    for impl, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        table = start.to(dtype, copy=True)
        moments = Moments(*(zeros.to(dtype, copy=True) for _ in range(2)), steps.clone())
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            some = torch.randperm(rows, generator=generator)[: (rows + 1) // 2].to(DEVICE)
            touched = some if chosen == "some" else None
            count = rows if touched is None else len(touched)
            grad = normal(count, width, seed=step + 2, scale=10.0**-step).detach().to(dtype)
            grad[3::5] = 0  # so these rows have none
            grad[1:2, : width - 1] = 0
            update_rows(table, moments, touched, grad, rates, scaled, impl)
        results.append((table, moments))
    (table, found), (expected, truth) = results
    assert_near([table - start], [expected - start], CLOSE)
    assert_near([found.first, found.second], [truth.first, truth.second], CLOSE)
    assert torch.equal(found.steps, truth.steps)
    assert (found.steps == steps + 3).any() or chosen == "some"
    assert rows < 7 or (found.steps == steps).any() or chosen == "some"


@pytest.mark.parametrize("scale", [None, 3.0])
def test_adamw_of_many_tensors(scale):
    shapes = [(3, 5), (1, 1), (2500,), (1024,), (1,)]
    rates = Rates(0.01, 0.9, 0.999, 1e-8, 0.1)
    start = [normal(*shape, seed=i).detach() for i, shape in enumerate(shapes)]
    mine = [
        (t.clone(), torch.zeros_like(t), torch.zeros_like(t), torch.zeros((), device=DEVICE))
        for t in start
    ]
    expected = [t.double().requires_grad_() for t in start]
    optimizer = torch.optim.AdamW(expected, lr=0.01, weight_decay=0.1)
    places = Places.of(mine)
    assert places.are_of(mine) and not places.are_of(mine[1:])
    for step in range(3):
        grads = [normal(*shape, seed=9 + step).detach() for shape in shapes]
        for t, grad in zip(expected, grads, strict=True):
            t.grad = grad.double() / (scale or 1.0)
        optimizer.step()
        update_many(places, grads, rates, None if scale is None else torch.tensor(scale).to(DEVICE))
    for (t, _, _, steps), truth, first in zip(mine, expected, start, strict=True):
        assert_near([t - first], [truth.detach() - first], CLOSE)
        assert steps.item() == 3


@pytest.mark.parametrize(
    "size", [20, 135, 260], ids=["whole tiles", "rows in parts", "both in parts"]
)
@pytest.mark.parametrize("faint", [40.0, 75.0, 90.0, 400.0])
def test_two_level_tiles_with_faint_entries(faint, size):
    """Where a sum in probability space comes near the smallest number, or below it."""
    batch, time, blocks, width = 3, 5, 3, 16
    ids = torch.arange(batch * time, device=DEVICE).view(batch, time) * 7 % blocks
    carried = torch.full((batch, size), -2 * faint, device=DEVICE)
    carried[:, 3] = 0.0
    windows = Windows(
        ids,
        torch.zeros_like(ids, dtype=torch.bool),
        torch.tensor([time, 0, time - 1], device=DEVICE),
        torch.arange(blocks, device=DEVICE),
        carried,
        ids[:, 0],
        torch.tensor([False, False, True], device=DEVICE),
    )
    operands = [
        normal(size * blocks, seed=1),
        normal(batch, time, size, seed=2),
        normal(size * blocks, width, seed=3),
        normal(size * blocks, width, seed=4),
        normal(size * blocks, blocks, seed=5),
    ]
    with torch.no_grad():
        operands[1][:, ::2, 1:] -= faint  # of states that are reached from others alone
        operands[1][:, 1::2, :5] -= faint
        operands[2][3] = round_to_bfloat16(-operands[3][1] * faint / 16)
    results = []
    for given, impl in ((operands, "triton"), (exact(*operands), "torch")):
        moved = windows._replace(carried=windows.carried.to(given[0].dtype))
        found, _ = two_level_chain(moved, *given[:2], Vectors(*given[2:]), impl)
        assert found.isfinite().all()
        results.append((found, torch.autograd.grad(found.sum(), given)))
    assert_near([results[0][0]], [results[1][0]], CLOSE)
    assert_near(results[0][1], results[1][1], GRADIENT)


def test_rounding():
    x = normal(1000, seed=1).detach() * 1e3 + 0.123
    for found in to_bfloat16_values(x):
        assert torch.equal(found.float(), x.bfloat16().float())


def test_choice_of_implementation(monkeypatch):
    x = torch.zeros(1, device=DEVICE)
    assert use_triton(x, "triton") and not use_triton(x, "torch")
    assert use_triton(x, "auto") == x.is_cuda
    monkeypatch.setattr("bighmm.ops.impl._triton_installed", lambda: False)
    assert not use_triton(x, "auto")
    with pytest.raises(ValueError, match="needs a GPU"):
        use_triton(x, "triton")
