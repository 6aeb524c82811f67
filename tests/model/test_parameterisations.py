"""Every parameterisation makes distributions, on every support, with and without state dropout."""

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.model import params
from bighmm.model.options import NeuralOptions, ScalarOptions
from bighmm.model.params.scalar import TwoLevelScalar
from bighmm.model.params.two_level import TwoLevelNeural
from bighmm.model.support import Blocked, Dense, PerToken
from models import random_support

STATES, VOCABULARY, WIDTH, END = 12, 7, 4, 0
SUPPORTS = ["dense", "blocked", "per_token"]


def neural(entering="embedding", embeddings="independent", transitions="flat"):
    return NeuralOptions(
        width=WIDTH,
        entering=entering,
        embeddings=embeddings,
        transitions=transitions,
        init_scale=1.0,
    )


CASES = {f"scalar-{support}": ("scalar", ScalarOptions(), support) for support in SUPPORTS}
CASES["scalar-two-level"] = ("scalar", ScalarOptions(transitions="two-level"), "blocked")
for _entering in ("embedding", "mlp"):
    for _support in SUPPORTS:
        CASES[f"neural-{_entering}-{_support}"] = ("neural", neural(_entering), _support)
    for _kind in ("factored", "independent"):
        _options = neural(_entering, _kind, "two-level")
        CASES[f"two-level-{_entering}-{_kind}"] = ("neural", _options, "blocked")
    CASES[f"neural-{_entering}-factored"] = ("neural", neural(_entering, "factored"), "blocked")


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def module(request):
    kind, options, support = request.param
    made = params.build(kind, options, random_support(support, STATES, VOCABULARY), END, seed=3)
    return made.double()


def ptb_support(states, vocabulary=10_000):
    return Blocked.of(torch.arange(vocabulary) % 128, states)


def count(kind, options, support):
    with torch.device("meta"):
        return sum(p.numel() for p in params.build(kind, options, support, END).parameters())


@pytest.mark.parametrize(
    "states, vocabulary, embeddings, expected",
    [
        (2**15, 10_000, "independent", 11_355_153),
        (2**14, 10_000, "independent", 7_160_849),
        (2**15, 33_278, "independent", 17_337_599),
        (2**15, 10_000, "factored", 7_705_617),
        (2**14, 10_000, "factored", 5_608_465),
    ],
)
def test_neural_parameter_counts(states, vocabulary, embeddings, expected):
    options = NeuralOptions(embeddings=embeddings, transitions="flat")
    assert count("neural", options, ptb_support(states, vocabulary)) == expected


@pytest.mark.parametrize(
    "support, alive",
    [
        (Dense(40, 30), 40),
        (Blocked.of(torch.arange(30) % 5, 40), 8),
        (PerToken.random(30, 40, 6, seed=0), 6),
    ],
    ids=SUPPORTS,
)
def test_scalar_parameter_count(support, alive):
    assert count("scalar", ScalarOptions(), support) == 40 + 40 * 40 + 30 * alive


def assert_sums_to_one(table):
    total = table.sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_every_table_is_normalised(module):
    hmm = HMM.of(module())
    assert hmm.num_states == STATES and hmm.end == END
    for table in hmm.tables():
        assert_sums_to_one(table)
    emission = hmm.tables()[2]
    assert int((emission > 0).sum()) == VOCABULARY * module.support.states_per_token


def test_single_precision_is_normalised(module):
    for table in HMM.of(module.float()()).tables():
        assert table.dtype == torch.float32
        assert_sums_to_one(table)


def renormalised(rows, kept, number):
    """Rows (R, Z) over the states kept, each of `number` blocks with the probability it had."""
    blocks = rows.view(len(rows), number, -1).sum(2, keepdim=True)
    found = rows[:, kept].view(len(rows), number, -1)
    return (blocks * found / found.sum(2, keepdim=True)).view(len(rows), -1)


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_dropout_restricts_and_renormalises(module, rate):
    kept = module.support.draw_kept(rate, torch.tensor(5))
    start, transition, emission = HMM.of(module()).tables()
    restricted = HMM.of(module(kept)).tables()
    blocks = module.support.partition
    within = isinstance(module, TwoLevelNeural | TwoLevelScalar)
    number = blocks.num_blocks if within else 1
    start_number = blocks.num_blocks if isinstance(module, TwoLevelNeural) else 1
    expected = renormalised(start.unsqueeze(0), kept, start_number).squeeze(0)
    torch.testing.assert_close(restricted[0], expected)
    torch.testing.assert_close(restricted[1], renormalised(transition[kept], kept, number))
    torch.testing.assert_close(restricted[2], emission[kept])


def test_dropout_leaves_a_language_model(module):
    kept = module.support.draw_kept(0.5, torch.tensor(5))
    hmm = HMM.of(module(kept))
    assert hmm.num_states == len(kept) == STATES // 2
    contexts = hmm.sample(8, 4, generator=torch.Generator().manual_seed(0))
    for length in (0, 1, 4):
        assert_sums_to_one(hmm.next_token(contexts[:, :length]).exp())


CANCELS = {  # they shift all start logits, or all logits of a row, by the same amount
    "networks.start.norm.bias",
    "starting.bias",
    "networks.entering.norm.bias",
}


def test_gradients_reach_every_parameter(module):
    cancels = set(CANCELS)
    raw = isinstance(module, TwoLevelNeural) and module.options.entering == "embedding"
    if raw or not hasattr(module, "before_first"):
        cancels.add("state.compose.entering.norm.bias")
    tokens = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * 3)
    HMM.of(module()).log_prob(tokens).sum().backward()
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        assert grad is not None and grad.isfinite().all(), name
        if name in cancels:
            assert grad.abs().max() < 1e-9, name
        else:
            assert grad.abs().max() > 1e-6, name
        if len(parameter) in (STATES, VOCABULARY):
            assert (grad.reshape(len(parameter), -1) != 0).any(1).all(), name


def test_dropped_states_get_no_gradient():
    support = random_support("blocked", STATES, VOCABULARY)
    module = params.build("neural", neural(), support, END, seed=0)
    kept = module.support.draw_kept(0.5, torch.tensor(1))
    HMM.of(module(kept)).log_prob([[1, 2, 3], [4, 5, 6]]).sum().backward()
    reached = (module.state.table.grad != 0).any(1).nonzero().squeeze(1)
    assert torch.equal(reached, kept)


def parameters(kind, options, seed):
    support = random_support("blocked", STATES, VOCABULARY)
    return params.build(kind, options, support, END, seed=seed).state_dict()


@pytest.mark.parametrize("kind, options", [("scalar", ScalarOptions()), ("neural", neural())])
def test_seed_decides_the_parameters(kind, options):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = parameters(kind, options, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = parameters(kind, options, seed=7), parameters(kind, options, seed=8)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_states_are_entered_by_their_raw_embedding():
    module = params.build("neural", neural("embedding"), Dense(STATES, VOCABULARY), END)
    assert torch.equal(module().transitions.entering, module.state.table)


def test_mlp_start_is_one_more_row_of_transitions():
    module = params.build("neural", neural("mlp"), Dense(STATES, VOCABULARY), END)
    hmm = HMM.of(module())
    logits = hmm.transitions.entering @ module.before_first
    torch.testing.assert_close(hmm.start.exp(), logits.softmax(0))


def test_init_scale_is_the_spread_of_the_embeddings():
    made = params.build("neural", NeuralOptions(width=64, init_scale=0.5), Dense(200, 100), END, 0)
    assert 0.48 < float(made.state.table.detach().std()) < 0.52
    assert 0.48 < float(made.words.detach().std()) < 0.52


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"no parameterisation 'nural'; .*neural, .*scalar"):
        params.build("nural", None, Dense(2, 2), END)


@pytest.mark.parametrize(
    "support, width",
    [("blocked", 5), ("dense", 4), ("per_token", 4)],
    ids=["odd", "dense", "per_token"],
)
def test_factored_embeddings_need_blocks_and_an_even_width(support, width):
    options = NeuralOptions(width=width, embeddings="factored")
    kind = support.replace("_", "-")
    with pytest.raises(ValueError, match=f"blocked support and an even width, not {kind}"):
        params.build("neural", options, random_support(support, STATES, VOCABULARY), END)
