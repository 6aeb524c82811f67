"""What takes long is shared by several processes, with the results of one: on a CPU, with gloo."""

import json
import os

import numpy as np
import pytest

from bighmm.cli.main import main
from bighmm.data.corpus import open_corpus
from bighmm.data.counting import count
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are forked")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "text.txt"
    path.write_text("\n".join(f"w{i % 7} w{i * i % 11} w{i % 3}" for i in range(260)))
    return path


@pytest.fixture(scope="module")
def model(text, tmp_path_factory):
    asked = {
        "corpus": {"data": str(text)},
        "model": {"states": 24, "blocks": 6},
        "options": {"width": 8},
        "training": {"epochs": 0.2, "batch": 6, "window": 5, "device": "cpu"},
    }
    folder = tmp_path_factory.mktemp("model") / "run"
    train_run(folder, from_dict(asked, "the test"))
    return str(folder)


def printed(ends):
    """What the first process has printed; the others must have been silent."""
    assert all(status == 0 for status, _ in ends), ends
    assert all(not said for _, said in ends[1:]), ends
    return ends[0][1]


def test_evaluation(model, together, capsys):
    argv = ["eval", model, "--device", "cpu", "--check-normalised", "--json"]
    main(argv)
    expected = json.loads(capsys.readouterr().out)
    found = json.loads(printed(together(3, argv=argv)))
    assert found.pop("log_prob") == pytest.approx(expected.pop("log_prob"), rel=1e-9)
    assert found.pop("perplexity") == pytest.approx(expected.pop("perplexity"), rel=1e-9)
    assert found == expected


def test_a_written_text(model, together, tmp_path, capsys):
    argv = ["write", model, "--tokens", "900", "--batch", "4", "--stream", "20", "--device", "cpu"]
    main([*argv, "--out", str(tmp_path / "one")])
    printed(together(3, argv=[*argv, "--out", str(tmp_path / "three"), "--json"]))
    one, three = open_corpus(tmp_path / "one"), open_corpus(tmp_path / "three")
    assert one.fingerprint == three.fingerprint
    assert one.manifest["source"] == three.manifest["source"]
    assert not (tmp_path / "three.partial").exists()


def test_labels(text, together, tmp_path, capsys):
    argv = ["distill", "random", "--data", str(text), "--states", "6", "--device", "cpu"]
    argv += ["--cluster-tokens", "150", "--window", "16", "--context", "4"]
    main([*argv, "--out", str(tmp_path / "one")])
    printed(together(2, argv=[*argv, "--out", str(tmp_path / "two"), "--json"]))
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for name in files:
        if not name.endswith(".json"):  # which has the seconds
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_clusters(text, together, tmp_path, capsys):
    argv = ["cluster", "--data", str(text), "--classes", "5", "--json"]
    main([*argv, "--out", str(tmp_path / "one")])
    expected = json.loads(capsys.readouterr().out)
    found = json.loads(printed(together(3, argv=[*argv, "--out", str(tmp_path / "three")])))
    assert found == expected
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()


def test_counts_of_parts(monkeypatch):
    from bighmm.base import processes
    from bighmm.data.counting import count_together

    tokens = np.random.default_rng(3).integers(0, 9, 101)
    parts, places = [], [processes.Processes(n, 4) for n in range(4)]

    class Noted(processes.Processes):
        def to_first(self, value):
            parts.append(value)
            return parts if len(parts) == 4 else None

    for place in places:
        monkeypatch.setattr(processes, "_current", Noted(place.number, 4))
        found = count_together(tokens, 9)
    for one, other in zip(found, count(tokens, 9), strict=True):
        np.testing.assert_array_equal(one, other)


def test_faults(model, text, together, tmp_path):
    ends = together(2, argv=["next", model, "w1"])
    assert [status for status, _ in ends] == [2, 2]
    assert "bighmm next is done by one process; start it without torchrun" in ends[0][1]

    argv = ["write", model, "--out", str(tmp_path / "text"), "--tokens", "many"]
    ends = together(2, argv=argv)
    assert [status for status, _ in ends] == [2, 2]

    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("w5", "v5"))
    folders = {str(n): {"HERE": str(path)} for n, path in enumerate((text, other))}
    argv = ["cluster", "--data", "$HERE", "--classes", "3"]
    ends = together(2, argv=argv, environment=folders)
    said = "".join(said for _, said in ends)
    assert [status for status, _ in ends] == [2, 2]
    assert said.count("process 1 of 2 has another text than process 0") == 1, said

    argv = ["train", "--data", "$HERE", "--states", "8", "--blocks", "4", "--device", "cpu"]
    ends = together(2, argv=[*argv, "--out", str(tmp_path / "run")], environment=folders)
    said = "".join(said for _, said in ends)
    assert [status for status, _ in ends] == [2, 2]
    assert said.count("process 1 of 2 has another training text than process 0") == 1, said
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_a_place_that_cannot_be_reached(model, together):
    argv = ["eval", model, "--device", "cpu"]
    nowhere = {"1": {"MASTER_PORT": "1"}}  # where nobody listens
    ends = together(2, argv=argv, environment=nowhere, patience=1)
    assert [status for status, _ in ends] == [2, 2]
    assert "cannot meet the others at 127.0.0.1:1 within 1 s" in ends[1][1]
    for number, (_, said) in enumerate(ends):
        assert f"process {number} of 2 cannot meet the others" in said
        assert len(said.splitlines()) == 1, said
