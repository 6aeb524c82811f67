"""Sequences in every form in which people have them."""

import numpy as np
import pytest
import torch

from bighmm.sequences import SequenceHMM
from bighmm.sequences.reading import read

MODEL = SequenceHMM.from_tables(
    [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]]
)


def values(given):
    return [np.where(s.missing, -1, s.values).tolist() for s in given.sequences]


@pytest.mark.parametrize(
    "X",
    [
        *([0, 1, 2], (0, 1, 2), [[0], [1], [2]], [(0,), (1,), (2,)], [[0, 1, 2]]),
        *(np.array([0, 1, 2]), np.array([[0], [1], [2]]), np.array([[0], [1], [2]], np.uint8)),
        *(torch.tensor([0, 1, 2]), torch.tensor([[0], [1], [2]]), [np.array([[0], [1], [2]])]),
        *([torch.tensor([0, 1, 2])], np.array([0.0, 1.0, 2.0]), np.array([[0, 1, 2]])),
        np.array([0, 1, 2], dtype=object),
    ],
)
def test_one_sequence(X):
    assert values(read(X)) == [[0, 1, 2]]
    assert MODEL.score(X) == pytest.approx(MODEL.score([[0, 1, 2]]))


@pytest.mark.parametrize(
    "X",
    [
        *([[0, 1], [2]], [np.array([0, 1]), torch.tensor([2])], ([0, 1], (2,))),
        [np.array([[0], [1]]), np.array([[2]])],
        np.array([np.array([0, 1]), np.array([2])], dtype=object),
    ],
)
def test_several_sequences(X, recwarn):
    assert values(read(X)) == [[0, 1], [2]] and not read(X).joined
    assert MODEL.score_sequences(X).shape == (2,) and not recwarn.list
    column = [[0], [1], [2]]
    for joined in (column, np.array(column), [0, 1, 2]):
        assert values(read(joined, [2, 1])) == [[0, 1], [2]] and read(joined, [2, 1]).joined


def test_arrays_of_one_symbol_are_sequences():
    """Those who make arrays have made sequences; a column is made of lists."""
    assert values(read([np.array([0]), np.array([1])])) == [[0], [1]]
    assert values(read([[0]])) == [[0]]


@pytest.mark.parametrize(
    "X",
    [
        *([0, None, 2], [0, -1, 2], [0, np.nan, 2], [0.0, float("nan"), 2.0]),
        *([[0], [None], [2]], [[0, None, 2]], np.array([0, np.nan, 2]), torch.tensor([0, -1, 2])),
        *(torch.tensor([0.0, torch.nan, 2.0]), np.array([0, None, 2], dtype=object)),
        np.ma.masked_array([0, 9, 2], [False, True, False]),
        np.ma.masked_array([[0], [9], [2]], [[False], [True], [False]]),
        [np.ma.masked_array([0, 9, 2], [False, True, False])],
        np.ma.masked_array([[0, 1, 2]], [[False, True, False]]),
        np.ma.masked_array([0.0, np.nan, 2.0], False),
        np.ma.masked_equal([0, 77, 2], 77),
        [0, np.ma.masked, 2],
        [[0], [np.ma.masked], [2]],
        list(np.ma.masked_array([0, 9, 2], [False, True, False])),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_missing(X):
    assert values(read(X)) == [[0, -1, 2]]
    assert MODEL.score(X) == pytest.approx(float(MODEL.hmm_.known_log_prob([[0, -1, 2]])))


def test_masks_count_with_lengths():
    masked = np.ma.masked_array([0, 1, 2, 1], [0, 1, 0, 0])
    assert values(read(masked, [3, 1])) == [[0, -1, 2], [1]]


def test_sparse_and_complex():
    with pytest.raises(ValueError, match="sparse matrices are not supported"):
        MODEL.score(type("Sparse", (), {"tocsr": None})())
    with pytest.raises(ValueError, match="Complex data not supported, as in sequence 0"):
        MODEL.score(np.array([1j]))


class TestStrings:
    ROWS = (["walk", "shop", "walk"], ["clean"])

    def test_they_are_numbered_in_their_order(self):
        model = SequenceHMM(2, random_state=0, iterations=3, tolerance=0).fit(self.ROWS)
        assert model.symbols_ == ["clean", "shop", "walk"] and model.n_symbols_ == 3
        twin = SequenceHMM(2, random_state=0, iterations=3, tolerance=0).fit([[2, 1, 2], [0]])
        assert model.history_ == twin.history_ and twin.symbols_ is None
        assert model.score(self.ROWS) == twin.score([[2, 1, 2], [0]])
        drawn = model.sample(2, 5, ["shop"], random_state=1)
        assert drawn.shape == (2, 5) and set(drawn.flat) <= {*model.symbols_}
        assert model.predict(["walk", "walk"]).shape == (2,)
        assert model.predict(np.array([["walk"], ["walk"]])).shape == (2,)

    @pytest.mark.parametrize("gap", [None, np.nan])
    def test_missing(self, gap):
        model = SequenceHMM(2, random_state=0, iterations=2, tolerance=0).fit(self.ROWS)
        assert model.score([["walk", gap]]) == pytest.approx(model.score([["walk"]]))
        masked = np.ma.masked_array(["walk", "what"], [False, True])
        assert model.score(masked) == pytest.approx(model.score([["walk"]]))
        assert model.score(list(masked)) == model.score(masked)
        assert model.score([[gap, gap]]) == pytest.approx(0)

    @pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy before 2.0")
    def test_strings_of_any_length(self):
        model = SequenceHMM(2, random_state=0, iterations=2, tolerance=0).fit(self.ROWS)
        row = np.array(self.ROWS[0], np.dtypes.StringDType())
        assert model.score(row) == model.score([row]) == model.score(list(self.ROWS[0]))

    def test_given_beforehand(self, tmp_path):
        model = SequenceHMM(
            2, symbols=["walk", "shop", "clean", "sleep"], smoothing=0.1, iterations=1, tolerance=0
        )
        model.fit(self.ROWS)
        assert model.n_symbols_ == 4 and np.isfinite(model.score([["sleep"]]))
        model.save(tmp_path / "model")
        loaded = SequenceHMM.load(tmp_path / "model")
        assert loaded.symbols_ == model.symbols_ and loaded.score([["sleep"]]) < 0

    @pytest.mark.parametrize(
        "settings, X, sentence",
        [
            ({"symbols": ["a", "a"]}, [["a"]], "symbols must be strings of which no two are"),
            ({"symbols": ["a", 1]}, [["a"]], "symbols must be strings of which no two are"),
            ({"symbols": iter("ab")}, [["a"]], "symbols must be a list of strings, not a str"),
            ({"symbols": ["a"], "n_symbols": 2}, [["a"]], "n_symbols is 2, but there are 1"),
            ({"n_symbols": 2}, [["a"]], "the sequences have 1 different strings, not the n_symb"),
            ({"symbols": ["a"]}, [["b"]], "symbol b in sequence 0 at position 0 is not known"),
            ({"symbols": ["a"]}, [[0]], "the symbols of this model are strings, not numbers"),
        ],
    )
    def test_mistakes(self, settings, X, sentence):
        with pytest.raises(ValueError, match=sentence):
            SequenceHMM(2, **settings).fit(X)

    def test_numbers_are_not_strings(self):
        with pytest.raises(ValueError, match="the symbols of this model are numbers, not strings"):
            MODEL.score([["a"]])


def test_y_is_never_taken_for_lengths():
    rows = [0, 1, 2, 1]
    model = SequenceHMM(2, 3, iterations=1, tolerance=0, random_state=0)
    with pytest.warns(UserWarning, match="y is not used; if these are lengths"):
        model.fit(rows, [2, 2])
    assert model.score(rows) == pytest.approx(model.history_[-1])
    with pytest.warns(UserWarning, match="y is not used"):
        assert model.score(rows, [2, 2]) == model.score(rows)
    with pytest.warns(UserWarning, match="y is not used"):
        model.partial_fit(rows, [2, 2])
    both = SequenceHMM(2, 3, iterations=1, tolerance=0, random_state=0).fit(rows, lengths=[2, 2])
    assert both.score(rows, lengths=[2, 2]) == pytest.approx(both.history_[-1])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("y", [[0, 1, 2, 1], [[0, 1], [1, 1, 1]], [1, 1, 1], ["a"] * 4, 4])
def test_labels_are_not_lengths(y):
    model = SequenceHMM(2, 3, tol=1e9, random_state=0).fit([0, 1, 2, 1], y)
    assert np.isfinite(model.score([0, 1, 2, 1], y))


@pytest.mark.parametrize(
    "X", [np.array([2**63 + 1], np.uint64), np.array([2.0**63]), [2**70], [0, 2**63, None]]
)
def test_numbers_that_are_too_large(X):
    with pytest.raises(ValueError, match=r"sequence 0 has the symbol \d+, which is too large"):
        MODEL.score(X)
    assert MODEL.score(np.array([2], np.uint64)) == MODEL.score([2])


@pytest.mark.parametrize("width", [0, 1, 5])
def test_no_sequences_in_an_array(width):
    with pytest.raises(ValueError, match="there are no sequences"):
        MODEL.score(np.empty((0, width), int))
