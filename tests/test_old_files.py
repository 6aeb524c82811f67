"""Folders of the first format: they load, answer and resume as with the code that wrote them.

`data/make_format_1.py` says how the archive was made.
"""

import json
import shlex
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from bighmm import HMMLM, SequenceHMM
from bighmm.interop import from_ctrlg
from bighmm.lm.opening import open_model
from bighmm.train.run import saved_recipe, train_run
from watching import losses

ARCHIVE = Path(__file__).parent / "data" / "format-1.tar.xz"


def archived():
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile("answers.json")
        assert file is not None
        return json.load(file)


ANSWERS = archived()


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("format-1")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def place(extracted, monkeypatch):
    """The extracted files as the working folder, which no test may change."""
    monkeypatch.chdir(extracted)
    return extracted


def close(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("name", ANSWERS["models"])
def test_models_answer(place, name):
    expected, lm = ANSWERS["models"][name], open_model(Path("runs") / name)
    ids = lm.encode(expected["text"])
    assert ids == expected["ids"] and lm.num_parameters == expected["size"]
    tokens = torch.tensor([ids, [*ids[:2], *[0] * (len(ids) - 2)]])
    lengths = torch.tensor([len(ids), 2])
    predictor = lm.predictor()
    close(predictor.log_prob(tokens, lengths), expected["log_prob"])
    close(predictor.next_token(tokens, lengths).exp(), expected["next_token"])
    drawn = predictor.sample(2, 6, ids[:2], torch.Generator().manual_seed(1))
    assert drawn.tolist() == expected["sample"]
    if isinstance(lm, HMMLM):
        hmm_answers(lm, ids, tokens, lengths, expected)


def hmm_answers(lm, ids, tokens, lengths, expected):
    hmm = lm.hmm()
    posterior, paths = hmm.posterior(tokens, lengths), hmm.best_paths(tokens, 3, lengths)
    close(posterior.marginals, expected["posterior"], 1e-4)
    assert posterior.states.tolist() == expected["states"]
    assert hmm.viterbi(tokens, lengths).states.tolist() == expected["viterbi"]
    assert paths.states.tolist() == expected["best_paths"]
    close(paths.log_prob, expected["best_paths_log_prob"])
    gapped = tokens.clone()
    gapped[:, 1] = -1
    close(hmm.fill_probs(gapped, lengths).words.exp(), expected["fill_probs"], 1e-4)
    filled = hmm.fill(gapped, 2, torch.Generator().manual_seed(1), lengths)
    assert filled.tolist() == expected["fill"]
    assert hmm.best_fill(gapped, 2, lengths).words.tolist() == expected["best_fill"]
    close(hmm.known_log_prob(gapped, lengths), expected["known_log_prob"])
    rule = lm.rule(words=(2, 4))
    close(lm.rule_log_prob(rule, 4), expected["rule_log_prob"])
    texts = lm.sample(3, 4, rule=rule, generator=torch.Generator().manual_seed(1))
    assert texts == expected["rule_sample"]
    close(lm.next_token("", rule, 4).exp(), expected["rule_next"], 1e-4)
    counts = hmm.expected_counts(tokens, lengths)
    sums = [t.sum().item() for t in counts[1:]] + [counts.transition.square().sum().item()]
    close(sums, expected["counts"], 1e-4)
    cold = hmm.sample(2, None, ids[:2], torch.Generator().manual_seed(1), 0.5, 8)
    assert cold.tolist() == expected["cold"]
    end = lm.tokenizer.end
    close(lm.perplexity([*ids, end]).perplexity, expected["perplexity"])
    close(lm.perplexity([*ids, end], convention="carry").perplexity, expected["carried"])


@pytest.mark.parametrize("name", ANSWERS["half"])
def test_half_done_runs_go_on(place, name, tmp_path):
    expected, run = ANSWERS["half"][name], tmp_path / name
    shutil.copytree(place / "half" / name, run)
    assert len(losses(run)) == expected["step"] < len(expected["losses"])
    result = train_run(run, saved_recipe(run)[0], resume=True)
    close(losses(run), expected["losses"])
    close(result["test"]["perplexity"], ANSWERS["models"][name]["test"], 1e-4)
    assert result["samples"] == ANSWERS["models"][name]["samples"]


def test_half_done_distillation_goes_on(place, bighmm, tmp_path):
    pytest.importorskip("transformers")
    run, expected = Path("distilling"), ANSWERS["distilled"]
    # Its --length counted the end mark; now it does not, while the files still hold the old number.
    command = expected["command"].replace("--length 12", "--length 11")
    done = bighmm(*shlex.split(command), "--out", run)
    assert done.status == 0, done.err
    close(losses(run), expected["losses"])


@pytest.mark.parametrize("name", [n for n in ANSWERS["sequences"] if n != "clicks"])
def test_sequences(place, name):
    expected = ANSWERS["sequences"][name]
    clicks = [np.array(row) for row in ANSWERS["sequences"]["clicks"]]
    model = SequenceHMM.load(Path("sequences") / name)
    close(model.score_sequences(clicks), expected["scores"])
    assert [row.tolist() for row in model.predict(clicks)] == expected["predict"]
    close(model.next_proba(clicks), expected["next"])
    assert model.sample(2, 5, random_state=1).tolist() == expected["sample"]
    settings = expected["options"]
    if "options" in settings:  # transitions of blocked models were flat
        settings = settings | {"options": settings["options"] | {"transitions": "flat"}}
    again = SequenceHMM(4, iterations=5, random_state=3, **settings).fit(clicks)
    close(again.history_, expected["history"])


def test_ctrlg_folder(place):
    assert from_ctrlg("ctrlg").num_states == 9


@pytest.mark.parametrize("question", ANSWERS["commands"], ids=lambda q: " ".join(q["words"]))
def test_commands_print_the_same(place, ask, question):
    words = [word for word in question["words"] if word != "--json"]
    same(ask(*words), as_printed_now(words[0], question["printed"]))


NEW_KEYS = {  # of commands whose log_prob or unknown has a name of its own by now
    "next": {"log_prob": "log_prob_next"},
    "tag": {"log_prob": "log_prob_path", "posterior": "prob"},
    "posterior": {"log_prob": "log_prob_begins"},
    "fill": {"log_prob": "log_prob_filling"},
    "data": {"unknown": "unknown_tokens"},
}


def as_printed_now(command, printed):
    """What an earlier version printed, under the names of keys that it has now."""
    if isinstance(printed, list):
        return [as_printed_now(command, each) for each in printed]
    if not isinstance(printed, dict):
        return {"text": printed} if command == "sample" and isinstance(printed, str) else printed
    names = NEW_KEYS.get(command, {})
    if command == "fill" and "word" not in printed:
        names = {}  # that of a whole text is called as before
    found = {names.get(key, key): value for key, value in printed.items()}
    inner = {key: value for key, value in found.items() if isinstance(value, dict | list)}
    return found | {key: as_printed_now(command, value) for key, value in inner.items()}


def same(found, expected):
    """Equal but for the last digits of numbers, and for folders."""
    if isinstance(expected, dict):
        assert set(expected) <= set(found)
        for key in set(expected) - {"folder", "name"}:
            same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    elif isinstance(expected, float):
        close(found, expected, 1e-4)
    else:
        assert found == expected
