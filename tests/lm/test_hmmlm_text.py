"""The questions about text that an HMMLM answers itself, against its HMM."""

import math

import pytest
import torch

import bighmm
from bighmm.data.tokenizers import Words
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import ScalarOptions
from bighmm.model.support import Blocked, Dense

WORDS = ["<eos>", "<unk>", "a", "b", "c"]


@pytest.fixture(params=["dense", "blocked"])
def lm(request):
    support = Dense(4, 5) if request.param == "dense" else Blocked.of(torch.arange(5) % 2, 6)
    return HMMLM("scalar", ScalarOptions(init_scale=1.5), support, Words(WORDS), seed=3)


def test_scores(lm):
    whole = float(lm.hmm().log_prob([lm.encode("a c\n")]))
    assert lm.log_prob("a c") == pytest.approx(whole)
    assert lm.log_prob("a c", ended=False) == pytest.approx(
        float(lm.hmm().log_prob([lm.encode("a c")]))
    )
    found = lm.score("a c", words=True)
    assert found.log_prob == pytest.approx(whole) and found.unknown == []
    assert [word.word for word in found.words] == ["a", "c", "<eos>"]
    for place, word in enumerate(found.words):
        ids = lm.encode("a c\n")
        wanted = lm.hmm().next_token([ids[:place]])[0, ids[place]]
        assert word.log_prob_next == pytest.approx(float(wanted), abs=1e-5)
    many = lm.score(["a c", "zebra"])
    assert many[0].log_prob == pytest.approx(whole) and many[1].unknown == ["zebra"]


def test_next_words(lm):
    wanted = lm.hmm().next_token([lm.encode("a")])[0].exp()
    found = lm.next_words("a", n=9)
    assert {one.word: one.prob for one in found} == pytest.approx(
        {WORDS[i]: p for i, p in enumerate(wanted.tolist()) if p > 0}, rel=1e-4
    )
    known = lm.next_words("a", n=9, no_unk=True)
    assert sum(one.prob for one in known) == pytest.approx(1, abs=1e-5)
    under = lm.next_words("a", n=9, rule=lm.rule(starts="b"), length=3)
    assert [one.word for one in under] == ["b"]


def test_states(lm):
    tagged, ids = lm.tag("a c b"), lm.encode("a c b")
    best = lm.hmm().viterbi([ids])
    assert [one.state for one in tagged.words] == best.states[0].tolist()
    assert tagged.log_prob_path == pytest.approx(float(best.log_prob))
    assert tagged.log_prob_begins == pytest.approx(lm.log_prob("a c b", ended=False), rel=1e-5)
    found = lm.posterior("a c b", top=99)
    for one, tag in zip(found.words, tagged.words, strict=True):
        assert sum(state.prob for state in one.states) == pytest.approx(1, abs=1e-5)
        assert one.word == tag.word
        (same,) = [state for state in one.states if state.state == tag.state]
        assert same.prob == pytest.approx(tag.prob, abs=1e-6)
    assert len(lm.posterior("a c b", top=1).words[0].states) == 1


def test_the_same_seed_gives_the_same_texts(lm):
    assert lm.sample(5, seed=7) == lm.sample(5, seed=7) != lm.sample(5, seed=8)
    text = "a ___3"
    assert lm.fill(text, 5, seed=7) == lm.fill(text, 5, seed=7) != lm.fill(text, 5, seed=8)
    torch.manual_seed(1)
    first = (lm.sample(3), lm.fill(text, 3))
    torch.manual_seed(1)
    assert (lm.sample(3), lm.fill(text, 3)) == first
    for ask in (lambda **given: lm.sample(2, **given), lambda **given: lm.fill(text, 2, **given)):
        with pytest.raises(ValueError, match="a seed or a generator; give one of them"):
            ask(seed=1, generator=torch.Generator())


def test_samples_that_are_narrowed(lm):
    assert "<unk>" not in " ".join(lm.sample(100, seed=1, no_unk=True))
    assert "<unk>" not in " ".join(lm.fill("a ___2", 100, seed=1, no_unk=True))
    assert len(set(lm.sample(20, seed=1, top_k=1))) == 1
    assert all("b" in text for text in lm.fill("a ___2", 20, rule=lm.rule(must="b")))


def test_rules_take_named_conditions(lm):
    assert lm.rule("a", words=2) == lm.rule(must=["a"], words=(2, 2))
    with pytest.raises(TypeError, match="mussst"):
        lm.rule(mussst="a")
    anything = lm.rule(words=(0, None))
    assert lm.rule(must_not="zebra") == anything  # it cannot occur
    assert lm.rule_log_prob(lm.rule(must_not="zebra"), 5) == pytest.approx(
        lm.rule_log_prob(anything, 5)
    )


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda lm: lm.fill([1, 2]), r"a text is a string, not \[1, 2\]"),
        (lambda lm: lm.decode("abc"), "token ids were expected, not the text 'abc'"),
        (lambda lm: lm.score(3), "a text is a string, not 3"),
        (lambda lm: lm.score(None), "a text is a string, not None"),
        (lambda lm: lm.log_prob(["a", "b"]), "log_prob is of one text; `score` takes a list"),
        (lambda lm: lm.rule(must=3), "phrases of a rule are strings, not 3"),
        (lambda lm: lm.rule(must_not=["a", 3]), r"phrases of a rule are strings, not \['a', 3\]"),
        (lambda lm: lm.sample("the value"), "n must be a whole number, not 'the value'"),
        (lambda lm: lm.sample(1, 2.5), "at least 0 tokens after its prefix, not 2.5"),
        (lambda lm: lm.sample(1, seed="a"), "a seed is a number from 0 to"),
        (lambda lm: lm.sample(1, temperature="a"), "temperature must be finite .* not 'a'"),
        (lambda lm: lm.sample(1, top_k=1.5), "top_k must be a whole number, not 1.5"),
        (lambda lm: lm.sample(1, top_p="a"), "top_p must be above 0 .* not 'a'"),
        (lambda lm: lm.next_words("a", 5.5), "n must be a whole number, not 5.5"),
        (lambda lm: lm.hmm().sample("x"), "n must be a whole number, not 'x'"),
        (lambda lm: lm.fill("___ a", "x"), "n must be a whole number, not 'x'"),
    ],
)
def test_mistakes_get_one_sentence(lm, ask, said):
    with pytest.raises(ValueError, match=said):
        ask(lm)


def test_how_it_is_shown(lm):
    assert (
        repr(lm.hmm()).startswith(f"HMM({lm.num_states} states, 5 tokens")
        and len(repr(lm.hmm())) < 60
    )
    assert repr(lm).startswith(f"HMMLM({lm.num_states} states, ") and "5 words" in repr(lm)
    html = lm._repr_html_()
    assert "<th>states</th>" in html and f"<td>{lm.num_parameters}</td>" in html


@pytest.mark.parametrize("name", ["score", "log_prob", "next_words", "tag", "posterior", "encode"])
def test_ids_where_text_is_wanted(lm, name):
    given = [[2, 3]] if name == "score" else [2, 3]
    with pytest.raises(ValueError, match="a text is a string, not "):
        getattr(lm, name)(given)


@pytest.mark.parametrize("name", ["log_prob", "viterbi", "posterior", "next_token", "fill"])
def test_text_where_ids_are_wanted(lm, name):
    for text in ("a b", ["a b", "c"]):
        with pytest.raises(ValueError, match="token ids were expected, not the text 'a b'"):
            getattr(lm.hmm(), name)(text)
    with pytest.raises(ValueError, match="token ids were expected"):
        lm.perplexity("a b")


def test_token_log_probs_of_ragged_rows(lm):
    rows = [[2, 3, 0, 4], [1], []]
    found = lm.hmm().token_log_probs(rows)
    assert found.shape == (3, 4) and bool((found[1, 1:] == 0).all() and (found[2] == 0).all())
    torch.testing.assert_close(found.sum(1), lm.hmm().log_prob(rows))
    for place, token in enumerate(rows[0]):
        wanted = lm.hmm().next_token([rows[0][:place]])[0, token]
        assert math.isclose(float(found[0, place]), float(wanted), abs_tol=1e-5)


def test_public_names():
    names = {name for name in dir(bighmm) if not name.startswith("__")}
    assert names == {*bighmm.__all__, "answers", "constraints"}
    for name in dir(bighmm):
        assert getattr(bighmm, name, None) is not None or name.startswith("__")
