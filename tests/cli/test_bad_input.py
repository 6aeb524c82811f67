"""Every mistake of a user ends with status 2 and one sentence, never with a traceback."""

import json
import os
import shutil

import pytest
import torch

from bighmm.base.locks import locked_folder, locked_name
from bighmm.cli.starting import new_folder
from bighmm.train.recipe import Recipe


@pytest.fixture
def refused(bighmm):
    """The one sentence that a command refuses its arguments with."""

    def refused(*arguments: object, stdin: bytes = b"", after: int = 0) -> str:
        """`after` is the number of lines that told how far the command had come."""
        done = bighmm(*arguments, stdin=stdin)
        lines = done.err.splitlines()
        assert done.status == 2 and done.out == ""
        assert len(lines) == 1 + after and lines[-1].startswith("bighmm: ")
        assert [line for line in lines if line.startswith("bighmm: ")] == lines[-1:]
        return lines[-1]

    return refused


@pytest.fixture
def train(text, small, tmp_path):
    """The arguments of a run that would work."""
    return ("train", "--data", text, *small, "--out", tmp_path / "run")


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the trained run, to be spoilt."""
    shutil.copytree(trained, tmp_path / "copied")
    return tmp_path / "copied"


def test_no_such_command(refused):
    assert "there is no command 'trian'; choose from train, eval" in refused("trian")


@pytest.mark.parametrize("command", ["train", "data", "cluster"])
class TestCorpus:
    def test_missing(self, refused, command, tmp_path):
        said = refused(command, "--data", tmp_path / "nowhere.txt")
        assert "nowhere.txt does not exist" in said

    @pytest.mark.parametrize("content", ["", "\n \n\n"])
    def test_empty(self, refused, command, tmp_path, content):
        (tmp_path / "empty.txt").write_text(content)
        assert "empty.txt holds no text" in refused(command, "--data", tmp_path / "empty.txt")

    def test_not_utf8(self, refused, command, tmp_path):
        (tmp_path / "latin.txt").write_bytes("one\ntwo\ncafé\nfour\n".encode("latin-1"))
        said = refused(command, "--data", tmp_path / "latin.txt")
        assert "latin.txt is not UTF-8 text: byte 11 (line 3)" in said

    def test_damaged_xz(self, refused, command, tmp_path):
        (tmp_path / "a.txt.xz").write_bytes(b"not packed")
        assert "a.txt.xz is damaged" in refused(command, "--data", tmp_path / "a.txt.xz")

    def test_missing_tokenizer(self, refused, command, text):
        assert "no.json does not exist" in refused(
            command, "--data", text, "--tokenizer", "no.json"
        )

    def test_damaged_tokenizer(self, refused, command, text, tmp_path):
        (tmp_path / "bad.json").write_text("{}")
        said = refused(command, "--data", text, "--tokenizer", tmp_path / "bad.json")
        assert "bad.json" in said


class TestTrainSettings:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--blocks", 5], "24 states cannot be shared equally by 5 blocks"),
            (["--blocks", 7], "by 7 blocks; use a multiple of 7, such as 21 or 28"),
            (["--blocks", 0], "blocks must be a number of at least 1, or words, not 0"),
            (["--blocks", "wrods"], "blocks must be a number of at least 1, or words, not 'wrods'"),
            (["--blocks=2.5"], "blocks must be a number of at least 1, or words, not '2.5'"),
            (["--states", 0], "states must be at least 1, not 0"),
            (["--batch", -1], "batch must be at least 1, not -1"),
            (["--state-dropout", 1], "state_dropout must be from 0 to below 1, not 1.0"),
            (["--epochs", -1], "epochs"),
            (["--lr", 0], "lr"),
            (["--rows", "touched", "--optimizer", "baum-welch"], "rows = touched is for an HMM"),
            (["--parameters", "quantum"], "no parameterisation 'quantum'; choose from ablation-a"),
            (["--device", "gpu"], "there is no device 'gpu'; use cpu, cuda or auto"),
            (["--device", "mps"], "there is no device 'mps'; use cpu, cuda or auto"),
            (["--device", "cuda:99"], "there is no GPU 'cuda:99' that torch can use here"),
            (["--min-count", 0], "min_count is 0; it must be at least 1"),
            (["--min-count", 9999], "no word occurs 9999 times"),
        ],
    )
    def test_wrong_value(self, refused, train, tmp_path, flags, said):
        assert said in refused(*train, *flags)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--states", 100, "--blocks", 100], "words, which cannot fill 100 blocks; use fewer"),
            (["--states", 25, "--blocks", "words"], "25 states cannot be shared equally by"),
            (["--paths", "no.paths"], "no.paths cannot be read: No such file or directory"),
            (["--support", "free", "--alive", 99], "99 states per token cannot cover 24 states"),
        ],
    )
    def test_wrong_for_this_corpus(self, refused, train, tmp_path, flags, said):
        assert said in refused(*train, *flags, after=1)
        assert not (tmp_path / "run").exists()

    def test_paths_of_other_words(self, refused, train, tmp_path):
        path = tmp_path / "other.paths"
        path.write_text("0\tthe\t5\n1\tof\t3\n")
        assert "does not cover the vocabulary" in refused(*train, "--paths", path, after=1)
        path.write_text("the words\n")
        assert "line 1 of" in refused(*train, "--paths", path, after=1)

    def test_blocks_of_a_paths_file_do_not_divide_the_states(self, bighmm, refused, train, text):
        path = text.parent / "five.paths"
        assert bighmm("cluster", "--data", text, "--classes", 5, "--out", path).status == 0
        said = refused(*train, "--paths", path, "--blocks", 5, after=1)
        assert "24 states cannot be shared equally by 5 blocks" in said
        said = refused(*train, "--paths", path, after=1)
        assert "has 5 classes for the words of this corpus, not 4; leave out --blocks" in said

    @pytest.mark.parametrize(
        "flags", [["--frobnicate", 1], ["--batches", "lines"], ["--states", "many"], ["--lr"]]
    )
    def test_what_the_parser_refuses(self, bighmm, train, flags):
        done = bighmm(*train, *flags)
        assert done.status == 2 and done.err and "Traceback" not in done.err


class TestRecipe:
    def test_missing(self, refused):
        assert "there is no recipe no.toml" in refused("train", "--recipe", "no.toml")

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("[model]\nstate = 12\n", "[model] has an unknown field 'state'; did you mean"),
            ("[modle]\n", "unknown section [modle]; did you mean 'model'?"),
            ("[parameters]\nwidht = 1\n", "[options] has an unknown field 'widht'"),
            ('[model]\nstates = "many"\n', "states = 'many' is not of the kind int"),
            ('[model]\nblocks = "wrods"\n', "blocks = 'wrods' is not of the kind int | words"),
            (
                '[model]\nsupport = "some"\n',
                "there is no support 'some'; choose from blocked, dense, ",
            ),
            ('[model]\nparameters = "quantum"\n', "no parameterisation 'quantum'"),
            ("[model\n", "cannot be read"),
        ],
    )
    def test_wrong(self, refused, tmp_path, content, said):
        (tmp_path / "my.toml").write_text(content)
        found = refused("train", "--recipe", tmp_path / "my.toml")
        assert said in found


class TestRunFolder:
    def test_already_holds_a_run(self, refused, train, trained):
        before = {p: p.stat().st_mtime_ns for p in trained.rglob("*")}
        said = refused(*train, "--out", trained)
        assert f"{trained} already holds a run" in said and "--resume" in said
        assert {p: p.stat().st_mtime_ns for p in trained.rglob("*")} == before

    def test_is_a_file(self, refused, train, text):
        assert "already holds a run or other files" in refused(*train, "--out", text)

    def test_cannot_be_made(self, refused, train, text):
        said = refused(*train, "--out", text / "run")
        assert f"{text / 'run'}: Not a directory" in said

    @pytest.mark.parametrize("command", ["train", "resume", "distill-lm", "labels"])
    def test_in_use(self, refused, train, copied, text, tmp_path, command):
        """Another process works there; it is named, and nothing is touched."""
        before = sorted(copied.rglob("*"))
        run = tmp_path / "run" if command == "train" else copied
        arguments = {
            "train": train,
            "resume": ("train", "--resume", "--out", run),
            "distill-lm": ("distill-lm", "no-model", "--out", run, "--device", "cpu"),
            "labels": ("distill", "random", "--data", text, "--states", 4, "--out", run / "new"),
        }
        with locked_name(run / "new") if command == "labels" else locked_folder(run):
            said = refused(*arguments[command])
        what = run / "new" if command == "labels" else run
        assert f"{what} is being written by another process (pid {os.getpid()} on " in said
        assert said.endswith("; wait for it, or choose another folder")
        assert sorted(copied.rglob("*")) == before and not (tmp_path / "run").exists()

    def test_new_folders_are_not_shared(self, train, monkeypatch, tmp_path):
        """Without --out, processes that start at the same time get folders of their own."""
        monkeypatch.chdir(tmp_path)
        recipe = Recipe()
        with new_folder(recipe) as one, new_folder(recipe) as two:
            assert [str(one), str(two)] == ["runs/pydoc-4096", "runs/pydoc-4096-2"]
            (two / "recipe.json").touch()
        assert two.is_dir() and not one.exists()

    @pytest.mark.parametrize("flags", [[], ["--recipe", "given"]])
    def test_nothing_to_resume(self, refused, tmp_path, text, flags):
        (tmp_path / "given").write_text(f'[corpus]\ndata = "{text}"\n')
        flags = [tmp_path / word if word == "given" else word for word in flags]
        said = refused("train", *flags, "--resume", "--out", tmp_path / "none")
        assert "none holds no run to resume; leave out --resume to start one" in said

    def test_resume_with_another_configuration(self, refused, copied):
        said = refused("train", "--resume", "--out", copied, "--lr", 0.5, "--states", 48)
        assert "another configuration: model.states (24, 48), training.lr (0.01, 0.5);" in said

    def test_resume_with_another_parameterisation(self, refused, copied):
        said = refused("train", "--resume", "--out", copied, "--parameters", "scalar")
        assert "another configuration: model.parameterisation (neural, scalar)" in said

    def test_resume_with_another_corpus(self, refused, bighmm, small, text, tmp_path):
        mine, run = tmp_path / "mine.txt", tmp_path / "run"
        mine.write_text(text.read_text())
        train = ("train", "--data", mine, *small, "--epochs", 0.1, "--out", run)
        assert bighmm(*train).status == 0
        mine.write_text(text.read_text().replace("w01", "w02", 1))
        said = refused("train", "--resume", "--out", run)
        assert f"{run} was started on another corpus than {mine} is now" in said

    def test_resume_with_no_checkpoint_that_can_be_read(self, bighmm, copied):
        for folder in ("checkpoint", "checkpoint.previous"):
            (copied / folder / "tensors.safetensors").write_bytes(b"?")
        done = bighmm("train", "--resume", "--out", copied)
        assert done.status == 2 and "Traceback" not in done.err
        last = done.err.splitlines()[-1]
        assert last.startswith("bighmm: ") and "tensors.safetensors is damaged" in last

    def test_damaged_recipe_of_a_run(self, refused, copied):
        (copied / "recipe.json").write_text('{"recipe"')
        assert "recipe.json is damaged" in refused("train", "--resume", "--out", copied)
        assert "recipe.json is damaged" in refused("eval", copied)


QUESTIONS = {
    "eval": ["eval", "MODEL"],
    "score": ["score", "MODEL"],
    "next": ["next", "MODEL", "w01"],
    "sample": ["sample", "MODEL"],
    "tag": ["tag", "MODEL", "w01"],
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
class TestModelFolder:
    @staticmethod
    def about(question, model):
        return [model if word == "MODEL" else word for word in question]

    def test_missing(self, refused, question, tmp_path):
        said = refused(*self.about(question, tmp_path / "nowhere"), stdin=b"w01\n")
        assert f"there is no model at {tmp_path / 'nowhere'}" in said

    def test_is_a_file(self, refused, question, text):
        said = refused(*self.about(question, text), stdin=b"w01\n")
        assert f"there is no model at {text}" in said

    def test_empty(self, refused, question, tmp_path):
        said = refused(*self.about(question, tmp_path), stdin=b"w01\n")
        assert "has no config.json; it is not complete" in said

    def test_run_without_a_model(self, refused, question, copied):
        shutil.rmtree(copied / "model")
        said = refused(*self.about(question, copied), stdin=b"w01\n")
        assert "has not saved a model yet; resume it first" in said

    @pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "blocks.json"])
    def test_missing_file(self, refused, question, copied, name):
        (copied / "model" / name).unlink()
        said = refused(*self.about(question, copied), stdin=b"w01\n")
        assert f"has no {name}; it is not complete" in said

    @pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "config.json"])
    def test_damaged_file(self, refused, question, copied, name):
        path = copied / "model" / name
        path.write_bytes(path.read_bytes()[:-7])
        said = refused(*self.about(question, copied), stdin=b"w01\n")
        assert f"{path} is damaged" in said


class TestQuestions:
    @pytest.mark.parametrize("empty", ["", "  ", "\n"])
    def test_empty_text(self, refused, trained, empty):
        assert "the prefix is empty" in refused("sample", trained, "--prefix", empty)
        assert "the text is empty" in refused("tag", trained, empty)
        assert "standard input holds no text" in refused("score", trained, stdin=empty.encode())

    def test_a_text_from_bytes_that_are_not_utf8(self, refused, trained):
        said = refused("tag", trained, "w01 \udcff")
        assert "a text is not Unicode: its character 4 is '\\udcff'" in said

    @pytest.mark.parametrize("n", [10**9, 10**30])
    def test_more_texts_than_fit_in_memory(self, refused, trained, n):
        said = "at most 1,000,000 texts are drawn at a time"
        assert said in refused("sample", trained, "--n", n)
        assert said in refused("fill", trained, "w01 ___", "--n", n)

    def test_a_long_mistake_is_shortened(self, refused, trained):
        said = refused("next", trained, "w01", "--device", "x" * 10_000)
        assert len(said) < 2100 and said.startswith("bighmm: there is no device 'xxx")
        assert said.endswith("xxx'; use cpu, cuda or auto") and " … " in said

    def test_score_of_what_is_not_utf8(self, refused, trained):
        said = refused("score", trained, stdin=b"w01\nw\xff2\n")
        assert "standard input is not UTF-8 at byte 5" in said

    @pytest.mark.parametrize(
        ("question", "said"),
        [
            (["next", "w01", "--n", "-1"], "n must be at least 1, not -1"),
            (["next", "w01", "--n", "0"], "n must be at least 1, not 0"),
            (["tag", "w01", "--words", "0"], "words must be at least 1, not 0"),
            (["sample", "--n", "-1"], "n must be at least 1, not -1"),
            (["sample", "--n", "0"], "n must be at least 1, not 0"),
            (
                ["sample", "--temperature", "-0.5"],
                "temperature must be finite and at least 0",
            ),
            (
                ["sample", "--temperature", "nan"],
                "temperature must be finite and at least 0",
            ),
            (["sample", "--length", "-2"], "at least 0 tokens after its prefix, not -2"),
            (["sample", "--seed", "-1"], "a seed is a number from 0 to"),
            (["score", "--device", "gpu"], "there is no device 'gpu'"),
            (["tag", "w01", "--device", "cuda:99"], "there is no GPU 'cuda:99'"),
            (["eval", "--contexts", "0"], "contexts must be at least 1, not 0"),
            (["eval", "--device", "gpu"], "there is no device 'gpu'"),
            (["eval", "--device", "cuda:99"], "there is no GPU 'cuda:99'"),
            (["eval", "--data", "nowhere"], "nowhere does not exist"),
        ],
    )
    def test_wrong_value(self, refused, trained, question, said):
        command, *rest = question
        assert said in refused(command, trained, *rest)

    def test_eval_of_a_model_that_does_not_know_its_corpus(self, refused, trained):
        assert "give --data" in refused("eval", trained / "model")

    def test_eval_says_when_the_corpus_is_gone(self, refused, copied, tmp_path):
        saved = json.loads((copied / "recipe.json").read_text())
        saved["recipe"]["corpus"]["data"] = str(tmp_path / "gone.txt")
        (copied / "recipe.json").write_text(json.dumps(saved))
        assert "recipe.json is damaged: its content is not" in refused("eval", copied)
        del saved["seal"]  # as the first version wrote it
        (copied / "recipe.json").write_text(json.dumps(saved))
        assert "gone.txt does not exist" in refused("eval", copied)

    def test_eval_of_a_model_that_is_not_normalised(self, refused, trained, monkeypatch):
        monkeypatch.setattr("bighmm.lm.evaluation.deviation_from_one", lambda *_: 0.01)
        said = refused("eval", trained, "--check-normalised")
        assert "is not normalised" in said and "0.01" in said

    @pytest.mark.parametrize("command", ["eval", "score", "next", "sample", "tag"])
    def test_what_the_parser_refuses(self, bighmm, trained, command):
        for arguments in ([], [trained, "w01", "--frobnicate"]):
            done = bighmm(command, *arguments)
            assert done.status == 2 and done.err and "Traceback" not in done.err
        done = bighmm("eval", trained, "--split", "dev")
        assert done.status == 2 and "Traceback" not in done.err


class TestCluster:
    @pytest.mark.parametrize("classes", [0, -1, 43])
    def test_number_of_classes(self, refused, text, classes):
        said = refused("cluster", "--data", text, "--classes", classes)
        assert f"classes is {classes}: it must be at least 1 and at most 41" in said

    def test_where_to_write(self, refused, text, tmp_path):
        write = ("cluster", "--data", text, "--classes", 4, "--out")
        assert "there is no folder" in refused(*write, tmp_path / "no" / "x.paths")
        assert f"{tmp_path} is a folder" in refused(*write, tmp_path)


def test_out_of_gpu_memory_says_what_to_reduce(refused, train, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB.")

    monkeypatch.setattr("bighmm.train.run.new_model", full)
    assert "reduce --states, --batch, --window or --width" in refused(*train, after=1)
