"""Frequencies of sampled sequences against their exact probabilities."""

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.sample import Sharpness
from models import cut_work, random_hmm

KINDS = ["dense-table", "dense-flat", "blocked-flat", "blocked-two_level", "per_token-flat"]
LENGTH = 3
DRAWS = 4000


def model(kind):
    return random_hmm(kind, states=6, vocabulary=4, seed=7)


def all_sequences(size, length=LENGTH):
    return torch.cartesian_prod(*[torch.arange(size)] * length).view(-1, length)


def tempered(hmm, sequences, prefix, temperature):
    """Π_t p(x_t | x_<t)^(1 / temperature), each step renormalised: (N,)."""
    context = torch.tensor(prefix, dtype=torch.long).expand(len(sequences), len(prefix))
    log_prob = torch.zeros(len(sequences)).double()
    for t in range(sequences.shape[1]):
        step = (
            hmm.next_token(torch.cat([context, sequences[:, :t]], 1)) / temperature
        ).log_softmax(1)
        log_prob += step.gather(1, sequences[:, t : t + 1]).squeeze(1)
    return log_prob.exp()


def assert_drawn_from(sample, sequences, probs):
    """Chi-square test over `sequences`, those that are expected less than 5 times together."""
    size = int(sequences.max()) + 1
    weights = size ** torch.arange(sequences.shape[1])
    keys = (sequences * weights).sum(1)
    observed = torch.bincount((sample * weights).sum(1), minlength=int(keys.max()) + 1)[keys]
    assert int(observed.sum()) == len(sample), "a sequence was drawn that is not in the list"
    expected = probs * len(sample)
    torch.testing.assert_close(probs.sum(), torch.ones(()).double())
    rare = expected < 5
    pairs = [(observed[~rare], expected[~rare])]
    if rare.any():
        pairs.append((observed[rare].sum().view(1), expected[rare].sum().view(1)))
    o, e = (torch.cat(parts).double() for parts in zip(*pairs, strict=True))
    statistic = ((o - e) ** 2 / e).sum()
    p_value = torch.special.gammaincc(torch.tensor((len(o) - 1) / 2).double(), statistic / 2)
    assert p_value > 1e-3


@pytest.mark.parametrize("prefix", [[], [2, 1], [1, 0]], ids=["start", "prefix", "after-end"])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_fixed_length(kind, temperature, prefix):
    hmm = model(kind)
    generator = torch.Generator().manual_seed(12)
    sample = hmm.sample(DRAWS, LENGTH, prefix, generator, temperature)
    assert sample.shape == (DRAWS, LENGTH)
    sequences = all_sequences(hmm.vocabulary_size)
    probs = tempered(hmm, sequences, prefix, temperature)
    if temperature == 1:
        whole = torch.cat([torch.tensor(prefix).long().expand(len(sequences), -1), sequences], 1)
        given = hmm.log_prob(torch.tensor([prefix]).long())
        torch.testing.assert_close(probs, (hmm.log_prob(whole) - given).exp())
    assert_drawn_from(sample, sequences, probs)


@pytest.mark.parametrize("reset", [True, False])
def test_texts_follow_each_other(reset):
    """With a fixed length, sampling goes on after an end mark."""
    hmm = random_hmm("blocked-flat", states=6, vocabulary=3, seed=7, reset=reset)
    sequences = all_sequences(3, 4)
    sample = hmm.sample(DRAWS, 4, generator=torch.Generator().manual_seed(3))
    assert_drawn_from(sample, sequences, hmm.log_prob(sequences).exp())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_until_the_end_mark(kind, temperature):
    hmm = model(kind)
    generator = torch.Generator().manual_seed(13)
    sample = hmm.sample(DRAWS, generator=generator, temperature=temperature, max_length=LENGTH)
    assert sample.shape == (DRAWS, LENGTH)
    after_end = (sample == hmm.end).cumsum(1) > 0
    assert (sample[after_end] == hmm.end).all()
    sequences = all_sequences(hmm.vocabulary_size)
    ended = (sequences == hmm.end).cumsum(1) > 0
    sequences = sequences[
        (sequences[ended.any(1)].new_tensor(hmm.end) == sequences).eq(ended).all(1)
    ]
    sizes = ((sequences != hmm.end).sum(1) + 1).clamp(max=LENGTH)
    probs = torch.zeros(len(sequences)).double()
    for n in range(1, LENGTH + 1):
        probs[sizes == n] = tempered(hmm, sequences[sizes == n, :n], [], temperature)
    assert_drawn_from(sample, sequences, probs)


def test_stops_when_every_row_has_ended():
    hmm = HMM.from_probs(
        torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.eye(2), end=1
    )
    assert hmm.sample(3).tolist() == [[0, 1]] * 3
    assert hmm.sample(3, max_length=1).tolist() == [[0]] * 3
    assert hmm.sample(3, max_length=0).shape == hmm.sample(3, 0).shape == (3, 0)
    assert hmm.sample(2, prefix=[0, 1]).tolist() == [[0, 1]] * 2  # a new text


@pytest.mark.parametrize("kind", KINDS)
def test_greedy(kind):
    hmm = model(kind)
    sample = hmm.sample(2, 5, prefix=[1], temperature=0)
    assert torch.equal(sample[0], sample[1])
    context = [1]
    for token in sample[0].tolist():
        assert token == int(hmm.next_token(torch.tensor([context])).argmax())
        context.append(token)
    assert torch.equal(hmm.sample(2, 5, prefix=[1], temperature=1e-6), sample)
    assert torch.equal(hmm.sample(2, 5, prefix=[1], temperature=1e-300), sample)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_reproducible(kind, temperature):
    hmm = model(kind)

    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return hmm.sample(20, 6, generator=generator, temperature=temperature)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("kind", KINDS)
def test_in_small_pieces(kind, monkeypatch):
    hmm = model(kind)
    cut_work(monkeypatch, 30)
    sequences = all_sequences(hmm.vocabulary_size, 2)
    sample = hmm.sample(500, 2, generator=torch.Generator().manual_seed(5))
    assert_drawn_from(sample, sequences, hmm.log_prob(sequences).exp())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n": 0, "length": 1}, "n must be at least 1, not 0"),
        ({"n": 1, "length": -1}, "length must be at least 0, not -1"),
        ({"n": 1, "max_length": -1}, "max_length must be at least 0, not -1"),
        ({"n": 1, "length": 1, "temperature": -0.5}, "at least 0, not -0.5"),
        ({"n": 1, "length": 1, "temperature": float("nan")}, "at least 0, not nan"),
        ({"n": 1, "length": 1, "temperature": float("inf")}, "at least 0, not inf"),
        ({"n": 1, "length": 1, "prefix": [1, 9]}, "token id 9"),
        ({"n": 1, "length": 1, "prefix": [0.5]}, "whole numbers"),
        ({"n": 1, "length": 1, "prefix": [[1], [2]]}, "one sequence"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        model("dense-table").sample(**options)


def test_without_end_mark_a_length_is_needed():
    with pytest.raises(ValueError, match="no end mark"):
        random_hmm("dense-table", end=None).sample(1)


@pytest.mark.parametrize("temperature", [1e-46, 1e-20, 1e-9])
@pytest.mark.parametrize("kind", KINDS)
def test_all_but_no_temperature(kind, temperature):
    hmm = random_hmm(kind, dtype=torch.float32)
    cold = hmm.sample(3, length=6, prefix=[1], temperature=temperature)
    assert torch.equal(cold, hmm.sample(3, length=6, prefix=[1], temperature=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_drawn_with_the_tokens(kind):
    hmm = model(kind)
    tokens, states = hmm.sample_with_states(DRAWS, 2, generator=torch.Generator().manual_seed(3))
    same = hmm.sample(DRAWS, 2, generator=torch.Generator().manual_seed(3))
    assert torch.equal(tokens, same) and tokens.shape == states.shape
    pairs = all_sequences(hmm.num_states * hmm.vocabulary_size, 2)
    joint = hmm.joint_log_prob(pairs % hmm.vocabulary_size, pairs // hmm.vocabulary_size)
    assert_drawn_from(states * hmm.vocabulary_size + tokens, pairs, joint.double().exp())
    tokens, states = hmm.sample_with_states(3, 0, [1, 2])
    assert tokens.shape == states.shape == (3, 0)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"top_k": 2}, [0, 0, 0.4, 0.6]),
        ({"top_k": 9}, [0.1, 0.2, 0.28, 0.42]),
        ({"top_p": 0.7}, [0, 0, 0.4, 0.6]),
        ({"top_p": 0.42}, [0, 0, 0, 1]),
        ({"without": (3,)}, [0.1 / 0.58, 0.2 / 0.58, 0.28 / 0.58, 0]),
        ({"without": (3,), "top_k": 1}, [0, 0, 1, 0]),
        ({"top_k": 2, "temperature": 0.5}, [0, 0, 0.4**2 / 0.52, 0.6**2 / 0.52]),
        ({"temperature": 0, "without": (3,)}, [0, 0, 1, 0]),
    ],
)
def test_sharpness(given, wanted):
    """Shares of many draws; log-probabilities need not be normalised."""
    log_probs = torch.tensor([0.1, 0.2, 0.28, 0.42]).log().add(3).expand(20_000, -1)
    drawn = Sharpness(**given).draw(log_probs, torch.Generator().manual_seed(1))
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    torch.testing.assert_close(shares, torch.tensor(wanted).float(), atol=0.02, rtol=0)
