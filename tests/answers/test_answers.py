"""The objects that answer questions, against the model and against their own schemas."""

import itertools
import json
import math

import pytest
import torch

from bighmm import answers
from bighmm.answers import objects
from bighmm.answers.schemas import keys_of, objects_in, request_schema, schema_of
from bighmm.data.corpus import prepare
from bighmm.lm.baselines.ngram import NgramLM, NgramOptions
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.rules.asked import AskedRule
from bighmm.model.options import ScalarOptions
from bighmm.model.support import Blocked
from json_validator import is_valid

ASKED = {
    "score": {"texts": ["a b", "c zebra a"], "words": True},
    "next": {"prefix": "a zebra", "n": 3},
    "sample": {"n": 2, "prefix": "zebra", "seed": 1},
    "fill": {"text": "a ___ zebra ___1-2"},
    "rule": {"rule": AskedRule(must=["b"]), "prefix": "zebra", "length": 3},
    "tag": {"text": "a zebra"},
    "posterior": {"text": "a zebra"},
    "states": {"sort": "number", "top": 2},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "text.txt"
    path.write_text("a b c a\nb a c\nc c b\n" * 40)
    return prepare(path)


@pytest.fixture(scope="module")
def lm(corpus):
    support = Blocked.of(torch.arange(corpus.tokenizer.size) % 2, 6)
    return HMMLM("scalar", ScalarOptions(init_scale=1.0), support, corpus.tokenizer, seed=1)


def test_every_question_is_here():
    assert set(answers.QUESTIONS) == set(ASKED)
    for name, question in answers.QUESTIONS.items():
        assert question.ask.__name__ == ("next_words" if name == "next" else name)
        assert next(iter(keys_of(question.answer))).name == "version"
        for key in (key for each in objects_in(question.answer) for key in keys_of(each)):
            assert key.about.endswith("."), key


@pytest.mark.parametrize("name", ASKED)
def test_answers_satisfy_their_schemas(lm, name):
    question = answers.QUESTIONS[name]
    kinds = ["samples", "best", "probs"] if name == "fill" else [None]
    for kind in kinds:
        found = question.ask(lm, **ASKED[name], **({} if kind is None else {"kind": kind}))
        assert is_valid(found, schema_of(question.answer) | {"additionalProperties": False})
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert found["version"] == objects.VERSION == 1
        if name == "score":
            assert [line["unknown"] for line in found["lines"]] == [[], ["zebra"]]
        elif name != "states":
            assert found["unknown"] == ["zebra"]


@pytest.mark.parametrize("name", ASKED)
def test_requests_satisfy_their_schemas(name):
    schema = request_schema(answers.QUESTIONS[name].ask)
    asked = dict(ASKED[name])
    if "rule" in asked:
        asked["rule"] = {"must": ["b"]}
    assert is_valid(asked, schema)
    assert not is_valid(asked | {"nothing": 1}, schema)


def test_what_each_log_probability_is_of(lm):
    hmm, ids = lm.hmm(), lm.encode("a c")
    begins = float(hmm.log_prob([ids]))
    whole = float(hmm.log_prob([[*ids, lm.tokenizer.end]]))
    (line,) = answers.score(lm, ["a c"], words=True)["lines"]
    assert line["log_prob"] == pytest.approx(whole)
    assert sum(word["log_prob_next"] for word in line["words"]) == pytest.approx(whole)
    assert line["words"][-1]["word"] == "<eos>"
    for word in line["words"]:
        assert word["surprisal_bits"] == pytest.approx(-word["log_prob_next"] / math.log(2))
    assert answers.posterior(lm, "a c")["log_prob_begins"] == pytest.approx(begins)
    tagged = answers.tag(lm, "a c")
    assert tagged["log_prob_begins"] == pytest.approx(begins)
    assert tagged["log_prob_path"] == pytest.approx(float(hmm.viterbi([ids]).log_prob))
    best = answers.fill(lm, "a ___", "best", 9)["fillings"]
    (found,) = [one for one in best if one["text"] == "a c"]
    assert found["log_prob"] == pytest.approx(whole) and "log_prob_begins" not in found
    assert found["log_prob_filling"] == pytest.approx(math.log(found["prob"]))
    assert sum(one["prob"] for one in best) == pytest.approx(1)
    (found,) = [
        one
        for one in answers.fill(lm, "a ___", "best", 9, open_end=True)["fillings"]
        if one["text"] == "a c"
    ]
    assert found["log_prob_begins"] == pytest.approx(begins) and "log_prob" not in found


def test_what_is_impossible_has_no_logarithm(lm, monkeypatch):
    emission = lm.hmm().emission.index_fill(0, torch.tensor(lm.encode("b")), -torch.inf)
    hmm = type(lm.hmm())(
        lm.hmm().start, lm.hmm().transitions, emission, lm.hmm().support, lm.hmm().end
    )
    monkeypatch.setattr(lm, "_hmm", hmm)
    (line,) = answers.score(lm, ["a b"], words=True)["lines"]
    assert line["log_prob"] is None and line["perplexity"] is None
    assert line["words"][1]["surprisal_bits"] is None
    found = answers.rule(lm, AskedRule(must=["b"]))
    assert (found["possible"], found["prob"], found["log_prob_rule"]) == (False, 0, None)
    assert "has probability zero in this model at the beginning" in found["why_not"]


def test_the_probability_of_a_rule_against_enumeration(lm):
    """Over all texts of at most two words after the prefix."""
    end, size = lm.tokenizer.end, lm.tokenizer.size
    before = lm.encode("c")
    (wanted,) = lm.encode("b")
    held = ended = 0.0
    for count in range(3):
        for words in itertools.product([i for i in range(size) if i != end], repeat=count):
            row = [*before, *words, end]
            prob = math.exp(float(lm.hmm().log_prob([row]) - lm.hmm().log_prob([before])))
            ended += prob
            held += prob * (wanted in words)
    found = answers.rule(lm, AskedRule(must=["b"]), "c", 2)
    assert found["prob"] == pytest.approx(held, rel=1e-4)
    assert found["prob_ends"] == pytest.approx(ended, rel=1e-4)
    assert found["possible"] and found["why_not"] is None
    found = answers.rule(lm, AskedRule(must=["b"], words=(3, None)), "c", 2)
    assert not found["possible"] and "needs at least 3 tokens" in found["why_not"]


def test_an_impossible_rule_names_the_parts_that_exclude_each_other(lm):
    asked = AskedRule(must=["a", "b"], must_not=["b"], starts="c", ends="a")
    assert answers.rule(lm, asked, length=9)["why_not"] == (
        "no sequence of tokens can satisfy the rules must 'b' and must not 'b' together"
    )
    asked = AskedRule(must=["a", "b c"], must_not=["c c"], words=(1, 9))
    assert answers.rule(lm, asked, length=2)["why_not"].startswith(
        "the rule (must 'a' & must 'b c') needs at least 3 tokens, but at most 2"
    )


def test_next_words_without_unknown_ones(lm):
    found = answers.next_words(lm, "a", 99)["next"]
    unknown = next(row["prob"] for row in found if row["word"] == "<unk>")
    without = answers.next_words(lm, "a", 99, no_unk=True)["next"]
    wanted = {row["word"]: row["prob"] / (1 - unknown) for row in found if row["word"] != "<unk>"}
    assert {row["word"]: row["prob"] for row in without} == pytest.approx(wanted, rel=1e-4)
    under = answers.next_words(lm, "a", 99, AskedRule(words=(1, 2)), no_unk=True)["next"]
    assert "<unk>" not in {row["word"] for row in under}


def test_only_hmms_have_states(corpus):
    ngram = NgramLM.fit(NgramOptions(order=2), corpus)
    for name, question in answers.QUESTIONS.items():
        if question.only_hmm:
            with pytest.raises(ValueError, match="not a hidden Markov model, so it has no "):
                question.ask(ngram, **ASKED[name])
        else:
            assert is_valid(question.ask(ngram, **ASKED[name]), schema_of(question.answer))


def test_mistakes_in_what_is_asked(lm):
    for texts, reason in (("a", "a list of strings"), ([], "no text"), (["a\nb"], "a line break")):
        with pytest.raises(ValueError, match=reason):
            answers.score(lm, texts)
    with pytest.raises(ValueError, match="samples, best or probs, not 'worst'"):
        answers.fill(lm, "a ___", "worst")
    with pytest.raises(ValueError, match="there is no rule"):
        answers.rule(lm, AskedRule())


def test_rules_in_json(lm):
    made = AskedRule.from_json({"must": "a", "must_not": ["b", "zebra"], "words": 2})
    assert made == AskedRule(must=("a",), must_not=("b", "zebra"), words=(2, 2))
    assert AskedRule.from_json({"words": [1, None]}).words == (1, None)
    assert AskedRule.from_json({}) == AskedRule() and not AskedRule().given
    assert AskedRule().of(lm.tokenizer) is None
    for wrong, reason in (
        ({"musst": "a"}, "unknown field 'musst'; did you mean 'must'"),
        ({"must": 3}, "must = 3 is not of the kind"),
        ({"words": [1]}, "must be two numbers"),
        ([], "must be a section"),
    ):
        with pytest.raises(ValueError, match=reason):
            AskedRule.from_json(wrong)
    for must in ([], ["a"]):
        with pytest.raises(ValueError, match="in_order puts two or more"):
            AskedRule(must=must, in_order=True).of(lm.tokenizer)
