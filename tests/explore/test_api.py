"""Answers of the server are those of the library, whatever the model."""

import json
import math

import numpy as np
import pytest
import torch

from bighmm import answers
from bighmm.inspect import state_shares
from bighmm.lm.rules.asked import AskedRule

HMMS = "abce"
TEXT = "the cat sat on a mat ."
RULE = {"must": ["cat"], "must_not": ["saw"]}
QUESTIONS = {
    "score": {"texts": [TEXT, "a strange dog"], "words": True},
    "next": {"prefix": "the", "n": 4, "rule": RULE, "length": 5},
    "sample": {"n": 3, "prefix": "the", "seed": 5, "length": 9},
    "fill": {"text": "the ___ sat on ___1-2 .", "kind": "best", "n": 3},
    "tag": {"text": TEXT},
    "posterior": {"text": TEXT, "top": 2, "words": 2},
    "states": {"states": [3, 1], "sort": "number"},
    "rule": {"rule": RULE, "length": 6, "prefix": "a"},
}


def lm_of(opened, key):
    return next(one for one in opened if one.key == key).lm


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("key", HMMS)
def test_questions_have_the_answers_of_the_library(client, opened, question, key):
    body = QUESTIONS[question]
    found = client.post(f"/{question}?model={key}", body)
    given = dict(body)
    if "rule" in given:
        given["rule"] = AskedRule.from_json(given["rule"])
    ask = answers.QUESTIONS[question].ask
    assert found.status == 200
    assert found.json == json.loads(json.dumps(ask(lm_of(opened, key), **given)))


def test_questions_are_those_of_the_commands(client, runs, ask):
    found = client.post("/posterior", {"text": TEXT, "top": 2})
    assert found.json == ask("posterior", runs["two-level"], TEXT, "--top", 2)


def test_shares_of_states_are_those_of_the_corpus(client, opened):
    model = opened[0]
    shares = state_shares(model.lm.hmm(), model.corpus.split("valid"))
    found = client.post("/states", {"top": 3}).json
    assert found["split"] == "valid"
    for row in found["states"]:
        assert row["share"] == pytest.approx(float(shares[row["state"]]), rel=1e-9)


def test_models_without_states_say_so(client):
    assert client.get("/model?model=d").json["has_states"] is False
    assert client.post("/score?model=d", {"texts": [TEXT]}).status == 200
    for path, body in (("/tag", {"text": TEXT}), ("/fill", {"text": "a ___"})):
        refused = client.post(f"{path}?model=d", body)
        assert refused.status == 409 and "has no states" in refused.json["error"]["message"]
    assert client.get("/states?model=d").status == 409
    assert client.get("/blocks?model=d").status == 409
    assert client.get("/blocks?model=c").json["error"]["message"].endswith("not in blocks")


def test_facts(client):
    facts = client.get("/model").json
    assert (facts["states"], facts["blocks"], facts["vocabulary"]) == (16, 4, 12)
    assert facts["transitions"] == "two-level" and facts["corpus"]["present"]
    assert client.get("/model?model=b").json["transitions"] == "flat"
    assert client.get("/model?model=c").json["blocks"] is None
    without = client.get("/model?model=e").json
    assert not without["corpus"]["present"] and "with --data" in without["corpus"]["why"]
    assert "gone.txt" not in without["corpus"]["why"]  # no paths of this machine
    assert without["survey"]["state"] == "none"
    assert len(client.get("/models").json["models"]) == 5


@pytest.mark.parametrize("key", HMMS)
def test_table_of_states(client, opened, key):
    hmm = lm_of(opened, key).hmm()
    emission = hmm.tables()[2]
    entropy = -(emission * emission.clamp(min=1e-30).log2()).sum(1)
    found = client.get(f"/states?model={key}&sort=entropy&order=desc&size=500").json
    assert [row["state"] for row in found["states"]] == (-entropy).argsort(stable=True).tolist()
    for row in found["states"]:
        assert row["entropy_bits"] == pytest.approx(float(entropy[row["state"]]), abs=1e-4)
        probs = [word["prob"] for word in row["words"]]
        best = emission[row["state"]].topk(len(probs)).values
        assert probs == pytest.approx(best.tolist(), abs=1e-6)
    pages = [client.get(f"/states?model={key}&size=4&page={page}").json for page in range(5)]
    assert [row["state"] for page in pages for row in page["states"]] == list(range(hmm.num_states))


def test_search_among_states(client):
    for query in ("cat", "CA"):
        found = client.get(f"/states?query={query}").json
        assert {row["state"] for row in found["states"]} == {8, 9, 10, 11}  # those of its block
    assert [row["state"] for row in client.get("/states?query=7").json["states"]] == [7]
    assert client.get("/states?query=cat%20the").json["matching"] == 0
    assert client.get("/states?block=2").json["matching"] == 4
    by_share = client.get("/states?sort=share").json["states"]
    shares = [row["share"] for row in by_share]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)
    assert client.get("/states?sort=share&model=e").json["sort"] == "number"  # there is no corpus


def test_one_state(client, opened):
    hmm = opened[0].lm.hmm()
    _, transition, emission = hmm.tables()
    found = client.get("/states/9").json
    after = [(row["state"], row["prob"]) for row in found["next"]]
    best = transition[9].topk(12)
    assert [state for state, _ in after] == best.indices.tolist()
    assert [prob for _, prob in after] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert found["words"][0]["prob"] == pytest.approx(float(emission[9].max()), abs=1e-6)
    assert (found["lower"], found["higher"], found["block"]) == (8, 10, 2)
    shares = torch.tensor([row["share"] for row in client.get("/states?size=99").json["states"]])
    ends = emission[:, hmm.end]
    joint = shares * (1 - ends) * transition[:, 9]
    before = [row["prob"] for row in found["previous"]]
    assert before == pytest.approx((joint / joint.sum()).topk(12).values.tolist(), abs=1e-5)


def test_contexts_are_where_a_state_is_certain(client, opened):
    model = opened[0]
    hmm, tokens = model.lm.hmm(), np.asarray(model.corpus.split("valid")).astype(np.int64)
    marginals = np.zeros((len(tokens), hmm.num_states))
    begin = 0
    for end in np.flatnonzero(tokens == hmm.end) + 1:
        found = hmm.posterior(torch.from_numpy(tokens[begin:end])[None])
        for place in range(begin, end):
            marginals[place, found.states[0, place - begin]] = found.marginals[0, place - begin]
        begin = end
    contexts = client.get("/states/9/contexts?size=3").json["contexts"]
    assert contexts[0]["prob"] == pytest.approx(marginals[:, 9].max(), abs=1e-6)
    assert contexts[0]["word"] in ("cat", "dog", "mat")
    assert client.get("/states/9/contexts?model=e").status == 409


@pytest.mark.parametrize("key", "abe")
def test_moves_between_blocks(client, opened, key):
    hmm = lm_of(opened, key).hmm()
    _, transition, emission = (table.double() for table in hmm.tables())
    weights = 1 - emission[:, hmm.end]
    rows = client.get(f"/states?size=99&model={key}").json["states"]
    if key != "e":
        weights = weights * torch.tensor([row["share"] for row in rows]).double()
    by_block = weights.view(4, 4)
    expected = torch.einsum("mk,mknl->mn", by_block, transition.view(4, 4, 4, 4))
    expected = expected / by_block.sum(1, keepdim=True)
    found = client.get(f"/blocks/moves?model={key}").json
    assert found["weights"] == ("uniform" if key == "e" else "share")
    torch.testing.assert_close(torch.tensor(found["moves"]).double(), expected, rtol=0, atol=1e-5)
    pair = client.get(f"/blocks/1/to/2?size=2&model={key}").json
    assert pair["prob"] == pytest.approx(float(expected[1, 2]), abs=1e-5)
    for row, probs in zip(pair["rows"], pair["probs"], strict=True):
        for column, prob in zip(pair["columns"], probs, strict=True):
            expected_prob = float(transition[row["state"], column["state"]])
            assert prob == pytest.approx(expected_prob, abs=1e-6)


def test_blocks_have_their_words(client):
    blocks = client.get("/blocks").json["blocks"]
    assert blocks[2]["size"] == 3 and set(blocks[2]["words"]) == {"cat", "dog", "mat"}
    assert sum(block["share"] for block in blocks) == pytest.approx(1)
    block = client.get("/blocks/2").json
    assert (block["first_state"], block["last_state"]) == (8, 11)
    assert sum(word["share"] for word in block["words"]) == pytest.approx(1)
    assert client.get("/blocks/4").status == 404


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("key", HMMS)
def test_written_texts_and_what_becomes_of_the_rule(client, opened, key, temperature):
    lm = lm_of(opened, key)
    asked = {"n": 3, "prefix": "the", "rule": RULE, "length": 6, "seed": 2}
    asked["temperature"] = temperature
    found = client.post(f"/write?model={key}", asked).json
    assert client.post(f"/write?model={key}", asked).json == found
    rule = AskedRule.from_json(RULE).of(lm.tokenizer)
    before = lm.rule_log_prob(rule, 6, "the")
    assert found["log_prob_rule"] == pytest.approx(before, abs=1e-4)
    alone = client.post(f"/rule?model={key}", {"rule": RULE, "prefix": "the", "length": 6}).json
    assert found["prob_ends"] == pytest.approx(alone["prob_ends"], abs=1e-5)
    for text in found["texts"]:
        ids = [lm.tokenizer.encode(word["word"])[0] for word in text["words"][:-1]]
        assert rule.matches(ids) and text["words"][-1]["word"] == "<eos>"
        so_far = "the"
        for place, word in enumerate(text["words"][:-1]):
            so_far += " " + word["word"]
            rest = rule.after(ids[: place + 1])
            expected = math.exp(lm.rule_log_prob(rest, 5 - place, so_far))
            assert word["prob_rule"] == pytest.approx(expected, abs=1e-5)
        assert text["words"][-1]["prob_rule"] == pytest.approx(1)
        scored = answers.score(lm, [text["text"]], words=True)["lines"][0]["words"]
        each = [word["log_prob_next"] for word in text["words"]]
        assert each == pytest.approx([word["log_prob_next"] for word in scored[1:]], abs=1e-4)
        assert text["log_prob"] == pytest.approx(sum(each), abs=1e-4)
        assert text["log_prob_given_rule"] == pytest.approx(sum(each) - before, abs=1e-4)


def test_written_texts_without_a_rule(client, opened):
    for key in "ad":
        body = {"n": 2, "prefix": "a", "length": 5, "seed": 3}
        found = client.post(f"/write?model={key}", body).json
        drawn = answers.sample(lm_of(opened, key), **body)
        assert [text["text"] for text in found["texts"]] == [one["text"] for one in drawn["texts"]]
        assert found["rule"] is None and found["automaton"] is None


def test_an_impossible_rule_says_why(client):
    body = {"rule": {"must": ["cat"], "words": [0, 0]}, "length": 5}
    told = client.post("/rule", body).json
    assert not told["possible"] and told["why_not"]
    refused = client.post("/write", body)
    assert refused.status == 422 and "no sequence of tokens" in refused.json["error"]["message"]


def test_compared_models(client, opened):
    found = client.post("/compare?models=a,d", {"text": f"{TEXT}\n\nthe dog"}).json
    assert [line["text"] for line in found["lines"]] == [TEXT, "the dog"]
    for number, key in enumerate("ad"):
        scored = answers.score(lm_of(opened, key), [TEXT, "the dog"], words=True)["lines"]
        for line, alone in zip(found["lines"], scored, strict=True):
            assert line["log_prob"][number] == pytest.approx(alone["log_prob"], abs=1e-4)
            bits = [word["surprisal_bits"] for word in alone["words"]]
            assert [word["bits"][number] for word in line["words"]] == pytest.approx(bits, abs=1e-4)
    words = found["lines"][0]["words"]
    assert [word["word"] for word in words] == [*TEXT.split(), None]
    assert words[0]["difference"] == pytest.approx(words[0]["bits"][1] - words[0]["bits"][0])


def test_openapi_document_describes_every_address(client):
    from bighmm.explore.addresses import ADDRESSES

    found = client.get("/openapi.json").json
    for address in ADDRESSES:
        operation = found["paths"][f"/api/v1{address.path}"][address.method.lower()]
        assert ("requestBody" in operation) == (address.body is not None)
    fields = found["paths"]["/api/v1/fill"]["post"]["requestBody"]["content"]["application/json"]
    assert fields["schema"]["required"] == ["text"]
    assert fields["schema"]["properties"]["n"]["maximum"] == 200
    text = json.dumps(found)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.split('"')[0] in found["components"]["schemas"]


def test_answers_fit_their_schemas(client):
    """Every key of an answer is described, and every key that must be there is there."""
    schemas = client.get("/openapi.json").json["components"]["schemas"]
    for path, name in (
        ("/states/3", "StatePage"),
        ("/states", "StatesPage"),
        ("/blocks", "Blocks"),
        ("/blocks/1", "BlockPage"),
        ("/blocks/1/to/2", "BlockPair"),
        ("/runs/a", "RunCurves"),
    ):
        found, schema = client.get(path).json, schemas[name]
        assert set(schema["required"]) <= set(found)
        assert set(found) <= {*schema["properties"], "survey"}
