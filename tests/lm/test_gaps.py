"""Text with gaps: what is read, and what is drawn when the lengths are open too."""

import itertools
import math

import pytest
import tokenizers
import torch

from bighmm.data.corpus import prepare
from bighmm.data.tokenizers import Subwords, Words
from bighmm.infer.reference import Enumeration
from bighmm.lm import gaps
from bighmm.lm.baselines.ngram import NgramLM, NgramOptions
from bighmm.lm.gapped_text import GappedText
from bighmm.lm.gaps import best_fillings, gap_words, sample_fillings
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import Dense
from infer.test_sampling import assert_drawn_from
from models import KINDS, random_hmm

WORDS = Words(["<eos>", "<unk>", "a", "b"])
EOS, A, B = 0, 2, 3


def read(text, **options):
    return GappedText.read(text, WORDS, **options)


@pytest.mark.parametrize(
    "text, pieces, ranges",
    [
        ("a ___ b", [[A], [B, EOS]], [(1, 1)]),
        ("___3", [[], [EOS]], [(3, 3)]),
        ("___1-4 a", [[], [A, EOS]], [(1, 4)]),
        ("a _____ ___0-2", [[A], [], [EOS]], [(1, 1), (0, 2)]),
        ("a\n___ b\n", [[A, EOS], [B, EOS]], [(1, 1)]),
        ("never ___\tb", [[1], [B, EOS]], [(1, 1)]),
        ("___ __a__ ___a a___ __", [[], [1, 1, 1, 1, EOS]], [(1, 1)]),
    ],
)
def test_read(text, pieces, ranges):
    found = read(text)
    assert (found.pieces, found.ranges) == (pieces, ranges)


def test_open_end():
    assert read("a ___", open_end=True).pieces == [[A], []]
    assert read("a ___\n", open_end=True).pieces == [[A], [EOS]]


def test_beside_punctuation():
    tokenizer = Words.build(["( a ) , b"], split="words")
    text = GappedText.read("(___), ___.", tokenizer)
    shown = [[tokenizer.token(i) for i in piece] for piece in text.pieces]
    assert shown == [["("], [")", ","], ["<unk>", "<eos>"]]


def test_spaces_stay_with_the_word_behind_them():
    """As in byte-level vocabularies, where most words begin with a space."""
    pieces = ["</s>", "the", "Ġ", "Ġcat", "Ġsat", "sat"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="</s>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = GappedText.read("the ___ sat", Subwords(made.to_str().encode()))
    assert text.pieces == [[1], [4, 0]]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a b", "no gap; write ___ for one word"),
        ("a __ b", "no gap"),
        ("a ___0 b", "the gap ___0 has no length"),
        ("___4-2", "the gap ___4-2 has no length"),
        ("___101", "the gap ___101 is too long; a gap has at most 100 words"),
        ("___0-9 ___1-9 a ___1-3", "270 different lengths together; at most 256"),
    ],
)
def test_errors(text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


def all_fillings(hmm, text):
    """p of every (lengths, filled text with its end mark)."""
    found = {}
    for lengths in text.choices:
        for words in itertools.product(range(1, 4), repeat=sum(lengths)):
            drawn, row = iter(words), list(text.pieces[0])
            for length, piece in zip(lengths, text.pieces[1:], strict=True):
                row += [*itertools.islice(drawn, length), *piece]
            found[lengths, tuple(row)] = Enumeration(hmm, row).prob
    return found


@pytest.mark.parametrize("text", ["a ___1-3", "___0-1 b ___1-2", "___1-2 ___ a", "___1-2 ___0-1"])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind, text):
    hmm = random_hmm(kind, states=6, vocabulary=4, seed=3)
    text = read(text)
    found = all_fillings(hmm, text)
    total = sum(found.values())
    probs = gaps.length_probs(hmm, text, ends=False)
    for lengths in text.choices:
        expected = sum(p for (which, _), p in found.items() if which == lengths) / total
        assert probs[lengths] == pytest.approx(expected)

    best = gaps.best(hmm, text, 1000, ends=False)
    expected = {outcome: math.log(p) for outcome, p in found.items()}
    assert best.exact and best.log_probs == sorted(best.log_probs, reverse=True)
    got = {
        (tuple(map(len, filled.words)), (*filled.ids, EOS)): p
        for filled, p in zip(best.filled, best.log_probs, strict=True)
    }
    assert got == pytest.approx(expected) and len(best.filled) == len(got)

    drawn = gaps.draw(hmm, text, 3000, torch.Generator().manual_seed(5), ends=False)
    number = {outcome: i for i, outcome in enumerate(found)}
    sample = [[number[tuple(map(len, filled.words)), (*filled.ids, EOS)]] for filled in drawn]
    exact = torch.tensor(list(found.values())).double() / total
    assert_drawn_from(torch.tensor(sample), torch.arange(len(found)).unsqueeze(1), exact)


def test_words_of_the_gaps():
    text = read("a ___2 b ___0-1")
    filled = text.filled([A, B, 1, B, A, EOS, -1], (2, 1))
    assert filled == ([A, B, 1, B, A], [[B, 1], [A]])
    assert text.filled([A, B, 1, B, EOS, -1, -1], (2, 0)) == ([A, B, 1, B], [[B, 1], []])


@pytest.fixture
def lm():
    return HMMLM("scalar", ScalarOptions(init_scale=1.0), Dense(5, 4), WORDS, seed=1)


class TestModel:
    def test_fill(self, lm):
        texts = lm.fill("a ___ b ___0-2", 40, generator=torch.Generator().manual_seed(1))
        assert len(texts) == 40 and len(set(texts)) > 5
        for text in texts:
            words = text.split(" ")
            assert words[0] == "a" and words[2] == "b" and 3 <= len(words) <= 5
            assert "<eos>" not in words and "\n" not in text
        again = lm.fill("a ___ b ___0-2", 40, generator=torch.Generator().manual_seed(1))
        assert texts == again

    def test_the_end_mark_is_known(self, lm):
        """It is part of what the gap is drawn given, unless the text may go on."""
        hmm = lm.hmm()
        ended, going_on = lm.fill_probs("a ___"), lm.fill_probs("a ___", open_end=True)
        torch.testing.assert_close(ended.words, hmm.fill_probs([[A, -1, EOS]]).words)
        torch.testing.assert_close(going_on.words, hmm.fill_probs([[A, -1]]).words)
        assert not torch.allclose(ended.words[0, 1:], going_on.words[0, 1:])
        several = lm.fill("a ___2", 50, open_end=True, ends=True)
        assert any("\n" in text for text in several)

    def test_best_fill(self, lm):
        found = lm.best_fill("a ___ b", 9)
        assert [text for text, _ in found] != sorted(text for text, _ in found)
        assert {text for text, _ in found} == {"a <unk> b", "a a b", "a b b"}
        for text, log_prob in found:
            expected = lm.hmm().log_prob(torch.tensor([lm.encode(text + "\n")]))
            assert log_prob == pytest.approx(float(expected), rel=1e-5)
        known = lm.hmm().known_log_prob([[A, -1, B, EOS]])
        total = torch.tensor([p for _, p in found]).logsumexp(0)
        torch.testing.assert_close(total, known[0])

    def test_fill_lengths(self, lm):
        found = lm.fill_lengths("___0-2 a ___1-2")
        assert list(found) == [(i, j) for i in range(3) for j in (1, 2)]
        assert sum(found.values()) == pytest.approx(1)

    def test_errors(self, lm):
        with pytest.raises(ValueError, match="n must be at least 1, not 0"):
            lm.fill("___", 0)
        with pytest.raises(ValueError, match="gaps of known lengths; write ___2"):
            lm.fill_probs("___1-2")


def test_nothing_fits():
    hmm = random_hmm("dense-table", states=6, vocabulary=4)
    emission = hmm.emission.clone()
    emission[A] = -math.inf
    hmm = type(hmm)(hmm.start, hmm.transitions, emission.log_softmax(0), hmm.support, 0)
    for ask in (gaps.draw, gaps.length_probs):
        with pytest.raises(ValueError, match="probability zero, so nothing fits"):
            ask(hmm, read("a ___1-2"), *([1, None] if ask is gaps.draw else []), False)
    with pytest.raises(ValueError, match="probability zero in this HMM, so nothing fits"):
        gaps.draw(hmm, read("a ___"), 1, None, False)
    assert gaps.best(hmm, read("a ___1-2"), 3, False).filled == []


class TestAnswers:
    """The answers about text, against those about token ids."""

    def test_sample_fillings(self, lm):
        text = "a ___ b ___0-2"
        found = sample_fillings(lm, text, 30, seed=4)
        generator = torch.Generator().manual_seed(4)
        assert [filling.text for filling in found] == lm.fill(text, 30, generator=generator)
        for filling in found:
            first, second = filling.words
            assert filling.text == " ".join(["a", *first, "b", *second]) and len(first) == 1
        assert sample_fillings(lm, text, 30) != sample_fillings(lm, text, 30)
        given = sample_fillings(lm, text, 30, generator=torch.Generator().manual_seed(4))
        assert given == found

    @pytest.mark.parametrize("text", ["a ___ b", "a ___0-1 ___ b"])
    def test_best_fillings(self, lm, text):
        found = best_fillings(lm, text, 100)
        assert found.exact and found.open_lengths == ("-" in text)
        expected = lm.best_fill(text, 100)
        assert [(row.text, row.log_prob) for row in found.fillings] == expected
        assert sum(row.prob for row in found.fillings) == pytest.approx(1, abs=1e-5)
        for row in found.fillings:
            assert row.prob == pytest.approx(
                found.fillings[0].prob * math.exp(row.log_prob - found.fillings[0].log_prob)
            )
            assert [len(words) for words in row.words][-1] == 1
        assert best_fillings(lm, text).fillings == found.fillings[:1]

    def test_gap_words(self, lm):
        found = gap_words(lm, "a ___2 b ___", 100)
        assert found.lengths is None
        assert [(row.gap, row.word) for row in found.gaps] == [(1, 1), (1, 2), (2, 1)]
        for row, log_probs in zip(found.gaps, lm.fill_probs("a ___2 b ___").words, strict=True):
            assert {word.word for word in row.words} == {"<unk>", "a", "b"}  # no end mark
            for word in row.words:
                place = lm.tokenizer.words.index(word.word)
                assert word.log_prob_filling == pytest.approx(float(log_probs[place]))
        (top, *_) = gap_words(lm, "a ___2 b ___", 1).gaps
        assert top.words == found.gaps[0].words[:1]

    def test_gap_words_of_open_lengths(self, lm):
        text = "___0-2 a ___1-2"
        found, lengths = gap_words(lm, text, 4), lm.fill_lengths(text)
        ranked = sorted(lengths, key=lengths.__getitem__, reverse=True)
        assert [tuple(row.lengths) for row in found.lengths] == ranked[:4]
        assert [row.prob for row in found.lengths] == pytest.approx(
            [lengths[k] for k in ranked[:4]]
        )
        first, second = ranked[0]
        known = gap_words(lm, f"{f'___{first}' if first else ''} a ___{second}", 4)
        assert [row.words for row in found.gaps] == [row.words for row in known.gaps]

    def test_open_ends_and_end_marks(self, lm):
        closed, open_end = gap_words(lm, "a ___"), gap_words(lm, "a ___", open_end=True)
        assert closed.gaps[0].words[0].prob != open_end.gaps[0].words[0].prob
        ended = gap_words(lm, "a ___", open_end=True, ends=True)
        assert "<eos>" in [word.word for word in ended.gaps[0].words]
        several = best_fillings(lm, "a ___", 9, open_end=True, ends=True)
        assert sum(row.prob for row in several.fillings) == pytest.approx(1, abs=1e-5)
        assert len(several.fillings) == 4

    def test_mistakes(self, lm):
        for ask in (sample_fillings, best_fillings, gap_words):
            with pytest.raises(ValueError, match="n must be at least 1, not 0"):
                ask(lm, "a ___", 0)
            with pytest.raises(ValueError, match="the text has no gap"):
                ask(lm, "a b", 1)

    def test_only_an_hmm_fills_gaps(self, tmp_path):
        path = tmp_path / "text.txt"
        path.write_text("a b a\nb a\n" * 20)
        lm = NgramLM.fit(NgramOptions(order=2), prepare(path))
        for ask in (sample_fillings, best_fillings, gap_words):
            with pytest.raises(ValueError, match="Markov model, so it has no fillings"):
                ask(lm, "a ___", 1)
