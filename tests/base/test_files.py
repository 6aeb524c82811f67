"""Folders are replaced atomically, whenever the process is killed; what is read is checked."""

import errno
import os
import threading
from pathlib import Path

import pytest

from bighmm.base import files, locks
from bighmm.base.files import (
    check_hashes,
    existing_folder,
    hashes,
    hub_folder,
    model_folder,
    previous_folder,
    read_current,
    replace_folder,
    write_json,
)
from bighmm.base.json_files import read_json


def put(target, text, keep_previous=True):
    replace_folder(
        target, lambda folder: write_json(folder / "a.json", text), keep_previous=keep_previous
    )


def content(folder):
    return None if folder is None else read_json(folder / "a.json")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def target(tmp_path):
    return tmp_path / "run" / "checkpoint"


def test_the_replaced_folder_is_kept_as_previous(target):
    assert existing_folder(target) is None and previous_folder(target) is None
    put(target, "one")
    assert content(existing_folder(target)) == "one" and previous_folder(target) is None
    put(target, "two")
    assert (content(target), content(previous_folder(target))) == ("two", "one")
    put(target, "three")
    assert (content(target), content(previous_folder(target))) == ("three", "two")
    assert names(target.parent) == ["checkpoint", "checkpoint.previous"]


def test_the_replaced_folder_is_removed_without_keep_previous(target):
    put(target, "one", keep_previous=False)
    put(target, "two", keep_previous=False)
    assert content(target) == "two" and names(target.parent) == ["checkpoint"]


def test_files_of_the_replaced_folder_are_gone(target):
    replace_folder(target, lambda f: write_json(f / "old.json", 1), keep_previous=False)
    put(target, "one")
    assert names(target) == ["a.json"]


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_failed_fill_changes_nothing(target, error):
    put(target, "one")
    put(target, "two")

    def fill(folder):
        write_json(folder / "a.json", "half")
        raise error

    with pytest.raises(type(error)):
        replace_folder(target, fill, keep_previous=True)
    assert (content(target), content(previous_folder(target))) == ("two", "one")
    assert names(target.parent) == ["checkpoint", "checkpoint.previous"]


def test_failed_first_fill_leaves_nothing(target):
    with pytest.raises(ZeroDivisionError):
        replace_folder(target, lambda _: 1 // 0, keep_previous=True)
    assert existing_folder(target) is None and names(target.parent) == []


class Killed(BaseException):
    pass


def kill_at_rename(monkeypatch, number):
    """Raise `Killed` just before the folder rename with this number, counted from 1."""
    rename, calls = Path.rename, []

    def dying(self, to):
        if self.is_dir():
            calls.append(to)
            if len(calls) == number:
                raise Killed
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", dying)


@pytest.mark.parametrize("keep_previous", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_killed_at_a_rename(target, monkeypatch, number, keep_previous):
    put(target, "one", keep_previous)
    put(target, "two", keep_previous)
    with monkeypatch.context() as patch:
        kill_at_rename(patch, number)
        with pytest.raises(Killed):
            put(target, "three", keep_previous)
    # With keep_previous=False the third rename is part of the removal of the previous folder.
    newest = "three" if number == 3 and not keep_previous else "two"
    assert content(existing_folder(target)) == newest
    put(target, "four", keep_previous)
    assert content(target) == "four"
    assert content(previous_folder(target)) == ("two" if keep_previous else None)
    assert not list(target.parent.glob(".*"))


def is_ours(folder):
    return names(folder) == ["a.json"]


def put_ours(target, text):
    replace_folder(
        *(target, lambda folder: write_json(folder / "a.json", text)),
        keep_previous=False,
        may_replace=is_ours,
    )


def test_only_an_earlier_save_is_replaced(target):
    put_ours(target, "one")
    put_ours(target, "two")
    assert content(target) == "two" and names(target.parent) == ["checkpoint"]
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"checkpoint holds other files than an earlier save"):
        put_ours(target, "three")
    assert content(target) == "two" and (target / "thesis.txt").exists()
    (target / "thesis.txt").unlink()
    (target / "a.json").unlink()
    put_ours(target, "four")  # an empty folder may be replaced
    assert content(target) == "four"


@pytest.mark.parametrize("target_exists", [True, False])
def test_a_folder_of_the_user_called_previous_is_not_removed(target, target_exists):
    if target_exists:
        put_ours(target, "one")
    other = target.with_name("checkpoint.previous")
    other.mkdir(parents=True)
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"checkpoint\.previous holds other files"):
        put_ours(target, "two")
    assert (other / "thesis.txt").exists() and target.exists() == target_exists
    assert not list(target.parent.glob(".*"))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_earlier_save_may_be_replaced_after_a_kill(target, monkeypatch, number):
    put_ours(target, "one")
    with monkeypatch.context() as patch:
        kill_at_rename(patch, number)
        with pytest.raises(Killed):
            put_ours(target, "two")
    put_ours(target, "three")
    assert content(target) == "three" and names(target.parent) == ["checkpoint"]


def test_killed_while_the_previous_folder_is_removed(target, monkeypatch):
    """The half-removed folder has a temporary name, so the next save does not refuse."""
    put_ours(target, "one")

    def remove_half(folder, **_):
        (folder / "a.json").unlink()
        (folder / "b.json").touch()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", remove_half)
        with pytest.raises(Killed):
            put_ours(target, "two")
    assert content(existing_folder(target)) == "two"
    put_ours(target, "three")
    assert content(target) == "three" and names(target.parent) == ["checkpoint"]


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.previous"])
@pytest.mark.parametrize("write", [put, put_ours])
def test_a_file_is_not_replaced(target, name, write):
    target.parent.mkdir()
    file = target.with_name(name)
    file.write_text("years of work")
    with pytest.raises(ValueError, match=rf"{name} is a file, so no folder can be written there"):
        write(target, "one")
    assert file.read_text() == "years of work" and names(target.parent) == [name]


def test_the_folder_that_a_link_points_to_is_replaced(target, tmp_path):
    put_ours(tmp_path / "disk" / "real", "one")
    target.parent.mkdir()
    target.symlink_to(tmp_path / "disk" / "real")
    put_ours(target, "two")
    assert target.is_symlink() and content(target) == "two"
    assert names(tmp_path / "disk") == ["real"]


def test_the_state_between_the_two_renames_is_readable(target):
    put(target, "one")
    target.rename(target.with_name("checkpoint.previous"))
    fresh = target.with_name(".checkpoint.123.tmp")
    fresh.mkdir()
    write_json(fresh / "a.json", "two")
    assert content(existing_folder(target)) == "one"
    assert previous_folder(target) is None
    with pytest.raises(OSError):
        replace_folder(target, lambda f: (f / "no" / "such").write_text(""), keep_previous=True)
    assert content(existing_folder(target)) == "one"
    put(target, "three")
    assert (content(target), content(previous_folder(target))) == ("three", "one")


@pytest.mark.parametrize("process", [999_999_999, os.getpid()], ids=["another", "this"])
def test_temporary_folders_of_killed_processes_are_removed(target, process):
    leftover = target.with_name(f".checkpoint.{process}.tmp")
    leftover.mkdir(parents=True)
    (leftover / "half.json").write_text("{")
    others = [
        target.with_name(name)
        for name in (f".model.{process}.tmp", f".checkpoint.two.{process}.tmp", ".checkpoint.x.tmp")
    ]
    for other in others:
        other.mkdir()
    put(target, "one")
    assert names(target) == ["a.json"]
    assert not leftover.exists() and all(other.exists() for other in others)


def test_the_temporary_folder_of_a_living_writer_stays(target):
    """A second one waits for it; afterwards each has written all of its own."""
    order, threads = [], []

    def second():
        replace_folder(target, write_second, keep_previous=True)
        waiting.release()  # should it not have waited

    def write_second(folder):
        order.append("second")
        write_json(folder / "a.json", "two")

    def write_first(folder):
        write_json(folder / "half.json", "one")
        threads.append(threading.Thread(target=second))
        threads[0].start()
        waiting.acquire()  # until the second one asks for the lock
        assert (folder / "half.json").exists() and order == []
        write_json(folder / "a.json", "one")
        order.append("first")

    waiting, lock = threading.Semaphore(0), locks._lock

    def tell(descriptor, wait):
        if threads:
            waiting.release()
        return lock(descriptor, wait)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "_lock", tell)
        replace_folder(target, write_first, keep_previous=True)
        threads[0].join()
    assert order == ["first", "second"]
    assert (content(target), content(previous_folder(target))) == ("two", "one")
    assert names(target.parent) == ["checkpoint", "checkpoint.previous"]


def test_what_another_has_written_meanwhile_need_not_be_written_again(target):
    put(target, "one")
    replace_folder(target, never, keep_previous=True, unless=lambda: content(target) == "one")
    assert content(target) == "one" and previous_folder(target) is None


@pytest.mark.parametrize("keep_previous", [True, False])
@pytest.mark.parametrize("times", [1, 5])
def test_a_folder_that_is_replaced_while_it_is_read(target, keep_previous, times):
    put(target, "0")
    seen = []

    def read(folder):
        """The first file is of one folder, the second of the next: they do not fit."""
        first = content(folder)
        seen.append(first)
        if len(seen) <= times:
            put(target, str(len(seen)), keep_previous)
        if not folder.is_dir() or content(folder) != first:
            raise ValueError("damaged")
        return first

    assert read_current(lambda: existing_folder(target), read) == str(times)
    assert seen == [str(number) for number in range(times + 1)]


def test_a_damaged_folder_is_read_once(target):
    put(target, "one")
    seen = []

    def read(folder):
        seen.append(folder)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        read_current(lambda: target, read)
    assert seen == [target]


def test_threads_that_write_one_file(tmp_path):
    """Each writes under a temporary name of its own."""
    failed = []

    def write(number):
        try:
            for _ in range(20):
                write_json(tmp_path / "a.json", [number] * 100)
                found = read_json(tmp_path / "a.json")
                assert len(found) == 100 and len(set(found)) == 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("part", ["open", "mkdir"])
def test_a_full_disk_is_named(target, monkeypatch, part):
    """The errors of the system name no file."""

    def full(self, *_, **__):
        if self.name.endswith(".tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target.parent.mkdir()
    monkeypatch.setattr(Path, part, full)
    with pytest.raises(OSError) as error:
        write_json(target, "one") if part == "open" else put(target, "one")
    assert error.value.filename == str(target)


def test_model_folder_of_a_run_and_of_a_model(tmp_path):
    assert model_folder(tmp_path) == tmp_path
    put(tmp_path / "model", "one")
    assert model_folder(tmp_path) == tmp_path / "model" == model_folder(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / "model.previous")
    assert model_folder(tmp_path) == tmp_path / "model.previous"


def never(*_, **__):
    raise AssertionError("the hub must not be asked")


@pytest.mark.parametrize(
    "name", ["runs/none/model", "./none", "~/none", "/none", "here/none", "here/", "file", "a b"]
)
def test_a_name_that_can_only_be_a_path_is_not_looked_up_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", never)
    with pytest.raises(ValueError) as error:
        hub_folder(name)
    assert str(error.value) == f"there is no folder {name}"


@pytest.mark.parametrize("kind", [OSError, RuntimeError, ValueError])
@pytest.mark.parametrize("name", ["nowhere", "someone/nowhere"])
def test_errors_of_the_hub_are_one_sentence(name, kind, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise kind("it cannot be reached\nand much more\nthan one line")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ValueError) as error:
        hub_folder(name)
    assert str(error.value) == (
        f"there is no folder {name}, and the hub gives no such model: it cannot be reached"
    )


def test_json_round_trip(tmp_path):
    value = {"words": ["naïve", "日本", '"'], "none": None, "half": 0.5}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "naïve" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_read_json_errors(tmp_path):
    with pytest.raises(ValueError, match=r"has no a\.json; it is not complete"):
        read_json(tmp_path / "a.json")
    for damaged in (b'{"a": 1', b"", b'"\xff"'):
        (tmp_path / "a.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.json is damaged") as error:
            read_json(tmp_path / "a.json")
        assert "\n" not in str(error.value)


def test_hashes_detect_damaged_and_missing_files(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    expected = hashes(tmp_path)
    assert expected == {
        "a": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "b": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }
    (tmp_path / "c").write_bytes(b"one more does no harm")
    check_hashes(tmp_path, expected, ["a"], ["b", "d"])
    with pytest.raises(ValueError, match="it does not list c among its files"):
        check_hashes(tmp_path, expected, ["a", "c"], ["b"])
    with pytest.raises(ValueError, match="it lists 'b', which is not its file"):
        check_hashes(tmp_path, expected, ["a"])
    for wrong in (7, None, ["a"]):
        with pytest.raises(ValueError, match="does not list its files"):
            check_hashes(tmp_path, wrong, ["a"])
    with pytest.raises(ValueError, match=r"/a is damaged"):
        check_hashes(tmp_path, {"a": 3}, ["a"])
    (tmp_path / "a").write_bytes(b"abd")
    with pytest.raises(ValueError, match=r"/a is damaged"):
        check_hashes(tmp_path, expected, ["a", "b"])
    (tmp_path / "a").unlink()
    with pytest.raises(ValueError, match="has no a; it is not complete"):
        check_hashes(tmp_path, expected, ["a", "b"])


def test_files_are_hashed_without_reading_them_at_once(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"abc")
    expected = hashes(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read whole"))
    assert hashes(tmp_path) == expected
    check_hashes(tmp_path, expected, ["a"])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux file descriptors")
def test_a_file_is_flushed_before_the_rename(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda old, new: seen.append(new) or replace(old, new))
    write_json(tmp_path / "a.json", "new")
    assert seen[0].endswith(".tmp") and seen[1:] == [tmp_path / "a.json", str(tmp_path)]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux file descriptors")
def test_everything_is_flushed_before_the_rename(target, monkeypatch):
    """The new files, then their folder, then the rename, then the parent folder.

    The JSON file is flushed before its own rename too.
    """
    seen = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: seen.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    rename = Path.rename

    def renamed(old, new):
        if new == target:
            seen.append("in place")
        return rename(old, new)

    monkeypatch.setattr(Path, "rename", renamed)
    put(target, "new")
    *inside, done, outside = (Path(name) for name in seen)
    fresh = inside[-1]
    json_file, *rest = inside
    assert json_file.parent == fresh and json_file.suffix == fresh.suffix == ".tmp"
    assert rest == [fresh, fresh / "a.json", fresh]
    assert str(done) == "in place" and outside == target.parent


def test_a_folder_where_a_file_is_to_be_written(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ValueError, match=r"a\.json is a folder, so no file can be written there"):
        write_json(tmp_path / "a.json", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
