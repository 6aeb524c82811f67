"""Every command on a tiny model: what it prints for people and what for programs."""

import gzip
import json
import lzma
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

import bighmm as bighmm_package
from bighmm.cli.flags import flags_of_command
from bighmm.cli.main import COMMANDS
from bighmm.data import brown
from bighmm.data.corpus import prepare
from bighmm.lm.hmmlm import HMMLM
from bighmm.train.recipe import Recipe, find_recipe

PREFIX = "w01 w07"


def texts_of(found):
    return [one["text"] for one in found["texts"]]


@pytest.fixture
def lm(trained):
    return HMMLM.from_pretrained(trained / "model")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_words_for_all(bighmm, command):
    """No box that opens with a signature, and no flag without a word about it."""
    shown = bighmm(command, "--help").out
    assert "Settings(" not in shown and "Arguments(" not in shown and "options options" not in shown
    flags = flags_of_command(command, COMMANDS[command][0])
    assert [flag.name for flag in flags if not flag.about] == []


def test_help_and_version(bighmm):
    assert bighmm("--version").out.strip() == version("bighmm") == bighmm_package.__version__
    for word in ("--help", "-h", "help"):
        done = bighmm(word)
        assert done.status == 0 and all(f"\n  {name} " in done.out for name in COMMANDS)
    assert bighmm().status == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(bighmm, command):
    done = bighmm(command, "--help")
    assert done.status == 0 and f"usage: bighmm {command}" in done.out
    assert "--json" in done.out or command in ("explore", "serve")  # these answer over HTTP


def test_data(bighmm, ask, text):
    found = ask("data", "--data", text)
    assert found["tokenizer"]["size"] == 42  # 40 words and the two marks
    assert found["splits"]["train"]["lines"] == 270 and found["splits"]["train"]["tokens"] == 1890
    assert found["splits"]["test"]["longest_line"] == 6
    shown = bighmm("data", "--data", text).out
    assert "tiny.txt (text)" in shown and "1,890" in shown and "vocabulary: 42 (words)" in shown
    assert re.search(r"most frequent: <eos>  w\d\d  ", shown)


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
def test_data_of_a_packed_file(ask, text, tmp_path, pack):
    packed = tmp_path / f"packed.txt.{'xz' if pack is lzma.compress else 'gz'}"
    packed.write_bytes(pack(text.read_bytes()))
    same = ("fingerprint", "splits", "tokenizer")
    one, other = ask("data", "--data", text), ask("data", "--data", packed)
    assert [one[key] for key in same] == [other[key] for key in same]


def test_names_and_words_are_not_taken_for_markup(bighmm, tmp_path, small):
    """Square brackets mean something to the library that prints tables."""
    source = tmp_path / "[red]corpus"
    source.mkdir()
    for split in ("train", "valid", "test"):
        (source / f"ptb.{split}.txt").write_text("[bold] [/i] [unk] a b\na [/i] b\n")
    done = bighmm("data", "--data", source)
    assert done.status == 0 and "[red]corpus (ptb)" in done.out
    done = bighmm("cluster", "--data", source, "--classes", 2)
    assert done.status == 0 and "[/i]" in done.out and "[unk]" in done.out
    run = tmp_path / "[run]"
    done = bighmm("train", "--data", source, *small, "--blocks", 2, "--out", run)
    assert done.status == 0 and f"run: {run}" in done.err and f"bighmm eval {run}" in done.out
    done = bighmm("tag", run, "[bold] [/i]")
    assert done.status == 0 and "[bold]" in done.out and "[/i]" in done.out


def test_cluster(bighmm, ask, text, tmp_path):
    path = tmp_path / "out.paths"
    found = ask("cluster", "--data", text, "--classes", 4, "--out", path)
    assert len(found["classes"]) == 4 and found["information_nats"] > 0
    assert sum(row["size"] for row in found["classes"]) == 42
    words = prepare(text).tokenizer.words
    train_counts = np.bincount(prepare(text).split("train"), minlength=len(words)).tolist()
    clusters = brown.read_paths(path, words)
    assert clusters.paths == tuple(row["path"] for row in found["classes"])
    for number, row in enumerate(found["classes"]):
        members = {words[i] for i in np.flatnonzero(clusters.classes == number)}
        assert set(row["words"]) <= members and len(members) == row["size"]
        counts = [train_counts[words.index(word)] for word in row["words"]]
        assert counts == sorted(counts, reverse=True) and counts[0] > 0
    shown = bighmm("cluster", "--data", text, "--classes", 4)
    assert all(row["words"][0] in shown.out for row in found["classes"])
    assert f"{found['information_nats']:.4f} nats" in shown.out
    assert shown.err == ""  # there is no progress bar where there is no terminal


def test_train(trained, text):
    saved = json.loads((trained / "recipe.json").read_text())
    assert saved["recipe"]["model"]["states"] == 24 and saved["recipe"]["options"]["width"] == 8
    assert saved["recipe"]["corpus"]["data"] == str(text)
    assert saved["corpus"] == prepare(text).fingerprint
    result = json.loads((trained / "result.json").read_text())
    assert result["recipe"] == saved["recipe"] and result["run"] == str(trained)
    assert result["steps"] == 30 and result["device"] == "cpu" and result["seconds"] > 0
    lm = HMMLM.from_pretrained(trained / "model")
    assert result["num_parameters"] == sum(p.numel() for p in lm.params.parameters())
    for split in ("valid", "test"):
        perplexity = lm.perplexity(prepare(text), split=split).perplexity
        assert result[split]["perplexity"] == pytest.approx(perplexity)
        assert 0 < perplexity < result[split]["unigram_perplexity"] * 1.1
    assert len(result["samples"]) == 3


def test_train_for_programs_and_for_people(bighmm, ask, text, tmp_path, small):
    found = ask("train", "--data", text, *small, "--out", tmp_path / "one")
    written = json.loads((tmp_path / "one" / "result.json").read_text())
    assert found == {"version": 1, **written}
    done = bighmm("train", "--data", text, *small, "--out", tmp_path / "two")
    assert done.status == 0
    assert f"{found['test']['perplexity']:.2f}" in done.out
    for command in re.findall(r"bighmm (\w+) ", done.out.partition("Try next:")[2]):
        assert command in COMMANDS
    assert all(sample in done.out for sample in found["samples"])
    assert "1,890 training tokens" in done.err and "(best so far, saved)" in done.err
    again = ask("train", "--out", tmp_path / "one", "--resume")
    assert again["test"] == found["test"] and again["steps"] == found["steps"]


def test_train_without_out_makes_new_folders(ask, text, tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    runs = [ask("train", "--data", text, *small, "--epochs", 0.1)["run"] for _ in range(2)]
    assert [Path(run) for run in runs] == [Path("runs/tiny.txt-24"), Path("runs/tiny.txt-24-2")]
    assert all((tmp_path / run / "model" / "config.json").is_file() for run in runs)


@pytest.fixture
def chosen(bighmm, monkeypatch, tmp_path):
    """chosen(flags, …) gives the recipe and folder that train would train, and what it says."""
    monkeypatch.chdir(tmp_path)

    def chosen(*flags):
        found = []
        monkeypatch.setattr(
            "bighmm.cli.train.train_in_terminal",
            lambda run, recipe, *_: found.append((recipe, run)) or {},
        )
        done = bighmm("train", "--json", *flags)
        assert done.status == 0, done.err
        return *found[0], done.err

    return chosen


def test_train_by_the_name_of_a_packaged_recipe(chosen, bighmm, tmp_path):
    recipe, run, said = chosen("--recipe", "quickstart")
    assert recipe == find_recipe("quickstart") and run == Path("runs/pydoc-4096") and said == ""
    recipe, _, _ = chosen("--recipe", "ptb-4096", "--data", "somewhere", "--lr", "0.5")
    assert recipe.options.width == 256 and recipe.training.lr == 0.5
    (tmp_path / "quickstart").write_text("[model]\nstates = 256")
    assert chosen("--recipe=quickstart")[0].model.states == 256
    done = bighmm("train", "--recipe", "slowstart")
    assert done.status == 2 and done.err.count("\n") == 1
    assert "there is no recipe slowstart; name a file, or a packaged recipe: " in done.err


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--out", "runs/pydoc-4096"],
        ["--seed", "3", "--device=cpu", "--tensorboard", "--out=runs/pydoc-4096"],
    ],
)
def test_train_without_settings_is_the_quick_start(chosen, flags):
    recipe, run, said = chosen(*flags)
    assert said == "no settings are given, so the packaged recipe quickstart is used\n"
    quickstart = find_recipe("quickstart")
    training = replace(quickstart.training, seed=recipe.training.seed)
    training = replace(training, device=recipe.training.device)
    assert recipe == replace(quickstart, training=training) and run == Path("runs/pydoc-4096")
    assert (recipe.training.seed == 3) == ("--seed" in flags)


@pytest.mark.parametrize("flags", [[], ["--epochs", "10"], ["--seed=1", "--batch=16"]])
def test_train_with_settings_chooses_the_others(chosen, text, flags):
    recipe, run, said = chosen("--data", text, *flags)
    assert said.startswith("chosen for ") and said.count("\n") == 1
    assert recipe.model.states < Recipe().model.states
    assert run == Path(f"runs/tiny.txt-{recipe.model.states}")
    assert recipe.training.epochs == 10 or "--epochs" not in flags
    assert ("epochs" in said) == ("--epochs" not in flags)


def test_flags_go_over_the_recipe(ask, text, tmp_path):
    recipe = tmp_path / "my.toml"
    recipe.write_text(
        f'[corpus]\ndata = "{text}"\n[model]\nstates = 12\nsupport = "dense"\n'
        'parameters = "scalar"\n[parameters]\ninit_scale = 0.5\n'
        "[training]\nepochs = 1\nbatch = 8\nwindow = 8\nlr = 0.5\n"
    )
    found = ask("train", "--recipe", recipe, "--lr", 0.25, "--states=10", "--out", tmp_path / "run")
    used = found["recipe"]
    assert (used["model"]["states"], used["training"]["lr"]) == (10, 0.25)  # from flags
    assert used["model"]["parameterisation"] == "scalar"
    assert used["options"] == {"init_scale": 0.5, "transitions": "table"}
    assert (used["training"]["batch"], used["training"]["beta1"]) == (8, 0.9)  # file, default
    other = ask(
        *("train", "--recipe", recipe, "--parameters", "neural", "--width", 4),
        *("--out", tmp_path / "neural"),
    )
    assert other["recipe"]["options"]["width"] == 4


def test_train_from_a_paths_file(ask, text, tmp_path, small):
    path = tmp_path / "three.paths"
    ask("cluster", "--data", text, "--classes", 3, "--out", path)
    ask("train", "--data", text, *small, "--paths", path, "--blocks", 3, "--out", tmp_path / "run")
    blocks = json.loads((tmp_path / "run" / "model" / "blocks.json").read_text())["block_of"]
    words = prepare(text).tokenizer.words
    assert blocks == brown.read_paths(path, words).classes.tolist() and set(blocks) == {0, 1, 2}


def test_train_with_a_block_per_word(ask, text, tmp_path, small):
    size, run = prepare(text).tokenizer.size, tmp_path / "run"
    flags = (*small, "--blocks", "words", "--states", 2 * size)
    found = ask("train", "--data", text, *flags, "--out", run)
    assert found["recipe"]["model"]["blocks"] == "words"
    blocks = json.loads((run / "model" / "blocks.json").read_text())["block_of"]
    assert blocks == list(range(size))
    assert ask("train", "--out", run, "--resume")["valid"] == found["valid"]
    (tmp_path / "my.toml").write_text(
        f'[corpus]\ndata = "{text}"\n[model]\nstates = {size}\nblocks = "words"\n'
        '[options]\nwidth = 8\n[training]\nepochs = 1\nbatch = 8\nwindow = 8\ndevice = "cpu"\n'
    )
    other = ask("train", "--recipe", tmp_path / "my.toml", "--out", tmp_path / "other")
    assert other["recipe"]["model"]["blocks"] == "words"


def test_train_with_a_tokenizer_file(ask, text, tmp_path, small):
    vocabulary = {"</s>": 0, "[UNK]": 1} | {f"w{i:02}": i + 2 for i in range(30)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.save(str(tmp_path / "tokenizer.json"))
    run = tmp_path / "run"
    train = ("train", "--data", text, "--tokenizer", tmp_path / "tokenizer.json")
    ask(*train, *small, "--out", run)
    (tmp_path / "tokenizer.json").unlink()  # the model has its own
    assert HMMLM.from_pretrained(run / "model").tokenizer.size == 32
    words = {row["word"] for row in ask("next", run, "w01 w39", "--n", 40)["next"]}
    assert words == set(vocabulary)
    assert [row["word"] for row in ask("tag", run, "w01 w39")["tokens"]] == ["w01", "[UNK]"]
    assert ask("eval", run)["perplexity"] < 40


def test_eval(bighmm, ask, trained, text, lm):
    result = json.loads((trained / "result.json").read_text())
    corpus = prepare(text)
    found = ask("eval", trained)

    def agree(found, of_run):
        both = found.keys() & of_run.keys()
        assert {"perplexity", "log_prob", "tokens", "split", "unigram_perplexity"} <= both
        return all(found[key] == of_run[key] for key in both)

    assert agree(found, result["test"]) and "largest_deviation_from_one" not in found
    assert agree(ask("eval", trained, "--split", "valid"), result["valid"])
    assert ask("eval", trained, "--operands", "float32") == found
    assert ask("eval", trained, "--operands", "bfloat16")["perplexity"] != found["perplexity"]
    train = ask("eval", trained, "--split", "train")
    assert train["tokens"] == len(corpus.split("train"))
    carried = ask("eval", trained, "--carry")
    expected = lm.perplexity(corpus, convention="carry")
    assert carried["convention"] == "carry"
    assert carried["perplexity"] == pytest.approx(expected.perplexity)
    assert carried["perplexity"] != found["perplexity"]
    checked = ask("eval", trained, "--check-normalised", "--contexts", 8)
    assert 0 <= checked["largest_deviation_from_one"] < 1e-5
    shown = bighmm("eval", trained, "--check-normalised", "--carry").out
    assert f"test perplexity {carried['perplexity']:.2f} over 105 tokens" in shown
    assert "the state is carried on" in shown and "sum to one within" in shown


def test_eval_of_a_model_folder_on_other_text(ask, trained, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("w01 w02\nw03 unheard\nw04 w05\n")
    found = ask("eval", trained / "model", "--data", other)
    assert found["tokens"] == 9 and found["vocabulary"] == ask("eval", trained)["vocabulary"]


def test_score(bighmm, ask, trained, lm):
    lines = ["w01 w07 w09", "", "unheard w02", "w03\x0bw04\u2028w05"]
    stdin = "\r\n".join(lines).encode()
    rows = ask("score", trained, stdin=stdin)["lines"]
    assert [row["text"] for row in rows] == lines  # one row for every line
    for row, line in zip(rows, lines, strict=True):
        ids = torch.tensor([lm.encode(line + "\n")])
        assert row["tokens"] == ids.shape[1]
        assert row["log_prob"] == pytest.approx(float(lm.hmm().log_prob(ids)), rel=1e-5)
        assert row["perplexity"] == pytest.approx(math.exp(-row["log_prob"] / row["tokens"]))
    shown = bighmm("score", trained, stdin=b"w01 w07 w09\n").out
    assert shown == f"{rows[0]['log_prob']:.4f}\t4\tw01 w07 w09\n"


@pytest.mark.parametrize("prefix", [None, PREFIX])
def test_next(bighmm, ask, trained, lm, prefix):
    arguments = ("next", trained) if prefix is None else ("next", trained, prefix)
    found = ask(*arguments, "--n", 100)
    assert found["prefix"] == (prefix or "") and len(found["next"]) == 42
    assert sum(row["prob"] for row in found["next"]) == pytest.approx(1, abs=1e-5)
    ids = torch.tensor([lm.encode(prefix or "")], dtype=torch.long)
    expected = lm.hmm().next_token(ids)[0]
    for row in found["next"]:
        assert row["log_prob_next"] == pytest.approx(float(expected[lm.encode(row["word"])[0]]))
        assert row["prob"] == pytest.approx(math.exp(row["log_prob_next"]))
    probs = [row["prob"] for row in found["next"]]
    assert probs == sorted(probs, reverse=True)
    shown = bighmm(*arguments, "--n", 2).out.splitlines()
    assert shown == [f"{row['prob']:.4f}\t{row['word']}" for row in found["next"][:2]]
    assert len(bighmm(*arguments).out.splitlines()) == 10


def test_sample(bighmm, ask, trained):
    texts = texts_of(ask("sample", trained, "--seed", 5, "--n", 20))
    assert len(texts) == 20 and len(set(texts)) > 10
    assert all(re.fullmatch(r"((w\d\d|<unk>) ?)*", text) for text in texts)
    assert texts_of(ask("sample", trained, "--seed", 5, "--n", 20)) == texts
    assert texts_of(ask("sample", trained, "--seed", 6, "--n", 20)) != texts
    runs = [texts_of(ask("sample", trained, "--n", 20)) for _ in range(2)]
    assert runs[0] != runs[1]
    shown = bighmm("sample", trained, "--seed", 5, "--n", 20).out
    assert shown == "".join(f"{text}\n" for text in texts)


def test_a_sample_ends_at_its_end_mark_or_is_cut(ask, trained, lm):
    """--length counts the tokens after the prefix, the end mark not counted."""
    found = ask("sample", trained, "--length", 4, "--prefix", PREFIX, "--n", 60, "--seed", 1)
    assert found["prefix"] == PREFIX
    counts = set()
    for text in texts_of(found):
        ids = lm.encode(text)
        assert ids[:2] == lm.encode(PREFIX) and lm.tokenizer.end not in ids
        counts.add(len(ids) - 2)
    assert max(counts) == 4 and min(counts) < 4
    longer = ask("sample", trained, "--length", 40, "--prefix", PREFIX, "--n", 60, "--seed", 1)
    for short, long in zip(texts_of(found), texts_of(longer), strict=True):
        assert long.startswith(short)  # the same text, cut
    assert texts_of(ask("sample", trained, "--length", 0, "--prefix", PREFIX)) == [PREFIX] * 3


def test_sample_at_temperature_zero_takes_the_likeliest(ask, trained, lm):
    options = ("--temperature", 0, "--length", 4, "--prefix", PREFIX)
    texts = texts_of(ask("sample", trained, *options, "--n", 3))
    ids = lm.encode(PREFIX)
    for _ in range(4):
        best = int(lm.hmm().next_token(torch.tensor([ids]))[0].argmax())
        if best == lm.tokenizer.end:
            break
        ids.append(best)
    assert texts == [lm.decode(ids)] * 3


def test_tag(bighmm, ask, trained, lm):
    found = ask("tag", trained, PREFIX, "--words", 2)
    ids = torch.tensor([lm.encode(PREFIX)])
    best = lm.hmm().viterbi(ids)
    assert found["log_prob_path"] == pytest.approx(float(best.log_prob))
    assert [row["word"] for row in found["tokens"]] == PREFIX.split()
    assert [row["state"] for row in found["tokens"]] == best.states[0].tolist()
    emission = lm.hmm().tables()[2]
    for row in found["tokens"]:
        assert 0 < row["prob"] <= 1 + 1e-6
        likeliest = emission[row["state"]].topk(2).indices.tolist()
        assert row["words"] == [lm.tokenizer.token(i) for i in likeliest]
    shown = bighmm("tag", trained, PREFIX).out
    assert all(f" {row['word']} " in shown for row in found["tokens"])


def test_interruption(bighmm, trained, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bighmm.lm.opening.open_model", interrupted)
    done = bighmm("next", trained)
    assert (done.status, done.err, done.out) == (130, "bighmm: interrupted\n", "")


def test_a_reader_may_stop_reading(trained):
    """As in `bighmm next RUN | true`."""
    program = "import sys; from bighmm.cli.main import main; main(sys.argv[1:])"
    read, write = os.pipe()
    os.close(read)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program, "next", str(trained)],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
