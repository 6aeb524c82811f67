"""Counts of tokens and of pairs, in chunks of any length, against counting one by one."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bighmm.data import counting
from bighmm.data.counting import count_pairs, count_tokens

ids = st.lists(st.integers(0, 6), max_size=40)


@pytest.fixture(params=[1, 2, 7, 1000])
def chunk(request, monkeypatch):
    monkeypatch.setattr(counting, "CHUNK", request.param)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
@pytest.mark.parametrize("length", [0, 1, 2, 8, 50])
def test_counts_do_not_depend_on_chunks(chunk, dtype, length):
    tokens = np.random.default_rng(length).integers(0, 7, length).astype(dtype)
    assert count_tokens(tokens, 9).tolist() == [tokens.tolist().count(v) for v in range(9)]
    expected = Counter(pairwise(tokens.tolist()))
    pairs, counts = count_pairs(tokens, 9)
    found = zip(pairs.tolist(), counts.tolist(), strict=True)
    assert list(found) == sorted((9 * a + b, times) for (a, b), times in expected.items())


@given(ids)
def test_pairs_of_classes(tokens):
    classes = np.array([0, 1, 2, 0, 1, 2, 2], np.int32)
    stream = np.array(tokens, np.uint16)
    of_classes = count_pairs(stream, 3, classes)
    for found, wanted in zip(of_classes, count_pairs(classes[stream], 3), strict=True):
        assert np.array_equal(found, wanted)


def test_pairs_of_large_ids_do_not_overflow():
    tokens = np.array([199_999, 199_998, 199_999], np.uint32)
    pairs, counts = count_pairs(tokens, 200_000)
    assert pairs.tolist() == [199_998 * 200_000 + 199_999, 199_999 * 200_000 + 199_998]
    assert counts.tolist() == [1, 1]
