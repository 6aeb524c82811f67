"""Two-level transitions: the whole protocol against its definition, and every question about them
against a table of the same probabilities.

The cases have odd sizes, blocks of one state, one block, and one block for each word. Each is asked
with its table of block probabilities, and in pieces without any table.
"""

import itertools

import pytest
import torch

from bighmm import HMM
from bighmm import constraints as c
from bighmm.infer.reference import Enumeration
from bighmm.inspect.states import likely_words, next_states, previous_states, state_shares
from bighmm.interop import to_ctrlg, to_numpy
from bighmm.model import params
from bighmm.model.options import NeuralOptions
from bighmm.model.support import Blocked, Dense, PerToken
from bighmm.model.transitions import Table, TwoLevel, restore_transitions, two_level_product
from bighmm.ops import memory
from bighmm.train.losses import Likelihood, Window
from infer.test_sampling import all_sequences, assert_drawn_from, tempered
from models import cut_work, normalised_emission, random_support

SHAPES = {  # blocks, states of each, words
    "odd": (3, 5, 7),
    "single-states": (4, 1, 6),
    "one-block": (1, 5, 4),
    "block-per-word": (5, 2, 5),
}
TEXTS = [[1, 2, 0, 3], [2], [3, 3, 1], [1, 0]]


def two_level(shape="odd", *, width=3, scale=1.0, seed=0, end=0, reset=True):
    blocks, size, words = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64) * scale

    states = blocks * size
    support = Blocked.of(torch.arange(words) % blocks, states)
    vectors = normal(states, width), normal(states, width), normal(states, width + 1)
    transitions = TwoLevel(*vectors, normal(blocks, width + 1), normal(blocks))
    emission = normalised_emission(support, normal(words, size))
    return HMM(normal(states).log_softmax(0), transitions, emission, support, end, reset)


def by_definition(transitions):
    """log p(j | i) (Z, Z), one state after the other."""
    leaving, entering, choosing, blocks, bias = transitions.operands
    size = len(leaving) // len(blocks)
    rows = []
    for i in range(len(leaving)):
        choice = (blocks @ choosing[i] + bias).log_softmax(0)
        parts = [
            choice[m] + (entering[m * size : (m + 1) * size] @ leaving[i]).log_softmax(0)
            for m in range(len(blocks))
        ]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def twin(hmm):
    """The same model with a table of transitions."""
    table = Table(by_definition(hmm.transitions))
    return HMM(hmm.start, table, hmm.emissions, hmm.support, hmm.end, hmm.reset)


@pytest.fixture(params=["tables", "pieces"])
def limits(request, monkeypatch):
    if request.param == "pieces":
        cut_work(monkeypatch, 40)
        monkeypatch.setattr(two_level_product, "ROWS", 4)
    return request.param


@pytest.fixture(params=SHAPES)
def hmm(request, limits):
    made = two_level(request.param)
    assert made.transitions.keeps_choice == (limits == "tables")
    return made


def test_rows_sum_to_one(hmm):
    torch.testing.assert_close(
        hmm.transitions.log_probs().exp().sum(1), torch.ones(1).double()[0].expand(hmm.num_states)
    )


def test_log_probs_of_parts(hmm):
    transitions, whole = hmm.transitions, by_definition(hmm.transitions)
    size = hmm.num_states
    ids = torch.tensor([size - 1, 0, size - 1, size // 2])
    parts = [slice(None), slice(1, size), slice(0, 2), slice(size, size), ids, ids[:0]]
    for rows, columns in itertools.product(parts, parts):
        expected = whole[rows][:, columns]
        torch.testing.assert_close(transitions.log_probs(rows, columns), expected)
        into = torch.full_like(expected, torch.nan)
        assert transitions.log_probs(rows, columns, into) is into
        torch.testing.assert_close(into, expected)


def test_pairs_and_tiles(hmm):
    transitions, whole = hmm.transitions, by_definition(hmm.transitions)
    every = torch.cartesian_prod(*[torch.arange(hmm.num_states)] * 2)
    torch.testing.assert_close(transitions.between(*every.T), whole.view(-1))
    assert transitions.between(every[:0, 0], every[:0, 1]).shape == (0,)
    tokens = torch.cartesian_prod(*[torch.arange(hmm.vocabulary_size)] * 2)
    found = transitions.tiles(hmm.support, *tokens.T)
    before, after = hmm.support.states(tokens).unbind(1)
    torch.testing.assert_close(found, whole[before.unsqueeze(2), after.unsqueeze(1)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_products(shape, scale, limits):
    transitions = two_level(shape, scale=scale).transitions
    whole, size = by_definition(transitions), transitions.num_states
    block = slice(0, transitions.block_size)
    parts = [slice(0, size), block, slice(1, size), torch.tensor([size - 1, 0])]
    generator = torch.Generator().manual_seed(1)
    for before, after in itertools.product(parts, parts):
        part = whole[before][:, after]
        move = transitions.product(before, after)
        log_alpha = torch.randn(3, len(part), generator=generator, dtype=torch.float64) * scale
        log_alpha[0, 1:], log_alpha[1] = -torch.inf, -torch.inf
        expected = (log_alpha.unsqueeze(2) + part).logsumexp(1)
        torch.testing.assert_close(move.ahead(log_alpha), expected)
        log_beta = torch.randn(3, part.shape[1], generator=generator, dtype=torch.float64) * scale
        log_beta[0, 1:], log_beta[1] = -torch.inf, -torch.inf
        expected = (part + log_beta.unsqueeze(1)).logsumexp(2)
        torch.testing.assert_close(move.back(log_beta), expected)
        for impossible in (log_alpha, log_beta):
            impossible.fill_(-torch.inf)
        assert (move.ahead(log_alpha) == -torch.inf).all()
        assert (move.back(log_beta) == -torch.inf).all()


def test_products_repair_what_float32_loses(limits):
    hmm = two_level("odd", scale=60.0)
    transitions = hmm.transitions.to(torch.device("cpu"), torch.float32)
    whole = by_definition(hmm.transitions.to(torch.device("cpu"), torch.float32)).double()
    move = transitions.product(slice(5, 10), slice(None))
    log_alpha = torch.randn(2, 5) * 100
    found = move.ahead(log_alpha)
    expected = (log_alpha.double().unsqueeze(2) + whole[5:10]).logsumexp(1)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-2)
    found = transitions.product(slice(None), slice(5, 10)).back(log_alpha)
    expected = (whole[:, 5:10] + log_alpha.double().unsqueeze(1)).logsumexp(2)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-2)


def test_restriction_is_renormalised_within_blocks(hmm):
    transitions, size = hmm.transitions, hmm.transitions.block_size
    left = max(1, size - 2)
    kept = torch.cat([torch.arange(left) + m * size for m in range(transitions.num_blocks)])
    leaving, entering, choosing, blocks, bias = transitions.operands
    expected = by_definition(TwoLevel(leaving[kept], entering[kept], choosing[kept], blocks, bias))
    part = by_definition(transitions)[kept][:, kept].view(len(kept), -1, left)
    inside = part - part.logsumexp(2, keepdim=True)
    choice = by_definition(transitions)[kept].view(len(kept), -1, size).logsumexp(2, keepdim=True)
    torch.testing.assert_close(expected, (inside + choice).view(len(kept), -1))
    torch.testing.assert_close(transitions.restrict(kept).log_probs(), expected)


def test_pull_back_is_the_gradient_of_expected_moves(hmm):
    transitions = hmm.transitions
    counts = torch.rand(2, hmm.num_states).double()
    grads = [torch.zeros_like(x) for x in transitions.operands]
    rows = slice(1, 3)
    transitions.pull_back(rows, counts, transitions.log_probs(rows).exp(), grads)
    operands = [x.clone().requires_grad_() for x in transitions.operands]
    total = (by_definition(TwoLevel(*operands))[rows] * counts).sum()
    expected = torch.autograd.grad(total, operands)
    for found, right in zip(grads, expected, strict=True):
        torch.testing.assert_close(found, right)


def test_moved_and_read_back():
    transitions = two_level().transitions
    moved = transitions.to(torch.device("cpu"), torch.float32)
    assert moved.leaving.dtype == torch.float32 and moved.log_probs().dtype == torch.float32
    rounded = TwoLevel(*transitions.operands, rounded=True)
    for made in (transitions, rounded):
        again = restore_transitions(made.family, made.operands, made.settings())
        assert isinstance(again, TwoLevel) and again.rounded == made.rounded
        torch.testing.assert_close(again.log_probs(), made.log_probs())


def test_any_matrix_can_be_written_in_two_levels():
    """With vectors as wide as there are states and blocks."""
    probs = torch.rand(6, 6).double()
    probs /= probs.sum(1, keepdim=True)
    by_block = probs.view(6, 3, 2)
    made = TwoLevel(
        probs.log(),
        torch.eye(6).double(),
        by_block.sum(2).log(),
        torch.eye(3).double(),
        torch.zeros(3).double(),
    )
    torch.testing.assert_close(made.log_probs().exp(), probs)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(shape, limits):
    hmm = two_level(shape)
    operands = [t.detach().clone().requires_grad_() for t in hmm.operands]

    def log_prob(start, *others):
        transitions = hmm.transitions.with_operands(*others[:5])
        emissions = hmm.emissions.with_operands(*others[5:])
        return HMM(start, transitions, emissions, hmm.support, hmm.end).log_prob(TEXTS)

    assert torch.autograd.gradcheck(log_prob, operands)


def test_paths_are_enumerated(hmm):
    for text in TEXTS[:3]:
        truth = Enumeration(twin(hmm), text)
        torch.testing.assert_close(hmm.log_prob([text]).exp().item(), truth.prob)
        following = hmm.next_token([text])[0].exp()
        torch.testing.assert_close(following, truth.next_token())
        torch.testing.assert_close(following.sum().item(), 1.0)


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_question_agrees_with_a_table(shape, reset, limits):
    hmm = two_level(shape, reset=reset)
    table = twin(hmm)
    same = torch.testing.assert_close
    same(hmm.log_prob(TEXTS), table.log_prob(TEXTS))
    for found, expected in zip(hmm.posterior(TEXTS), table.posterior(TEXTS), strict=True):
        same(found, expected)
    for found, expected in zip(hmm.viterbi(TEXTS), table.viterbi(TEXTS), strict=True):
        same(found, expected)
    same(hmm.best_paths(TEXTS, 3).log_prob, table.best_paths(TEXTS, 3).log_prob)
    same(hmm.next_token([*TEXTS, []]), table.next_token([*TEXTS, []]))
    for k in (1, 3, 100):
        for found, expected in zip(hmm.best_next(TEXTS, k), table.best_next(TEXTS, k), strict=True):
            same(found, expected)
    states = torch.tensor([[0, -1, hmm.num_states - 1]])
    same(hmm.joint_log_prob([[1, 2, 3]], states), table.joint_log_prob([[1, 2, 3]], states))
    gaps = [[1, -1, 3], [-1, 2, -1], [3, -1, -1]]
    for ends in (False, True):
        same(hmm.known_log_prob(gaps, ends=ends), table.known_log_prob(gaps, ends=ends))
        pairs = zip(hmm.fill_probs(gaps, ends=ends), table.fill_probs(gaps, ends=ends), strict=True)
        for found, expected in pairs:
            same(found, expected)
        same(
            hmm.best_fill(gaps, 3, ends=ends).log_prob, table.best_fill(gaps, 3, ends=ends).log_prob
        )
    rule = c.contains([[2]]) & ~c.contains([[1]])
    same(hmm.rule_log_prob(rule, 3, [3]), table.rule_log_prob(rule, 3, [3]))
    under = {"rule": rule, "remaining": 3}
    same(hmm.next_token([[3], []], **under), table.next_token([[3], []], **under))
    for found, expected in zip(
        hmm.expected_counts(TEXTS), table.expected_counts(TEXTS), strict=True
    ):
        same(found, expected)
    for found, expected in zip(hmm.tables(), table.tables(), strict=True):
        same(found, expected)


def test_states_agree_with_a_table(hmm):
    table = twin(hmm)
    some = [0, hmm.num_states - 1]
    shares = state_shares(hmm, torch.tensor([1, 2, 0, 3, 1, 0]).numpy())
    torch.testing.assert_close(
        shares, state_shares(table, torch.tensor([1, 2, 0, 3, 1, 0]).numpy())
    )
    for ask in (likely_words, next_states, previous_states):
        found, expected = ask(hmm, some, 3), ask(table, some, 3)
        torch.testing.assert_close(found.probs, expected.probs)


def test_exports_agree_with_a_table(hmm, tmp_path):
    for name, found in to_numpy(hmm).items():
        torch.testing.assert_close(found, to_numpy(twin(hmm))[name])
    to_ctrlg(hmm, tmp_path / "ctrlg")
    assert (tmp_path / "ctrlg" / "model.safetensors").is_file()


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("shape", ["odd", "block-per-word"])
def test_samples(shape, temperature, limits):
    hmm = two_level(shape)
    generator = torch.Generator().manual_seed(3)
    drawn = hmm.sample(2000, 2, [1], generator, temperature)
    sequences = all_sequences(hmm.vocabulary_size, 2)
    assert_drawn_from(drawn, sequences, tempered(twin(hmm), sequences, [1], temperature))


def test_coldest_samples_are_the_likeliest_words(hmm):
    drawn = hmm.sample(2, 4, [1], temperature=0)
    assert torch.equal(drawn, twin(hmm).sample(2, 4, [1], temperature=0))


def test_drawn_states(hmm):
    probs = by_definition(hmm.transitions).exp()[1]
    generator = torch.Generator().manual_seed(5)
    going_on = torch.zeros(4000, dtype=torch.bool)
    drawn = hmm.transitions.draw(torch.full((4000,), 1), going_on, hmm.start, generator)
    states = torch.arange(hmm.num_states).unsqueeze(1)
    assert_drawn_from(drawn.unsqueeze(1), states, probs)
    none = hmm.transitions.draw(drawn[:0], going_on[:0], hmm.start, generator)
    assert none.shape == (0,)


def test_filled_and_under_a_rule(hmm):
    generator = torch.Generator().manual_seed(7)
    drawn = hmm.fill([[1, -1, 3]], 2000, generator, ends=True)[0, :, 1]
    probs = twin(hmm).fill_probs([[1, -1, 3]], ends=True).words[0].exp()
    assert_drawn_from(drawn.unsqueeze(1), torch.arange(len(probs)).unsqueeze(1), probs)
    rule = c.contains([[2]])
    assert all(rule.matches(text) for text in hmm.sample(20, 3, rule=rule).tolist())


def test_likeliest_words_open_few_blocks(monkeypatch):
    """Where a few blocks have most of the mass, the others are not looked into."""
    torch.manual_seed(0)
    blocks, size = 64, 3
    support = Blocked.of(torch.arange(2 * blocks) % blocks, blocks * size)
    vectors = torch.randn(3, blocks * size, 4).double()
    bias = torch.linspace(0, 60, blocks).double()
    transitions = TwoLevel(*vectors, torch.randn(blocks, 4).double(), bias)
    emission = normalised_emission(support, torch.randn(2 * blocks, size).double())
    start = torch.randn(blocks * size).double().log_softmax(0)
    hmm = HMM(start, transitions, emission, support)
    opened = []
    ask = TwoLevel.next_states

    def counted(self, support, tokens, log_alpha, blocks=None):
        opened.append(len(blocks))
        return ask(self, support, tokens, log_alpha, blocks)

    expected = hmm.next_token([[3]])[0].topk(5)
    monkeypatch.setattr(TwoLevel, "next_states", counted)
    found = hmm.best_next([[3]], 5)
    assert sum(opened) < blocks
    assert torch.equal(found.tokens[0], expected.indices)
    torch.testing.assert_close(found.log_prob[0], expected.values)


def test_in_inference_mode_first(hmm):
    """What is cached there can be used outside, with a gradient too."""
    with torch.inference_mode():
        hmm.next_token([[1, 2]])
        expected = hmm.log_prob(TEXTS)
    torch.testing.assert_close(hmm.log_prob(TEXTS), expected)
    operands = [x.requires_grad_() for x in hmm.transitions.operands]
    torch.autograd.grad(hmm.log_prob(TEXTS).sum(), operands)
    with torch.no_grad():
        torch.testing.assert_close(hmm.next_token(TEXTS), twin(hmm).next_token(TEXTS))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu(dtype, limits):
    plain = two_level("odd")
    hmm = plain.to("cuda", dtype)
    if dtype == torch.float32:
        vectors = [x.bfloat16().float() for x in hmm.transitions.operands[:4]]
        made = TwoLevel(*vectors, hmm.transitions.bias, rounded=True)
        hmm = HMM(hmm.start, made, hmm.emissions, hmm.support, hmm.end)
        plain = hmm.to("cpu", torch.float64)
    same = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    gaps = [[1, -1, 3], [-1, 2, -1], [3, -1, -1]]
    for ask in (
        lambda hmm: hmm.log_prob(TEXTS),
        lambda hmm: hmm.posterior(TEXTS).marginals,
        lambda hmm: hmm.viterbi(TEXTS).log_prob,
        lambda hmm: hmm.next_token([*TEXTS, []]),
        lambda hmm: hmm.best_next(TEXTS, 3).log_prob,
        lambda hmm: hmm.fill_probs(gaps).words,
        lambda hmm: hmm.rule_log_prob(c.contains([[2]]), 3),
        lambda hmm: previous_states(hmm, [0, 3], 3).probs,
    ):
        torch.testing.assert_close(ask(hmm).cpu(), ask(plain), **same)
    generator = torch.Generator("cuda").manual_seed(1)
    drawn = hmm.sample(2000, 2, [1], generator).cpu()
    sequences = all_sequences(hmm.vocabulary_size, 2)
    assert_drawn_from(drawn, sequences, tempered(plain, sequences, [1], 1.0))


def test_other_supports_are_asked_through_products():
    made = two_level("odd")
    dense = Dense(made.num_states, made.vocabulary_size)
    emission = normalised_emission(
        dense, torch.randn(made.vocabulary_size, made.num_states).double()
    )
    hmm = HMM(made.start, made.transitions, emission, dense, end=0)
    table = twin(hmm)
    torch.testing.assert_close(hmm.log_prob(TEXTS), table.log_prob(TEXTS))
    torch.testing.assert_close(hmm.next_token(TEXTS), table.next_token(TEXTS))
    torch.testing.assert_close(hmm.viterbi(TEXTS).states, table.viterbi(TEXTS).states)


@pytest.mark.parametrize(
    "support, has",
    [(Blocked.of(torch.arange(7) % 5, 15), "5"), (PerToken.random(7, 15, 5, 0), "none")],
)
def test_blocks_must_be_those_of_the_support(support, has):
    made = two_level("odd")
    emission = normalised_emission(support, torch.randn(7, support.states_per_token).double())
    hmm = HMM(made.start, made.transitions, emission, support)
    with pytest.raises(ValueError, match=rf"with 3 blocks need .* one has {has}; use flat"):
        hmm.log_prob([[1, 2]])


def test_what_cannot_be():
    vectors = torch.zeros(5, 2)
    with pytest.raises(ValueError, match="5 states cannot be shared equally by 2 blocks"):
        TwoLevel(vectors, vectors, vectors, vectors[:2], torch.zeros(2))
    with pytest.raises(ValueError, match="as many states of every block, not to between 1 and 2"):
        two_level("odd").transitions.restrict(torch.tensor([0, 1, 5, 6, 10]))


def test_tables_that_are_too_large_are_refused_before_they_are_made(monkeypatch, tmp_path):
    hmm = two_level("odd")
    monkeypatch.setattr(memory, "ANSWER", 100)
    monkeypatch.setattr(TwoLevel, "log_probs", lambda *_: pytest.fail("it was made"))
    for ask in (hmm.tables, lambda: hmm.expected_counts(TEXTS)):
        with pytest.raises(ValueError, match="15 states would have 225 numbers, more than the 100"):
            ask()
    for export in (lambda: to_numpy(hmm, 100), lambda: to_ctrlg(hmm, tmp_path / "x", limit=100)):
        with pytest.raises(ValueError, match=r"15 × 15 .* limit of 100"):
            export()


VARIANTS = [
    {"embeddings": embeddings, "choosing": choosing, "layers": layers}
    for embeddings in ("independent", "split", "factored")
    for choosing in ("own", "leaving")
    for layers in (0, 1, 2)
] + [{"start": "direct"}, {"emission": "direct"}, {"entering": "mlp"}, {"monolithic": True}]


def neural(options):
    support = random_support("blocked", 12, 7)
    options = NeuralOptions(width=4, init_scale=1.0, transitions="two-level", **options)
    return params.build("neural", options, support, 0, seed=3).double()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_parameterisation(options):
    module = neural(options)
    model = HMM.of(module())
    assert isinstance(model.transitions, TwoLevel)
    for table in model.tables():
        torch.testing.assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))
    kept = module.support.draw_kept(0.5, torch.tensor(5))
    part = HMM.of(module(kept))
    choice = by_definition(model.transitions).view(12, 3, 4).logsumexp(2)[kept]
    inside = by_definition(model.transitions)[kept][:, kept].view(6, 3, 2).log_softmax(2)
    expected = (choice.unsqueeze(2) + inside).view(6, 6)
    torch.testing.assert_close(part.transitions.log_probs(), expected)
    start = model.start.view(3, 4).logsumexp(1, keepdim=True)
    start = start + model.start[kept].view(3, 2).log_softmax(1)
    torch.testing.assert_close(part.start, start.view(-1))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("options", [{}, {"choosing": "leaving"}, {"layers": 0}], ids=str)
def test_blocks_that_occur_are_enough(options, dropout, monkeypatch):
    """The likelihood and its gradient from the blocks of a batch alone are those of the model."""
    module = neural(options)
    window = Window(torch.tensor([[1, 4, 1], [4, 1, 0]]), torch.tensor([3, 2]))
    assert module.for_some_blocks

    def step():
        loss = Likelihood(module, dropout)
        module.zero_grad()
        state = {
            n: t.double() if t.is_floating_point() else t for n, t in loss.initial_state(2).items()
        }
        value, _ = loss(window, state, torch.tensor(4))
        value.backward()
        return value.detach(), {n: p.grad.clone() for n, p in module.named_parameters()}

    value, grads = step()
    monkeypatch.setattr(type(module), "for_some_blocks", False)
    expected, whole = step()
    torch.testing.assert_close(value, expected)
    for name, grad in whole.items():
        torch.testing.assert_close(grads[name], grad, msg=name)
