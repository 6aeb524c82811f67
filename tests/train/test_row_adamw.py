"""AdamW by rows: each row follows torch's AdamW over the steps in which it had a gradient."""

import copy

import pytest
import torch
from torch import nn

from bighmm.model.params import build
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.support import Blocked
from bighmm.ops.gather import take_rows
from bighmm.ops.row_adamw import plain
from bighmm.train.losses import Likelihood, Window
from bighmm.train.recipe import TrainingSettings
from bighmm.train.row_adamw import RowAdamW
from bighmm.train.runner import restore_tensors, saved_tensors
from bighmm.train.schedule import make_schedule
from bighmm.train.update import Descent

SETTINGS = {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.1}
STEPS = 7


def table(rows=11, width=3):
    generator = torch.Generator().manual_seed(0)
    return nn.Parameter(torch.randn(rows, width, generator=generator, dtype=torch.float64))


def gradients(parameter, steps=STEPS):
    """For each step the rows that have a gradient, and a gradient of the whole table."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randperm(len(parameter), generator=generator)[: len(parameter) // 2]
        yield rows, torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def backward(parameter, rows, grad):
    parameter.grad = None
    (take_rows(parameter, rows, sparse=True) * grad[rows]).sum().backward()


@pytest.fixture(params=[1 << 18, 7], ids=["at once", "in parts"])
def parts(request, monkeypatch):
    monkeypatch.setitem(plain.NUMBERS, "cpu", request.param)


def test_the_gradient_of_rows_is_sparse():
    parameter, dense = table(), table()
    rows, grad = next(gradients(parameter))
    backward(parameter, rows, grad)
    (take_rows(dense, rows) * grad[rows]).sum().backward()
    assert parameter.grad.is_sparse and parameter.grad._values().shape == (5, 3)
    assert torch.equal(parameter.grad.to_dense(), dense.grad)


def test_every_row_in_every_step_is_adamw(parts):
    by_rows, plainly = table(), table()
    one, other = RowAdamW([by_rows], **SETTINGS), torch.optim.AdamW([plainly], **SETTINGS)
    for _, grad in gradients(by_rows):
        backward(by_rows, torch.arange(len(by_rows)).flip(0), grad)
        plainly.grad = grad.clone()
        one.step(), other.step()
        torch.testing.assert_close(by_rows, plainly)
    assert one.state[by_rows]["row_steps"].tolist() == [STEPS] * len(by_rows)


def test_dense_gradients_are_torchs():
    mine, theirs = table(), table()
    one, other = RowAdamW([mine], **SETTINGS), torch.optim.AdamW([theirs], **SETTINGS)
    for _, grad in gradients(mine):
        mine.grad, theirs.grad = grad.clone(), grad.clone()
        one.step(), other.step()
        assert torch.equal(mine, theirs)
    assert one.state_dict()["state"].keys() == other.state_dict()["state"].keys()


@pytest.mark.parametrize("dense_in", [(), (0, 1), (3,)])
def test_a_row_follows_adamw_over_its_own_steps(parts, dense_in):
    """In the steps `dense_in` the gradient is dense, so every row has one."""
    parameter = table()
    alone = [nn.Parameter(row.detach().clone()) for row in parameter]
    each = [torch.optim.AdamW([row], **SETTINGS) for row in alone]
    optimizer = RowAdamW([parameter], **SETTINGS)
    untouched = torch.ones(len(parameter), dtype=torch.bool)
    for step, (rows, grad) in enumerate(gradients(parameter)):
        before = parameter.detach().clone()
        if step in dense_in:
            rows, parameter.grad = torch.arange(len(parameter)), grad.clone()
        else:
            backward(parameter, rows, grad)
        optimizer.step()
        for row in rows.tolist():
            alone[row].grad = grad[row].clone()
            each[row].step()
        torch.testing.assert_close(parameter.detach(), torch.stack(list(alone)).detach())
        others = torch.ones(len(parameter), dtype=torch.bool)
        others[rows] = False
        assert torch.equal(parameter[others], before[others])
        untouched &= others
    state = optimizer.state[parameter]
    for name in ("exp_avg", "exp_avg_sq", "row_steps"):
        assert not state[name][untouched].any()


def test_scaled_gradients():
    one, other = table(), table()
    optimizers = [RowAdamW([p], **SETTINGS) for p in (one, other)]
    optimizers[0].grad_scale = torch.tensor(4.0)
    for rows, grad in gradients(one):
        backward(one, rows, grad)
        backward(other, rows, grad / 4)
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("how", ["state dict", "tensors"])
def test_saved_and_restored(how):
    parameters = nn.ParameterDict({"a": table(), "b": table(4)})
    optimizer = RowAdamW(parameters.values(), **SETTINGS)

    def go_on(parameters, optimizer, seen):
        for rows, grad in list(gradients(table(), 2 * STEPS))[seen : seen + STEPS]:
            backward(parameters["a"], rows, grad)
            parameters["b"].grad = grad[:4].clone()
            optimizer.step()

    go_on(parameters, optimizer, 0)
    again = nn.ParameterDict({"a": table(), "b": table(4)})
    other = RowAdamW(again.values(), **SETTINGS)
    if how == "tensors":
        saved = {k: v.clone() for k, v in saved_tensors(parameters, optimizer, None).items()}
        assert saved["optimizer.0.row_steps"].dtype == torch.int32
        restore_tensors(again, other, saved)
    else:
        again.load_state_dict(parameters.state_dict())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[again["a"]]["row_steps"].dtype == torch.int32
    go_on(parameters, optimizer, STEPS)
    go_on(again, other, STEPS)
    for name in parameters:
        assert torch.equal(parameters[name], again[name])


def test_a_state_of_adamw_is_loaded():
    one, other = table(), table()
    before = torch.optim.AdamW([one], **SETTINGS)
    for _, grad in gradients(one):
        one.grad = grad
        before.step()
    after = RowAdamW([other], **SETTINGS)
    other.data.copy_(one.data)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    everywhere = torch.arange(len(one))
    for _, grad in gradients(one):
        one.grad = grad
        before.step()
        backward(other, everywhere, grad)
        after.step()
        torch.testing.assert_close(one, other)


def descent(embeddings, rows, dropout=0.5, transitions="flat", **more):
    support = Blocked.of(torch.arange(12) % 3, 24)
    options = NeuralOptions(width=8, embeddings=embeddings, transitions=transitions)
    params = build("neural", options, support, 0, seed=1)
    settings = TrainingSettings(rows=rows, schedule="constant", lr=0.01, **more)
    loss = Likelihood(params, dropout)
    return Descent(params, loss, settings, make_schedule(settings, 10))


def window(seed, words=12):
    ids = torch.randint(words, (4, 6), generator=torch.Generator().manual_seed(seed))
    return Window(ids, torch.full((4,), 6))


def one_step(update, windows, step=0):
    update.begin()
    for number in windows:
        update.accumulate(window(number), update.initial_state(4), torch.tensor(step * 10 + number))
    norm = update.norm()
    update.apply(update.size(step))
    return norm


EMBEDDINGS = ["independent", "split", "factored"]


@pytest.mark.parametrize("embeddings", EMBEDDINGS)
@pytest.mark.parametrize("clip", [0.0, 0.1])
@pytest.mark.parametrize("windows", [[1], [1, 2, 3]])
@pytest.mark.parametrize("transitions", ["flat", "two-level"])
def test_a_step_of_training(embeddings, clip, windows, transitions):
    """The first step is that of AdamW in all rows that had a gradient; the others stay."""
    by_rows, plainly = (
        descent(embeddings, rows, clip=clip, transitions=transitions) for rows in ("touched", "all")
    )
    first = {name: p.detach().clone() for name, p in by_rows.params.named_parameters()}
    assert one_step(by_rows, windows) == pytest.approx(float(one_step(plainly, windows)), rel=1e-5)
    sparse = 0
    for (name, mine), theirs in zip(
        by_rows.params.named_parameters(), plainly.params.parameters(), strict=True
    ):
        if not mine.grad.is_sparse:
            torch.testing.assert_close(mine, theirs)
            continue
        sparse += 1
        touched = torch.zeros(len(mine), dtype=torch.bool)
        touched[mine.grad._indices()[0]] = True
        assert touched.any() and touched.sum() >= len(mine.grad._indices()[0])
        torch.testing.assert_close(mine[touched], theirs[touched])
        assert torch.equal(mine[~touched], first[name][~touched])
    assert sparse == {"independent": 1, "split": 4, "factored": 1}[embeddings]


def test_without_dropout_it_is_adamw():
    """Gradients are dense, and those of embeddings, of words too, are read by rows."""
    by_rows, plainly = (descent("split", rows, dropout=0.0) for rows in ("touched", "all"))
    for update in (by_rows, plainly):
        update.params.double()  # AdamW makes large what is left of a gradient of zero in float32
    for step in range(3):
        norms = [float(one_step(update, [1], step)) for update in (by_rows, plainly)]
        assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    for mine, theirs in zip(by_rows.params.parameters(), plainly.params.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    counts = by_rows.optimizer.state[by_rows.params.word_embedding()]["row_steps"]
    assert counts.tolist() == [3] * 12


@pytest.mark.parametrize("embeddings", EMBEDDINGS)
def test_rows_that_fill_up_a_number_are_not_touched(embeddings):
    """A captured step of two levels takes blocks that do not occur, to have always as many."""
    exactly, filled = (descent(embeddings, "touched", transitions="two-level") for _ in range(2))
    filled.loss.most_blocks = 3
    for step in range(4):
        for update in (exactly, filled):
            update.begin()
            words = 2 if step % 2 else 12  # of two blocks, or all three
            key = torch.tensor(step)
            update.accumulate(window(step, words), update.initial_state(4), key)
            update.norm()
            update.apply(0.1)
    for one, other in zip(exactly.params.parameters(), filled.params.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        if one.grad.is_sparse:
            assert len(one.grad._indices()[0]) < len(other.grad._indices()[0])
            found, expected = (u.optimizer.state[p] for u, p in ((filled, other), (exactly, one)))
            assert torch.equal(found["row_steps"], expected["row_steps"])


def test_frozen_embeddings_stay():
    update = descent("split", "touched")
    tables = update.params.state_embeddings()
    first = [t.detach().clone() for t in tables]
    for frozen in (True, False):
        for t in tables:
            t.requires_grad_(not frozen)
        one_step(update, [1])
        for t, was in zip(tables, first, strict=True):
            assert torch.equal(t, was) == frozen
