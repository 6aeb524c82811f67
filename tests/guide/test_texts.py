"""Texts under rules about words, from a tiny language model and an HMM with its tokens."""

import json
import math
import sys

import pytest
import torch

from bighmm.data.tokenizers import Words
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.params import find
from bighmm.model.support import Dense
from tiny_lm import WORDS, save_language_model

pytest.importorskip("transformers")
from bighmm.cli.main import main
from bighmm.guide.texts import GuideSettings, write
from bighmm.interop.language_model import LanguageModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_language_model(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def language_model(folder):
    return LanguageModel(str(folder), torch.device("cpu"))


@pytest.fixture(scope="module")
def lm(language_model):
    tokenizer = language_model.tokenizer
    options = find("ablation-b").options(width=8)
    return HMMLM("ablation-b", options, Dense(12, tokenizer.size), tokenizer, seed=1)


@pytest.fixture(scope="module")
def saved(lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hmm")
    lm.save_pretrained(folder)
    return folder


def run(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in argv])
    return stopped.value.code, capsys.readouterr().err


def test_rules_about_words(language_model, lm):
    rules = [lm.rule(must=["cat", "red"]), lm.rule(must_not=["the"], words=(2, 5))]
    found = write(language_model, lm, rules, GuideSettings(length=8, n=5))
    for text in found[0]:
        assert {"cat", "red"} <= set(text.text.split())
    for text in found[1]:
        assert "the" not in text.text.split()
        assert 2 <= len(text.ids) <= 5
        assert text.log_prob < 0
    assert set(" ".join(t.text for texts in found for t in texts).split()) <= set(WORDS)


@pytest.mark.parametrize("beams", [0, 4])
def test_prompt_prefix_and_suffix(language_model, lm, beams):
    rule = lm.rule(must=["dog"])
    settings = GuideSettings(length=10, beams=beams, n=2)
    (texts,) = write(
        language_model,
        lm,
        [rule],
        settings,
        prompts=["the mat"],
        prefix="a big",
        suffix="on the mat",
    )
    for text in texts:
        words = text.text.split()
        assert words[:2] == ["a", "big"]
        assert words[-3:] == ["on", "the", "mat"]
        assert "dog" in words[2:-3]


def test_the_same_seed_the_same_texts(language_model, lm):
    def drawn(seed):
        settings = GuideSettings(length=8, n=4, seed=seed)
        (texts,) = write(language_model, lm, [lm.rule(must=["dog"])], settings)
        return [text.ids for text in texts]

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert drawn(1) == drawn(1) != drawn(2)
    assert torch.equal(torch.random.get_rng_state(), before)  # the caller's


def test_texts_are_scored_by_what_they_are_drawn_from(language_model, lm):
    """The end mark has the probability of all ends, and marks have none."""
    settings = GuideSettings(length=6, n=3)
    (texts,) = write(language_model, lm, [lm.rule(must=["cat"])], settings)
    begun = language_model.beginning()
    for text in texts:
        ids, total = [*text.ids, language_model.tokenizer.end], 0.0
        for place, token in enumerate(ids):
            context = torch.tensor([[*begun, *ids[:place]]])
            logits = language_model.model(input_ids=context).logits[:, -1].detach()
            total += float(language_model.log_probs(logits)[0, token])
        assert text.log_prob == pytest.approx(total, rel=1e-4)


def test_a_prompt_for_each_rule(language_model, lm):
    rules = [lm.rule(must=["cat"]), lm.rule(must=["dog"])]
    found = write(language_model, lm, rules, prompts=["the", "a big"], chat=True)
    assert ["cat" in found[0][0].text, "dog" in found[1][0].text] == [True, True]
    with pytest.raises(ValueError, match="3 prompts were given for 2 rules"):
        write(language_model, lm, rules, prompts=["the", "a", "red"])


def test_marks_are_no_words(language_model, lm):
    """What the language model never writes cannot be asked for, and is refused at once."""
    with pytest.raises(ValueError, match="no sequence of tokens can satisfy"):
        write(language_model, lm, [lm.rule(must=["<bot>"])])


def test_more_than_the_language_model_reads(language_model, lm):
    with pytest.raises(ValueError, match="reads 64 tokens at most"):
        write(language_model, lm, [lm.rule(must=["cat"])], GuideSettings(length=63))


@pytest.mark.parametrize("beams", [0, 2])
def test_length_does_not_count_the_end_mark(language_model, lm, beams):
    """Exactly so many tokens fit, after the prefix and with the suffix."""
    assert GuideSettings().window == 32
    (texts,) = write(
        language_model, lm, [lm.rule(words=4)], GuideSettings(length=4, n=2, beams=beams)
    )
    assert all(len(text.ids) == 4 and text.tokens == 5 for text in texts)
    assert texts[0].perplexity == pytest.approx(math.exp(-texts[0].log_prob / 5))
    (texts,) = write(
        *(language_model, lm, [lm.rule(words=2)], GuideSettings(length=4, beams=beams)),
        prefix="the big",
        suffix="the mat",
    )
    assert len(texts[0].ids) == 4
    with pytest.raises(ValueError, match="needs at least 5 tokens, but at most 4"):
        write(language_model, lm, [lm.rule(words=5)], GuideSettings(length=4))


def test_without_transformers(language_model, lm, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "bighmm.guide.hugging_face", raising=False)
    monkeypatch.delattr("bighmm.guide.hugging_face", raising=False)
    with pytest.raises(ValueError, match=r'needs the package transformers: install "bighmm\[teach'):
        write(language_model, lm, [lm.rule(must=["cat"])])


def test_another_vocabulary(language_model):
    words = Words.build(["the cat sat"])
    other = HMMLM("scalar", find("scalar").options(), Dense(3, words.size), words)
    with pytest.raises(ValueError, match="another vocabulary than the language model"):
        write(language_model, other, [other.rule(must=["cat"])])


@pytest.mark.parametrize(
    "asked",
    [
        *({"n": 0}, {"length": -1}, {"top_p": 0.0}, {"beams": 2, "n": 3}),
        *({"temperature": t} for t in (0.0, 1e-45, math.inf, math.nan)),
    ],
)
def test_settings_that_make_no_sense(asked):
    with pytest.raises(ValueError, match=r"must be|cannot give"):
        GuideSettings(**asked)


class TestTheCommand:
    def test_texts(self, saved, folder, capsys):
        main(["guide", str(saved), str(folder), "--must", "cat", "--n", "2", "--length", "8"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2
        assert all("cat" in line.split() for line in lines)

    def test_sharpness_and_seeds(self, saved, folder, capsys):
        def texts(*flags):
            asked = ["--words", "3..6", "--n", "6", "--length", "8", "--no-unk", *flags]
            main(["guide", str(saved), str(folder), *asked])
            return capsys.readouterr().out

        assert texts("--seed", "3") == texts("--seed", "3")
        assert texts() != texts()  # as with `sample`
        assert len({line.split("\t")[1] for line in texts("--top-k", "1").splitlines()}) == 1

    def test_json(self, saved, folder, capsys):
        flags = ["--must", "red", "--ends", ".", "--beams", "3", "--n", "1", "--json"]
        main(["guide", str(saved), str(folder), *flags])
        (text,) = json.loads(capsys.readouterr().out)["texts"]
        assert text["text"].endswith(".")
        assert "red" in text["text"].split()
        assert math.isfinite(text["log_prob"])

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            ([], "there is no rule to guide by"),
            (["--must", "zebra"], "'zebra' of a rule is not in the model's vocabulary"),
            (["--must", "cat", "--not", "cat"], "no sequence of tokens can satisfy"),
            (["--words", "9..12", "--length", "8"], "needs at least 9 tokens"),
            (["--must", "cat", "--length", "-1"], "length and beams at least 0"),
            (["--must", "cat", "--device", "gpu"], "there is no device 'gpu'"),
            (["--must", "cat", "--beams", "2"], "cannot give 3 texts"),
        ],
    )
    def test_bad_requests(self, saved, folder, capsys, flags, said):
        code, message = run(["guide", saved, folder, *flags], capsys)
        assert code == 2
        assert said in message
        assert len(message.splitlines()) == 1

    def test_no_such_language_model(self, saved, tmp_path, capsys):
        code, message = run(["guide", saved, tmp_path / "none", "--must", "cat"], capsys)
        assert code == 2
        assert "there is no language model" in message
