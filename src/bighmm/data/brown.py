"""Brown clustering: word classes that keep the most mutual information between neighbours.

The agglomeration of Brown et al. (1992) with a window: words come in order of frequency, each
opens a class of its own, and of all pairs of classes the one whose merge loses least is merged, so
that C classes remain. Sweeps of single-word exchange follow. Last the C classes are merged to one,
which gives each class its bit string.

Letters: V types, C classes, W slots of the window, N bigrams, n_ij the bigrams from class i to
class j, l_i and r_j those whose left word is in i and those whose right word is in j. With
f(x) = x log x the average mutual information (AMI) of a partition is

    I = (1/N) [ Σ_ij f(n_ij) - Σ_i f(l_i) - Σ_j f(r_j) + f(N) ].

Losses and scores below are N times an AMI, so that counts stay whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from bighmm.base.files import write_atomically

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Clusters:
    """A partition of V word types into C classes, numbered in the sorted order of their paths."""

    classes: np.ndarray  # (V,) int32, every class of 0..C-1 occurs
    paths: tuple[str, ...]  # C bit strings of the merge tree, none the prefix of another
    information: float  # AMI in nats, nan where it is not known


def cluster(
    tokens: np.ndarray,
    vocabulary_size: int,
    classes: int,
    *,
    exchange: int = 3,
    progress: Progress | None = None,
) -> Clusters:
    """Partition the types 0..V-1 into ``classes`` classes of high AMI.

    ``tokens`` (T,) is one stream; all T - 1 adjacent pairs count. ``exchange`` is the largest
    number of sweeps in which every word moves to the class that gives the highest AMI; they end
    early when no word moves. A type without a token goes, in the order of the ids, to the class
    that then has the fewest types. ``progress(done, total)`` counts words treated. The result is
    deterministic: words of equal frequency come in the order of their ids.

    Raises ValueError for an empty stream, ids outside 0..V-1, fewer than one class, more classes
    than types that occur, and a negative ``exchange``.
    """
    tokens = np.asarray(tokens)
    _check(tokens, vocabulary_size, classes, exchange)
    frequency = np.bincount(tokens.astype(np.int64), minlength=vocabulary_size)
    occurring = int(np.count_nonzero(frequency))
    by_rank = np.argsort(-frequency, kind="stable")  # ids, the most frequent first
    rank = np.empty_like(by_rank)
    rank[by_rank] = np.arange(vocabulary_size)
    bigrams = _Bigrams.of(rank[tokens], occurring)
    total = occurring * (1 + exchange)
    tick = _ticker(progress, total)

    assigned = _agglomerate(bigrams, classes, tick)
    for _ in range(exchange):
        if not _exchange(bigrams, assigned, classes, tick):
            break
    if progress is not None:
        progress(total, total)

    paths = _merge_paths(bigrams, assigned, classes)
    number = np.argsort(np.argsort(np.array(paths)))  # of each class among the sorted paths
    result = np.empty(vocabulary_size, np.int32)
    result[by_rank[:occurring]] = number[assigned]
    sizes = np.bincount(number[assigned])
    for unseen in by_rank[occurring:]:
        result[unseen] = smallest = np.argmin(sizes)
        sizes[smallest] += 1
    return Clusters(result, tuple(sorted(paths)), average_mutual_information(tokens, result))


def average_mutual_information(tokens: np.ndarray, classes: np.ndarray) -> float:
    """Σ p(c, c') log p(c, c') / (p(c) p(c')) in nats over the adjacent pairs of ``tokens`` (T,).

    ``classes`` (V,) is the class of each type; p(c) and p(c') are the marginals of the left and of
    the right positions. A stream without pairs has 0.
    """
    stream = np.asarray(classes)[np.asarray(tokens)].astype(np.int64)
    if len(stream) < 2:
        return 0.0
    first, second = stream[:-1], stream[1:]
    joint = np.unique(first * (int(stream.max()) + 1) + second, return_counts=True)[1]
    inner, left, right = (
        float(_xlogx(counts).sum()) for counts in (joint, np.bincount(first), np.bincount(second))
    )
    return (inner - left - right) / len(first) + float(np.log(len(first)))


def write_paths(
    path: str | Path, clusters: Clusters, words: Sequence[str], counts: Sequence[int] | np.ndarray
) -> None:
    """Write one line ``bit string<TAB>word<TAB>count`` per type, class by class, UTF-8.

    Within a class the words stand in the order of falling counts, then of ids. Raises ValueError
    where words, counts and classes differ in number or a word holds a tab or a line break.
    """
    if not len(words) == len(counts) == len(clusters.classes):
        raise ValueError(
            f"{len(words)} words and {len(counts)} counts do not fit a clustering of "
            f"{len(clusters.classes)} types: give one word and one count per type"
        )
    for word in words:
        if any(mark in word for mark in "\t\n\r"):
            raise ValueError(f"the word {word!r} holds a tab or a line break, which ends a field")
    order = np.lexsort((-np.asarray(counts), clusters.classes))
    bits = [clusters.paths[c] for c in clusters.classes]
    lines = [f"{bits[v]}\t{words[v]}\t{int(counts[v])}\n" for v in order]
    write_atomically(Path(path), "".join(lines).encode("utf-8"))


def read_paths(
    path: str | Path, words: Sequence[str], tokens: np.ndarray | None = None
) -> Clusters:
    """Read a paths file, ours or wcluster's, for the vocabulary ``words`` (V).

    The bit strings of these words become classes 0..C-1 in sorted order; other words of the file
    are ignored. The AMI is that of ``tokens``, nan without them. Raises ValueError for a malformed
    line, a word with two bit strings, and words that the file lacks.
    """
    bits = _read_bits(Path(path))
    missing = [word for word in words if word not in bits]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise ValueError(
            f"the word list {path} does not cover the vocabulary: {missing[0]!r}{more} missing"
        )
    paths = tuple(sorted({bits[word] for word in words}))
    number = {bit_string: c for c, bit_string in enumerate(paths)}
    classes = np.array([number[bits[word]] for word in words], np.int32)
    information = np.nan if tokens is None else average_mutual_information(tokens, classes)
    return Clusters(classes, paths, information)


@dataclass(frozen=True)
class _Bigrams:
    """Counts of adjacent pairs, by left word and by right word, as compressed sparse rows."""

    after: tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), right words, counts
    before: tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), left words, counts
    marginals: np.ndarray  # (2, V) l and r of each word
    f: Callable[[np.ndarray], np.ndarray]  # x log x for counts up to N
    tolerance: float  # a loss or score is not exact beyond this

    @staticmethod
    def of(stream: np.ndarray, size: int) -> _Bigrams:
        keys, counts = np.unique(stream[:-1] * size + stream[1:], return_counts=True)
        first, second = np.divmod(keys, size)
        turned = np.argsort(second, kind="stable")
        words = np.arange(size + 1)
        ends = (stream[:-1], stream[1:])
        return _Bigrams(
            after=(np.searchsorted(first, words), second, counts),
            before=(np.searchsorted(second[turned], words), first[turned], counts[turned]),
            marginals=np.stack([np.bincount(end, minlength=size) for end in ends]),
            f=_xlogx_up_to(len(stream) - 1),
            tolerance=1e-13 * float(_xlogx(np.array(len(stream)))),
        )

    def around(self, word: int, slot: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs from ``word`` to each slot and from each slot to it, (W,) each.

        ``slot`` (V,) places each word; the value W means that a word is not placed.
        """
        rows = []
        for starts, others, counts in (self.after, self.before):
            span = slice(starts[word], starts[word + 1])
            row = np.bincount(slot[others[span]], counts[span], slots + 1)
            rows.append(row[:slots].astype(np.int64))
        return rows[0], rows[1]

    def between(self, assigned: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """n (C, C), and l and r (2, C), of the classes (V,) of all words."""
        starts, second, counts = self.after
        pairs = np.repeat(assigned, np.diff(starts)) * classes + assigned[second]
        n = np.bincount(pairs, counts, classes**2).reshape(classes, classes)
        ends = np.stack([np.bincount(assigned, words, classes) for words in self.marginals])
        return n.astype(np.int64), ends.astype(np.int64)


class _Window:
    """Classes in slots, and what the merge of each pair of them would lose.

    The loss N·(I before - I after) of merging a and b, over the pairs of words in the window, is

        gain[a, b] = Σ_ij f(n_ij) before - after, plus for l, and likewise for r,
        (l'_a + l'_b) log(l_a + l_b) - l'_a log l_a - l'_b log l_b

    where l' counts pairs inside the window and l all pairs. Another class k adds to gain[a, b]
    g(n_ak, n_bk) + g(n_ka, n_kb), where g(x, y) = f(x) + f(y) - f(x + y). This is zero unless both
    counts are positive: for rare words, most of a vocabulary, an update touches little.
    """

    def __init__(self, slots: int, f: Callable[[np.ndarray], np.ndarray]) -> None:
        self.f = f
        self.n = np.zeros((slots, slots), np.int64)
        self.marginals = np.zeros((2, slots), np.int64)  # l and r
        self.logs = np.zeros((2, slots, slots))  # log(l_a + l_b), diagonal log l_a; then of r
        self.gain = np.full((slots, slots), np.inf)  # symmetric; inf where there is no pair
        self.used = np.zeros(slots, bool)
        self.scratch = np.empty((2, slots, slots))

    def insert(self, s: int, row: np.ndarray, column: np.ndarray, marginals: np.ndarray) -> None:
        """Put a class into the free slot s; ``row`` and ``column`` (W,) are its n_sk and n_ks."""
        n, f = self.n, self.f
        n[s], n[:, s] = row, column
        self.marginals[:, s] = marginals
        self.used[s] = True
        gain = np.zeros(len(n))
        for counts in (n, n.T):
            seen = np.flatnonzero(counts[s])
            few, others = counts[s, seen], counts.T[seen]
            alone = f(few)
            self.gain[np.ix_(seen, seen)] += alone[:, None] + alone - f(few[:, None] + few)
            gain += (f(others) - f(others + few[:, None])).sum(0) + alone.sum()
        self._renew(s, gain + self._overlap(s))

    def losses(self) -> np.ndarray:
        """(W, W) the loss of merging each pair, inf where there is none."""
        loss, term = self.scratch  # fresh memory of this size would cost more than the sums
        loss[:] = self.gain
        own = np.zeros(len(loss))
        for axis, logs in ((1, self.logs[0]), (0, self.logs[1])):
            inside = self.n.sum(axis)
            np.add(inside[:, None], inside, out=term)
            term *= logs
            loss += term
            own += inside * logs.diagonal()
        loss -= own[:, None]
        loss -= own
        return loss

    def merge(self, i: int, j: int) -> None:
        """Merge the class in slot j into the one in slot i and leave slot j free.

        The work grows with the classes next to j: let it be the rarer of the two.
        """
        n, f = self.n, self.f
        change = -self._overlap(i)
        for counts in (n, n.T):
            one, other = counts[i], counts[j]
            seen, both = np.flatnonzero(other), one + other
            # As the third class of a pair: out with i and j, in with their union.
            alone = f(both) - f(one) - f(other)
            block = self.gain[seen]
            block += alone[seen, None] + alone - f(both[seen, None] + both)
            block += f(one[seen, None] + one) + f(other[seen, None] + other)
            self.gain[seen] = block
            self.gain[:, seen] = block.T
            # As one of a pair: the union has other counts than i only where j counts.
            few, sums, others = one[seen], both[seen], counts.T[seen]
            change += (f(others + few[:, None]) - f(others + sums[:, None])).sum(0)
            change += (f(sums) - f(few)).sum()
            counts[i], counts[j] = both, 0
        self.marginals[:, i] += self.marginals[:, j]
        self.used[j] = False
        self.gain[j] = self.gain[:, j] = np.inf
        self._renew(i, self.gain[i] + change + self._overlap(i))

    def merge_best(self, tolerance: float) -> tuple[int, int]:
        """Merge the pair of least loss; return the slot that holds it and the one left free.

        Losses closer than the rounding error count as equal, and the first of them is taken, so
        that the outcome does not hang on the order in which a processor adds. The more frequent
        class, of equals the one in the lower slot, stays in place.
        """
        losses = self.losses()
        pair = divmod(int(np.argmax(losses <= losses.min() + tolerance)), len(losses))
        kept, freed = sorted(pair, key=lambda s: (-int(self.marginals[:, s].sum()), s))
        self.merge(kept, freed)
        return kept, freed

    def _overlap(self, s: int) -> np.ndarray:
        """What the sum of g over all classes k, with a and s among them, misses of gain[a, s]."""
        f, own, to, fro, same = self.f, self.n.diagonal(), self.n[:, s], self.n[s], self.n[s, s]
        crossed = f(own + fro) + f(own + to) + f(to + same) + f(fro + same)
        return crossed - f(own) - f(to) - f(fro) - f(same) - f(own + to + fro + same)

    def _renew(self, s: int, gain: np.ndarray) -> None:
        """Set the gains (W,) of slot s with each other, and the logarithms of their marginals."""
        gain[~self.used] = np.inf
        gain[s] = np.inf
        self.gain[s] = self.gain[:, s] = gain
        sums = self.marginals + self.marginals[:, s, None]
        sums[:, s] = self.marginals[:, s]
        self.logs[:, s] = self.logs[:, :, s] = np.log(np.maximum(sums, 1))


def _agglomerate(bigrams: _Bigrams, classes: int, tick: Callable[[], None]) -> np.ndarray:
    """Classes (V,) by merging, words taken in the order of their ids (that of frequency)."""
    size, slots = bigrams.marginals.shape[1], classes + 1
    slot = np.full(size, slots)  # the value W: not in the window yet
    window = _Window(slots, bigrams.f)
    free = 0
    for word in range(size):
        tick()
        slot[word] = free
        row, column = bigrams.around(word, slot, slots)
        window.insert(free, row, column, bigrams.marginals[:, word])
        if word < classes:
            free = word + 1
            continue
        kept, free = window.merge_best(bigrams.tolerance)
        placed = slot[: word + 1]
        placed[placed == free] = kept
    slot[slot == classes] = free  # so that the classes are 0..C-1
    return slot


def _exchange(
    bigrams: _Bigrams, assigned: np.ndarray, classes: int, tick: Callable[[], None]
) -> int:
    """Move each word in turn to its best class, in place; return how many moved.

    Taken out of its class, a word w with x_k pairs to class k, y_k pairs from it and z with itself
    adds to class d, up to a constant,

        Σ_k≠d [f(n_dk + x_k) - f(n_dk) + f(n_kd + y_k) - f(n_kd)] + f(n_dd + x_d + y_d + z)
        - f(n_dd) - f(l_d + l_w) + f(l_d) - f(r_d + r_w) + f(r_d).
    """
    f = bigrams.f
    n, marginals = bigrams.between(assigned, classes)
    members = np.bincount(assigned)
    moved = 0
    for word, old in enumerate(assigned.tolist()):
        tick()
        if members[old] == 1:
            continue
        own = bigrams.marginals[:, word]
        assigned[word] = classes  # no class, so that pairs with itself stand apart
        row, column = bigrams.around(word, assigned, classes)
        same = own[0] - row.sum()
        _add_word(n, old, -row, -column, -same)
        marginals[:, old] -= own

        score = (f(marginals) - f(marginals + own[:, None])).sum(0)
        for counts, pairs in ((n, row), (n.T, column)):
            seen = np.flatnonzero(pairs)
            others = counts.T[seen]
            score += (f(others + pairs[seen, None]) - f(others)).sum(0)
        inner = n.diagonal()  # in both sums, and to be counted once with all that falls on it
        score += f(inner + row + column + same) + f(inner) - f(inner + row) - f(inner + column)

        new = int(np.argmax(score))
        if score[new] <= score[old] + bigrams.tolerance:
            new = old
        _add_word(n, new, row, column, same)
        marginals[:, new] += own
        assigned[word] = new
        members[old] -= 1
        members[new] += 1
        moved += new != old
    return moved


def _add_word(n: np.ndarray, c: int, row: np.ndarray, column: np.ndarray, same: int) -> None:
    """Add a word's pairs with the classes, and with itself, to the counts of class c."""
    n[c] += row
    n[:, c] += column
    n[c, c] += same


def _merge_paths(bigrams: _Bigrams, assigned: np.ndarray, classes: int) -> list[str]:
    """The bit string of each class in the tree that merges all of them to one.

    At each merge the more frequent side takes the bit 0.
    """
    n, marginals = bigrams.between(assigned, classes)
    window = _Window(classes, bigrams.f)
    for c in range(classes):
        placed = np.arange(classes) <= c
        window.insert(c, n[c] * placed, n[:, c] * placed, marginals[:, c])
    below = [[c] for c in range(classes)]
    paths = [""] * classes
    for _ in range(classes - 1):
        kept, freed = window.merge_best(bigrams.tolerance)
        for bit, side in (("0", below[kept]), ("1", below[freed])):
            for c in side:
                paths[c] = bit + paths[c]
        below[kept] += below[freed]
    return paths


def _xlogx(counts: np.ndarray) -> np.ndarray:
    return counts * np.log(np.maximum(counts, 1))


def _xlogx_up_to(largest: int) -> Callable[[np.ndarray], np.ndarray]:
    """x log x for counts: a table, faster than the logarithm, unless it would be too large.

    Only the entry of a class paired with itself, which nobody reads, exceeds N and is clipped.
    """
    if largest >= 1 << 25:
        return _xlogx
    return partial(_xlogx(np.arange(largest + 1)).take, mode="clip")


def _ticker(progress: Progress | None, total: int) -> Callable[[], None]:
    """A function to call once per word, which reports every 256th call."""
    steps = count(1)

    def tick() -> None:
        done = next(steps)
        if progress is not None and done % 256 == 0:
            progress(done, total)

    return tick


def _check(tokens: np.ndarray, vocabulary_size: int, classes: int, exchange: int) -> None:
    if tokens.size == 0:
        raise ValueError("tokens is empty: clustering needs at least one token")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        given = f"shape {tokens.shape} and type {tokens.dtype}"
        raise ValueError(f"tokens has {given}: it must be a 1-D array of integers")
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary_size)]
    if wrong.size:
        raise ValueError(
            f"tokens holds the id {wrong[0]}: with a vocabulary of {vocabulary_size} types "
            f"the ids must be 0..{vocabulary_size - 1}"
        )
    if exchange < 0:
        raise ValueError(f"exchange is {exchange}: the number of sweeps must be at least 0")
    occurring = len(np.unique(tokens))
    if not 1 <= classes <= occurring:
        raise ValueError(
            f"classes is {classes}: it must be at least 1 and at most {occurring}, "
            "the number of word types that occur in tokens"
        )


def _read_bits(path: Path) -> dict[str, str]:
    """The bit string of each word of a paths file."""
    bits: dict[str, str] = {}
    # Not splitlines: a word may hold one of the rarer line separators of Unicode.
    for number, line in enumerate(path.read_bytes().decode("utf-8").split("\n"), start=1):
        if not line:
            continue
        fields = line.rstrip("\r").split("\t")
        if len(fields) != 3 or set(fields[0]) - set("01") or not fields[2].isdecimal():
            form = "'bit string<TAB>word<TAB>count'"
            raise ValueError(f"line {number} of {path} is {line!r}: it must be {form}")
        if bits.setdefault(fields[1], fields[0]) != fields[0]:
            raise ValueError(f"line {number} of {path} gives {fields[1]!r} a second bit string")
    return bits
