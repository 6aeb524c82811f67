"""Which states may emit which token, and what state dropout leaves of it."""

import pytest
import torch

from bighmm.base import randomness
from bighmm.hmm import HMM
from bighmm.model.support import Blocked, Dense, PerToken
from bighmm.model.transitions import Table
from bighmm.ops.partition import Partition
from models import KINDS, normalised_emission, random_hmm, random_support

SUPPORTS = ["dense", "blocked", "per_token"]


@pytest.mark.parametrize("kind", SUPPORTS)
def test_states_gather_and_emission_rows_agree(kind):
    support = random_support(kind, 12, 7)
    tokens = torch.tensor([3, 0, 6, 3])
    states = support.states(tokens)
    assert states.shape == (4, support.states_per_token)
    assert torch.equal(support.states(tokens.view(2, 2)), states.view(2, 2, -1))
    table = torch.randn(12, 2)
    assert torch.equal(support.gather(table, tokens), table[states])
    assert torch.equal(support.gather(table[:, 0], tokens), table[:, 0][states])
    emission = torch.randn(7, support.states_per_token)
    expected = torch.full((12, 7), -torch.inf)
    for token in range(7):
        expected[support.states(torch.tensor(token)), token] = emission[token]
    some = torch.tensor([11, 2, 2, 0])
    assert torch.equal(support.emission_rows(emission, some), expected[some])


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.9, 0.999])
def test_same_number_kept_in_every_block(rate):
    support = Blocked.of(torch.arange(10) % 5, 40)  # 8 states in each of 5 blocks
    kept = support.draw_kept(rate, torch.tensor(0))
    counts = torch.bincount(kept // 8, minlength=5)
    assert (counts == max(1, round(8 * (1 - rate)))).all()
    assert torch.equal(kept, kept.unique())
    assert torch.equal(kept, support.draw_kept(rate, torch.tensor(0)))
    restricted = support.restrict(kept)
    assert restricted.states_per_token == counts[0] and restricted.num_states == len(kept)


def test_every_state_is_kept_equally_often():
    support = Blocked.of(torch.arange(4) % 2, 8)
    counts = torch.zeros(8)
    pairs = torch.zeros(8, 8)
    for step in range(1000):
        kept = support.draw_kept(0.5, randomness.key(3, step))
        counts[kept] += 1
        pairs[kept[:, None], kept[None, :]] += 1
    assert (counts - 500).abs().max() < 80
    assert (pairs[:4, 4:] - 250).abs().max() < 70  # blocks are independent of each other


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("kind", SUPPORTS)
def test_wrong_rate(kind, rate):
    with pytest.raises(ValueError, match="state dropout"):
        random_support(kind, 12, 7).draw_kept(rate, torch.tensor(0))


@pytest.mark.parametrize("kind", SUPPORTS)
def test_restrict_renumbers(kind):
    support = random_support(kind, 12, 7)
    kept = support.draw_kept(0.5, torch.tensor(1))
    restricted = support.restrict(kept)
    assert restricted.num_states == len(kept) >= 6
    for token in range(7):
        before = set(support.states(torch.tensor(token)).tolist()) & set(kept.tolist())
        after = restricted.states(torch.tensor(token))
        assert {int(kept[z]) for z in after[after >= 0]} == before


@pytest.mark.parametrize("kind", [*KINDS, "per_token-table"])
def test_restricted_model_is_still_a_distribution(kind):
    whole = random_hmm(kind, states=12, vocabulary=7, seed=8)
    kept = whole.support.draw_kept(0.5, torch.tensor(8))
    support = whole.support.restrict(kept)
    transitions = whole.transitions.restrict(kept)
    every = torch.arange(7)
    emitted = whole.support.emission_rows(whole.emission, kept)  # (Z', V)
    logits = emitted.T.gather(1, support.states(every).clamp(min=0))
    emission = normalised_emission(support, logits)
    start = whole.start[kept].log_softmax(0)
    hmm = HMM(start, transitions, emission, support, end=0)
    pairs = torch.cartesian_prod(every, every)
    torch.testing.assert_close(hmm.log_prob(pairs).exp().sum(), torch.ones(()).double())
    torch.testing.assert_close(
        hmm.next_token(pairs).exp().sum(1), hmm.log_prob(pairs).isfinite().double()
    )
    if not kind.endswith("two_level"):  # that one is renormalised within blocks
        part = whole.tables()[1][kept][:, kept]
        torch.testing.assert_close(hmm.tables()[1], part / part.sum(1, keepdim=True))


def test_every_token_of_a_free_support_keeps_a_state():
    support = PerToken.random(50, 60, states_per_token=2, seed=0)
    for step in range(20):
        kept = support.draw_kept(0.9, randomness.key(0, step))
        assert (support.restrict(kept).states(torch.arange(50)) >= 0).any(1).all()
    lonely = PerToken(torch.tensor([[0, 1], [-1, -1]]), 2)
    assert len(lonely.draw_kept(0.5, torch.tensor(0))) == 1


def test_token_without_a_state_is_impossible():
    support = PerToken(torch.tensor([[0, 1], [1, -1], [-1, -1]]), 2)
    emission = normalised_emission(support, torch.zeros(3, 2))
    hmm = HMM(torch.zeros(2).log_softmax(0), Table(torch.zeros(2, 2)), emission, support)
    torch.testing.assert_close(hmm.log_prob([[0], [1], [2]]).exp(), torch.tensor([0.75, 0.25, 0.0]))
    assert hmm.posterior([[1]]).states.tolist() == [[[1, -1]]]
    assert set(hmm.sample(50, 3).view(-1).tolist()) == {0, 1}


class TestFree:
    @pytest.mark.parametrize(
        "vocabulary, states, alive", [(5, 10, 2), (4, 4, 1), (30, 7, 3), (1, 3, 3)]
    )
    @pytest.mark.parametrize("seed", range(3))
    def test_random_covers_every_state(self, vocabulary, states, alive, seed):
        support = PerToken.random(vocabulary, states, alive, seed)
        assert support.table.shape == (vocabulary, alive)
        assert support.table.unique().tolist() == list(range(states))
        assert all(len(row.unique()) == alive for row in support.table)
        assert torch.equal(support.table, PerToken.random(vocabulary, states, alive, seed).table)

    @pytest.mark.parametrize("vocabulary, states, alive", [(4, 10, 2), (4, 3, 4), (4, 3, 0)])
    def test_errors(self, vocabulary, states, alive):
        with pytest.raises(ValueError, match="cannot cover"):
            PerToken.random(vocabulary, states, alive, 0)


class TestPartition:
    def ragged_partition(self):
        sizes = [1, 40, 3, 9, 100, 2, 13, 14]
        generator = torch.Generator().manual_seed(0)
        block_of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        return Partition(block_of[torch.randperm(len(block_of), generator=generator)], len(sizes))

    def test_groups_cover_every_token_once(self):
        partition = self.ragged_partition()
        seen = []
        layout = partition.layout
        sizes = [blocks * width for blocks, width in layout.shapes]
        groups = layout.blocks.split([blocks for blocks, _ in layout.shapes])
        for shape, blocks, laid in zip(
            layout.shapes, groups, layout.tokens.split(sizes), strict=True
        ):
            tokens = laid.view(shape)
            for block, row in zip(blocks.tolist(), tokens, strict=True):
                inside = row[row >= 0]
                assert (partition.block_of[inside] == block).all()
                seen.extend(inside.tolist())
            smallest = int((tokens >= 0).sum(1).min())
            assert tokens.shape[1] <= max(8, 1.5 * smallest)
        assert sorted(seen) == list(range(len(partition.block_of)))
        assert sorted(layout.blocks.tolist()) == list(range(partition.num_blocks))

    def test_rows_find_every_token(self):
        partition = self.ragged_partition()
        found = partition.layout.tokens[partition.layout.row_of]
        assert torch.equal(found, torch.arange(len(partition.block_of)))

    def test_errors(self):
        with pytest.raises(ValueError, match="every block a token"):
            Partition.of(torch.tensor([0, 2]), 3)
        with pytest.raises(ValueError, match="every block a token"):
            Partition.of(torch.tensor([0, 1, 2]), 2)
        with pytest.raises(ValueError, match="10 states cannot be shared equally by 3 blocks"):
            Blocked.of(torch.tensor([0, 1, 2]), 10)
        with pytest.raises(ValueError, match="cannot be shared"):
            Blocked.of(torch.tensor([0, 1, 2]), 0)
        for wrong in (torch.tensor([0, -1]), torch.tensor([]), torch.tensor([[0, 1]])):
            with pytest.raises(ValueError, match="block_of must give each token"):
                Blocked.of(wrong, 4)


@pytest.mark.parametrize("kind", SUPPORTS)
def test_moving_to_a_device_keeps_the_relation(kind):
    support = random_support(kind, 12, 7)
    moved = support.to(torch.device("cpu"))
    assert torch.equal(moved.states(torch.arange(7)), support.states(torch.arange(7)))
    assert isinstance(moved, type(support)) and Dense(12, 7) == Dense(12, 7)
