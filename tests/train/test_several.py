"""Several processes train what one trains: on a CPU, with gloo."""

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bighmm.base.json_files import read_object
from bighmm.base.meeting import meet
from bighmm.base.processes import Processes, buckets
from bighmm.base.tensor_files import TensorFile
from bighmm.train.loop import Stopped
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are killed by signals")

KINDS = {
    "two-level": {
        "model": {"states": 48, "blocks": 6},
        "options": {"width": 8},
        "training": {"rows": "touched", "state_dropout": 0.5, "hidden_words": 0.1},
    },
    "flat": {
        "model": {"states": 48, "blocks": 6},
        "options": {"width": 8, "transitions": "flat"},
        "training": {"state_dropout": 0.5, "averaging": 0.9},
    },
    "dense": {"model": {"states": 8, "support": "dense"}, "options": {"width": 8}},
    "baum-welch": {
        "model": {"states": 6, "support": "dense", "parameterisation": "scalar"},
        "training": {"optimizer": "baum-welch", "step_size": 0.5, "state_dropout": 0},
    },
    "sentences": {
        "model": {"states": 48, "blocks": 6},
        "options": {"width": 8},
        "training": {"batches": "sentences", "batch": 7, "epochs": 1},  # the last has fewer
    },
    "lstm": {"model": {"family": "lstm"}, "options": {"width": 8}},
    "awd-lstm": {"model": {"family": "awd-lstm"}, "options": {"width": 8, "embedding": 4}},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("several") / "text.txt"
    path.write_text("\n".join(f"w{i % 7} w{i * i % 11} w{i % 3}" for i in range(260)))
    return path


def asked_of(text, kind="two-level", **training):
    settings = {"epochs": 1.6, "batch": 6, "window": 5, "device": "cpu", "lr": 0.002, "seed": 3}
    settings["checks_per_epoch"] = 0.5
    asked = {"corpus": {"data": str(text)}, **KINDS[kind]}
    own = asked.get("training", {})
    return {**asked, "training": settings | own | training}


def losses(folder):
    lines = map(json.loads, (Path(folder) / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]


def weights(folder):
    return TensorFile(Path(folder) / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    """The folders of runs of one process."""
    home = tmp_path_factory.mktemp("alone")
    for kind in KINDS:
        train_run(home / kind, from_dict(asked_of(text, kind), "the test"))
    return home


SHARDED = "sharded "  # before a kind


@pytest.mark.parametrize(
    "count, kinds", [(2, list(KINDS)), (3, ["lstm", "sharded flat", "sharded two-level"])]
)
def test_as_one_process(count, kinds, together, alone, text, tmp_path):
    asked = []
    for kind in kinds:
        more = {"shard_optimizer": True} if kind.startswith(SHARDED) else {}
        recipe = asked_of(text, kind.removeprefix(SHARDED), **more)
        asked.append({"folder": str(tmp_path / kind), "recipe": recipe})
    ends = together(count, asked)
    assert [status for status, _ in ends] == [0] * count, ends
    for kind in kinds:
        of_one = alone / kind.removeprefix(SHARDED)
        found, expected = losses(tmp_path / kind), losses(of_one)
        assert len(found) == len(expected) >= (50 if kind != "sentences" else 20), kind
        torch.testing.assert_close(
            torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=0, msg=kind
        )
        result, of_one = (read_object(f / "result.json") for f in (tmp_path / kind, of_one))
        assert result["processes"] == count and "processes" not in of_one
        for split in ("valid", "test"):
            assert result[split]["perplexity"] == pytest.approx(
                of_one[split]["perplexity"], rel=1e-4
            )


def test_resumed_by_another_number(together, alone, text, tmp_path):
    folder = str(tmp_path / "run")
    recipe = asked_of(text, "two-level", shard_optimizer=True)
    first = {"folder": folder, "recipe": recipe, "stop_after": 20}
    assert [s for s, _ in together(2, [first])] == [0, 0]
    assert len(losses(folder)) == 20
    steps = 0

    def should_stop():
        nonlocal steps
        steps += 1
        return steps == 15

    with pytest.raises(Stopped):
        train_run(folder, from_dict(recipe, "the test"), resume=True, should_stop=should_stop)
    ends = together(3, [{"folder": folder, "recipe": recipe, "resume": True}])
    assert [s for s, _ in ends] == [0] * 3, ends
    expected = losses(alone / "two-level")
    torch.testing.assert_close(
        torch.tensor(losses(folder)), torch.tensor(expected), rtol=1e-5, atol=0
    )


MOMENTS = random.Random(18)


@pytest.fixture(scope="module")
def whole(text, together, tmp_path_factory):
    """A run of two processes that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    recipe = asked_of(text, checks_per_epoch=4, epochs=1)
    ends = together(2, [{"folder": str(folder), "recipe": recipe}])
    assert [s for s, _ in ends] == [0, 0], ends
    return SimpleNamespace(folder=folder, recipe=recipe)


@pytest.mark.parametrize("killed", [[n, MOMENTS.randrange(5, 30)] for n in (0, 1)])
def test_killed_and_gone_on_with(killed, together, whole, tmp_path):
    broken = {"folder": str(tmp_path / "broken"), "recipe": whole.recipe, "killed": killed}
    ends = together(2, [broken])
    assert ends[killed[0]][0] == -9
    status, said = ends[1 - killed[0]]
    lost = "process 0, or its machine, is gone" if killed[0] == 0 else "process 1 of 2 has ended"
    assert status == 2 and lost in said and len(said.splitlines()) == 1, said
    again = {**broken, "resume": True, "killed": None}
    ends = together(2, [again])
    assert [s for s, _ in ends] == [0, 0], ends
    assert losses(tmp_path / "broken") == losses(whole.folder)
    found, expected = weights(tmp_path / "broken"), weights(whole.folder)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


def test_refusals(together, text, tmp_path):
    recipe = asked_of(text, batch=1)
    ends = together(2, [{"folder": str(tmp_path / "run"), "recipe": recipe}])
    assert [status for status, _ in ends] == [2, 2]
    said = "".join(said for _, said in ends)  # once, by one of them
    assert said.count("a batch of 1 rows cannot be shared by 2 processes") == 1, said


def test_shares_and_buckets():
    for total in range(12):
        parts = [Processes(i, 5).share(total) for i in range(5)]
        assert [i for part in parts for i in range(total)[part]] == list(range(total))
    tensors = [torch.zeros(n) for n in (3, 2**22, 5, 7)] + [torch.zeros(2, dtype=torch.long)]
    found = [[t.numel() for t in bucket] for bucket in buckets(tensors)]
    assert found == [[3], [2**22], [5, 7], [2]]


def test_a_restart_finds_nothing_of_what_was_before(monkeypatch):
    """The launcher's store outlives its processes."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    known = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    known |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    turns = []
    for restarts in ("0", "0", "1"):
        for name, value in (known | {"TORCHELASTIC_RESTART_COUNT": restarts}).items():
            monkeypatch.setenv(name, value)
        turns.append(meet().next_turn("row"))
    assert turns == [0, 1, 0]
