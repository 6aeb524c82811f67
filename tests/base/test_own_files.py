"""Files of ours that are written in place never write to a file elsewhere."""

import os

import pytest

from bighmm.base.locks import LOCK, locked_folder, locked_name
from bighmm.base.own_files import append_to


@pytest.fixture
def elsewhere(tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_text("precious")
    return path


@pytest.fixture(params=["link", "dangling link", "hard link", "folder", "pipe"])
def trap(request, tmp_path, elsewhere):
    """A file of ours that is something else, and what is said of it."""
    path, said = tmp_path / "run" / "log", "is not a regular file"
    path.parent.mkdir()
    if request.param == "hard link":
        os.link(elsewhere, path)
        said = "has another name elsewhere"
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(elsewhere if request.param == "link" else tmp_path / "new")
        said = "is a link"
    return path, said


def test_nothing_is_appended_elsewhere(trap, elsewhere, tmp_path):
    path, said = trap
    with pytest.raises(ValueError, match=said):
        append_to(path)
    assert elsewhere.read_text() == "precious" and not (tmp_path / "new").exists()


@pytest.mark.parametrize("lock", [locked_folder, locked_name])
def test_locks(trap, elsewhere, tmp_path, lock):
    path, said = trap
    name = LOCK if lock is locked_folder else f".model{LOCK}"
    what = path.parent if lock is locked_folder else path.with_name("model")
    path.rename(path.with_name(name))
    with pytest.raises(ValueError, match=said), lock(what):
        pass
    assert elsewhere.read_text() == "precious" and not (tmp_path / "new").exists()


def test_appending(tmp_path):
    for part in (b"one", b"two"):
        with append_to(tmp_path / "log") as file:
            assert file.tell() == (0 if part == b"one" else 3)
            file.write(part)
    assert (tmp_path / "log").read_bytes() == b"onetwo"
    with append_to(tmp_path / "log") as file:
        file.truncate(3)
        file.write(b"!")
    assert (tmp_path / "log").read_bytes() == b"one!"
