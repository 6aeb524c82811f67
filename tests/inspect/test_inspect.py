"""Words, neighbours and shares of states, against the plain tables."""

import numpy as np
import pytest
import torch

from bighmm import HMM
from bighmm.data.corpus import prepare
from bighmm.infer.reference import marginals_loop
from bighmm.inspect import (
    choose_states,
    end_probs,
    likely_words,
    next_states,
    plot_posterior,
    posterior_table,
    previous_states,
    probs_given_word,
    state_table,
    states_of_corpus,
    tag_table,
)
from bighmm.inspect import state_shares as shares_of
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import ScalarOptions
from bighmm.model.support import Blocked, Dense
from bighmm.model.transitions import EVERY, Flat
from bighmm.ops import memory
from models import KINDS, random_hmm

STATES = [4, 0, 5, 4]


@pytest.fixture(params=[2**24, 7], ids=["whole", "pieces"])
def pieces(request, monkeypatch):
    monkeypatch.setattr(memory, "WORKING", request.param)


def check(found, wanted):
    """`found` is what stands highest in the rows of `wanted` (N, C)."""
    best = wanted.topk(found.probs.shape[1])
    torch.testing.assert_close(found.probs, best.values)
    torch.testing.assert_close(found.ids, best.indices.masked_fill(best.values == 0, -1))


@pytest.mark.parametrize("end, reset", [(0, True), (3, True), (0, False), (None, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_words_and_neighbours(kind, end, reset, pieces):
    hmm = random_hmm(kind, states=6, vocabulary=5, seed=3, end=end, reset=reset)
    _, transition, emission = hmm.tables()
    check(likely_words(hmm, STATES, 3), emission[STATES])
    check(next_states(hmm, STATES, 4), transition[STATES])
    shares = torch.tensor([0.3, 0.0, 0.1, 0.2, 0.25, 0.15], dtype=torch.float64)
    for weights in (None, shares):
        joint = transition.T * (1 if weights is None else weights)
        if end is not None and reset:
            joint = joint * (1 - emission[:, end])
        found = previous_states(hmm, STATES, 5, weights)
        check(found, (joint / joint.sum(1, keepdim=True))[STATES])
    assert (previous_states(hmm, STATES, 6, shares).ids[:, -1] == -1).all()


def test_more_than_there_is():
    hmm = random_hmm("blocked-flat", states=6, vocabulary=5)
    assert likely_words(hmm, [0], 99).ids.shape == (1, 5)
    assert next_states(hmm, [0], 99).ids.shape == previous_states(hmm, [0], 99).ids.shape == (1, 6)


def test_a_state_that_nothing_leads_to():
    never = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    hmm = HMM.from_probs(torch.tensor([1.0, 0.0]), never, torch.full((2, 2), 0.5))
    found = previous_states(hmm, [0, 1], 2)
    assert found.ids[0].tolist() == [-1, -1] and found.probs[0].tolist() == [0, 0]
    assert found.probs[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_shares(kind, monkeypatch):
    """The mean of the posteriors over all tokens, sentence by sentence, in batches."""
    monkeypatch.setattr(memory, "WORKING", 60)
    hmm = random_hmm(kind, states=6, vocabulary=5, seed=2, end=0)
    tokens = np.array([1, 2, 0, 4, 0, 3, 3, 3, 1, 0, 2, 4], dtype=np.uint16)
    sentences = [[1, 2, 0], [4, 0], [3, 3, 3, 1, 0], [2, 4]]
    wanted = torch.cat([marginals_loop(hmm, sentence) for sentence in sentences]).mean(0)
    torch.testing.assert_close(shares_of(hmm, tokens), wanted)

    sentences[2:3] = [[3, 3], [3, 1, 0]]  # the third was cut off, and the next one is another text
    wanted = torch.cat([marginals_loop(hmm, sentence) for sentence in sentences]).mean(0)
    torch.testing.assert_close(shares_of(hmm, tokens, np.array([0, 7, 12])), wanted)


def test_shares_without_an_end_mark_or_a_chance():
    hmm = random_hmm("dense-table", end=None)
    wanted = marginals_loop(hmm, [1, 0, 3]).mean(0)
    torch.testing.assert_close(shares_of(hmm, np.array([1, 0, 3])), wanted)
    impossible = HMM.from_probs(torch.ones(1), torch.ones(1, 1), torch.tensor([[1.0, 0.0]]))
    assert shares_of(impossible, np.array([0, 1])).tolist() == [0.0]


@pytest.mark.parametrize(
    "ask, sentence",
    [
        (lambda hmm: likely_words(hmm, [6], 1), "there is no state 6: states go from 0 to 5"),
        (lambda hmm: next_states(hmm, [], 1), "at least one"),
        (lambda hmm: previous_states(hmm, [0], 0), "at least one must be asked for, not 0"),
        (lambda hmm: shares_of(hmm, np.array([])), "at least one token"),
    ],
)
def test_bad_questions(ask, sentence):
    with pytest.raises(ValueError, match=sentence):
        ask(random_hmm("dense-table"))


def test_the_matrix_is_never_whole(monkeypatch):
    """Of 1,500 × 1,500 transition logits no more than 2¹⁴ are there at a time."""
    largest = 0
    log_probs = Flat.log_probs

    def watched(self, rows, columns=EVERY):
        nonlocal largest
        found = log_probs(self, rows, columns)
        largest = max(largest, found.numel())
        return found

    hmm = random_hmm("blocked-flat", states=1500, vocabulary=6, dtype=torch.float32)
    monkeypatch.setattr(memory, "WORKING", 2**14)
    monkeypatch.setattr(Flat, "log_probs", watched)
    previous_states(hmm, [5, 3], 2)
    next_states(hmm, list(range(1500)), 2)
    assert 0 < largest <= 2**14


def test_words_with_signs_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    row = {"word": "$a_$", "states": [{"state": 3, "prob": 0.5, "words": ["$\\", "b\n"]}]}
    plot_posterior([row, row], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["plot", "plot.sound", "plot.", ".png", "plot.svg.old"])
def test_an_ending_must_say_the_format(name, tmp_path):
    pytest.importorskip("matplotlib")
    row = {"word": "a", "states": [{"state": 3, "prob": 0.5, "words": ["b"]}]}
    with pytest.raises(ValueError, match=r"is not supported for a plot; use one of .*\.png, "):
        plot_posterior([row], tmp_path / name)
    assert not list(tmp_path.iterdir())
    plot_posterior([row], tmp_path / "PLOT.PNG")
    assert (tmp_path / "PLOT.PNG").is_file()


@pytest.mark.parametrize("name", ["plots", "plots.png"])
def test_a_folder_is_no_place_for_a_plot(name, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"{name} is a folder; give the name of a file"):
        plot_posterior([], f"{tmp_path / name}/")
    assert [path.name for path in tmp_path.rglob("*")] == [name]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c a\nb a c\nc c b\n" * 40)
    return prepare(path)


@pytest.fixture(params=["dense", "blocked"])
def lm(request, corpus):
    size = corpus.tokenizer.size
    support = Dense(6, size) if request.param == "dense" else Blocked.of(torch.arange(size) % 2, 6)
    return HMMLM("scalar", ScalarOptions(init_scale=1.0), support, corpus.tokenizer, seed=1)


def test_tags(lm):
    log_prob, of_text, rows = tag_table(lm, "a b c c", words=2)
    tokens = torch.tensor([lm.encode("a b c c")])
    best, smoothed = lm.hmm().viterbi(tokens), lm.hmm().posterior(tokens)
    assert log_prob == pytest.approx(float(best.log_prob))
    assert of_text == pytest.approx(float(lm.hmm().log_prob(tokens)))
    assert [row["word"] for row in rows] == ["a", "b", "c", "c"]
    assert [row["state"] for row in rows] == best.states[0].tolist()
    emission = lm.hmm().tables()[2]
    for t, row in enumerate(rows):
        here = smoothed.states[0, t] == row["state"]
        assert row["prob"] == pytest.approx(float(smoothed.marginals[0, t][here].sum()))
        likeliest = emission[row["state"]].topk(2).indices.tolist()
        assert row["words"] == [lm.tokenizer.token(i) for i in likeliest]


@pytest.mark.parametrize("ask", [tag_table, posterior_table])
def test_texts_without_states(ask, lm, monkeypatch):
    with pytest.raises(ValueError, match="the text holds no token"):
        ask(lm, "")
    with pytest.raises(ValueError, match="words must be at least 1, not 0"):
        ask(lm, "a", words=0)
    emission = lm.hmm().emission.index_fill(0, torch.tensor(lm.encode("b")), -torch.inf)
    hmm = HMM(lm.hmm().start, lm.hmm().transitions, emission, lm.hmm().support, lm.hmm().end)
    monkeypatch.setattr(lm, "_hmm", hmm)
    with pytest.raises(ValueError, match="the text has probability zero in this model"):
        ask(lm, "a b")


def test_states_of_a_corpus(lm, corpus):
    shares = shares_of(lm.hmm(), corpus.split("test"), corpus.documents("test"))
    found = states_of_corpus(lm, corpus, "test", top=4, words=2, neighbours=2)
    marks = lm.hmm().tables()[2][:, [lm.hmm().end, lm.tokenizer.unknown]].sum(1)
    content = (marks <= 0.5).double()
    order = (content + shares).sort(descending=True, stable=True).indices[:4].tolist()
    assert (found.num_states, found.split) == (6, "test")
    assert found.states == state_table(lm, order, words=2, neighbours=2, shares=shares)
    chosen = states_of_corpus(lm, corpus, "test", states=[3, 0])
    assert [row["state"] for row in chosen.states] == [3, 0]
    assert chosen.states[0]["share"] == pytest.approx(float(shares[3]))
    by_number = states_of_corpus(lm, sort="number", top=2)
    assert by_number.split is None and by_number.states == state_table(lm, [0, 1])
    assert len(states_of_corpus(lm, sort="number").states) == 6


def test_order_of_states(lm, monkeypatch):
    """The most used first, but those that mostly emit marks last."""
    shares = torch.tensor([0.1, 0.4, 0.1, 0.2, 0.1, 0.1])
    ends = torch.tensor([0.5, 0.6, 0.0, 0.0, 1.0, 0.1])
    probs = {lm.tokenizer.end: ends, lm.tokenizer.unknown: torch.zeros(6)}
    monkeypatch.setattr("bighmm.inspect.choosing.token_probs", lambda hmm, token: probs[token])
    assert choose_states(lm, top=6, shares=shares) == [3, 0, 2, 5, 1, 4]
    assert choose_states(lm, top=3, sort="number", shares=shares) == [0, 1, 2]
    assert choose_states(lm, top=9, sort="number") == list(range(6))
    assert choose_states(lm, states=[4, 2], top=1) == [4, 2]
    with pytest.raises(ValueError, match="sorted by their share of a corpus; give one"):
        choose_states(lm)
    with pytest.raises(ValueError, match="states by number and those of a word choose states"):
        choose_states(lm, states=[1], word="a")


def test_states_of_a_word(lm):
    """By Bayes' rule, against the tables."""
    emission = lm.hmm().tables()[2].double()
    shares = torch.tensor([0.1, 0.4, 0.1, 0.2, 0.1, 0.1], dtype=torch.float64)
    (token,) = lm.encode("b")
    wanted = shares * emission[:, token]
    torch.testing.assert_close(probs_given_word(lm.hmm(), token, shares), wanted / wanted.sum())
    wanted = emission[:, token] / emission[:, token].sum()
    torch.testing.assert_close(probs_given_word(lm.hmm(), token), wanted)
    possible = [z for z in wanted.argsort(descending=True).tolist() if wanted[z] > 0]
    assert choose_states(lm, word="b", top=9) == possible
    rows = states_of_corpus(lm, word="b", top=2).states
    assert [row["prob_word"] for row in rows] == pytest.approx(wanted[possible[:2]].tolist())
    with pytest.raises(ValueError, match="the word 'zebra' is not in the model's vocabulary"):
        choose_states(lm, word="zebra")
    with pytest.raises(ValueError, match=r"'a b' is 2 tokens of the model \('a', 'b'\)"):
        choose_states(lm, word="a b")


def test_states_of_a_block(lm):
    if lm.hmm().support.partition is None:
        with pytest.raises(ValueError, match="are not in blocks; leave out the block"):
            choose_states(lm, block=0, sort="number")
        return
    block_of = lm.hmm().support.partition.block_of
    (token,) = lm.encode("b")
    block = int(block_of[token])
    found = choose_states(lm, block=block, sort="number", top=99)
    assert found == sorted(lm.hmm().support.states(torch.tensor([token]))[0].tolist())
    assert all(row["block"] == block for row in state_table(lm, found))
    with pytest.raises(ValueError, match="there is no block 99: blocks go from 0 to"):
        choose_states(lm, block=99)


def test_after_an_end_mark_a_text_starts_anew(corpus):
    """A state of the end mark alone is followed by the states that texts begin with."""
    blocks = torch.zeros(corpus.tokenizer.size, dtype=torch.long)
    blocks[corpus.tokenizer.end] = 1
    lm = HMMLM("scalar", ScalarOptions(init_scale=1.0), Blocked.of(blocks, 6), corpus.tokenizer)
    hmm = lm.hmm()
    torch.testing.assert_close(end_probs(hmm), hmm.tables()[2][:, hmm.end])
    content, mark = state_table(lm, [0, 5], neighbours=2)
    assert not content["starts_anew"] and content["prob_end"] == 0
    assert mark["starts_anew"] and mark["prob_end"] == pytest.approx(1)
    best = hmm.start.exp().topk(2)
    assert [found["state"] for found in mark["next"]] == best.indices.tolist()
    assert [found["prob"] for found in mark["next"]] == pytest.approx(best.values.tolist())
    lm.convention = "carry"
    lm.clear_cache()
    assert not state_table(lm, [5])[0]["starts_anew"]


def test_a_state_that_mostly_ends_a_text(corpus):
    """That it may emit other words, too, does not hide that text starts anew."""
    end, unknown = corpus.tokenizer.end, corpus.tokenizer.unknown
    support = Dense(3, corpus.tokenizer.size)
    lm = HMMLM("scalar", ScalarOptions(init_scale=0.1), support, corpus.tokenizer)
    with torch.no_grad():
        lm.params.emission[end, 0] = lm.params.emission[unknown, 1] = 6.0
    hmm = lm.hmm()
    mark, unk, content = state_table(lm, [0, 1, 2], neighbours=1)
    assert 0.9 < mark["prob_end"] < 0.9999 and mark["starts_anew"]
    assert mark["next"][0]["prob"] == pytest.approx(float(hmm.start.exp().max()))
    assert not unk["starts_anew"] and not content["starts_anew"]
    # States of marks come last, however often they are used.
    assert choose_states(lm, shares=torch.tensor([0.5, 0.3, 0.2])) == [2, 0, 1]


@pytest.mark.parametrize("name", ["top", "words", "neighbours"])
def test_states_need_numbers(lm, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        states_of_corpus(lm, sort="number", **{name: 0})
