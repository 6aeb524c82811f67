"""Batches: each epoch has every token once, and a batch depends only on its step."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm.data.batches import labelled_batches, make_batches, padded_rows
from bighmm.data.corpus import sentence_bounds

END = 60_000
KINDS = ["streams", "sentences", "windows"]
CHEAP = settings(max_examples=60, deadline=None, derandomize=True)


def corpus(sizes, sentence=3):
    """Documents of these sizes: every third token is the end mark, all others are different."""
    tokens = np.arange(1, sum(sizes) + 1, dtype=np.uint16)
    tokens[sentence - 1 :: sentence] = END
    return tokens, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def batches_of(kind, sizes, *, batch=4, window=5, seed=0):
    tokens, documents = corpus(sizes)
    return make_batches(kind, tokens, documents, end=END, batch=batch, window=window, seed=seed)


def rows(batch):
    return [ids[:n].tolist() for ids, n in zip(batch.ids, batch.lengths, strict=True)]


def epoch(batches, number=0):
    steps = batches.steps_per_epoch
    return [batches.batch(step) for step in range(number * steps, (number + 1) * steps)]


def same(one, other):
    return (
        np.array_equal(one.ids, other.ids)
        and np.array_equal(one.lengths, other.lengths)
        and one.continues == other.continues
    )


shapes = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 20), min_size=1, max_size=8),
        "batch": st.integers(1, 9),
        "window": st.integers(1, 9),
        "seed": st.integers(0, 100),
    }
)


@pytest.mark.parametrize("kind", KINDS)
@CHEAP
@given(shape=shapes)
def test_every_token_is_seen_once_in_every_epoch(kind, shape):
    tokens, _ = corpus(shape["sizes"])
    batches = batches_of(kind, **shape)
    for number in (0, 1):
        seen = Counter()
        for batch in epoch(batches, number):
            assert batch.ids.dtype == batch.lengths.dtype == np.int64
            assert 1 <= len(batch.ids) == len(batch.lengths) <= shape["batch"]
            assert batch.ids.shape[1] == batch.lengths.max() > 0
            assert kind == "sentences" or batch.lengths.max() <= shape["window"]
            outside = np.arange(batch.ids.shape[1]) >= batch.lengths[:, None]
            assert not batch.ids[outside].any()
            seen.update(itertools.chain.from_iterable(rows(batch)))
        assert seen == Counter(tokens.tolist())


@CHEAP
@given(shape=shapes)
def test_streams_continue_where_the_previous_batch_ended(shape):
    tokens, documents = corpus(shape["sizes"])
    pieces = [tokens[a:b].tolist() for a, b in itertools.pairwise(documents)]
    batches = batches_of("streams", **shape)
    for number in (0, 1):
        found = epoch(batches, number)
        assert [b.continues for b in found] == [step > 0 for step in range(len(found))]
        count = min(shape["batch"], len(tokens))
        assert all(len(b.ids) == count for b in found)
        streams = [list(itertools.chain(*row)) for row in zip(*map(rows, found), strict=True)]
        assert max(map(len, streams)) - min(map(len, streams)) <= 1
        for before, after in itertools.pairwise(found):
            assert (after.lengths[before.lengths < shape["window"]] == 0).all()
        whole = list(itertools.chain(*streams))
        assert in_pieces(whole, pieces)


def in_pieces(stream, pieces):
    """Whether a stream is the concatenation of all pieces in some order."""
    left = Counter(map(tuple, pieces))
    place = 0
    while place < len(stream):
        fitting = [p for p in left if left[p] and tuple(stream[place : place + len(p)]) == p]
        if not fitting:
            return False
        longest = max(fitting, key=len)
        left[longest] -= 1
        place += len(longest)
    return not left.total()


@CHEAP
@given(shape=shapes)
def test_sentences_are_not_cut(shape):
    tokens, documents = corpus(shape["sizes"])
    bounds = sentence_bounds(tokens, END, documents)
    expected = Counter(tuple(tokens[a:b].tolist()) for a, b in itertools.pairwise(bounds))
    found = epoch(batches_of("sentences", **shape))
    assert Counter(tuple(row) for b in found for row in rows(b)) == expected
    assert not any(b.continues for b in found)
    assert len(found) == math.ceil(expected.total() / shape["batch"])


def test_sentences_of_a_batch_have_similar_lengths():
    lengths = np.random.default_rng(0).integers(1, 40, 200)
    tokens = np.ones(lengths.sum(), dtype=np.int64)
    tokens[np.cumsum(lengths) - 1] = END
    batches = make_batches(
        "sentences", tokens, np.array([0, len(tokens)]), end=END, batch=8, window=1, seed=0
    )
    found = epoch(batches)
    ranges = sorted((b.lengths.min(), b.lengths.max()) for b in found)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert [len(b.ids) for b in found] == [8] * 25
    shortest = [b.lengths.min() for b in found]
    assert shortest != sorted(shortest)


def test_batches_of_sentences_are_full_across_pools():
    tokens, documents = corpus([3 * 1000])
    batches = make_batches("sentences", tokens, documents, end=END, batch=2, window=1, seed=0)
    assert batches.steps_per_epoch == 500 and len(epoch(batches)) == 500
    assert all(len(b.ids) == 2 for b in epoch(batches))


@CHEAP
@given(shape=shapes)
def test_all_windows_except_one_are_full(shape):
    found = epoch(batches_of("windows", **shape))
    lengths = np.concatenate([b.lengths for b in found])
    total, window = sum(shape["sizes"]), shape["window"]
    assert sorted(lengths, reverse=True)[: total // window] == [window] * (total // window)
    assert len(lengths) == math.ceil(total / window)
    assert not any(b.continues for b in found)
    assert [len(b.ids) for b in found[:-1]] == [shape["batch"]] * (len(found) - 1)


def test_windows_are_shuffled():
    tokens = np.arange(1, 101)
    batches = make_batches(
        "windows", tokens, np.array([0, 100]), end=END, batch=4, window=5, seed=0
    )
    firsts = [row[0] for b in epoch(batches) for row in rows(b)]
    assert sorted(firsts) == list(range(1, 101, 5)) and firsts != sorted(firsts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_a_function_of_its_step(kind):
    sizes = [7, 1, 12, 5, 30, 2, 9, 8]
    batches = batches_of(kind, sizes)
    steps = list(range(3 * batches.steps_per_epoch))
    in_order = [batches.batch(step) for step in steps]
    shuffled = np.random.default_rng(0).permutation(steps)
    again = batches_of(kind, sizes)
    assert all(same(again.batch(int(step)), in_order[step]) for step in shuffled)


@pytest.mark.parametrize("kind", [*KINDS, "documents"])
def test_the_order_depends_on_seed_and_epoch(kind):
    def order(seed, number):
        batches = batches_of(kind, [6] * 20, window=6, seed=seed)
        return [rows(b) for b in epoch(batches, number)]

    assert order(0, 1) == order(0, 1)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(0, 1) != order(1, 0)


@CHEAP
@given(shape=shapes)
def test_each_document_has_its_own_row(shape):
    tokens, bounds = corpus(shape["sizes"])
    batches = batches_of("documents", **(shape | {"window": 20}))
    assert batches.shape == (min(shape["batch"], len(shape["sizes"])), 20)
    found = [row for batch in epoch(batches, 1) for row in rows(batch)]
    assert sorted(found) == sorted(tokens[a:b].tolist() for a, b in itertools.pairwise(bounds))
    assert not any(batch.continues for batch in epoch(batches))


def test_ordered_streams_keep_the_order_of_the_text():
    batches = batches_of("ordered", [7, 12, 4], batch=2)
    tokens, _ = corpus([7, 12, 4])
    for number in (0, 1):
        read = [[], []]
        for batch in epoch(batches, number):
            for row, part in zip(read, rows(batch), strict=True):
                row += part
        assert read[0] + read[1] == tokens.tolist()


def test_rotated_streams_are_the_text_from_another_place_in_every_epoch():
    batches = batches_of("rotated", [7, 12, 4], batch=2)
    tokens, found = corpus([7, 12, 4])[0].tolist(), []
    for number in range(6):
        read = [[], []]
        for batch in epoch(batches, number):
            for row, part in zip(read, rows(batch), strict=True):
                row += part
        found.append(read[0] + read[1])
    rotations = [tokens[i:] + tokens[:i] for i in range(len(tokens))]
    assert all(text in rotations for text in found)
    assert len({tuple(text) for text in found}) > 3
    assert [b.continues for b in epoch(batches, 1)][:2] == [False, True]


def test_a_corpus_smaller_than_the_batch():
    found = epoch(batches_of("streams", [2, 1], batch=100))
    assert sorted(itertools.chain(*rows(found[0]))) == [1, 2, END] and len(found) == 1
    assert [len(row) for row in rows(found[0])] == [1, 1, 1]
    assert rows(batches_of("sentences", [3], batch=100).batch(0)) == [[1, 2, END]]
    assert rows(batches_of("windows", [3], batch=100).batch(0)) == [[1, 2, END]]


@pytest.mark.parametrize(
    "tokens, expected",
    [
        ([1, 0, 2, 2, 0], [0, 2, 5]),
        ([1, 0, 2], [0, 2, 3]),
        ([0, 0, 1], [0, 1, 2, 3]),
        ([1, 2], [0, 2]),
        ([0], [0, 1]),
    ],
)
def test_sentence_bounds(tokens, expected):
    assert sentence_bounds(np.array(tokens, dtype=np.uint16), 0).tolist() == expected


def test_a_document_begins_a_sentence():
    tokens, documents = np.array([1, 0, 2, 2, 3, 0]), np.array([0, 2, 4, 6])
    assert sentence_bounds(tokens, 0, documents).tolist() == [0, 2, 4, 6]
    assert sentence_bounds(tokens, 0, documents[[0, -1]]).tolist() == [0, 2, 6]


def test_a_text_without_end_marks_is_one_sentence():
    assert sentence_bounds(np.array([0, 1], dtype=np.uint16), -1).tolist() == [0, 2]


def test_padded_rows():
    tokens = np.array([5, 6, 7, 8, 9, 4], dtype=np.uint16)
    found = padded_rows(tokens, np.array([0, 1, 4, 6]), np.array([1, 0, 2]))
    assert found.tolist() == [[6, 7, 8], [5, 0, 0], [9, 4, 0]] and found.dtype == np.int64


def test_errors_say_what_is_wrong():
    for wrong in ({"batch": 0}, {"window": 0}, {"batch": -1}):
        with pytest.raises(ValueError, match="batch and window must be at least 1"):
            batches_of("streams", [3], **wrong)
    with pytest.raises(ValueError, match="no batches of kind 'stream'; use streams"):
        batches_of("stream", [3])
    with pytest.raises(ValueError, match="no tokens"):
        batches_of("streams", [])
    with pytest.raises(ValueError, match="has 6 tokens and does not fit into a window of 5; use"):
        batches_of("documents", [3, 6])


def test_labelled_batches_shuffle_each_epoch_once_for_tokens_and_once_for_states(monkeypatch):
    tokens, documents = corpus([7, 9, 30])
    shuffled = []
    monkeypatch.setattr(
        "bighmm.data.batches._shuffled",
        lambda tokens, documents, seed, epoch: (shuffled.append(epoch), tokens)[1],
    )
    labelled = labelled_batches(
        "windows", tokens, documents, tokens, end=0, batch=2, window=4, seed=0
    )
    for step in range(labelled.steps_per_epoch):
        labelled.batch(step)
    assert shuffled == [0, 0]


def test_the_end_of_a_document_ends_a_sentence():
    tokens = np.array([3, 4, 5, 6, 7, END, 8, 9])
    batches = make_batches(
        "sentences", tokens, np.array([0, 3, 6, 8]), end=END, batch=2, window=4, seed=0
    )
    found = [row for batch in epoch(batches) for row in rows(batch)]
    assert sorted(found) == [[3, 4, 5], [6, 7, END], [8, 9]]
