"""A run's folder, from Python: what is written, refused, resumed and mended."""

import json
import os
import shutil
from contextlib import nullcontext

import pytest

from bighmm.base.files import sha256_of, write_json, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import LOCK, Busy, temporary_name
from bighmm.data.clusters import brown_clusters
from bighmm.data.corpus import prepare
from bighmm.lm.opening import open_model, trained_on
from bighmm.lm.questions import sample
from bighmm.train.loop import Stopped
from bighmm.train.recipe import from_dict
from bighmm.train.run import Quiet, Watch, saved_recipe, train_run


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "text.txt"
    path.write_text("\n".join(f"w{i % 7} w{i % 5} w{i % 3}" for i in range(120)))
    return path


def recipe(text, **sections):
    asked = {
        "corpus": {"data": str(text)},
        "model": {"states": 4, "support": "dense", "parameters": "scalar"},
        "training": {"epochs": 2, "batch": 4, "window": 8, "device": "cpu", "state_dropout": 0},
    }
    return from_dict(asked | sections, "the test")


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train_run(folder, recipe(text))


def test_what_is_in_the_folder(finished, text):
    folder, result = finished
    assert json.loads((folder / "result.json").read_text()) == result
    assert saved_recipe(folder)[0] == recipe(text)
    lm = open_model(folder)
    assert lm.perplexity(prepare(text), split="test").perplexity == pytest.approx(
        result["test"]["perplexity"]
    )
    assert [drawn.text for drawn in sample(lm, 3, seed=1)] == result["samples"]


def test_stopped_and_gone_on_with(finished, text, tmp_path):
    asked = []

    def should_stop():
        asked.append(None)
        return len(asked) == 5

    with pytest.raises(Stopped) as stopped:
        train_run(tmp_path / "run", recipe(text), should_stop=should_stop)
    assert stopped.value.step == 5
    said = []
    watch = Watch(say=said.append)
    found = train_run(tmp_path / "run", recipe(text), resume=True, watch=watch)
    assert found["test"] == finished[1]["test"] and len(said) == 2


class Steps(Quiet):
    """An observer that calls a function after the first step."""

    def __init__(self, act):
        self.act = act

    def stepped(self, report):
        if report.step == 1:
            self.act()


@pytest.mark.parametrize("resume", [False, True])
def test_two_trainings_in_one_folder(finished, text, tmp_path, resume):
    """The second is refused, says who trains there, and does no harm to the first."""
    folder, said = tmp_path / "run", []

    def second():
        with pytest.raises(Busy, match=rf"run is being written .*\(pid {os.getpid()} on ") as error:
            train_run(folder, recipe(text), resume=resume)
        said.append(error.value)

    watch = Watch(training=lambda: nullcontext(Steps(second)))
    found = train_run(folder, recipe(text), watch=watch)
    assert len(said) == 1 and found["test"] == finished[1]["test"]
    names = {path.name for path in finished[0].iterdir()}
    assert {path.name for path in folder.iterdir()} == names


def test_killed_before_it_began(text, tmp_path):
    """A lock and half a recipe are no run, so that one can begin there."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / LOCK).touch()
    temporary_name(folder / "recipe.json").touch()
    train_run(folder, recipe(text))
    assert not list(folder.glob(".*"))


@pytest.fixture
def stopped(text, tmp_path, monkeypatch):
    """A run with all paths relative to tmp_path/here, after its first step."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(text, tmp_path / "here" / "text.txt")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(Stopped):
        train_run("run", recipe("text.txt"), should_stop=lambda: True)
    return tmp_path / "here" / "run"


def test_resumed_from_another_folder(stopped, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "elsewhere")
    saved, _ = saved_recipe(stopped)
    assert saved.corpus.data == str(tmp_path / "here" / "text.txt")
    assert trained_on(stopped) == saved.corpus.data
    found = train_run(stopped, saved, resume=True)
    assert found["test"] == finished[1]["test"]
    for path in (stopped / "model").iterdir():  # which may be given to others
        assert str(tmp_path).encode() not in path.read_bytes(), path


def test_resumed_where_it_was_with_relative_paths(stopped, finished):
    assert train_run("run", recipe("text.txt"), resume=True)["test"] == finished[1]["test"]


def test_resumed_with_the_text_in_another_place(stopped, finished, tmp_path, monkeypatch):
    """Also a run of an earlier version, which has stored a relative path."""
    path = stopped / "recipe.json"
    earlier = read_object(path)
    earlier["recipe"]["corpus"]["data"] = "text.txt"
    write_json(path, earlier)  # without a seal
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"text\.txt does not exist"):
        train_run(stopped, saved_recipe(stopped)[0], resume=True)
    (tmp_path / "here" / "text.txt").rename(tmp_path / "elsewhere" / "moved.txt")
    found = train_run(stopped, recipe("moved.txt"), resume=True)
    assert found["test"] == finished[1]["test"]
    assert trained_on(stopped) == str(tmp_path / "elsewhere" / "moved.txt")
    (tmp_path / "elsewhere" / "moved.txt").write_text("another text\n" * 5)
    with pytest.raises(ValueError, match="was started on another corpus than"):
        train_run(stopped, recipe("moved.txt"), resume=True)


def test_what_cannot_be_done_leaves_no_folder(text, tmp_path):
    for initial, sentence in (
        ({"labels": str(tmp_path / "none")}, "holds no labels"),
        ({"frozen_tokens": 40}, "has none"),
    ):
        with pytest.raises(ValueError, match=sentence):
            train_run(tmp_path / "run", recipe(text, initial=initial))
        assert not (tmp_path / "run").exists()


def test_a_model_that_was_removed(finished, text, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    shutil.rmtree(run / "model")
    with pytest.raises(ValueError, match="resume it first"):
        open_model(run)
    found = train_run(run, recipe(text), resume=True)
    assert found["steps"] == finished[1]["steps"]
    assert open_model(run).num_parameters == found["num_parameters"]


@pytest.mark.parametrize("content", ["{}", "[]", '{"recipe": {}}'])
def test_damaged_recipe(content, text, tmp_path):
    (tmp_path / "recipe.json").write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.json is damaged"):
        train_run(tmp_path, recipe(text), resume=True)


def test_another_configuration(finished, text):
    other = recipe(text, training={"epochs": 3, "device": "cpu", "state_dropout": 0})
    with pytest.raises(ValueError, match="started with another configuration: "):
        train_run(finished[0], other, resume=True)


def test_a_finished_run_has_its_card(text, tmp_path, monkeypatch):
    """A process that is killed before the card is written leaves a run that can be resumed."""

    def die(*given):
        raise SystemExit("killed")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("bighmm.train.run.write_card", die)
        train_run(tmp_path / "run", recipe(text))
    assert not (tmp_path / "run" / "result.json").exists()
    train_run(tmp_path / "run", recipe(text), resume=True)
    assert "perplexity" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_folder_that_holds_a_run_is_not_begun_again(finished, text):
    before = {path.name: path.stat().st_mtime_ns for path in finished[0].iterdir()}
    with pytest.raises(ValueError, match="already holds a run; resume it, or choose another"):
        train_run(str(finished[0]), recipe(text, model={"states": 5, "support": "dense"}))
    assert {path.name: path.stat().st_mtime_ns for path in finished[0].iterdir()} == before


def test_blocks_of_a_paths_file(text, tmp_path):
    corpus = prepare(text)
    words = [corpus.tokenizer.token(i) for i in range(corpus.tokenizer.size)]
    path = tmp_path / "three.paths"
    path.write_text("".join(f"{i % 3:02b}\t{word}\t1\n" for i, word in enumerate(words)))
    model = {"states": 6, "parameters": "scalar", "paths": str(path)}
    found = train_run(tmp_path / "run", recipe(text, model=model))
    assert open_model(tmp_path / "run").params.support.partition.num_blocks == 3
    assert found["recipe"]["model"]["paths"] == str(path)
    with pytest.raises(ValueError, match=r"has 3 classes .*, not 4; leave out --blocks"):
        train_run(tmp_path / "other", recipe(text, model=model | {"blocks": 4}))


def test_one_block_per_word(text, tmp_path):
    corpus = prepare(text)
    size = corpus.tokenizer.size
    model = {"states": 2 * size, "parameters": "scalar", "blocks": "words"}
    found = train_run(tmp_path / "run", recipe(text, model=model))
    assert found["recipe"]["model"]["blocks"] == "words"
    partition = open_model(tmp_path / "run").params.support.partition
    assert partition.block_of.tolist() == list(range(size))
    assert not list(corpus.folder.glob(f"brown.{size}.paths"))  # nothing is clustered
    again = train_run(tmp_path / "run", recipe(text, model=model), resume=True)
    assert again["valid"] == found["valid"]
    wrong = recipe(text, model=model | {"states": 2 * size + 1})
    near = f"by {size} blocks; use a multiple of {size}, such as {2 * size} or {3 * size}"
    with pytest.raises(ValueError, match=near):
        train_run(tmp_path / "other", wrong)


def test_damaged_clusters_in_the_cache_are_made_again(text):
    corpus = prepare(text)
    wanted = brown_clusters(corpus, 4).classes
    kept = corpus.folder / "brown.4.paths"
    for content in (kept.read_bytes()[:20], b""):
        kept.write_bytes(content)
        assert (brown_clusters(corpus, 4).classes == wanted).all() and len(kept.read_bytes()) > 20


def test_other_clusters_in_the_cache_are_not_taken(text):
    corpus = prepare(text)
    wanted = brown_clusters(corpus, 4).classes
    kept, seal = corpus.folder / "brown.4.paths", corpus.folder / "brown.4.json"
    seal.unlink()  # without it nothing says whether the other file is whole
    kept.write_text(kept.read_text().translate(str.maketrans("01", "10")))
    assert (brown_clusters(corpus, 4).classes == wanted).all() and seal.exists()
    brown_clusters(corpus, 5)
    shutil.copyfile(corpus.folder / "brown.5.paths", kept)  # whole, but not what is asked for
    write_sealed(seal, {kept.name: sha256_of(kept)})
    assert (brown_clusters(corpus, 4).classes == wanted).all()


@pytest.mark.parametrize("name", [LOCK, "model", "checkpoint", "log.jsonl", f".model{LOCK}"])
def test_links_out_of_a_run_are_not_written_to(stopped, tmp_path, name):
    """A run may come from a stranger; what its links point to is somebody else's."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("precious")
    saved, _ = saved_recipe(stopped)
    if name == "checkpoint":
        (stopped / name).rename(stopped / "checkpoint.previous")
    elif name == "model":
        shutil.rmtree(stopped / name, ignore_errors=True)
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(
        theirs if name in ("model", "checkpoint") else theirs / "thesis.txt"
    )
    with pytest.raises(ValueError, match=f"{name} is a link"):
        train_run(stopped, saved, resume=True)
    assert [path.name for path in tmp_path.glob("theirs*")] == ["theirs"]
    assert {path.name: path.read_text() for path in theirs.iterdir()} == {"thesis.txt": "precious"}
