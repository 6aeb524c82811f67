"""Which training steps a GPU may capture as a graph: those in which the host decides nothing.

There need not be a GPU: the kernels run in Triton's interpreter, and every operation that torch is
asked for in a step is looked at.
"""

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bighmm.base import randomness
from bighmm.data.batches import Batch
from bighmm.infer.filter import can_be_captured
from bighmm.lm.baselines.awd_lstm import AWDLSTM
from bighmm.lm.baselines.recurrent_hmm import RecurrentHMM
from bighmm.lm.options import STAGES, AWDLSTMOptions, RecurrentHMMOptions
from bighmm.model import params
from bighmm.model.feature_dropout import FeatureRates
from bighmm.model.options import VARIANTS
from bighmm.train.averaging import Average
from bighmm.train.expectation_maximisation import ExpectationMaximisation
from bighmm.train.losses import CrossEntropy, LabelledLikelihood, Likelihood, Window
from bighmm.train.recipe import TrainingSettings
from bighmm.train.row_adamw import RowAdamW
from bighmm.train.schedule import make_schedule
from bighmm.train.update import Descent
from models import random_support

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("test_gpu captures the steps themselves", allow_module_level=True)


class Questions(TorchDispatchMode):
    """Operations whose result the host has to wait for, or that copy a number from it."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "lift_fresh")

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        by_index = name in ("index", "index_put", "index_put_", "_index_put_impl_")
        masks = by_index and any(i is not None and i.dtype == torch.bool for i in args[1])
        if masks or any(name.startswith(asked) for asked in self.NAMES):
            self.asked.append(name)
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Everything that has a Triton form takes it."""
    params.REGISTRY.all()  # what is imported on first use must not keep the patch
    for name, module in list(sys.modules.items()):
        if name.startswith("bighmm") and hasattr(module, "use_triton"):
            always = lambda tensor, impl="auto": impl in ("auto", "triton")  # noqa: E731
            monkeypatch.setattr(module, "use_triton", always)
        if name.startswith("bighmm") and hasattr(module, "use_compiled"):
            monkeypatch.setattr(module, "use_compiled", lambda tensor, impl="auto": False)


def stand_in(kind, support, operands, states=12, vocabulary=7):
    """The parameters of a small model."""
    options = params.find(kind).options
    given = {"width": 8} if kind == "neural" else {}
    made = params.build(kind, options(**given), random_support(support, states, vocabulary), 0, 1)
    made.matmul_dtype = operands
    return made


def one_step(module, dropout, step, **more):
    likelihood = Likelihood(module, dropout, **more)
    lengths = torch.tensor([5, 5, 3])
    ids = torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2], [3, 3, 1, 0, 0]])
    state, key = likelihood.initial_state(3), randomness.key(1, step)
    likelihood.prepare([Batch(ids.numpy(), lengths.numpy(), continues=False)])

    def run():
        loss, after = likelihood(Window(ids, lengths), state, key)
        loss.backward()
        return likelihood(Window(ids, lengths), after, key)[0]

    return run


CAPTURED = [
    ("scalar", "blocked", "float32"),
    ("scalar", "blocked", "bfloat16"),
    ("neural", "blocked", "float32"),
    ("neural", "blocked", "bfloat16"),
    ("neural", "dense", "bfloat16"),
    ("scalar", "dense", "bfloat16"),
]
PLAIN = [
    ("neural", "dense", "float32"),
    ("scalar", "dense", "float32"),
    ("neural", "per_token", "bfloat16"),
    ("scalar", "per_token", "bfloat16"),
]


@pytest.mark.parametrize("case", CAPTURED + PLAIN, ids="-".join)
def test_what_is_captured(case, as_on_a_gpu):
    assert can_be_captured(stand_in(*case)()) == (case in CAPTURED)


def test_without_kernels_no_hmm_is_captured(monkeypatch):
    monkeypatch.setattr("bighmm.ops.impl._triton_installed", lambda: False)
    assert not can_be_captured(stand_in("neural", "blocked", "bfloat16")())


def asked_in_a_step(case, dropout):
    run = one_step(stand_in(*case), dropout, 0)
    run()  # what is made once and kept is made before the capture
    with Questions() as questions:
        loss = run()
    assert torch.isfinite(loss)
    return questions.asked


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("case", [c for c in CAPTURED if c[1] == "blocked"], ids="-".join)
def test_a_captured_step_asks_the_host_nothing(case, dropout, as_on_a_gpu):
    assert asked_in_a_step(case, dropout) == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_step_with_masked_vectors_and_hidden_words_asks_nothing_either(shared, as_on_a_gpu):
    """And gives what the torch form gives, with the same masks."""
    more = {"features": FeatureRates(0.2, 0.3, 0.4, shared), "hidden_words": 0.3, "reset": False}
    results = []
    for operands in ("bfloat16", "float32"):  # the kernels, and torch
        module = stand_in("neural", "blocked", operands)
        run = one_step(module, 0.5, 0, **more)
        run()
        with Questions() as questions:
            results.append(run().detach())
        assert questions.asked == []
    assert float(results[0]) == pytest.approx(float(results[1]), rel=0.02)


@pytest.mark.parametrize("kind", ["neural", "scalar"])
def test_a_step_with_listed_states_asks_how_many_states_are_kept(kind, as_on_a_gpu):
    asked = asked_in_a_step((kind, "per_token", "bfloat16"), 0.5)
    assert asked == ["nonzero", "nonzero"]  # once in each of two windows


def test_the_torch_form_asks_whether_mass_was_lost(as_on_a_gpu):
    assert "_local_scalar_dense" in asked_in_a_step(("neural", "dense", "float32"), 0.0)


DENSE = ["scalar", *VARIANTS, "ablation-b, all direct", "ablation-b, emissions direct", "wide"]


def dense_stand_in(name):
    """A model of the paper's tables, small; "wide" has vectors too wide for the kernels."""
    kind, direct = name.partition(", ")[::2]
    options = {"width": 8} if kind != "scalar" else {}
    if direct:
        options["emission"] = "direct"
    if direct.startswith("all"):
        options |= {"start": "direct", "transitions": "table"}
    if name == "wide":
        kind, options = "monolithic-transformer", {"width": 520, "layers": 1}
    made = params.build(
        kind, params.find(kind).options(**options), random_support("dense", 12, 7), 0, 1
    )
    made.matmul_dtype = "bfloat16"
    return made


@pytest.mark.parametrize("labelled", [False, True], ids=["words", "words and states"])
@pytest.mark.parametrize("name", DENSE)
def test_dense_steps_of_every_kind_are_captured(name, labelled, as_on_a_gpu):
    module = dense_stand_in(name)
    assert can_be_captured(module())
    run = labelled_step(module) if labelled else one_step(module, 0.0, 0)
    run()
    with Questions() as questions:
        loss = run()
    assert torch.isfinite(loss)
    # Without a graph that is being captured, each of two windows asks whether mass was lost.
    assert questions.asked == ([] if labelled else ["_local_scalar_dense"] * 2)


def labelled_step(module):
    likelihood = LabelledLikelihood(module)
    ids = torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2], [3, 3, 1, 0, 0]])
    states = torch.tensor([[0, 11, 3, -1, 5], [6, 7, 1, 1, 2], [3, 9, 1, 0, 0]])
    window = Window(ids, torch.tensor([5, 5, 3]), states)
    state, key = likelihood.initial_state(3), randomness.key(1, 0)

    def run():
        loss, after = likelihood(window, state, key)
        loss.backward()
        return likelihood(window, after, key)[0]

    return run


@pytest.mark.parametrize("labelled", [False, True], ids=["words", "words and states"])
def test_steps_of_baum_welch_are_captured(labelled, as_on_a_gpu):
    module = dense_stand_in("scalar")
    settings = TrainingSettings(optimizer="baum-welch", smoothing=0.01)
    schedule = make_schedule(settings, 10)
    update = ExpectationMaximisation(module, settings, schedule, labelled)
    ids = torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2], [3, 3, 1, 0, 0]])
    states = torch.tensor([[0, 11, 3, 4, 5], [6, 7, 1, 1, 2], [3, 9, 1, 0, 0]])
    window = Window(ids, torch.tensor([5, 5, 3]), states if labelled else None)
    state, key = update.initial_state(3), randomness.key(1, 0)
    losses, sizes = [], [torch.tensor(update.size(step)) for step in range(3)]
    with Questions() as questions:
        for size in sizes:
            update.begin()
            loss, state = update.accumulate(window, state, key)
            losses.append(torch.stack([loss, update.norm()]))
            update.apply(size)
    assert questions.asked == []
    (first, _), (second, _), (third, _) = torch.stack(losses).tolist()
    assert third < second < first


@pytest.mark.parametrize("transitions", ["flat", "two-level"])
@pytest.mark.parametrize("embeddings", ["independent", "split", "factored"])
def test_steps_that_change_touched_rows_are_captured(embeddings, transitions, as_on_a_gpu):
    """Of the other parameters torch's AdamW takes care, which can be captured on a GPU alone."""
    chosen = {"embeddings": embeddings, "transitions": transitions}
    options = params.find("neural").options(width=8, **chosen)
    support = random_support("blocked", 12, 7)
    module = params.build("neural", options, support, 0, 1)
    module.matmul_dtype = "bfloat16"
    settings = TrainingSettings(rows="touched", state_dropout=0.5)
    tables = [p for p in module.parameters() if len(p) == support.num_states]
    optimizer = RowAdamW(tables, lr=torch.tensor(0.01), fused=True)
    loss, schedule = Likelihood(module, 0.5), make_schedule(settings, 10)
    update = Descent(module, loss, settings, schedule, optimizer)
    window = Window(torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2]]), torch.tensor([5, 5]))
    state, size = update.initial_state(2), torch.tensor(0.02)
    update.prepare([Batch(window.ids.numpy(), window.lengths.numpy(), continues=False)])

    def run(key):
        update.begin()
        update.accumulate(window, state, key)
        optimizer.grad_scale = update.norm().clamp(min=1.0)
        update.apply(size)

    run(randomness.key(1, 0))  # in which moments are made
    second, before = randomness.key(1, 1), [t.detach().clone() for t in tables]
    with Questions() as questions:
        run(second)
    assert questions.asked == []
    for table, was in zip(tables, before, strict=True):
        assert table.grad.is_sparse and 0 < (table != was).any(1).sum() < len(table)


def test_a_step_of_an_awd_lstm_with_averaging_asks_the_host_nothing():
    network = AWDLSTM(AWDLSTMOptions(width=8, embedding=4), 7)
    settings = TrainingSettings(clip=0.25, averaging=0.9)
    update = Descent(
        network,
        CrossEntropy(network, end=0),
        settings,
        make_schedule(settings, 10),
        average=Average(network, settings.averaging),
    )
    ids = torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2]])
    window, state = Window(ids, torch.tensor([5, 4])), update.initial_state(2)
    first, second = (randomness.key(1, step) for step in range(2))

    def run(key):
        update.begin()
        update.accumulate(window, state, key)
        update.norm()
        update.apply(0.01)

    run(first)  # in which moments are made
    with Questions() as questions:
        run(second)
    assert questions.asked == [] and int(update.average.steps) == 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_of_a_recurrent_hmm_asks_the_host_nothing(stage):
    network = RecurrentHMM(RecurrentHMMOptions(stage, width=8, embedding=4, dropout=0.3), 7)
    settings = TrainingSettings(clip=1.0)
    schedule = make_schedule(settings, 10)
    update = Descent(network, CrossEntropy(network, end=0), settings, schedule)
    ids = torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2]])
    window, state = Window(ids, torch.tensor([5, 4])), update.initial_state(2)

    def run(key):
        update.begin()
        update.accumulate(window, state, key)
        update.norm()
        update.apply(0.01)

    run(randomness.key(1, 0))  # in which moments are made
    second = randomness.key(1, 1)
    with Questions() as questions:
        run(second)
    assert questions.asked == []


@pytest.mark.parametrize("operands", ["float32", "bfloat16"])
def test_fewer_digits_only_where_vectors_are_rounded(operands, monkeypatch):
    module = stand_in("neural", "dense", operands)
    losses = Likelihood(module), LabelledLikelihood(module)
    monkeypatch.setattr("bighmm.train.losses._device", lambda params: torch.device("cuda"))
    for loss in losses:
        before = torch.backends.cuda.matmul.allow_tf32
        with loss.precision():
            assert torch.backends.cuda.matmul.allow_tf32 == (before or operands == "bfloat16")
        assert torch.backends.cuda.matmul.allow_tf32 == before
