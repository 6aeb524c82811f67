"""Corpora that models write: their distribution, interrupted and repeated requests, and errors."""

import itertools
import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch

from bighmm.base.locks import locked_folder
from bighmm.cli.write import number_of
from bighmm.data.corpus import open_corpus, prepare
from bighmm.data.tokenizers import Words
from bighmm.data.written import writers_of
from bighmm.distill import shards, writing
from bighmm.distill.settings import WriteSettings
from bighmm.distill.streams import FromProbabilities, FromStates, Streams, mean_of
from bighmm.distill.writing import Teachers, open_teachers, write_text
from bighmm.infer.sample import nucleus
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.neural import LSTMLM, FeedForwardLM
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.baselines.transformer import TransformerLM
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.options import FeedForwardOptions, LSTMOptions, NgramOptions, TransformerOptions
from bighmm.lm.stepping import stepper_of
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.support import Blocked, Dense
from infer.test_sampling import assert_drawn_from

WORDS = Words.build(["a b c d e"])  # and two marks
SIZE, END = WORDS.size, WORDS.end
FAMILIES = ("hmm", "dense hmm", "ngram", "lstm", "feed-forward", "transformer")
SETTINGS = WriteSettings(tokens=3000, rows=8, stream=70)


def model(family, tokenizer=WORDS):
    """A small model whose probabilities differ much between words and contexts."""
    size = tokenizer.size
    if family == "ngram":
        draw = np.random.default_rng(0)
        tokens = draw.integers(0, size, 400) * draw.integers(0, 2, 400)
        counted = KneserNey.fit(tokens, size, tokenizer.end, 3)
        return NgramLM(NgramOptions(order=3), counted, tokenizer)
    lm = {
        "hmm": lambda: _hmm(Blocked.of(torch.arange(size) % 2, 6), tokenizer),
        "dense hmm": lambda: _hmm(Dense(4, size), tokenizer),
        "lstm": lambda: LSTMLM(LSTMOptions(width=6, layers=2), tokenizer, 1),
        "feed-forward": lambda: FeedForwardLM(FeedForwardOptions(width=6, order=3), tokenizer, 1),
        "transformer": lambda: TransformerLM(
            TransformerOptions(width=8, layers=2, heads=2, context=3), tokenizer, 1
        ),
    }[family]()
    with torch.no_grad():
        for parameter in lm.params.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
        if family in ("lstm", "transformer"):
            lm.params.words.mul_(4.0)
    return lm


def _hmm(support, tokenizer):
    return HMMLM("neural", NeuralOptions(width=6), support, tokenizer, seed=1)


def source_of(models, **settings):
    return Teachers(models, []).source(WriteSettings(**settings))


def first_tokens(source, rows, length, seed=0):
    """The first tokens (rows, length) of each row."""
    streams = Streams(source, rows, length, None, sentences=False)
    return streams.shard(torch.tensor(seed))["tokens"].view(rows, length).long()


def all_texts(length):
    return torch.tensor(list(itertools.product(range(SIZE), repeat=length)))


def exact_probs(lm, length):
    """Probabilities of `all_texts` of this length."""
    return summing_to_one(lm.predictor().log_prob(all_texts(length)).double().exp())


def summing_to_one(probs):
    """The same without what rounding in float32 adds."""
    assert float(probs.sum()) == pytest.approx(1, abs=1e-4)
    return probs / probs.sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_follow_the_distribution_of_the_model(family):
    """The first three tokens together, end marks included, after which some models begin anew."""
    lm = model(family)
    source = source_of([lm], rows=6000)
    assert isinstance(source, FromStates if "hmm" in family else FromProbabilities)
    found = first_tokens(source, 6000, 3)
    probs = exact_probs(lm, 3)
    assert float(probs.max()) > 4 / SIZE**3
    assert_drawn_from(found, all_texts(3), probs)


def test_an_hmm_draws_the_same_distribution_from_filtered_states():
    lm = model("hmm")
    source = FromProbabilities([stepper_of(lm)], 6000, 1.0, 1.0)
    assert_drawn_from(first_tokens(source, 6000, 3), all_texts(3), exact_probs(lm, 3))


@pytest.mark.parametrize("families", [("lstm", "ngram"), ("hmm", "lstm", "transformer")])
def test_several_models_write_by_the_mean_of_their_probabilities(families):
    """Of the next token, given all that is written; so not the mean over texts."""
    models = [model(family) for family in families]
    rows = 6000
    found = first_tokens(source_of(models, rows=rows), rows, 2)
    texts = torch.arange(SIZE).unsqueeze(1)
    first = torch.stack([lm.predictor().next_token(texts[:1, :0])[0].double() for lm in models])
    second = torch.stack([lm.predictor().next_token(texts).double() for lm in models])
    probs = first.exp().mean(0).unsqueeze(1) * second.exp().mean(0)
    assert_drawn_from(found, all_texts(2), summing_to_one(probs.flatten()))
    one, other = (model(family) for family in ("lstm", "ngram"))
    each = [stepper.predict(stepper.begin(2))[0] for stepper in map(stepper_of, (one, other))]
    expected = sum(log_probs.double().exp() for log_probs in each) / 2
    torch.testing.assert_close(mean_of(each).double().exp(), expected, rtol=1e-5, atol=1e-7)


def test_temperature_and_top_p():
    lm = model("lstm")
    source = source_of([lm], rows=6000, temperature=0.7, top_p=0.8)
    log_probs = lm.predictor().next_token(torch.zeros(1, 0, dtype=torch.long))
    expected = nucleus((log_probs / 0.7).log_softmax(1), 0.8)[0].exp()
    found = torch.bincount(first_tokens(source, 6000, 1)[:, 0], minlength=SIZE)
    assert bool((found[expected == 0] == 0).all()) and bool((expected == 0).any())
    assert found / 6000 == pytest.approx(expected.numpy(), abs=0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_steppers_predict_as_predictors(family):
    lm = model(family)
    stepper, texts = stepper_of(lm), torch.randint(0, SIZE, (7, 6))
    state = stepper.begin(7)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    for place in range(6):
        found, state = stepper.predict(state)
        expected = lm.predictor().next_token(texts[:, :place])
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-4, atol=1e-5)
        state = stepper.after(state, texts[:, place])
        assert {name: tensor.shape for name, tensor in state.items()} == shapes


def test_log_probs_are_those_of_the_texts():
    lm = model("lstm")
    streams = Streams(source_of([lm], rows=5), 5, 40, END, sentences=False)
    shard = streams.shard(torch.tensor(3))
    for first, last in itertools.pairwise(shard["bounds"].tolist()):
        row = shard["tokens"][first:last].long().unsqueeze(0)
        expected = float(lm.predictor().log_prob(row))
        assert float(shard["log_probs"][first:last].sum()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sentences", [True, False])
def test_rows_end_with_their_last_sentence(sentences, monkeypatch):
    monkeypatch.setattr("bighmm.distill.streams.MOST_AFTER", 9)
    streams = Streams(source_of([model("lstm")], rows=40), 40, 30, END, sentences=sentences)
    shard = streams.shard(torch.tensor(1))
    texts = [text.tolist() for text in shard["tokens"].split(shard["bounds"].diff().tolist())]
    ended = [text[-1] == END for text in texts]
    assert any(ended) and len(shard["tokens"]) == len(shard["log_probs"])
    if sentences:
        assert all(END not in text[:-1] for text in texts)
        assert sum(not end for end in ended) < 40
        return
    assert len(texts) == 40
    for text, end in zip(texts, ended, strict=True):
        assert END not in text[29:-1]
        assert 30 <= len(text) < 40 if end else len(text) == 39


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model of each kind in a folder."""
    home = tmp_path_factory.mktemp("teachers")
    for family in FAMILIES:
        model(family).save_pretrained(home / family)
    return home


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("families", [("lstm",), ("dense hmm",), ("ngram", "lstm")])
def test_a_corpus(teacher, tmp_path, families):
    reports = []
    teachers = open_teachers([teacher / family for family in families])
    write_text(teachers, SETTINGS, tmp_path / "text", progress=lambda *n: reports.append(n))
    corpus = open_corpus(tmp_path / "text", verify=True)
    source, entries = corpus.manifest["source"], corpus.manifest["splits"]
    assert 3000 <= sum(entry["tokens"] for entry in entries.values()) < 3000 + 1200
    assert corpus.tokenizer.fingerprint() == WORDS.fingerprint()
    assert [writer.name for writer in writers_of(corpus)] == [str(teacher / f) for f in families]
    assert {writer.trained_on for writer in writers_of(corpus)} == {None}
    assert (source["seed"], source["temperature"], source["tokens"]) == (1, 1.0, 3000)
    carries = families != ("dense hmm",)
    assert source["documents"] == ("streams" if carries else "sentences")
    ids, documents = corpus.split("train"), corpus.documents("train")
    assert np.mean(ids[documents[1:] - 1] == END) > 0.9
    assert (np.diff(documents).mean() >= 70) == carries
    if carries:
        assert 1 < source["perplexity"] < SIZE
    else:
        assert source["perplexity"] is None
    done = [number for number, _ in reports]
    assert done == sorted(done) and done[-1] == 3000
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_seeds_give_other_texts_and_shards_differ(teacher, tmp_path):
    teachers = open_teachers([teacher / "lstm"])
    texts = [
        np.asarray(
            write_text(teachers, WriteSettings(3000, 8, 70, seed=seed), tmp_path / name).split(
                "train"
            )
        )
        for name, seed in (("one", 1), ("again", 1), ("other", 2))
    ]
    assert np.array_equal(texts[0], texts[1])
    assert not np.array_equal(texts[0][:200], texts[2][:200])
    rows = texts[0][:560].reshape(8, 70)
    assert len({tuple(row[:40]) for row in rows}) == 8


def killed_at(number, teachers, out):
    """In another process: be killed while shard `number` is being written."""
    write = shards.write_atomically

    def dies(path, data):
        if path.name == f"{number:05}.safetensors":
            path.with_name(f".{path.name}.{'0' * 16}.tmp").write_bytes(data[:100])
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, data)

    shards.write_atomically = dies
    write_text(teachers, SETTINGS, out)


@pytest.mark.parametrize("families", [("lstm",), ("hmm",), ("ngram", "lstm")])
def test_killed_and_gone_on_with(teacher, tmp_path, families, monkeypatch):
    teachers = open_teachers([teacher / family for family in families])
    write_text(teachers, SETTINGS, tmp_path / "whole")
    out, fork = tmp_path / "killed", multiprocessing.get_context("fork")
    for number in (0, 2):
        process = fork.Process(target=killed_at, args=(number, teachers, out))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL and not out.exists()
        assert len(list((tmp_path / "killed.partial").glob("[0-9]*.safetensors"))) == number
    made = []
    shard = Streams.shard
    monkeypatch.setattr(Streams, "shard", lambda *given: made.append(None) or shard(*given))
    whole = writing.write_corpus

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write_corpus", interrupted)  # once all shards are there
    with pytest.raises(KeyboardInterrupt):
        write_text(teachers, SETTINGS, out)
    monkeypatch.setattr(writing, "write_corpus", whole)
    before = len(made)
    monkeypatch.setattr(writing, "_clear", interrupted)  # once the corpus is there
    with pytest.raises(KeyboardInterrupt):
        write_text(teachers, SETTINGS, out)
    monkeypatch.undo()
    write_text(teachers, SETTINGS, out)
    assert content(out) == content(tmp_path / "whole")
    assert 0 < before == len(made)  # those that were there were not made again
    write_text(teachers, SETTINGS, out)  # which only opens it
    assert content(out) == content(tmp_path / "whole")


def test_who_wrote_it_and_what_they_learned_from(ask, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b c\nb c d\n" * 40)
    ask("train", "--data", text, "--family", "ngram", "--order", "2", "--out", tmp_path / "run")
    given = ("write", tmp_path / "run", "--tokens", "1k", "--batch", "4", "--device", "cpu")
    found = ask(*given, "--out", tmp_path / "written")
    [writer] = found["source"]["writers"]
    assert writer["family"] == "ngram" and writer["trained_on"] == prepare(text).fingerprint
    assert sum(found["tokens"].values()) >= 1000
    again = ask(*given, "--out", tmp_path / "written")
    assert again == found
    other = ask("data", "--data", tmp_path / "written")
    assert other["source"]["kind"] == "written"
    trained = ask(
        *("train", "--data", text, "--more", tmp_path / "written", "--share", "0.5"),
        *("--states", "4", "--support", "dense", "--width", "4", "--epochs", "1", "--batch", "4"),
        *("--device", "cpu", "--out", tmp_path / "student"),
    )
    assert trained["test"]["vocabulary"] == prepare(text).tokenizer.fingerprint()


def test_refused(teacher, tmp_path, bighmm):
    out = tmp_path / "text"
    given = ("write", teacher / "lstm", "--tokens", "2000", "--batch", "8", "--stream", "70")
    given = (*given, "--device", "cpu", "--out", out)

    def fails(sentence, *others):
        done = bighmm(*given, *others)
        assert done.status == 2 and done.err.count("\n") == 1 and sentence in done.err, done.err

    with locked_folder(tmp_path / "text.partial"):
        fails("is being written by another process (pid")
    assert bighmm(*given).status == 0
    fails("already holds a text with another seed; choose another --out", "--seed", "2")
    fails("already holds a text with another tokens; choose", "--tokens", "2001")
    fails("temperature must be finite", "--temperature", "0")
    fails("tokens, batch and stream must be at least 1, not 0", "--tokens", "0")
    fails("such as 2000, 500k or 100M, not 'many'", "--tokens", "many")
    fails("1 documents, which cannot be divided", "--tokens", "2", "--out", tmp_path / "few")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    fails("mine already holds other files; choose another --out", "--out", tmp_path / "mine")
    other = model("lstm", Words.build(["x y z"]))
    other.save_pretrained(tmp_path / "other")
    done = bighmm("write", teacher / "lstm", tmp_path / "other", "--out", tmp_path / "both")
    assert done.status == 2 and "other has another vocabulary than" in done.err
    done = bighmm("write", tmp_path / "nothing", "--out", tmp_path / "none")
    assert done.status == 2 and "there is no model at" in done.err


def test_a_begun_text_of_another_request_is_refused(teacher, tmp_path, monkeypatch):
    teachers = open_teachers([teacher / "lstm"])

    def stops(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "_assemble", stops)
    with pytest.raises(KeyboardInterrupt):
        write_text(teachers, SETTINGS, tmp_path / "text")
    with pytest.raises(ValueError, match="were sampled with another writers; choose another"):
        write_text(open_teachers([teacher / "ngram"]), SETTINGS, tmp_path / "text")


def test_a_damaged_manifest(teacher, tmp_path):
    write_text(open_teachers([teacher / "ngram"]), SETTINGS, tmp_path / "text")
    path = tmp_path / "text" / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("seal")
    for wrong in (None, 3, [3], [{"name": "x"}]):
        content["source"]["writers"] = wrong
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"manifest.json is damaged: (its|a) writer"):
            writers_of(open_corpus(tmp_path / "text"))


def test_numbers_of_tokens():
    for text, number in (("7", 7), ("20k", 20_000), ("1.5M", 1_500_000), ("2G", 2 * 10**9)):
        assert number_of(text) == number
    assert number_of("1_000") == number_of("1,000") == 1000
    for wrong in ("", "-1", "1e6", "k", "1MM", "M1"):
        with pytest.raises(ValueError, match="tokens must be a number such as"):
            number_of(wrong)
