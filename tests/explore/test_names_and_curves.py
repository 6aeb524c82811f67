"""Names that people give to states, and curves of runs that may still go on."""

import json
import multiprocessing

import pytest
from served import Client, log_lines, make_run

from bighmm.base.locks import locked_folder
from bighmm.explore import make_app, open_all
from bighmm.explore.names import Names, names_file
from bighmm.lm.opening import open_model
from bighmm.train.curves import read_curves


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", corpus=False)


@pytest.fixture
def own(run):
    with Client(make_app(open_all([run]))) as client:
        yield client


def test_names_are_kept(own, run):
    assert own.get("/names").json["names"] == {}
    found = own.ask("PUT", "/names/9", {"name": "  animals\tand mats "})
    assert found.status == 200 and found.json["names"] == {"9": "animals and mats"}
    assert own.ask("PUT", "/names/3", {"name": "a"}).json["names"]["3"] == "a"
    assert own.ask("DELETE", "/names/3").json["names"] == {"9": "animals and mats"}
    assert json.loads((run / "state-names.json").read_text())["names"] == {"9": "animals and mats"}
    again = Names(run, run / "model", 16)
    assert again.by_state == {9: "animals and mats"} and not again.stale
    assert own.get("/states?query=MATS").json["states"][-1]["name"] is not None
    assert own.get("/states/9").json["name"] == "animals and mats"


def test_wrong_names(own):
    assert own.ask("PUT", "/names/16", {"name": "a"}).status == 404
    assert own.ask("PUT", "/names/1", {"name": "a" * 201}).status == 400
    assert own.ask("PUT", "/names/1", {"name": 5}).status == 400
    assert own.ask("PUT", "/names/1", {}).status == 400


def test_names_of_an_earlier_model_are_marked(own, run):
    own.ask("PUT", "/names/9", {"name": "animals"})
    lm = open_model(run)
    lm.params.block_bias.data += 1
    lm.save_pretrained(run / "model")
    later = Names(run, run / "model", 16)
    assert later.stale and later.by_state == {9: "animals"}


def test_two_explorers_keep_each_others_names(run):
    one, two = (Names(run, run / "model", 16) for _ in range(2))
    one.rename(1, "one")
    assert two.rename(2, "two")["names"] == {"1": "one", "2": "two"}
    one.rename(2, "")
    assert Names(run, run / "model", 16).by_state == {1: "one"}
    assert not list(run.glob(".*"))


def rename_many(run, first):
    names = Names(run, run / "model", 16)
    for state in range(first, 16, 2):
        names.rename(state, f"state {state}")


def test_two_processes_name_states_at_the_same_time(run):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(rename_many, [(run, 0), (run, 1)])
    assert Names(run, run / "model", 16).by_state == {i: f"state {i}" for i in range(16)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 99}, r"state-names\.json is of version 99, and this version of bighmm reads"),
        ({"names": {"9" * 5000: "a"}}, r"state-names\.json is damaged: '999.*not the number of"),
        ({"names": {"03": "a", "3": "b"}}, "'03' is not the number of a state"),
        ({"names": {"\u0663": "a"}}, "is not the number of a state"),
        ({"names": {"-1": "a"}}, "'-1' is not the number of a state"),
    ],
    ids=range(5),
)
def test_damaged_names(run, changes, reason):
    Names(run, run / "model", 16).rename(3, "three")
    found = json.loads((run / "state-names.json").read_text())
    (run / "state-names.json").write_text(json.dumps(found | changes))
    with pytest.raises(ValueError, match=reason) as error:
        Names(run, run / "model", 16)
    assert len(str(error.value)) < 400


def test_names_of_a_model_without_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert names_file(tmp_path / "model", "f" * 64).is_relative_to(tmp_path / "bighmm")


def test_curves_of_a_run_that_goes_on(own, run):
    first = own.get("/runs/a").json
    assert first["steps"]["step"] == [1, 2, 3, 4, 5, 6] and not first["running"]
    assert first["steps"]["tokens_per_second"][1:] == [50.0] * 5
    assert first["checks"] == {"step": [3, 6], "perplexity": [100 / 3, 100 / 6], "best": [True] * 2}
    half = log_lines(7, 7)[0]
    with (run / "log.jsonl").open("a") as log:
        log.write(half[:10])
    after = own.get(f"/runs/a?after={first['next']}").json
    assert after["steps"]["step"] == [] and after["next"] == first["next"]
    with (run / "log.jsonl").open("a") as log:
        log.write(half[10:] + "no json\n" + "".join(log_lines(8, 8)))
    after = own.get(f"/runs/a?after={first['next']}").json
    assert after["steps"]["step"] == [7, 8] and not after["reset"]
    (run / "log.jsonl").write_text("".join(log_lines(1, 2)))
    shorter = own.get(f"/runs/a?after={after['next']}").json
    assert shorter["reset"] and shorter["steps"]["step"] == [1, 2]
    with locked_folder(run):
        assert own.get("/runs/a").json["running"]


def test_many_steps_are_few_points(run):
    found = read_curves(run, points=2)
    assert found.steps["step"] == [3, 6] and found.steps["loss"] == [7.0, 4.0]


def test_a_model_without_a_log(own, run):
    (run / "log.jsonl").unlink()
    assert own.get("/runs/a").status == 409
    assert own.get("/runs").json["runs"][0]["has_log"] is False
