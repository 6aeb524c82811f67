"""A mixture of HMMs is one HMM: every answer is that of the block-diagonal matrix."""

import dataclasses

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.sequences import unchecked
from bighmm.model import params
from bighmm.model.emissions import EmissionTable
from bighmm.model.options import NeuralOptions
from bighmm.model.params.mixture import Mixture, MixtureOptions, support_of
from bighmm.model.support import Blocked, Dense, PerToken
from bighmm.model.transitions.mixture import Mixed
from models import cut_work, dense_twin, ragged, random_hmm

WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)
KINDS = ("blocked-two_level", "blocked-flat", "dense-table")
TOKENS, LENGTHS = ragged(5, [6, 1, 4, 0, 5], seed=3, padding=0)


def mixture(kind, reset=True, dtype=torch.float64):
    """Two random HMMs of different sizes and their mixture."""
    parts = [random_hmm(kind, states, 5, seed=states, reset=reset) for states in (6, 3)]
    blocks = 1 if kind.startswith("dense") else 3
    transitions = Mixed(tuple(part.transitions for part in parts), blocks)
    start = transitions.joined([w.log() + p.start for w, p in zip(WEIGHTS, parts, strict=True)])
    emission = torch.cat([part.emission for part in parts], dim=1)
    support = support_of(parts[0].support, 9)
    whole = HMM(start, transitions, EmissionTable(emission), support, 0, reset)
    return parts, whole.to("cpu", dtype)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def weighted(parts, answer):
    """log Σ_c weight_c exp(answer(part)), for answers that are log-probabilities."""
    found = [w.log() + answer(part) for w, part in zip(WEIGHTS, parts, strict=True)]
    return torch.stack(found).logsumexp(0)


def test_sentences_are_of_one_component(kind):
    parts, whole = mixture(kind)
    tokens = TOKENS.clone()
    tokens[:, :-1] = tokens[:, :-1].clamp(min=1)  # an end mark at the end at most
    for impl in ("auto", "loop"):
        found = whole.log_prob(tokens, LENGTHS, impl)
        torch.testing.assert_close(found, weighted(parts, lambda p: p.log_prob(tokens, LENGTHS)))
    streams = [dataclasses.replace(hmm, reset=False) for hmm in (*parts, whole)]
    torch.testing.assert_close(
        streams[-1].log_prob(TOKENS, LENGTHS),
        weighted(streams[:-1], lambda p: p.log_prob(TOKENS, LENGTHS)),
    )


@pytest.mark.parametrize("reset", [True, False])
def test_every_answer_is_that_of_one_table(kind, reset, monkeypatch):
    _, whole = mixture(kind, reset)
    twin = dense_twin(whole)
    close = torch.testing.assert_close
    for pieces in (None, 40):
        if pieces:
            cut_work(monkeypatch, pieces)
        close(whole.log_prob(TOKENS, LENGTHS), twin.log_prob(TOKENS, LENGTHS))
        close(whole.next_token(TOKENS, LENGTHS), twin.next_token(TOKENS, LENGTHS))
        best, expected = (hmm.best_next(TOKENS, 3, LENGTHS) for hmm in (whole, twin))
        close(best.log_prob, expected.log_prob)
        close(whole.viterbi(TOKENS, LENGTHS).log_prob, twin.viterbi(TOKENS, LENGTHS).log_prob)
        gaps = TOKENS[:3].clone()
        gaps[0, 2:4] = gaps[2, 1] = -1
        for ends in (True, False):
            close(
                whole.fill_probs(gaps, LENGTHS[:3], ends).words,
                twin.fill_probs(gaps, LENGTHS[:3], ends).words,
            )
            close(
                whole.best_fill(gaps, 3, LENGTHS[:3], ends).log_prob,
                twin.best_fill(gaps, 3, LENGTHS[:3], ends).log_prob,
            )
    states = whole.viterbi(TOKENS, LENGTHS).states
    close(
        whole.joint_log_prob(TOKENS, states, LENGTHS),
        twin.joint_log_prob(TOKENS, states, LENGTHS),
    )
    sums = whole.next_token(TOKENS, LENGTHS).exp().sum(1)
    close(sums, torch.ones_like(sums))


def test_windows_with_a_carried_state(kind):
    """Cut into windows, also where a text has ended and where it is impossible."""
    _, whole = mixture(kind)
    twin, results = dense_twin(whole), []
    for hmm in (whole, twin):
        carry = hmm.carry_after(TOKENS[:3, :2])
        carry = dataclasses.replace(carry, log_alpha=carry.log_alpha.clone())
        carry.log_alpha[1] = -torch.inf
        window = torch.tensor([[3, 2, 4], [1, 2, 3], [4, 4, 1]])
        log_prob, after = hmm.advance(unchecked(hmm, window, torch.tensor([3, 3, 2])), carry)
        results.append((log_prob, hmm.next_token_after(after)))
    torch.testing.assert_close(*results)


def test_samples_follow_the_distribution(kind):
    _, whole = mixture(kind)
    drawn = whole.sample(4000, 3, generator=torch.Generator().manual_seed(1))
    words = torch.tensor([[a, b, c] for a in range(5) for b in range(5) for c in range(5)])
    expected = whole.log_prob(words).exp()
    codes = drawn @ torch.tensor([25, 5, 1])
    shares = torch.bincount(codes, minlength=125) / len(drawn)
    assert float((shares - expected).abs().sum()) < 0.15
    assert float(expected.sum()) == pytest.approx(1.0)


def test_the_gradient(kind):
    _, whole = mixture(kind)
    operands = [t.detach().clone().requires_grad_() for t in whole.transitions.operands]
    results = []
    for hmm in (whole, dense_twin(dataclasses.replace(whole))):
        given = whole.transitions.with_operands(*operands)
        rebuilt = dataclasses.replace(whole, transitions=given)
        rebuilt = rebuilt if hmm is whole else dense_twin(rebuilt)
        total = rebuilt.log_prob(TOKENS, LENGTHS).sum()
        results.append(torch.autograd.grad(total, operands, allow_unused=True))
    torch.testing.assert_close(*results)


def build(components, support=None, end=0):
    support = support or Blocked.of(torch.arange(5) % 3, 9)
    return params.build("mixture", MixtureOptions(components), support, end, seed=1)


NEURAL = {"parameterisation": "neural", "options": {"width": 4}, "states": 6}
SCALAR = {"parameterisation": "scalar", "options": {}, "states": 3}


def test_the_parameterisation():
    module = build([NEURAL, SCALAR])
    assert isinstance(module, Mixture) and len(module.parts) == 2
    assert module.log_zeros and not module.parts[0].log_zeros
    hmm = HMM.of(module())
    total = hmm.next_token([[1, 2], [0, 3]]).exp().sum(1)
    torch.testing.assert_close(total, torch.ones(2))
    first, second = (HMM.of(part()) for part in module.parts)
    expected = torch.logaddexp(first.log_prob([[1, 2, 0]]), second.log_prob([[1, 2, 0]]))
    torch.testing.assert_close(hmm.log_prob([[1, 2, 0]]), expected - torch.tensor(2.0).log())


@pytest.mark.parametrize(
    "components, support, message",
    [
        ([], None, "made of trained models"),
        ([NEURAL], None, "the components have 6 states, not 9"),
        ([{**NEURAL, "states": 5}, SCALAR], None, "5 states"),
        ([{**NEURAL, "options": {"wide": 4}}, SCALAR], None, "unknown"),
        ([{**NEURAL, "parameterisation": "none"}, SCALAR], None, "none"),
        ([NEURAL, SCALAR], PerToken.random(5, 9, 4, 0), "cannot be mixed"),
    ],
)
def test_what_is_no_mixture(components, support, message):
    with pytest.raises(ValueError, match=message):
        build(components, support)


def test_no_state_dropout():
    module = build([NEURAL, SCALAR])
    with pytest.raises(ValueError, match="no state dropout"):
        module(torch.arange(3))


def test_dense_components():
    options = dataclasses.asdict(NeuralOptions(width=4, transitions="flat"))
    parts = [{"parameterisation": "neural", "options": options, "states": 4}, SCALAR]
    hmm = HMM.of(build(parts, Dense(7, 5))())
    torch.testing.assert_close(hmm.next_token([[1]]).exp().sum(), torch.tensor(1.0))
