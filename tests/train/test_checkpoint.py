"""Checkpoints: what is saved comes back, and damage costs one checkpoint at most."""

import pytest
import torch

from bighmm.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def numbered(number: int) -> Checkpoint:
    """A checkpoint that is told from others by its step."""
    tensors = {
        "model.a": torch.randn(3, 4, generator=torch.Generator().manual_seed(number)),
        "model.b": torch.arange(12).view(3, 4).T,  # not contiguous
        "carried.fresh": torch.tensor([True, False]),
        "optimizer.0.step": torch.tensor(float(number)),
        "double": torch.tensor([1e-300, -torch.inf], dtype=torch.float64),
    }
    state = {"step": number, "best": None, "schedule": {"current": 0.1}, "seconds": 1 / 3}
    return Checkpoint(tensors, state)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return (
        one.state == other.state
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
        and all(value.dtype == other.tensors[name].dtype for name, value in one.tensors.items())
    )


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_round_trip(tmp_path):
    save_checkpoint(tmp_path / "run", numbered(1))
    found, warning = load_checkpoint(tmp_path / "run")
    assert same(found, numbered(1)) and warning is None
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint"]


def test_last_two_are_kept(tmp_path):
    for number in (1, 2, 3):
        save_checkpoint(tmp_path, numbered(number))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint", "checkpoint.previous"}
    assert same(load_checkpoint(tmp_path)[0], numbered(3))
    (tmp_path / "checkpoint.previous").rename(tmp_path / "checkpoint.other")
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    (tmp_path / "checkpoint.other").rename(tmp_path / "checkpoint")
    assert same(load_checkpoint(tmp_path)[0], numbered(2))


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "missing"])
def test_damaged_newest_falls_back_with_a_warning(tmp_path, name, how):
    save_checkpoint(tmp_path, numbered(1))
    save_checkpoint(tmp_path, numbered(2))
    path = tmp_path / "checkpoint" / name
    if how == "flipped":
        damage(path)
    elif how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-10] if how == "cut" else b"")
    found, warning = load_checkpoint(tmp_path)
    assert same(found, numbered(1))
    assert warning is not None and "\n" not in warning and str(tmp_path) in warning
    assert warning.endswith("; going on from the checkpoint before it")


def test_between_the_renames_of_a_save_the_previous_one_counts(tmp_path):
    save_checkpoint(tmp_path, numbered(1))
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.previous")
    found, warning = load_checkpoint(tmp_path)
    assert same(found, numbered(1)) and warning is None
    save_checkpoint(tmp_path, numbered(2))
    assert same(load_checkpoint(tmp_path)[0], numbered(2))


def test_a_failed_save_leaves_everything_as_it_was(tmp_path):
    save_checkpoint(tmp_path, numbered(1))
    save_checkpoint(tmp_path, numbered(2))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, Checkpoint(numbered(3).tensors, {"step": object()}))
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint", "checkpoint.previous"}


def test_leftovers_of_a_killed_save_are_removed(tmp_path):
    (tmp_path / ".checkpoint.123.tmp").mkdir()
    (tmp_path / ".checkpoint.123.tmp" / "tensors.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path, numbered(1))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_nothing_to_resume_from(tmp_path):
    with pytest.raises(ValueError, match="has no checkpoint to resume from"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, numbered(1))
    damage(tmp_path / "checkpoint" / "tensors.safetensors")
    with pytest.raises(ValueError, match=r"tensors.safetensors is damaged"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, numbered(2))  # the damaged one is the previous one now
    damage(tmp_path / "checkpoint" / "state.json")
    with pytest.raises(ValueError, match=r"checkpoint.previous/tensors.safetensors is damaged"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "manifest", ["7", "[]", "null", "{}", '{"state.json": 1}', "[" * 10**5, '{"../x": "y"}', "NaN"]
)
def test_a_manifest_that_is_none(tmp_path, manifest):
    save_checkpoint(tmp_path, numbered(1))
    (tmp_path / "checkpoint" / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError) as error:
        load_checkpoint(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)
