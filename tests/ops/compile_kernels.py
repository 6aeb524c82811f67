"""Compile every kernel for a Hopper GPU; needs no GPU. `test_compiles` runs this in two processes.

Triton's interpreter accepts programs that its compiler does not, so both are tried without a GPU.
"""

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
        name = self.fn.__name__
        assert kernel.metadata.shared <= SHARED_MEMORY, f"{name}: {kernel.metadata.shared} bytes"
        used[name] = kernel.metadata.shared

    return compile_for


SHARED_MEMORY = 232_448  # bytes that a program may have there on a Hopper GPU
used: dict[str, int] = {}
triton.runtime.driver.set_active(NoDevice())
JITFunction.__getitem__ = compile_only

from bighmm.model.support import Partition  # noqa: E402
from bighmm.ops import (  # noqa: E402
    blocked_chain_triton,
    blocked_emission_triton,
    carried_triton,
    chain_triton,
    dense_chain_triton,
    dropout_mask_triton,
    gather_triton,
    residual_triton,
    rounding_triton,
    row_norm_triton,
)


def half(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


def row_norm(width):
    rows, columns = 20_000, 256
    leaving, entering = half(rows, width), half(columns, width)
    norm = torch.zeros(rows)
    for bias in (None, torch.zeros(columns)):
        for with_mean in (False, True):
            row_norm_triton.forward(leaving, entering, bias, with_mean)
        for many_zeros in (False, True):
            row_norm_triton.backward(leaving, entering, bias, norm, norm, many_zeros)


def blocked_chain(alive, width):
    batch, time, states = 4, 8, 4 * alive
    blocks = torch.zeros(batch, time, dtype=torch.int32)
    lengths = torch.zeros(batch, dtype=torch.int32)
    carried = (lengths.long(), lengths.bool())
    chain = blocked_chain_triton.describe(
        blocks.long(), blocks.bool(), lengths.long(), carried, torch.zeros(9, dtype=torch.long)
    )
    ids = torch.zeros(batch, alive, dtype=torch.long)
    carried_triton.onto(lengths.long(), ids, ids.float(), torch.arange(4 * alive), alive)
    operands = (half(states, width), half(states, width))
    norm, emitted = torch.zeros(states), torch.zeros(batch, time, alive)
    tiles = blocked_chain_triton.make_tiles(chain, *operands, norm, norm, emitted)
    for wanted in (False, True):
        sweeps = chain_triton.sweep(lengths, emitted[:, 0], tiles, wanted)
    weight = torch.zeros(batch)
    chain_triton.counts(lengths, tiles.logs, sweeps, weight)
    uses = blocked_chain_triton.marginals(chain, sweeps, weight, states)
    grads = (torch.zeros(states, width), torch.zeros(states, width))
    factors = (uses.left, uses.right)
    blocked_chain_triton.pull_back(chain, operands, tiles.logs, factors, weight, grads)


def blocked_emission(alive, width):
    partition = Partition(torch.arange(200) % 4, 4)
    emit, words, bias = half(4 * alive, width), half(200, width), torch.zeros(200)
    table = blocked_emission_triton.forward(partition, emit, words, bias)
    blocked_emission_triton.backward(partition, emit, words, table, table)


def dense_chain(states, width):
    batch = 4
    operands = (half(states, width), half(states, width))
    matrix, sums = dense_chain_triton.make_matrix(*operands, torch.zeros(states))
    dense_chain_triton.weigh_matrix(matrix, matrix)
    wide, vector, w = torch.zeros(batch, states), torch.zeros(batch), half(batch, states)
    flag = vector.bool()
    fixed = (sums, sums, sums)
    step = (wide, wide, vector, flag, flag)
    dense_chain_triton.observe(step, (w, vector), (w, vector), fixed, (vector, vector))
    dense_chain_triton.step_back((wide, flag), (wide, flag), fixed[1:], (w, vector))
    vectors, line, flags = w.unsqueeze(0), vector.unsqueeze(0), flag.unsqueeze(0)
    behind = (vectors, wide.unsqueeze(0), line, flags)
    dense_chain_triton.combine(
        (vectors, line, sums), behind, (line, line, flags), (vector, line), (vectors, vectors)
    )


def residual(width):
    x, vector = half(100, width), torch.zeros(width)
    residual_triton.add_relu(x, vector)
    residual_triton.weighted_sum(x.float(), torch.zeros(100))
    residual_triton.row_products(x.float(), vector)
    gather_triton.spread(x.float(), torch.arange(100), 200)
    residual_triton.add_relu_backward(x, x, x, x)
    _, centre, spread = residual_triton.add_norm(x, vector, x, vector, vector, 1e-5)
    residual_triton.add_norm_backward(x.float(), x, vector, x, vector, centre, spread)


def blocked():
    for alive, width in ((16, 64), (128, 256), (100, 256), (256, 256), (512, 512)):
        blocked_chain(alive, width)
        blocked_emission(alive, width)


def others():
    for width in (100, 256, 512):
        row_norm(width)
    for states, width in ((500, 256), (512, 384), (512, 512), (16384, 256)):
        dense_chain(states, width)
    for width in (64, 256, 512, 1600):
        residual(width)
    rounding_triton.to_bfloat16_values(torch.zeros(10))
    for size in (32, 1024):
        dropout_mask_triton.draw(4, size, size // 2, torch.zeros((), dtype=torch.long))
    square = gather_triton.take_square(torch.zeros(200, 200), torch.arange(100))
    gather_triton.spread_square(square, torch.arange(100), 200)


if __name__ == "__main__":
    parts = {"blocked": blocked, "others": others}
    for part in sys.argv[1:] or parts:
        parts[part]()
    print(f"compiled {sorted(used)}")
