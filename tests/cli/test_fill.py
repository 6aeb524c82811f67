"""`bighmm fill` on a tiny model."""

import math

import pytest
import torch

from bighmm.lm.hmmlm import HMMLM

TEXT = "w01 ___ w09 ___0-2"


@pytest.fixture
def lm(trained):
    return HMMLM.from_pretrained(trained / "model")


def test_samples(bighmm, ask, trained, lm):
    found = ask("fill", trained, TEXT, "--seed", 5, "--n", 20)
    assert found["text"] == TEXT and len(found["fillings"]) == 20
    for row in found["fillings"]:
        first, second = row["words"]
        assert len(first) == 1 and len(second) <= 2
        assert row["text"] == " ".join(["w01", *first, "w09", *second])
    generator = torch.Generator().manual_seed(5)
    texts = [row["text"] for row in found["fillings"]]
    assert texts == lm.fill(TEXT, 20, generator=generator) and len(set(texts)) > 10
    shown = bighmm("fill", trained, TEXT, "--seed", 5, "--n", 20)
    assert shown.out.splitlines() == texts
    assert ask("fill", trained, TEXT, "--seed", 6, "--n", 20) != found
    assert len(bighmm("fill", trained, TEXT).out.splitlines()) == 5


def test_best(bighmm, ask, trained, lm):
    found = ask("fill", trained, "w01 ___ w09 unheard", "--best", "--n", 100)
    assert found["exact"] and len(found["fillings"]) == 41  # all but the end mark
    assert sum(row["prob"] for row in found["fillings"]) == pytest.approx(1, abs=1e-5)
    for row in found["fillings"][:3]:
        assert row["text"].endswith("w09 <unk>")
        ids = torch.tensor([lm.encode(row["text"] + "\n")])
        assert row["log_prob"] == pytest.approx(float(lm.hmm().log_prob(ids)), rel=1e-5)
    shown = bighmm("fill", trained, "w01 ___ w09 unheard", "--best", "--n", 2)
    expected = [f"{row['prob']:.4f}\t{row['text']}" for row in found["fillings"][:2]]
    assert shown.out.splitlines() == expected
    assert shown.err == "unknown to the model, read as <unk>: 'unheard'\n"
    rare = bighmm("fill", trained, "w01 ___ w09 unheard", "--best", "--n", 100).out.splitlines()
    assert len({line.split("\t")[0] for line in rare}) > 30  # not 0.0000 many times


def test_best_that_may_not_be(bighmm, ask, trained):
    text = "___ ___ ___ w01"
    assert not ask("fill", trained, text, "--best", "--n", 40)["exact"]
    assert "likelier ones may have been missed" in bighmm("fill", trained, text, "--best").err


def test_probs(bighmm, ask, trained, lm):
    found = ask("fill", trained, "w01 ___2 w09 ___", "--probs", "--n", 100)
    assert [(row["gap"], row["word"]) for row in found["gaps"]] == [(1, 1), (1, 2), (2, 1)]
    expected = lm.fill_probs("w01 ___2 w09 ___").words
    for row, log_probs in zip(found["gaps"], expected, strict=True):
        assert len(row["words"]) == 41
        assert sum(word["prob"] for word in row["words"]) == pytest.approx(1, abs=1e-5)
        for word in row["words"]:
            assert word["log_prob_filling"] == pytest.approx(
                float(log_probs[lm.encode(word["word"])[0]])
            )
            assert word["prob"] == pytest.approx(math.exp(word["log_prob_filling"]))
    shown = bighmm("fill", trained, "w01 ___2 w09 ___", "--probs", "--n", 1).out.splitlines()
    tops = [row["words"][0] for row in found["gaps"]]
    places = ("1.1", "1.2", "2.1")
    assert shown == [
        f"gap {place}\t{top['prob']:.4f}\t{top['word']}"
        for place, top in zip(places, tops, strict=True)
    ]
    open_end = ask("fill", trained, "w01 ___2 w09 ___", "--probs", "--open-end")
    assert open_end["gaps"][2]["words"][0]["prob"] != tops[2]["prob"]


def test_probs_of_lengths(bighmm, ask, trained, lm):
    found = ask("fill", trained, TEXT, "--probs")
    lengths = {tuple(row["lengths"]): row["prob"] for row in found["lengths"]}
    assert lengths == pytest.approx(lm.fill_lengths(TEXT), rel=1e-5)
    likeliest = max(lengths, key=lengths.__getitem__)
    assert found["lengths"][0]["lengths"] == list(likeliest)
    assert len(found["gaps"]) == sum(likeliest)
    first = bighmm("fill", trained, TEXT, "--probs").out.splitlines()[0]
    assert first == f"lengths {likeliest[0]} {likeliest[1]}\t{lengths[likeliest]:.4f}"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["w01 w02"], "the text has no gap; write ___ for one word"),
        ([" "], "the text is empty"),
        (["___1000"], "the gap ___1000 is too long; a gap has at most 100 words"),
        (["___", "--n", 0], "n must be at least 1, not 0"),
        (["___", "--best", "--probs"], "--best and --probs are two questions"),
    ],
)
def test_refused(bighmm, trained, arguments, said):
    done = bighmm("fill", trained, *arguments)
    assert done.status == 2 and done.out == ""
    assert done.err.startswith("bighmm: ") and said in done.err and done.err.count("\n") == 1
