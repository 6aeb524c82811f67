"""A user's mistakes are named in one sentence."""

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.sequences import padded, validate
from models import KINDS, random_hmm

QUESTIONS = ["log_prob", "next_token", "posterior", "viterbi"]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    "tokens, lengths, message",
    [
        ([[1, 5]], None, "token id 5 in row 0, position 1 .* 0 to 4"),
        ([[1, 1], [-1, 2]], [2, 1], "token id -1 in row 1, position 0"),
        ([[0.5, 1.0]], None, "whole numbers"),
        ([1, 2, 3], None, r"shape \(3,\)"),
        ([[[1]]], None, r"shape \(1, 1, 1\)"),
        ([[1, 2]], [3], "from 0 to 2"),
        ([[1, 2]], [-1], "from 0 to 2"),
        ([[1, 2]], [1, 1], "1 whole numbers"),
        ([[1, 2]], 2, "1 whole numbers"),
        ([[1, 2]], [1.5], "whole numbers"),
    ],
)
def test_tokens_and_lengths(question, tokens, lengths, message):
    hmm = random_hmm("blocked-flat")
    with pytest.raises(ValueError, match=message):
        getattr(hmm, question)(
            torch.tensor(tokens), lengths if lengths is None else torch.tensor(lengths)
        )


def test_lists_and_small_integers_are_read():
    hmm = random_hmm("dense-table")
    expected = hmm.log_prob(torch.tensor([[1, 2, 3]]))
    assert torch.equal(hmm.log_prob([[1, 2, 3]]), expected)
    assert torch.equal(hmm.log_prob(torch.tensor([[1, 2, 3]], dtype=torch.uint8)), expected)
    assert torch.equal(hmm.log_prob([[1, 2, 3, -1]], [3]), expected)


def test_padding_is_blanked_out():
    hmm = random_hmm("dense-table", end=2)
    sequences = validate(hmm, torch.tensor([[2, 1, 99], [1, 2, 3]]), torch.tensor([2, 3]))
    assert sequences.ids.tolist() == [[2, 1, 0], [1, 2, 3]]
    assert sequences.fresh.tolist() == [[True, True, False], [True, False, True]]


def probs():
    return torch.tensor([0.5, 0.5]), torch.full((2, 2), 0.5), torch.full((2, 3), 1 / 3)


class TestFromProbs:
    def wrong(self, message, **changed):
        tables = dict(zip(("start", "transition", "emission"), probs(), strict=True)) | changed
        with pytest.raises(ValueError, match=message):
            HMM.from_probs(**tables)

    def test_shapes(self):
        self.wrong("shapes", start=torch.ones(1, 2))
        self.wrong("shapes", start=torch.ones(0))
        self.wrong("shapes", transition=torch.full((2, 3), 1 / 3))
        self.wrong("shapes", emission=torch.ones(2))
        self.wrong("one row for each of the 2 states", emission=torch.full((3, 3), 1 / 3))
        self.wrong("at least one column", emission=torch.ones(2, 0))

    def test_rows(self):
        self.wrong("row 0 of start sums to 0.9;", start=torch.tensor([0.4, 0.5]))
        self.wrong("row 1 of transition sums to 2", transition=torch.tensor([[0.5, 0.5], [1, 1]]))
        self.wrong("row 0 of emission sums to 0;", emission=torch.zeros(2, 3))
        self.wrong("sums to inf", start=torch.tensor([torch.inf, 0.0]))
        self.wrong(
            "transition has a NaN in row 1", transition=torch.tensor([[1, 0], [1, torch.nan]])
        )
        self.wrong("start has a negative entry", start=torch.tensor([1.5, -0.5]))

    def test_end_mark(self):
        self.wrong("end mark 3 is not in the vocabulary of 3", end=3)
        self.wrong("end mark -1", end=-1)

    def test_small_deviations_are_divided_out(self):
        start, transition, emission = probs()
        hmm = HMM.from_probs(start * 1.00005, transition, emission * 0.99995)
        for table in hmm.tables():
            torch.testing.assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))

    def test_precision_is_that_of_the_widest_table(self):
        start, transition, emission = probs()
        assert HMM.from_probs(start.half(), transition, emission).start.dtype == torch.float32
        mixed = HMM.from_probs(
            start,
            torch.tensor([[0, 1], [1, 0]]),
            emission.double() / emission.double().sum(1, keepdim=True),
        )
        assert mixed.start.dtype == mixed.transitions.table.dtype == torch.float64
        assert mixed.log_prob([[0, 1]]).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_different_lengths(kind):
    hmm = random_hmm(kind)
    rows = [[1, 2, 3], [], [4], [1, 2]]
    tokens, lengths = padded(rows)
    torch.testing.assert_close(hmm.log_prob(rows), hmm.log_prob(tokens, lengths))
    assert torch.equal(hmm.viterbi(rows).states, hmm.viterbi(tokens, lengths).states)
    gaps = [[1, -1, 2], [-1, 3]]
    tokens, lengths = padded(gaps)
    torch.testing.assert_close(hmm.fill_probs(gaps), hmm.fill_probs(tokens, lengths))
