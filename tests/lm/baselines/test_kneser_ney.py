"""Kneser-Ney n-grams: against a slow implementation, by hand, and through files."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm.lm.baselines.arpa import read_arpa, write_arpa
from bighmm.lm.baselines.kneser_ney import KneserNey, estimate_discounts

WORDS = ["<eos>", "<unk>", "the", "naïve", "cat", "sat", "on", "mat"]


def stream(seed, size=8, sentences=60, longest=9):
    """Sentences of random words, frequent and rare ones, each with the end mark 0."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, size) ** 1.2
    parts = []
    for _ in range(sentences):
        length = int(rng.integers(0, longest))
        parts.append(rng.choice(np.arange(1, size), length, p=shares / shares.sum()))
        parts.append([0])
    return np.concatenate(parts).astype(np.uint16)


class Slow:
    """The definition, with dictionaries of tuples and recursion."""

    def __init__(self, tokens, size, end, order, discounts):
        self.size, self.order, self.end = size, order, end
        sentences = [["<s>"]]
        for token in map(int, tokens):
            sentences[-1].append(token)
            if token == end:
                sentences.append(["<s>"])
        raw = Counter(
            tuple(s[i : i + n])
            for s in sentences
            for n in range(1, order + 2)
            for i in range(len(s) - n + 1)
        )
        before = defaultdict(set)
        for gram in raw:
            before[gram[1:]].add(gram[0])
        self.followers = defaultdict(dict)
        self.discounts = {}
        for n in range(1, order + 1):
            counts = {
                g: raw[g] if n == order or g[0] == "<s>" else len(before[g])
                for g in raw
                if len(g) == n and g != ("<s>",)
            }
            for gram, count in counts.items():
                self.followers[gram[:-1]][gram[-1]] = count
            self.discounts[n] = self.chosen(Counter(counts.values()), discounts)

    @staticmethod
    def chosen(n, discounts):
        if n[1] == 0 or n[2] == 0:
            return {1: 0.5, 2: 0.5, 3: 0.5}
        y = n[1] / (n[1] + 2 * n[2])
        result = {1: y, 2: y, 3: y}
        if discounts == "modified":
            for k in (1, 2, 3):
                d = k - (k + 1) * y * n[k + 1] / n[k] if n[k] and n[k + 1] else y
                result[k] = d if 0 <= d <= k and d else y
        return result

    def prob(self, word, context):
        """Of a word after a tuple of symbols, of which all are used."""
        below = self.prob(word, context[1:]) if context else 1 / self.size
        counts = self.followers.get(context)
        if not counts:
            return below
        off = {w: self.discounts[len(context) + 1][min(c, 3)] for w, c in counts.items()}
        own = counts.get(word, 0) - off.get(word, 0)
        return (own + sum(off.values()) * below) / sum(counts.values())

    def log_probs(self, tokens):
        sentence, result = ["<s>"], []
        for token in map(int, tokens):
            context = tuple(sentence[len(sentence) - min(self.order - 1, len(sentence)) :])
            result.append(math.log(self.prob(token, context)))
            sentence = ["<s>"] if token == self.end else [*sentence, token]
        return result


@pytest.mark.parametrize("discounts", ["modified", "single"])
@pytest.mark.parametrize("end", [0, None])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_equals_the_definition(order, end, discounts):
    train, test = stream(order), stream(100 + order, sentences=20)
    model = KneserNey.fit(train, 8, end, order, discounts)
    slow = Slow(train, 8, end, order, discounts)
    assert model.order == order
    np.testing.assert_allclose(model.discounts, [[*d.values()] for d in slow.discounts.values()])
    np.testing.assert_allclose(model.log_probs(test), slow.log_probs(test), rtol=1e-10)
    np.testing.assert_allclose(model.log_probs(train), slow.log_probs(train), rtol=1e-10)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.integers(1, 6),
    st.sampled_from([0, None]),
)
def test_tiny_corpora(train, test, order, end):
    model = KneserNey.fit(np.array(train), 5, end, order)
    log_probs = model.log_probs(np.array(test))
    np.testing.assert_allclose(
        log_probs, Slow(train, 5, end, order, "modified").log_probs(test), rtol=1e-10
    )
    for i, token in enumerate(test):
        probs = model.next_probs(test[:i])
        assert probs.shape == (5,) and (probs > 0).all() and abs(probs.sum() - 1) < 1e-12
        assert math.isclose(math.log(probs[token]), log_probs[i], rel_tol=1e-10)
    off = model.discounts
    assert (off > 0).all() and (off <= [1, 2, 3]).all()


def test_sums_to_one_with_words_and_contexts_that_were_never_seen():
    train = stream(0, sentences=300)
    model = KneserNey.fit(train, 500, 0, 5)  # most words never occur
    rng = np.random.default_rng(1)
    for length in range(8):
        for size in (8, 500):
            probs = model.next_probs(rng.integers(1, size, length))
            assert (probs > 0).all() and abs(probs.sum() - 1) < 1e-12
    assert math.isfinite(model.perplexity(np.arange(500)))


def test_by_hand():
    a, b, end = 0, 1, 2
    train = np.array([a, b, end, a, end])
    model = KneserNey.fit(train, 3, end, order=2)
    # Pairs: <s> a twice, and once each a b, b end, a end. Y = 3 / (3 + 2), and no D_2.
    # Words by what is before them: a 1 (<s>), b 1 (a), end 2 (a, b). Y = 2 / (2 + 2), and no D_2.
    np.testing.assert_allclose(model.discounts, [[0.5] * 3, [0.6] * 3])
    # p(a) = p(b) = 0.5/4 + 1.5/4 * 1/3,  p(end) = 1.5/4 + 1.5/4 * 1/3
    # p(a | <s>) = 1.4/2 + 0.6/2 * 0.25
    np.testing.assert_allclose(model.next_probs([]), [0.775, 0.075, 0.15])
    # p(b | a) = 0.4/2 + 1.2/2 * 0.25,  p(end | a) = 0.4/2 + 1.2/2 * 0.5
    np.testing.assert_allclose(model.next_probs([a]), [0.15, 0.35, 0.5])
    # p(end | b) = 0.4/1 + 0.6/1 * 0.5
    np.testing.assert_allclose(model.next_probs([a, b]), [0.15, 0.15, 0.7])
    expected = [0.775, 0.35, 0.7, 0.775, 0.5]
    np.testing.assert_allclose(np.exp(model.log_probs(train)), expected)
    assert math.isclose(model.perplexity(train), math.prod(expected) ** (-1 / 5))


def test_order_one_is_discounted_frequencies():
    model = KneserNey.fit(np.array([0, 0, 0, 0, 1, 1, 2]), 4, None, order=1)
    # n_1 = n_2 = 1, so Y = 1/3; n_3 = 0, so every discount is Y; 1/7 is taken off in all.
    expected = (np.array([4, 2, 1, 0]) - np.array([1, 1, 1, 0]) / 3) / 7 + 1 / 7 / 4
    np.testing.assert_allclose(model.next_probs([3, 3]), expected)


def test_contexts_stay_within_the_sentence():
    train = stream(3)
    model = KneserNey.fit(train, 8, 0, 4)
    first, second = np.array([2, 3, 0]), np.array([4, 1, 2, 0])
    both = np.concatenate([model.log_probs(first), model.log_probs(second)])
    np.testing.assert_array_equal(model.log_probs(np.concatenate([first, second])), both)
    np.testing.assert_array_equal(model.next_probs([5, 2, 0, 4]), model.next_probs([4]))
    np.testing.assert_array_equal(model.next_probs([5, 2, 0]), model.next_probs([]))
    carried = KneserNey.fit(train, 8, None, 4)
    assert not np.allclose(carried.next_probs([5, 2, 0]), carried.next_probs([]))


def test_the_order_of_sentences_does_not_matter():
    sentences = [[1, 2, 0], [3, 1, 2, 4, 0], [0], [1, 2, 4, 0]]
    there = KneserNey.fit(np.concatenate(sentences), 5, 0, 3)
    back = KneserNey.fit(np.concatenate(sentences[::-1]), 5, 0, 3)
    np.testing.assert_array_equal(there.next_probs([1, 2]), back.next_probs([1, 2]))


def test_discounts():
    n = np.repeat([0, 1, 2, 3, 4, 9], [7, 40, 20, 10, 5, 3])
    y = 40 / 80
    np.testing.assert_allclose(estimate_discounts(n), [y, 2 - 3 * y * 10 / 20, 3 - 4 * y * 5 / 10])
    np.testing.assert_allclose(estimate_discounts(n, "single"), [y, y, y])
    np.testing.assert_allclose(estimate_discounts(n[n != 4]), [y, 2 - 3 * y * 10 / 20, y])
    many_threes = np.repeat([1, 2, 3], [40, 20, 500])  # D_2 would be far below zero
    np.testing.assert_allclose(estimate_discounts(many_threes), [y, y, y])
    for missing in (1, 2):
        np.testing.assert_array_equal(estimate_discounts(n[n != missing]), [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(estimate_discounts(n[:0]), [0.5, 0.5, 0.5])


def test_missing_singletons():
    train = np.tile(stream(4, sentences=30), 3)  # no n-gram within a sentence occurs only once
    model = KneserNey.fit(train, 8, 0, 3)
    np.testing.assert_array_equal(model.discounts[2], [0.5, 0.5, 0.5])
    for context in ([], [1], [1, 2], [7, 7]):
        assert abs(model.next_probs(context).sum() - 1) < 1e-12
    expected = Slow(train, 8, 0, 3, "modified").log_probs(train[:50])
    np.testing.assert_allclose(model.log_probs(train[:50]), expected, rtol=1e-10)


def test_learns():
    train, test = np.tile([1, 2, 3, 4, 0, 4, 2, 1, 0], 20), np.array([1, 2, 3, 4, 0, 4, 2, 1, 0])
    figures = [KneserNey.fit(train, 5, 0, order).perplexity(test) for order in (1, 2, 3)]
    assert 5 > figures[0] > figures[1] > figures[2] > 1


@pytest.mark.parametrize("end", [0, None])
def test_save_and_load(tmp_path, end):
    model = KneserNey.fit(stream(5), 8, end, 4)
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")  # again
    loaded = KneserNey.load(tmp_path / "model")
    assert (loaded.vocabulary_size, loaded.end, loaded.order) == (8, end, 4)
    np.testing.assert_array_equal(loaded.discounts, model.discounts)
    test = stream(6)
    np.testing.assert_array_equal(loaded.log_probs(test), model.log_probs(test))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_folders_that_are_not_models(tmp_path):
    model = KneserNey.fit(stream(5), 8, 0, 2)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        model.save(tmp_path)
    with pytest.raises(ValueError, match="no n-gram model"):
        KneserNey.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"no ngrams\.json"):
        KneserNey.load(tmp_path)
    model.save(tmp_path / "model")
    tensors = tmp_path / "model" / "ngrams.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged"):
        KneserNey.load(tmp_path / "model")


@pytest.mark.parametrize("end", [0, None])
@pytest.mark.parametrize("order", [1, 2, 5])
def test_arpa_round_trip(tmp_path, order, end):
    model = KneserNey.fit(stream(7), 8, end, order)
    write_arpa(model, tmp_path / "lm.arpa", WORDS)
    read = read_arpa(tmp_path / "lm.arpa", WORDS, end)
    assert read.order == order and read.discounts is None
    test = stream(8)
    np.testing.assert_allclose(read.log_probs(test), model.log_probs(test), atol=1e-6)
    for context in ([], [2, 3], [7, 7, 7, 7, 7]):
        np.testing.assert_allclose(read.next_probs(context), model.next_probs(context), atol=1e-6)
    read.save(tmp_path / "model")
    loaded = KneserNey.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.log_probs(test), read.log_probs(test))


def test_arpa_with_orders_that_no_sentence_reaches(tmp_path):
    model = KneserNey.fit(np.array([1, 0, 2, 0]), 3, 0, 6)  # at most <s> 1 0
    write_arpa(model, tmp_path / "lm.arpa", WORDS[:3])
    read = read_arpa(tmp_path / "lm.arpa", WORDS[:3], 0)
    assert read.order == 6
    test = np.array([1, 2, 2, 2, 1, 2, 1, 0])
    np.testing.assert_allclose(read.log_probs(test), model.log_probs(test), atol=1e-6)


ARPA = """made by hand, not in order, and without the pair "b b"

\\data\\
ngram 1=5
ngram 2=2
ngram 3=1

\\1-grams:
-99\t<s>\t-0.2
-0.5\ta\t-0.1
-0.3\tb
-0.7\t</s>
-1.5\t<unk>

\\2-grams:
-0.4\ta b\t-0.6
-0.2\t<s> a\t-0.3

\\3-grams:
-0.05\ta b b

\\end\\
"""


def test_arpa_by_hand(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA)
    model = read_arpa(path, ["a", "b", "<eos>"], end=2)
    steps = [
        -0.2,  # a after <s>
        -0.3 - 0.4,  # b after <s> a
        -0.05,  # b after a b
        -0.7,  # the end after b b, which is no context and has no weight
        -0.2 - 0.3,  # b after <s>
        -0.5,  # a after <s> b
        -0.1 - 0.5,  # a after b a
    ]
    tokens = [0, 1, 1, 2, 1, 0, 0]
    np.testing.assert_allclose(model.log_probs(np.array(tokens)), np.array(steps) * math.log(10))
    for i, token in enumerate(tokens):
        assert math.isclose(math.log10(model.next_probs(tokens[:i])[token]), steps[i])
    assert read_arpa(path, ["<unk>", "a", "b", "."], end=3).vocabulary_size == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "", "no ARPA file"),
        ("\\end\\", "", "cut short"),
        ("\\end\\", "-0.1\ta a a", "should end here"),
        ("ngram 2=2", "ngram 3=2", "how many n-grams"),
        ("ngram 1=5\nngram 2=2\nngram 3=1\n", "", "no n-grams"),
        ("ngram 2=2", "ngram 2=1", "3-grams should begin"),
        ("-0.4\ta b\t-0.6", "-0.4\ta b b c\t-0.6", "no 2-gram"),
        ("-0.4\ta b", "-0.4\ta dog", "word dog is not in the vocabulary"),
        ("-0.4\ta b", "four\ta b", "should be a number"),
        ("-0.4\ta b", "nan\ta b", "should be a number"),
        ("-0.4\ta b", "inf\ta b", "should be a number"),
        ("-0.4\ta b", f"{'9' * 100}\ta b", "should be a number"),
        ("ngram 2=2", f"ngram 2={'9' * 5000}", "how many n-grams"),
        ("-0.4\ta b", "-0.4\t<s> a", "twice"),
        ("-0.4\ta b", "-0.4\tb b", "without the 2-gram"),
        ("-0.3\tb", "-0.3\t<unk>", "the 1-gram <unk> is there twice"),
        ("-0.4\ta b", "0.4\ta b", "its probability is above one"),
        ("-0.4\ta b\t-0.6", "-0.4\ta b\t11", "its backoff weight is above"),
    ],
)
def test_bad_arpa(tmp_path, old, new, message):
    assert old in ARPA
    (tmp_path / "lm.arpa").write_text(ARPA.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        read_arpa(tmp_path / "lm.arpa", ["a", "b", "<eos>"], end=2)


def test_words_that_do_not_fit_arpa(tmp_path):
    model = KneserNey.fit(np.array([1, 2, 0]), 3, 0, 2)
    for words, message in [
        (["<eos>", "a"], "2 words for a vocabulary of 3"),
        (["<eos>", "a", "b c"], "has a space"),
        (["<eos>", "a", ""], "is empty"),
        (["<eos>", "a", "a"], "twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            write_arpa(model, tmp_path / "lm.arpa", words)
    assert not (tmp_path / "lm.arpa").exists()
    with pytest.raises(ValueError, match="cannot be read"):
        read_arpa(tmp_path / "lm.arpa", ["a"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": np.array([], dtype=np.int64)}, "at least one token"),
        ({"tokens": np.array([0, 5])}, "token id 5 is outside"),
        ({"tokens": np.array([-1, 2])}, "token id -1 is outside"),
        ({"tokens": np.array([0.0, 1.0])}, "must be integers"),
        ({"tokens": np.zeros((2, 2), dtype=np.int64)}, "shape"),
        ({"end": 5}, "end mark 5 is outside"),
        ({"order": 0}, "order is 0"),
        ({"discounts": "good"}, "'modified' or 'single'"),
    ],
)
def test_bad_input(arguments, message):
    usual = {"tokens": np.array([1, 0]), "vocabulary_size": 5, "end": 0}
    with pytest.raises(ValueError, match=message):
        KneserNey.fit(**(usual | arguments))


def test_bad_queries():
    model = KneserNey.fit(np.array([1, 2, 0]), 5, 0, 2)
    with pytest.raises(ValueError, match="at least one token"):
        model.perplexity(np.array([]))
    with pytest.raises(ValueError, match="outside"):
        model.log_probs(np.array([5]))
    with pytest.raises(ValueError, match="outside"):
        model.next_probs([5])


def test_a_text_that_was_cut_off_does_not_run_on_into_the_next():
    tokens, documents = np.array([1, 2, 3, 1, 2, 0, 3]), np.array([0, 2, 6, 7])
    model = KneserNey.fit(tokens, 4, 0, 3, documents=documents)
    parts = [tokens[:2], tokens[2:6], tokens[6:]]
    alone = np.concatenate([model.log_probs(part) for part in parts])
    assert np.allclose(model.log_probs(tokens, documents), alone)
    assert model.perplexity(tokens, documents) == pytest.approx(np.exp(-np.mean(alone)))
    assert not np.allclose(model.log_probs(tokens), alone)
