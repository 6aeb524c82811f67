"""The compiled loops for small dense models against the torch forms, which are the reference."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from bighmm import HMM
from bighmm.infer import loops
from bighmm.infer.sequences import unchecked
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import Dense
from bighmm.model.transitions import Table
from bighmm.ops import impl as choice
from bighmm.ops import memory, table_chain
from bighmm.train.expectation_maximisation import baum_welch, improved

numba = pytest.importorskip("numba")
from bighmm.ops.table_chain import preparing, refitting  # noqa: E402

TYPES = [torch.float32, torch.float64]
SIZES = [(1, 3, 2, 5), (3, 4, 9, 17), (7, 5, 5, 40), (16, 8, 3, 33), (65, 11, 6, 20)]
SPREAD = {"mild": 1.0, "sharp": 30.0, "extreme": 500.0}  # of logits: lowest log p about -1500


def model(states, words, kind, dtype, seed=0, end=None):
    draw = torch.Generator().manual_seed(seed)

    def log_probs(*shape):
        logits = torch.randn(shape, dtype=torch.float64, generator=draw) * SPREAD.get(kind, 1.0)
        if kind == "zeros":
            zero = torch.rand(shape, generator=draw) < 0.6
            one = torch.randint(shape[-1], (*shape[:-1], 1), generator=draw)
            zero.scatter_(-1, one, False)  # not always the first: its probability may be zero, too
            logits = logits.masked_fill(zero, -torch.inf)
        return logits.log_softmax(-1).to(dtype)

    emission = log_probs(states, words).T.contiguous()
    transitions = Table(log_probs(states, states), normalised=True)
    support = Dense(states, words)
    return HMM(log_probs(states), transitions, EmissionTable(emission), support, end)


def rows(words, batch, time, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, words, (batch, time), generator=draw)
    lengths = torch.randint(0, time + 1, (batch,), generator=draw)
    lengths[0] = time
    return ids, lengths


def both(ask):
    return ask("torch"), ask("compiled")


def close(plain, fast, dtype, factor=1.0):
    tolerance = (1e-9 if dtype == torch.float64 else 2e-5) * factor
    torch.testing.assert_close(fast, plain, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["mild", "zeros", "sharp", "extreme"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("end", [None, 2])
def test_every_question_has_the_same_answer(size, kind, dtype, end):
    states, words, batch, time = size
    hmm = model(states, words, kind, dtype, end=end)
    ids, lengths = rows(words, batch, time)
    digits = 10.0 if kind == "extreme" else 1.0  # differences of logarithms as large as 1500
    close(*both(lambda i: hmm.log_prob(ids, lengths, impl=i)), dtype)
    plain, fast = both(lambda i: hmm.posterior(ids, lengths, impl=i))
    close(plain.log_prob, fast.log_prob, dtype)
    close(plain.marginals, fast.marginals, dtype, digits)
    assert torch.equal(plain.states, fast.states)
    plain, fast = both(lambda i: hmm.viterbi(ids, lengths, impl=i))
    close(plain.log_prob, fast.log_prob, dtype)
    possible = fast.log_prob > -torch.inf
    assert bool((fast.states[~possible] == -1).all())
    inside = torch.arange(time) < lengths.unsqueeze(1)
    assert torch.equal(fast.states >= 0, inside & possible.unsqueeze(1))
    known = hmm.joint_log_prob(ids, fast.states, lengths)  # ties may be broken in another way
    close(fast.log_prob[possible], known[possible], dtype)
    plain, fast = both(lambda i: hmm.expected_counts(ids, lengths, impl=i))
    for of_plain, of_fast in zip(plain, fast, strict=True):
        close(of_plain, of_fast, dtype, 10 * digits)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["mild", "zeros", "extreme"])
@pytest.mark.parametrize("size", [(3, 4, 4, 9), (9, 5, 3, 12)], ids=str)
def test_k_best_paths(size, kind, dtype):
    states, words, batch, time = size
    hmm = model(states, words, kind, dtype, end=1)
    ids, lengths = rows(words, batch, time)
    for k in (1, 2, 7):
        plain, fast = both(lambda i, k=k: hmm.best_paths(ids, k, lengths, impl=i))
        close(plain.log_prob, fast.log_prob, dtype)
        for n in range(k):
            there = fast.log_prob[:, n] > -torch.inf
            known = hmm.joint_log_prob(ids, fast.states[:, n], lengths)
            close(fast.log_prob[there, n], known[there], dtype)
            assert bool((fast.states[~there, n] == -1).all())


@pytest.mark.parametrize("size", [(3, 4), (30, 17)], ids=str)
def test_samples_are_those_of_torch(size):
    hmm = model(*size, "mild", torch.float64, end=1)
    for given in ({"length": 9}, {"length": 7, "prefix": [0, 2]}, {"max_length": 200}):
        plain, fast = both(
            lambda i, given=given: hmm.sample(
                20, generator=torch.Generator().manual_seed(3), impl=i, **given
            )
        )
        assert torch.equal(plain, fast)


@pytest.mark.parametrize("kind", ["mild", "zeros", "extreme"])
@pytest.mark.parametrize("states", [3, 20])
def test_windows_that_go_on_from_a_carry(states, kind):
    hmm = model(states, 5, kind, torch.float64, end=2)
    ids, lengths = rows(5, 6, 23)
    whole = hmm.log_prob(ids, lengths)
    carry, total = hmm.carry_after(torch.zeros(6, 0, dtype=torch.long)), torch.zeros(6).double()
    sequences = unchecked(hmm, ids, lengths)
    for first in range(0, 23, 5):
        window = sequences.window(first, first + 5)
        plain, after = hmm.advance(window, carry, impl="torch")
        found, carry = hmm.advance(window, carry, impl="compiled")
        close(plain, found, torch.float64)
        close(after.log_alpha, carry.log_alpha, torch.float64)
        total += found
    close(whole, total, torch.float64)


def test_mass_that_returns_from_below_the_smallest_number():
    """Two halves that never meet: what begins at 1e-200 explains the text far better in the end."""
    start = torch.tensor([0.0, -460.0]).double()
    moves = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]).double()
    words = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).double().log()  # (Z, V)
    emissions = EmissionTable(words.T.contiguous())
    hmm = HMM(start, Table(moves, normalised=True), emissions, Dense(2, 2))
    for dtype in TYPES:
        small = hmm.to("cpu", dtype)
        ids = torch.ones(1, 400, dtype=torch.long)
        plain, fast = both(lambda i, small=small, ids=ids: small.posterior(ids, impl=i))
        close(plain.log_prob, fast.log_prob, dtype)
        close(plain.marginals, fast.marginals, dtype)
        assert float(fast.marginals[0, 0, 1]) > 0.99


@pytest.mark.parametrize("states", [2, 5, 9])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_first_state_that_nothing_begins_with(states, dtype):
    start = torch.eye(states, dtype=dtype)[-1]  # in the last state, then round and round
    moves = torch.roll(torch.eye(states, dtype=dtype), 1, dims=1)
    emission = torch.full((states, 2), 0.5, dtype=dtype)
    hmm = HMM.from_probs(start, moves, emission)
    plain, fast = both(lambda i: hmm.viterbi(torch.zeros(1, 4, dtype=torch.long), impl=i))
    assert fast.states.tolist() == plain.states.tolist() == [[states - 1, 0, 1, 2 % states]]
    close(plain.log_prob, fast.log_prob, dtype)
    assert float(fast.log_prob[0]) == pytest.approx(4 * math.log(0.5))


def test_impossible_words_and_empty_rows():
    hmm = HMM.from_probs(
        torch.tensor([1.0, 0.0]), torch.eye(2), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    )
    ids = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    lengths = torch.tensor([3, 3, 0])
    assert hmm.log_prob(ids, lengths, impl="compiled").tolist() == [0.0, -torch.inf, 0.0]
    assert hmm.viterbi(ids, lengths, impl="compiled").states.tolist() == [
        [0, 0, 0],
        [-1, -1, -1],
        [-1, -1, -1],
    ]
    found = hmm.posterior(ids, lengths, impl="compiled").marginals.sum((1, 2)).tolist()
    assert found == [3.0, 0.0, 0.0]
    counts = hmm.expected_counts(ids, lengths, impl="compiled")
    assert counts.transition.tolist() == [[2.0, 0.0], [0.0, 0.0]]


def test_only_words_that_occur_of_a_large_vocabulary(monkeypatch):
    hmm = model(5, 30, "mild", torch.float64, end=7)
    ids, lengths = rows(30, 4, 6)
    plain = hmm.expected_counts(ids, lengths, impl="torch")
    monkeypatch.setattr(memory, "STREAMED", 10)
    fast = hmm.expected_counts(ids, lengths, impl="compiled")
    for of_plain, of_fast in zip(plain, fast, strict=True):
        close(of_plain, of_fast, torch.float64)


def test_rows_on_several_threads(monkeypatch):
    from bighmm.ops import jit

    hmm = model(12, 5, "mild", torch.float64)
    ids, lengths = rows(5, 9, 30)
    alone = hmm.expected_counts(ids, lengths)
    monkeypatch.setattr(jit, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    together = hmm.expected_counts(ids, lengths)
    for one, other in zip(alone, together, strict=True):
        close(one, other, torch.float64)


def test_pieces_that_fit_in_memory(monkeypatch):
    hmm = model(6, 4, "mild", torch.float64)
    ids, lengths = rows(4, 7, 30)
    whole = (
        hmm.posterior(ids, lengths),
        hmm.viterbi(ids, lengths),
        hmm.expected_counts(ids, lengths),
    )
    monkeypatch.setattr(memory, "WORKING", 400)
    parts = (
        hmm.posterior(ids, lengths),
        hmm.viterbi(ids, lengths),
        hmm.expected_counts(ids, lengths),
    )
    for of_whole, of_parts in zip(whole, parts, strict=True):
        for one, other in zip(of_whole, of_parts, strict=True):
            close(one, other, torch.float64)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", ["mild", "zeros"])
@pytest.mark.parametrize(("size", "smoothing"), [(1.0, 0.0), (0.3, 0.5)])
def test_new_probabilities(kind, size, smoothing, dtype):
    """A state that is not used, and what is impossible, stay as they are to the last bit."""
    hmm = model(6, 4, kind, dtype)
    counts = hmm.expected_counts(torch.zeros(2, 5, dtype=torch.long))
    counts.transition[2] = 0.0
    plain = improved(hmm, counts, size, smoothing)
    old, new = hmm.transitions.log_probs(), plain.transitions.log_probs()
    tables = refitting.LogTables(hmm.start.numpy(), old.numpy(), hmm.emission.numpy())
    of_counts = refitting.LogTables(*(count.numpy() for count in counts[1:]))
    fast = refitting.shares(tables, of_counts, size, (smoothing,) * 3)
    for one, other in zip((plain.start, new, plain.emission), fast, strict=True):
        close(one, torch.from_numpy(other), dtype)
    assert np.array_equal(fast.moves[2], old[2].numpy())


def test_gradients_stay_with_torch():
    hmm = model(4, 3, "mild", torch.float64)
    start = hmm.start.clone().requires_grad_()
    asked = HMM(start, hmm.transitions, hmm.emissions, hmm.support)
    ids = torch.zeros(2, 6, dtype=torch.long)
    asked.log_prob(ids).sum().backward()
    close(hmm.expected_counts(ids).start, start.grad, torch.float64)


@pytest.mark.parametrize("cells", [0, 2**12])
@pytest.mark.parametrize("part", ["start", "transitions", "emissions"])
def test_numbers_that_are_none_are_left_to_torch(part, cells, monkeypatch):
    monkeypatch.setattr(preparing, "FEW_CELLS", cells)
    hmm = model(4, 3, "mild", torch.float64)
    nothing = {
        "start": hmm.start * torch.nan,
        "transitions": Table(hmm.transitions.log_probs() * torch.nan, normalised=True),
        "emissions": EmissionTable(hmm.emission * torch.nan),
    }[part]
    broken = dataclasses.replace(hmm, **{part: nothing})
    assert loops.prepare(broken, unchecked(broken, *rows(3, 2, 4))) is None
    assert bool(broken.log_prob(torch.zeros(1, 4, dtype=torch.long)).isnan().all())


@pytest.mark.parametrize("kind", ["mild", "zeros", "extreme"])
def test_tables_are_the_same_however_they_are_made(kind, monkeypatch):
    hmm = model(5, 7, kind, torch.float32)
    hmm.emission[3] = -torch.inf  # a word that no state emits
    makers = [(preparing.prepare_matrix, hmm.transitions.log_probs())]
    makers.append((preparing.prepare_words, hmm.emission))
    looped = [make(table) for make, table in makers]
    monkeypatch.setattr(preparing, "FEW_CELLS", 0)
    for (make, table), found in zip(makers, looped, strict=True):
        for one, other in zip(make(table), found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-30)


def test_without_numba(monkeypatch):
    hmm = model(4, 3, "mild", torch.float64)
    ids = torch.zeros(2, 6, dtype=torch.long)
    fast = hmm.log_prob(ids)
    monkeypatch.setattr(choice, "_numba_installed", lambda: False)
    close(hmm.log_prob(ids), fast, torch.float64)
    with pytest.raises(ValueError, match=r"needs the package numba, which bighmm\[fast\] installs"):
        hmm.log_prob(ids, impl="compiled")


@pytest.mark.parametrize("kind", ["mild", "zeros", "extreme"])
@pytest.mark.parametrize("end", [None, 2])
@pytest.mark.parametrize("states", [5, 20])
def test_iterations_of_baum_welch_are_those_of_torch(states, kind, end, monkeypatch):
    hmm = model(states, 4, kind, torch.float64, end=end)
    ids, lengths = rows(4, 6, 20)
    lengths = torch.where(hmm.log_prob(ids, lengths).isfinite(), lengths.clamp(min=1), 0)
    settings = {"iterations": 5, "step_size": 0.7, "smoothing": 0.01}
    fast = baum_welch(hmm, ids, lengths, **settings)
    monkeypatch.setattr(choice, "_numba_installed", lambda: False)
    plain = baum_welch(hmm, ids, lengths, **settings)
    np.testing.assert_allclose(fast.log_probs, plain.log_probs, rtol=1e-9)
    close(plain.hmm.emission.exp(), fast.hmm.emission.exp(), torch.float64)


def test_an_iteration_needs_rows_that_are_possible():
    hmm = model(3, 3, "mild", torch.float64)
    never = torch.tensor([[0.0, 0.5, 0.5]] * 3).log().T.contiguous()
    hmm = dataclasses.replace(hmm, emissions=EmissionTable(never.double()))
    with pytest.raises(ValueError, match="row 1 of tokens has probability zero"):
        baum_welch(hmm, torch.tensor([[1, 2], [1, 0]]))


def test_ids_outside_the_vocabulary_are_refused_in_any_form():
    hmm = model(3, 4, "mild", torch.float64)
    for wrong in (-1, 4):
        for form in (torch.tensor, np.array, list):
            with pytest.raises(ValueError, match=f"token id {wrong} in row 1, position 2"):
                hmm.log_prob(form([[0, 1, 2], [0, 1, wrong]]))


def test_where_no_cache_can_be_written(tmp_path):
    """numba refuses to cache if it finds no folder; then the loops are compiled all the same."""
    program = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from bighmm.ops.jit import jit\n"
        "print(jit()(lambda x: x + 1)(1))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_shares_of_logits(dtype):
    draw = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(6, 6, dtype=dtype, generator=draw)
    logits[0, 1:] = logits[1] = -torch.inf
    logits[2, 3] = torch.nan
    close(logits - logits.logsumexp(1, keepdim=True), table_chain.row_log_shares(logits), dtype)
