"""How gradients and moments are shared by processes, as one of them sees it; nothing is sent."""

import torch
from torch import nn

from bighmm.base import processes
from bighmm.base.processes import Processes
from bighmm.ops import row_norm as operation
from bighmm.ops.row_norm import row_norm
from bighmm.train.gradients import GradientSum
from bighmm.train.row_adamw import RowAdamW
from bighmm.train.sharding import ShardedAdamW


class Noting(Processes):
    """One of several processes, the others of which do nothing."""

    noted: list

    def begin_sum(self, tensors):
        self.noted.append([tensor.numel() for tensor in tensors])
        return lambda: None

    def from_first(self, value):
        return value

    def exchange_(self, tensors):
        self.noted.append(len(tensors))

    def rows_on_first(self, tensor):
        return tensor


def place(number, count):
    here = Noting(number, count)
    object.__setattr__(here, "noted", [])
    return here


def test_buckets_are_sent_during_the_backward_pass(monkeypatch):
    monkeypatch.setattr(processes, "BUCKET", 12)
    layers, here = nn.ModuleList(nn.Linear(3, 3) for _ in range(3)), place(0, 2)
    summed, sent = GradientSum(layers.parameters(), here), []
    for _ in range(3):
        here.noted.clear()
        x = torch.ones(3)
        for layer in layers:
            x = layer(x)
            if layer is layers[0]:
                x.register_hook(lambda grad: sent.append(len(here.noted)))
        with summed.collecting():
            x.sum().backward()
        summed.finish()
        assert sorted(n for bucket in here.noted for n in bucket) == [3] * 3 + [9] * 3
        assert len(here.noted) == 3
    assert sent == [0, 2, 2]  # in the first step their order is not known yet
    here.noted.clear()
    layers[0](torch.ones(3)).sum().backward()  # of somebody else
    assert not here.noted


def test_a_process_normalises_its_own_rows(monkeypatch):
    leaving, entering = (torch.randn(7, 2, requires_grad=True) for _ in range(2))
    whole = row_norm(leaving, entering)
    whole.backward(torch.arange(7.0))
    expected, calls = [leaving.grad.clone(), entering.grad.clone()], []
    parts = []
    forward = operation.plain.forward
    monkeypatch.setattr(
        operation.plain, "forward", lambda *given: calls.append(len(given[0])) or forward(*given)
    )
    for number in range(3):
        leaving.grad = entering.grad = None
        here = place(number, 3)
        monkeypatch.setattr(processes, "_current", here)
        with processes.in_step():
            norm = row_norm(leaving, entering, of_model=True)
        own = here.share(7)
        torch.testing.assert_close(norm[own], whole[own])
        norm.data.copy_(whole.data)  # as the sum over all processes would be
        norm.backward(torch.arange(7.0))
        parts.append([leaving.grad, entering.grad])
    assert calls == [2, 2, 3]
    for found, right in zip(map(sum, zip(*parts, strict=True)), expected, strict=True):
        torch.testing.assert_close(found, right)
    row_norm(leaving, entering, of_model=True)  # outside of a step
    assert calls[-1] == 7


def test_a_process_has_the_moments_of_its_rows():
    torch.manual_seed(1)
    table, bias = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.randn(2))
    before, here = table.detach().clone(), place(1, 3)

    def make(groups, tables):
        return RowAdamW(groups, tables=tables, lr=0.1)

    groups = [{"params": [table, bias], "weight_decay": 0.0}]
    optimizer = ShardedAdamW(groups, make, here, [table])
    rows = torch.tensor([1, 3, 7])
    table.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), torch.ones(3, 3), (8, 3))
    bias.grad = torch.ones(2)
    optimizer.step()
    changed = (table != before).any(1).nonzero().squeeze(1).tolist()
    assert here.share(8) == slice(2, 5) and changed == [1, 3, 7]
    torch.testing.assert_close(table[3], before[3] - 0.1)
    assert not table[[1, 7]].any()  # to which the sum would add what their processes have
    state = optimizer.state_dict()["state"]
    assert state[0]["exp_avg"].shape == (3, 3) and state[1]["exp_avg"].shape == (2,)
    assert state[0]["row_steps"].tolist() == [0, 1, 0]
    optimizer.forget()
    optimizer.load_moment(0, "row_steps", torch.arange(8))
    assert optimizer.state_dict()["state"][0]["row_steps"].tolist() == [2, 3, 4]
