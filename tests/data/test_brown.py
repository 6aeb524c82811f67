"""Brown clustering: information, merge losses and partitions against brute force; paths files."""

from collections import Counter
from itertools import combinations, pairwise
from math import isnan, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm.data import brown, counting
from bighmm.data.brown import bigrams as bigrams_module
from bighmm.data.brown.bigrams import Bigrams
from bighmm.data.brown.exchange import ClassCounts, WordPairs
from bighmm.data.brown.window import Window
from bighmm.data.counting import count_pairs

streams = st.integers(2, 9).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=2, max_size=60)
)


def naive_information(stream):
    """Σ p(a, b) log p(a, b) / (p(a) p(b)) over the pairs of a list of classes."""
    pairs = list(pairwise(stream))
    joint, total = Counter(pairs), len(pairs)
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    return sum(
        (m / total) * log((m / total) / (left[a] / total * right[b] / total))
        for (a, b), m in joint.items()
    )


class NaiveWindow:
    """The window of the agglomeration, with every loss computed from its definition."""

    def __init__(self, stream, slots):
        self.pairs = Counter(pairwise(stream))
        self.left, self.right = Counter(stream[:-1]), Counter(stream[1:])
        self.slots = [set() for _ in range(slots)]

    def information(self, classes):
        """N times the information of the pairs of words in `classes`, without the term log N."""
        total = 0.0
        for a in classes:
            for b in classes:
                m = sum(self.pairs[v, w] for v in a for w in b)
                if m:
                    left, right = sum(self.left[v] for v in a), sum(self.right[w] for w in b)
                    total += m * log(m / (left * right))
        return total

    def losses(self):
        before, losses = self.information(self.slots), {}
        for i, j in combinations(range(len(self.slots)), 2):
            if self.slots[i] and self.slots[j]:
                rest = [c for k, c in enumerate(self.slots) if k not in (i, j)]
                after = self.information([*rest, self.slots[i] | self.slots[j]])
                losses[i, j] = before - after
        return losses

    def merge_best(self):
        losses = self.losses()
        least = min(losses.values())
        pair = min(pair for pair, loss in losses.items() if loss <= least + 1e-9)
        union, freed = sorted(pair, key=lambda s: -self.frequency(s))
        self.slots[union] |= self.slots[freed]
        self.slots[freed] = set()
        return union, freed

    def frequency(self, slot):
        return sum(self.left[v] + self.right[v] for v in self.slots[slot])


def naive_agglomeration(stream, classes):
    window, free = NaiveWindow(stream, classes + 1), 0
    by_frequency = sorted(set(stream), key=lambda v: (-stream.count(v), v))
    for number, word in enumerate(by_frequency):
        window.slots[free] = {word}
        free = number + 1 if number < classes else window.merge_best()[1]
    return {frozenset(members) for members in window.slots if members}


def partition(classes):
    return {frozenset(np.flatnonzero(classes == c).tolist()) for c in np.unique(classes)}


def dense(tokens):
    """Renumber so that every type of 0..V-1 occurs; return the stream and V."""
    types, stream = np.unique(tokens, return_inverse=True)
    return stream, len(types)


@given(streams, st.integers(1, 4))
def test_information_equals_its_definition(tokens, classes):
    of_type = np.arange(9) * 7 % classes
    expected = naive_information(of_type[tokens].tolist())
    assert brown.average_mutual_information(np.array(tokens), of_type) == pytest.approx(
        expected, abs=1e-12
    )


def test_information_of_known_streams():
    assert brown.average_mutual_information(np.array([0, 1] * 5 + [0]), np.arange(2)) == (
        pytest.approx(log(2))
    )
    assert brown.average_mutual_information(np.array([0, 1, 1, 0]), np.zeros(2, int)) == 0
    assert brown.average_mutual_information(np.array([0]), np.arange(1)) == 0


@settings(max_examples=40, deadline=None)
@given(streams, st.data())
def test_updated_losses_equal_recomputed_losses(tokens, data):
    stream, size = dense(tokens)
    bigrams = Bigrams.of(*count_pairs(stream, size), size)
    slots = data.draw(st.integers(2, size)) if size > 2 else 2
    window = Window(slots, bigrams.f)
    naive = NaiveWindow(stream.tolist(), slots)
    slot = np.full(size, slots)
    for word in range(size):
        free = next(s for s, members in enumerate(naive.slots) if not members)
        slot[word], naive.slots[free] = free, {word}
        window.insert(free, *bigrams.with_slots(word, slot, slots), bigrams.marginals[:, word])
        assert_losses_equal(window, naive)
        if all(naive.slots):
            i, j = data.draw(st.permutations(range(slots)))[:2]
            window.merge(i, j)
            naive.slots[i] |= naive.slots[j]
            naive.slots[j] = set()
            slot[slot == j] = i
            assert_losses_equal(window, naive)


def assert_losses_equal(window, naive):
    expected = np.full((len(naive.slots), len(naive.slots)), np.inf)
    for (i, j), loss in naive.losses().items():
        expected[i, j] = expected[j, i] = loss
    np.testing.assert_allclose(window.loss, expected, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(streams, st.integers(0, 2))
def test_a_window_of_classes_equals_one_filled_by_insertions(tokens, free):
    stream, size = dense(tokens)
    bigrams = Bigrams.of(*count_pairs(stream, size), size)
    slots = size + free
    window = Window.of(*bigrams.of_classes(np.arange(size), size), slots, bigrams.f)
    naive = NaiveWindow(stream.tolist(), slots)
    for word in range(size):
        naive.slots[word] = {word}
    assert_losses_equal(window, naive)


@settings(max_examples=40, deadline=None)
@given(streams, st.data())
def test_a_window_without_its_free_slots_has_the_same_losses(tokens, data):
    stream, size = dense(tokens)
    bigrams = Bigrams.of(*count_pairs(stream, size), size)
    window = Window.of(*bigrams.of_classes(np.arange(size), size), size, bigrams.f)
    naive = NaiveWindow(stream.tolist(), size)
    naive.slots = [{word} for word in range(size)]
    for _ in range(size - 1):
        assert window.merge_best(bigrams.tolerance) == naive.merge_best()
        if data.draw(st.booleans()):
            kept = window.compact()
            assert kept.tolist() == [s for s, members in enumerate(naive.slots) if members]
            naive.slots = [naive.slots[s] for s in kept]
        assert_losses_equal(window, naive)


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_scores_of_exchange_are_differences_of_recomputed_information(tokens, data):
    stream, size = dense(tokens)
    bigrams = Bigrams.of(*count_pairs(stream, size), size)
    classes = data.draw(st.integers(1, size))
    class_of = np.array(data.draw(st.permutations([c % classes for c in range(size)])))
    word = data.draw(st.integers(0, size - 1))
    counts = ClassCounts(bigrams, class_of, classes)
    taken_out = class_of.copy()
    taken_out[word] = classes
    pairs = WordPairs(bigrams, word, taken_out, classes)
    counts.add(pairs, class_of[word], -1)
    scores, information = counts.scores(pairs), []
    for c in range(classes):
        taken_out[word] = c
        information.append(naive_information(taken_out[stream].tolist()))
        counts.add(pairs, c)
        expected = ClassCounts(bigrams, taken_out, classes)
        assert np.array_equal(counts.n, expected.n)
        assert np.array_equal(counts.marginals, expected.marginals)
        counts.add(pairs, c, -1)
    gains = (np.array(information) - information[0]) * (len(stream) - 1)
    np.testing.assert_allclose(scores - scores[0], gains, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_agglomeration_equals_the_naive_agglomeration(tokens, data):
    stream, size = dense(tokens)
    classes = data.draw(st.integers(1, size))
    result = brown.cluster(stream, size, classes, exchange=0)
    assert partition(result.classes) == naive_agglomeration(stream.tolist(), classes)


@settings(max_examples=30, deadline=None)
@given(streams)
def test_the_tree_merges_the_pair_of_least_loss_first(tokens):
    stream, size = dense(tokens)
    result = brown.cluster(stream, size, size, exchange=0)
    naive = NaiveWindow(stream.tolist(), size)
    by_frequency = sorted(range(size), key=lambda v: (-np.count_nonzero(stream == v), v))
    naive.slots = [{word} for word in by_frequency]
    for _ in range(size - 1):
        union, _ = naive.merge_best()
        merged = naive.slots[union]
        paths = [result.paths[result.classes[v]] for v in range(size)]
        shared = len(common_prefix([paths[v] for v in merged]))
        under = {v for v in range(size) if paths[v][:shared] == paths[min(merged)][:shared]}
        assert under == merged  # the words of every merge are those below one node of the tree


def common_prefix(texts):
    low, high = min(texts), max(texts)
    same = next((k for k, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]


def class_bigram_stream(classes, words_each, length, seed):
    """Words drawn from classes that follow each other in a ring, with some noise."""
    rng = np.random.default_rng(seed)
    state, states = 0, []
    for noise in rng.random(length):
        state = (state + 1) % classes if noise < 0.9 else int(rng.integers(classes))
        states.append(state)
    words = rng.integers(words_each, size=length)
    shuffle = rng.permutation(classes * words_each)
    return shuffle[np.array(states) * words_each + words], shuffle.reshape(classes, words_each)


@pytest.mark.parametrize("exchange", [0, 3])
def test_recovers_the_classes_that_generated_the_text(exchange):
    tokens, members = class_bigram_stream(5, 6, 20_000, seed=1)
    result = brown.cluster(tokens, 30, 5, exchange=exchange)
    assert partition(result.classes) == {frozenset(row.tolist()) for row in members}
    assert result.information == brown.average_mutual_information(tokens, result.classes)


def random_text(seed, size=40, length=800):
    rng = np.random.default_rng(seed)
    return np.minimum(rng.zipf(1.3, length) - 1 + rng.integers(0, 3, length), size - 1)


@pytest.mark.parametrize("seed", range(4))
def test_exchange_never_lowers_information(seed):
    tokens = random_text(seed)
    values = [brown.cluster(tokens, 40, 6, exchange=e).information for e in range(5)]
    assert all(later >= before - 1e-12 for before, later in pairwise(values))
    assert values[1] > values[0]


def test_after_enough_exchange_no_single_move_helps():
    tokens = random_text(9, size=25, length=400)
    result = brown.cluster(tokens, 25, 4, exchange=1000)
    sizes = np.bincount(result.classes)
    for word in np.flatnonzero(sizes[result.classes] > 1):
        for c in range(4):
            moved = result.classes.copy()
            moved[word] = c
            assert naive_information(moved[tokens].tolist()) <= result.information + 1e-9


@settings(max_examples=60, deadline=None)
@given(streams, st.integers(0, 3), st.integers(0, 5), st.data())
def test_every_class_has_words_and_a_prefix_free_path(tokens, exchange, unseen, data):
    size = max(tokens) + 1 + unseen
    classes = data.draw(st.integers(1, len(set(tokens))))
    result = brown.cluster(np.array(tokens), size, classes, exchange=exchange)
    assert result.classes.shape == (size,) and result.classes.dtype == np.int32
    seen = result.classes[np.unique(tokens)]
    assert set(seen.tolist()) == set(range(classes)) >= set(result.classes.tolist())
    assert len(result.paths) == classes and list(result.paths) == sorted(result.paths)
    for one, other in combinations(result.paths, 2):
        assert not other.startswith(one)
    if classes > 1:  # a full binary tree: Kraft's sum is one
        assert sum(0.5 ** len(path) for path in result.paths) == 1


def test_one_class_and_a_class_per_word():
    tokens = random_text(3, size=12, length=300)
    stream, size = dense(tokens)
    one = brown.cluster(stream, size, 1)
    assert one.paths == ("",) and not one.classes.any()
    assert one.information == pytest.approx(0, abs=1e-12)
    each = brown.cluster(stream, size, size)
    assert sorted(each.classes.tolist()) == list(range(size))
    assert each.information == pytest.approx(naive_information(stream.tolist()))


def test_a_single_token_makes_one_class():
    result = brown.cluster(np.array([2]), 3, 1)
    assert result.classes.tolist() == [0, 0, 0] and result.information == 0


def test_types_without_tokens_go_to_the_smallest_classes():
    tokens, _ = class_bigram_stream(2, 3, 500, seed=0)
    known = brown.cluster(tokens, 6, 2)
    more = brown.cluster(tokens, 9, 2)
    assert np.array_equal(more.classes[:6], known.classes)
    sizes = np.bincount(known.classes)
    for c in more.classes[6:]:
        assert c == np.argmin(sizes)
        sizes[c] += 1
    assert more.information == known.information


def test_the_result_is_deterministic():
    tokens = random_text(5)
    first = brown.cluster(tokens, 40, 7)
    second = brown.cluster(tokens.astype(np.uint16), 40, 7)
    assert np.array_equal(first.classes, second.classes)
    assert (first.paths, first.information) == (second.paths, second.information)


@pytest.mark.parametrize("classes", [7, 60, 150])
def test_the_result_does_not_depend_on_the_size_of_tables_and_chunks(monkeypatch, classes):
    tokens = random_text(8, size=200, length=4000)
    stream, size = dense(tokens)
    classes = min(classes, size)
    wanted = brown.cluster(stream, size, classes)
    monkeypatch.setattr(bigrams_module, "LARGEST_TABLE", 8)
    monkeypatch.setattr(bigrams_module, "CHUNK", 64)
    monkeypatch.setattr(counting, "CHUNK", 100)
    found = brown.cluster(stream, size, classes)
    assert np.array_equal(found.classes, wanted.classes) and found.paths == wanted.paths
    assert found.information == wanted.information
    assert found.information == brown.average_mutual_information(stream, found.classes)


def test_progress_counts_up_to_the_total():
    calls = []
    brown.cluster(
        random_text(6, size=300, length=3000),
        300,
        4,
        exchange=2,
        progress=lambda done, total: calls.append((done, total)),
    )
    done, totals = zip(*calls, strict=True)
    assert len(set(totals)) == 1 and len(done) > 2
    assert list(done) == sorted(done) and done[-1] == totals[0]


@pytest.mark.parametrize(
    ("tokens", "size", "classes", "exchange", "message"),
    [
        ([], 3, 1, 0, "tokens is empty"),
        ([0, 3], 3, 1, 0, r"id 3: .* must be 0\.\.2"),
        ([0, -1], 3, 1, 0, "id -1: "),
        ([0.5, 1.0], 3, 1, 0, "float64: it must be a 1-D array of integers"),
        ([[0, 1]], 3, 1, 0, r"shape \(1, 2\)"),
        ([0, 1, 0], 3, 0, 0, "classes is 0: it must be at least 1"),
        ([0, 1, 0], 3, 3, 0, "classes is 3: .* at most 2"),
        ([0, 1, 0], 3, 2, -1, "exchange is -1: "),
    ],
)
def test_errors_name_the_wrong_argument(tokens, size, classes, exchange, message):
    with pytest.raises(ValueError, match=message):
        brown.cluster(np.array(tokens), size, classes, exchange=exchange)


@pytest.fixture
def clustered():
    tokens = random_text(7, size=20, length=400)
    words = [f"wörd{v}" for v in range(18)] + ["a\u2028b", "\u3000"]
    return tokens, words, brown.cluster(tokens, 20, 5), np.bincount(tokens, minlength=20)


@pytest.mark.parametrize("classes", [1, 5])
def test_paths_file_round_trip(tmp_path, clustered, classes):
    tokens, words, _, counts = clustered
    clusters = brown.cluster(tokens, 20, classes)
    brown.write_paths(tmp_path / "paths", clusters, words, counts)
    again = brown.read_paths(tmp_path / "paths", words, tokens)
    assert np.array_equal(again.classes, clusters.classes) and again.classes.dtype == np.int32
    assert (again.paths, again.information) == (clusters.paths, clusters.information)
    assert isnan(brown.read_paths(tmp_path / "paths", words).information)
    assert [file.name for file in tmp_path.iterdir()] == ["paths"]


def test_paths_file_has_a_line_per_word(tmp_path, clustered):
    _, words, clusters, counts = clustered
    brown.write_paths(tmp_path / "paths", clusters, words, counts)
    lines = (tmp_path / "paths").read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    rows = [line.split("\t") for line in lines]
    expected = {
        (clusters.paths[c], word, str(m))
        for c, word, m in zip(clusters.classes, words, counts, strict=True)
    }
    assert len(rows) == 20 and {tuple(row) for row in rows} == expected
    order = [(bits, -int(m)) for bits, _, m in rows]
    assert order == sorted(order)


def test_a_paths_file_may_have_any_order_more_words_and_other_line_ends(tmp_path):
    (tmp_path / "paths").write_bytes(b"10\tb\t3\r\n0\tother\t1\r\n11\tc\t2\r\n10\ta\t1")
    result = brown.read_paths(str(tmp_path / "paths"), ["a", "b", "c"])
    assert result.classes.tolist() == [0, 0, 1] and result.paths == ("10", "11")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\ta\t1\n", "does not cover the vocabulary: 'b' and 1 more are missing"),
        ("0\ta\t1\n1\tb\t1\n", "does not cover the vocabulary: 'c' is missing"),
        ("0\ta\t1\n1 b 1\n", "line 2 of .*'1 b 1'.*bit string<TAB>word<TAB>count"),
        ("0\ta\t1\n\n02\tb\t1\n", "line 3 of "),
        ("0\ta\tmany\n", "line 1 of "),
        ("0\ta\t1\n\udcff\n", "line 2 of .* is not UTF-8 text"),
        ("0\ta\t1\n1\ta\t1\n", "line 2 of .* gives 'a' two bit strings"),
    ],
)
def test_errors_name_the_wrong_line_of_a_paths_file(tmp_path, content, message):
    (tmp_path / "paths").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message):
        brown.read_paths(tmp_path / "paths", ["a", "b", "c"])


def test_a_file_that_could_not_be_read_is_not_written(tmp_path, clustered):
    _, words, clusters, counts = clustered
    with pytest.raises(ValueError, match=r"19 words and 20 counts do not fit .* 20 types"):
        brown.write_paths(tmp_path / "paths", clusters, words[1:], counts)
    assert not list(tmp_path.iterdir())


def test_words_with_tabs_and_line_breaks_go_into_a_paths_file(tmp_path, clustered):
    """Pieces of subword tokenizers have them, as in the Llama tokenizer's `;\\r`."""
    _, words, clusters, counts = clustered
    words = ["a\tb", ";\r", "\n", *words[3:]]
    assert brown.can_be_written(words) and not brown.can_be_written([*words, "a␉b"])
    brown.write_paths(tmp_path / "paths", clusters, words, counts)
    again = brown.read_paths(tmp_path / "paths", words)
    assert np.array_equal(again.classes, clusters.classes)
    assert "\t;␍\t" in (tmp_path / "paths").read_text(encoding="utf-8")
