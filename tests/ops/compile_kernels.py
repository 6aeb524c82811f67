"""Compile every kernel for a Hopper GPU; needs no GPU. `test_compiles` runs this in two processes.

Triton's interpreter accepts programs that its compiler does not, so both are tried without a GPU.
"""

import importlib
import inspect
import json
import pkgutil
import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


class NoDevice:
    """What the compiler asks of a driver."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


def compile_only(self, grid):
    def compile_for(*args, **options):
        kernel = self.run(*args, grid=grid, warmup=True, **options)
        name = f"{self.fn.__module__}.{self.fn.__name__}"
        assert kernel.metadata.shared <= SHARED_MEMORY, f"{name}: {kernel.metadata.shared} bytes"
        used[name] = kernel.metadata.shared

    return compile_for


SHARED_MEMORY = 232_448  # bytes that a program may have there on a Hopper GPU
used: dict[str, int] = {}
triton.runtime.driver.set_active(NoDevice())
JITFunction.__getitem__ = compile_only

import bighmm.ops  # noqa: E402
from bighmm.ops.block_choice import triton as choices  # noqa: E402
from bighmm.ops.blocked_emission import triton as blocked_emissions  # noqa: E402
from bighmm.ops.carry import triton as carries  # noqa: E402
from bighmm.ops.chain import triton as chains  # noqa: E402
from bighmm.ops.dense_chain import triton as dense_chains  # noqa: E402
from bighmm.ops.feature_dropout import triton as feature_dropouts  # noqa: E402
from bighmm.ops.flat_chain import triton as flat_chains  # noqa: E402
from bighmm.ops.gather import triton as gathers  # noqa: E402
from bighmm.ops.many_adamw import triton as many_adamws  # noqa: E402
from bighmm.ops.partition import Partition  # noqa: E402
from bighmm.ops.present_blocks import triton as present_blocks  # noqa: E402
from bighmm.ops.residual import triton as residuals  # noqa: E402
from bighmm.ops.rounding import triton as roundings  # noqa: E402
from bighmm.ops.row_adamw import Moments, Rates  # noqa: E402
from bighmm.ops.row_adamw import triton as row_adamws  # noqa: E402
from bighmm.ops.row_norm import triton as row_norms  # noqa: E402
from bighmm.ops.state_dropout import triton as dropouts  # noqa: E402
from bighmm.ops.two_level_chain import triton as two_level_chains  # noqa: E402
from bighmm.ops.windows import Windows  # noqa: E402
from bighmm.ops.windows import triton as in_windows  # noqa: E402


def half(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


def row_norm(width):
    rows, columns = 20_000, 256
    leaving, entering = half(rows, width), half(columns, width)
    norm = torch.zeros(rows)
    for bias in (None, torch.zeros(columns)):
        for with_mean in (False, True):
            row_norms.forward(leaving, entering, bias, with_mean)
        for many_zeros in (False, True):
            row_norms.backward(leaving, entering, bias, norm, norm, many_zeros)


def flat_chain(alive, width):
    batch, time, states = 4, 8, 4 * alive
    ids = torch.zeros(batch, time, dtype=torch.long)
    lengths = torch.zeros(batch, dtype=torch.int32)
    block_of, carried = torch.zeros(9, dtype=torch.long), torch.zeros(batch, alive)
    windows = Windows(
        *(ids, ids.bool(), lengths.long(), block_of, carried, lengths.long(), lengths.bool())
    )
    chain = in_windows.describe(windows)
    carries.renormalise(carried.long(), carried, carried.long())
    operands = (half(states, width), half(states, width))
    norm, emitted = torch.zeros(states), torch.zeros(batch, time, alive)
    tiles = flat_chains.make_tiles(chain, *operands, norm, norm, emitted)
    for wanted in (False, True):
        sweeps = chains.sweep(lengths, emitted[:, 0], tiles, wanted)
    weight = torch.zeros(batch)
    chains.counts(lengths, tiles.logs, sweeps, weight)
    uses = in_windows.marginals(chain, sweeps, weight, states)
    grads = (torch.zeros(states, width), torch.zeros(states, width))
    factors = (uses.left, uses.right)
    flat_chains.pull_back(chain, operands, tiles.logs, factors, weight, grads)
    chains.ends(lengths, sweeps)
    before = (ids[:, 0], carried, lengths.bool())
    carries.after_window(ids, lengths.long(), carried, before, 0)
    carries.states_of_blocks(ids[:, 0], block_of, torch.arange(alive), alive)
    vectors = two_level_chains.Vectors(*operands, torch.zeros(states, 4))
    _, factors = two_level_chains.make_tiles(chain, vectors, norm, emitted)
    grads = two_level_chains.empty_gradients(vectors)
    two_level_chains.pull_back(chain, vectors, factors, emitted, uses, weight, grads)


def blocked_emission(alive, width):
    partition = Partition(torch.arange(200) % 4, 4)
    emit, words, bias = half(4 * alive, width), half(200, width), torch.zeros(200)
    table = blocked_emissions.forward(partition, emit, words, bias)
    blocked_emissions.backward(partition, emit, words, table, table)


def dense_chain(states, width):
    batch = 4
    operands = (half(states, width), half(states, width))
    matrix, sums = dense_chains.make_matrix(*operands, torch.zeros(states))
    dense_chains.weigh_matrix(matrix, matrix)
    wide, vector, w = torch.zeros(batch, states), torch.zeros(batch), half(batch, states)
    flag = vector.bool()
    fixed = (sums, sums, sums)
    step = (wide, wide, vector, flag, flag)
    dense_chains.observe(step, (w, vector), (w, vector), fixed, (vector, vector))
    dense_chains.step_back((wide, flag), (wide, flag), fixed[1:], (w, vector))
    vectors, line, flags = w.unsqueeze(0), vector.unsqueeze(0), flag.unsqueeze(0)
    behind = (vectors, wide.unsqueeze(0), line, flags)
    dense_chains.combine(
        (vectors, line, sums), behind, (line, line, flags), (vector, line), (vectors, vectors)
    )


def residual(width):
    x, vector = half(100, width), torch.zeros(width)
    residuals.weighted_sum(x.float(), torch.zeros(100))
    residuals.row_products(x.float(), vector)
    gathers.spread(x.float(), torch.arange(100), 200)
    gathers.take_rounded(x.float(), torch.arange(10))
    residuals.add_relu(x, vector)
    *_, centre, spread = residuals.add_norm(x, vector, x, vector, vector, 1e-5)
    sums = residuals.empty_sums(1, 100, width, x.device)
    residuals.add_norm_backward(x.float(), x, vector, x, vector, centre, spread, sums[0])
    residuals.add_relu_backward(x, x, x, x, sums[0])
    residuals.summed(sums)


def feature_dropout(width):
    x, key = torch.zeros(100, width), torch.zeros((), dtype=torch.long)
    for ids, rate in ((None, 0.5), (torch.arange(100), 0.25)):
        lowest = round((rate - 0.5) * 2**63) * 2
        for shared in (False, True):
            feature_dropouts.drop(x, key, ids, rate, lowest, 2000, shared, rounded=ids is not None)


def row_adamw(width):
    table, grad, rate = torch.zeros(200, width), torch.zeros(100, width), torch.zeros(())
    moments = Moments(table, table, torch.zeros(200, dtype=torch.int32))
    rates = Rates(rate, 0.9, 0.999, 1e-8, 0.0)
    row_adamws.update(table, moments, torch.arange(100), grad, rates, rate)
    row_adamws.update(table, moments, None, table, rates, None)
    many_adamws.update(torch.zeros(1, 6, dtype=torch.long), grad, rates, rate)


def blocked():
    for alive, width in ((16, 64), (128, 256), (100, 256), (192, 256), (256, 256), (512, 512)):
        flat_chain(alive, width)
        blocked_emission(alive, width)


def others():
    for width in (100, 256, 512):
        row_norm(width)
    for states, width in ((500, 256), (512, 384), (512, 512), (16384, 256)):
        dense_chain(states, width)
    for width in (64, 256, 512, 1600):
        residual(width)
        feature_dropout(width)
        row_adamw(width)
    roundings.to_bfloat16_values(torch.zeros(10))
    for size in (32, 1024):
        for chosen in (None, torch.arange(2)):
            dropouts.draw(4, size, size // 2, torch.zeros((), dtype=torch.long), chosen)
    square = gathers.take_square(torch.zeros(200, 200), torch.arange(100))
    gathers.spread_square(square, torch.arange(100), 200)


def blocks():
    for number in (100, 4096):
        block_of = torch.arange(10_000) % number
        present_blocks.present_blocks(block_of, torch.arange(528), number, 64)
        logits, bias = torch.zeros(200, number), torch.zeros(number)
        for present in (None, torch.arange(64)):
            found, norm = choices.normalise(logits, bias, present)
            choices.pull_back(logits, bias, norm, found, present, torch.bfloat16)


def kernels():
    """Every function of `bighmm.ops` that is launched: compiled ones that no other one calls."""
    found, called = set(), set()
    for module in pkgutil.walk_packages(bighmm.ops.__path__, "bighmm.ops."):
        if not module.name.endswith(".triton"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, JITFunction) and value.fn.__module__ == module.name:
                found.add(f"{module.name}.{value.fn.__name__}")
                source = inspect.getsource(value.fn)
                for name, other in value.fn.__globals__.items():
                    if (
                        isinstance(other, JITFunction)
                        and other is not value
                        and f"{name}(" in source
                    ):
                        called.add(f"{other.fn.__module__}.{other.fn.__name__}")
    return {name for name in found if name not in called}


if __name__ == "__main__":
    parts = {"blocked": blocked, "blocks": blocks, "others": others}
    for part in sys.argv[1:] or parts:
        parts[part]()
    print(json.dumps({"compiled": sorted(used), "kernels": sorted(kernels())}))
