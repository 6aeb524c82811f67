"""Tokens in every form in which people have them; their mistakes are named in one sentence."""

import dataclasses

import numpy as np
import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.loops import can_loop
from bighmm.infer.sequences import padded, validate
from bighmm.model.transitions import Table
from bighmm.train.expectation_maximisation import baum_welch
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


MASKED = [False, True, False]


@pytest.mark.parametrize(
    "tokens",
    [
        [np.ma.masked_array([0, 1, 2], MASKED)],
        np.ma.masked_array(np.array([[0, 1, 2]], np.uint8), [MASKED]),
        [[0, np.ma.masked, 2]],
    ],
)
def test_what_a_mask_hides(tokens):
    hmm = random_hmm("dense-table")
    ask = [*QUESTIONS, "token_log_probs", "expected_counts", "carry_after"]
    for question in [*(getattr(hmm, name) for name in ask), lambda x: baum_welch(hmm, x)]:
        with pytest.raises(ValueError, match="a mask of NumPy hides some of these numbers"):
            question(tokens)
    gapped = [[0, -1, 2]]
    assert torch.equal(hmm.known_log_prob(tokens), hmm.known_log_prob(gapped))
    assert torch.equal(hmm.fill_probs(tokens).words, hmm.fill_probs(gapped).words)
    assert torch.equal(hmm.best_fill(tokens).words, hmm.best_fill(gapped).words)
    nothing = np.ma.masked_array([[0, 1, 2]], False)
    assert torch.equal(hmm.log_prob(nothing), hmm.log_prob([[0, 1, 2]]))


def test_a_prefix_may_be_what_is_known_after_it():
    hmm, seeded = random_hmm("blocked-flat"), torch.Generator
    expected = hmm.sample(3, 5, [1, 2], seeded().manual_seed(0))
    carry = hmm.carry_after([[1, 2]])
    assert torch.equal(hmm.sample(3, 5, carry, seeded().manual_seed(0)), expected)
    with pytest.raises(ValueError, match="a prefix is one sequence, not 2"):
        hmm.sample(1, 5, hmm.carry_after([[1, 2], [2, 2]]))


@pytest.mark.parametrize(
    "part, message",
    [
        (
            {"start": torch.zeros(3)},
            r"start has the shape \(3,\) and the transitions have 2 states",
        ),
        ({"transitions": Table(torch.zeros(3, 3))}, "the transitions have 3 states, but the supp"),
        (
            {"emissions": torch.zeros(4, 2)},
            r"emissions has the shape \(4, 2\), but the support has 3",
        ),
        ({"emissions": torch.zeros(3, 1)}, "the support has 3 tokens with 2 states each"),
    ],
)
def test_tables_that_do_not_fit_each_other(part, message):
    hmm = HMM.from_probs(*probs())
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(hmm, **part)


def test_the_loops_read_no_table_of_another_shape():
    hmm = HMM.from_probs(*probs())
    hmm = dataclasses.replace(hmm, transitions=Table(torch.zeros(2, 1)))
    if can_loop(hmm):
        for ask in (hmm.log_prob, hmm.viterbi, lambda ids: baum_welch(hmm, ids)):
            with pytest.raises(ValueError, match=r"cannot have transitions of shape \(2, 1\)"):
                ask([[0, 1, 2]])


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


ROWS = [[1, 2, 3], [4], [1, 2]]
FORMS = {
    "lists": lambda rows: rows,
    "tuples": lambda rows: tuple(map(tuple, rows)),
    "arrays": lambda rows: [np.array(row) for row in rows],
    "small arrays": lambda rows: [np.array(row, dtype=np.int8) for row in rows],
    "read-only arrays": lambda rows: [np.broadcast_to(row, len(row)) for row in rows],
    "reversed arrays": lambda rows: [np.array(row[::-1])[::-1] for row in rows],
    "foreign bytes": lambda rows: [np.array(row, dtype=">i4") for row in rows],
    "array of arrays": lambda rows: np.array([*map(np.array, rows), None], dtype=object)[:-1],
    "tensors": lambda rows: [torch.tensor(row) for row in rows],
    "small tensors": lambda rows: [torch.tensor(row, dtype=torch.int16) for row in rows],
    "numbers of NumPy": lambda rows: [[np.int64(id) for id in row] for row in rows],
    "mixed": lambda rows: [torch.tensor(rows[0]), rows[1], np.array(rows[2])],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("error")
def test_rows_of_every_kind(form):
    """In every question, without a warning of torch."""
    hmm = random_hmm("dense-table", end=0)
    tokens, lengths = padded(ROWS)
    rows, known = FORMS[form](ROWS), FORMS[form]([[1, -1, 2], [-1], [3, -1]])
    gaps = padded([[1, -1, 2], [-1], [3, -1]])
    for question in ("log_prob", "next_token", "posterior", "viterbi", "expected_counts"):
        got, wanted = getattr(hmm, question)(rows), getattr(hmm, question)(tokens, lengths)
        torch.testing.assert_close(got, wanted, equal_nan=True)
    torch.testing.assert_close(hmm.best_paths(rows, 2), hmm.best_paths(tokens, 2, lengths))
    torch.testing.assert_close(hmm.best_next(rows, 2), hmm.best_next(tokens, 2, lengths))
    torch.testing.assert_close(hmm.fill_probs(known), hmm.fill_probs(*gaps))
    torch.testing.assert_close(hmm.known_log_prob(known), hmm.known_log_prob(*gaps))
    states = hmm.viterbi(tokens, lengths).states.clamp(min=0)
    paths = FORMS[form]([row[:n] for row, n in zip(states.tolist(), lengths.tolist(), strict=True)])
    torch.testing.assert_close(
        hmm.joint_log_prob(rows, paths), hmm.joint_log_prob(tokens, states, lengths)
    )
    assert hmm.sample(2, 3, prefix=rows[0]).shape == (2, 3)
    same, others = FORMS[form](ROWS), FORMS[form]([[1, 2], [3, 4], [0, 1]])
    assert baum_welch(hmm, same, iterations=1).log_probs == pytest.approx(
        baum_welch(hmm, tokens, lengths, iterations=1).log_probs
    )
    torch.testing.assert_close(hmm.log_prob(others, [2, 1, 2]), hmm.log_prob([[1, 2], [3], [0, 1]]))


@pytest.mark.filterwarnings("error")
def test_tables_of_every_kind():
    start, transition, emission = (table.double() for table in probs())
    expected = HMM.from_probs(start, transition, emission)
    for kind in (list, np.asarray, lambda rows: [np.asarray(row) for row in rows]):
        rows = [kind(table.tolist()) for table in (transition, emission)]
        made = HMM.from_probs(kind(start.tolist()), *rows)
        torch.testing.assert_close(made.log_prob([[0, 1]]).double(), expected.log_prob([[0, 1]]))


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ([[0.5, 1.0], [1.0]], None, "whole numbers .* in row 0"),
        ([[1], np.array([0.5])], None, "whole numbers .* in row 1"),
        ([["a", "b"], ["c"]], None, "token ids were expected, not the text 'a'"),
        ([[1, None], [2]], None, "numbers were expected, not"),
        ([[2**70], [1, 2]], None, "numbers were expected, not"),
        ([[1, 2], [3]], [2, 1], "lengths of their own; leave lengths out"),
        ([np.zeros((2, 2), int), np.zeros((2, 2), int)], None, r"shape \(2, 2, 2\)"),
        ([np.zeros((2, 2), int), [1]], None, "rows of different lengths are no table"),
    ],
)
def test_rows_that_are_none(tokens, lengths, message):
    with pytest.raises(ValueError, match=message):
        random_hmm("dense-table").log_prob(tokens, lengths)
