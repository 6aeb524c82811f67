"""Locks: who holds one is named, and no way for a process to end leaves one behind.

Other processes say on a pipe when they have a lock, and end when their standard input is closed.
"""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from bighmm.base import locks
from bighmm.base.locks import LOCK, Busy, check_free, is_unused, locked_folder, locked_name

HOLD = """
    import sys
    from pathlib import Path
    from bighmm.base.locks import locked_folder
    with locked_folder(Path(sys.argv[1])):
        {work}
        print("held", flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def holder(folder, work="pass"):
    """Another process that holds the lock of a folder."""
    code = textwrap.dedent(HOLD).format(work=work)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def is_free(folder):
    try:
        with locked_folder(folder):
            return True
    except Busy:
        return False


def test_the_second_process_is_told_who_holds_it(tmp_path):
    run = tmp_path / "run"
    with holder(run) as other:
        with pytest.raises(ValueError) as error, locked_folder(run):
            pytest.fail("both have it")
        said = str(error.value)
        assert said.startswith(f"{run} is being written by another process (pid {other.pid} on ")
        assert ", since 2" in said and "\n" not in said
        with pytest.raises(Busy):
            check_free(run)
        other.communicate()  # ends it
    check_free(run)
    assert is_free(run)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_holder_that_is_not_known(tmp_path, content):
    with locked_folder(tmp_path / "run"):
        (tmp_path / "run" / LOCK).write_bytes(content)
        with pytest.raises(Busy, match=r"run is being written by another process; wait for it"):
            check_free(tmp_path / "run")


def test_a_killed_holder_leaves_no_lock(tmp_path):
    run = tmp_path / "run"
    with holder(run) as other:
        assert not is_free(run)
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (run / LOCK).exists() and is_unused(run) and is_free(run)


@pytest.mark.parametrize(
    "work",
    [
        # A forked process, as those of a pool, and one that runs another program.
        "import os; child = os.fork(); child or (sys.stdin.read(), os._exit(0))",
        "import subprocess; child = subprocess.Popen(['cat']).pid",
    ],
    ids=["fork", "subprocess"],
)
@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_children_of_a_killed_holder_do_not_keep_its_lock(tmp_path, work):
    """They live until their standard input, which is the holder's, is closed."""
    run = tmp_path / "run"
    told = tmp_path / "child"
    work += f"; Path({str(told)!r}).write_text(str(child))"
    with holder(run, work) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        os.kill(int(told.read_text()), 0)  # raises if it is not there
        assert is_free(run)


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_forked_child_does_not_give_up_the_lock(tmp_path):
    run = tmp_path / "run"
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked_folder(run))
        child = os.fork()
        if not child:
            stack.close()  # as an exception would, on its way out of the child
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (run / LOCK).exists() and not is_free(run)


def test_threads_exclude_each_other(tmp_path):
    """Sixteen threads add one to a file's number, without a lock of Python's."""
    number = tmp_path / "number"
    number.write_text("0")

    def add():
        with locked_name(tmp_path / "folder", wait=True):
            number.write_text(str(int(number.read_text()) + 1))

    threads = [threading.Thread(target=add) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number.read_text() == "16" and [path.name for path in tmp_path.iterdir()] == ["number"]


def test_a_lock_file_that_was_removed_meanwhile_is_not_taken(tmp_path, monkeypatch):
    """The holder removes the file after we have opened and before we have locked it."""
    path, lock, opened = tmp_path / "run" / LOCK, locks._lock, []

    def late(descriptor, wait):
        opened.append(descriptor)
        if len(opened) == 1:
            path.unlink()
        return lock(descriptor, wait)

    monkeypatch.setattr(locks, "_lock", late)
    with locked_folder(tmp_path / "run"):
        assert len(opened) == 2 and path.exists()


def test_folders_that_were_made_and_not_used_are_removed(tmp_path):
    with locked_folder(tmp_path / "runs" / "one"):
        assert (tmp_path / "runs" / "one").is_dir()
    assert not (tmp_path / "runs").exists()
    with locked_folder(tmp_path / "runs" / "one"):
        (tmp_path / "runs" / "one" / "file").touch()
    assert [path.name for path in (tmp_path / "runs" / "one").iterdir()] == ["file"]


def test_what_is_left_of_a_killed_process(tmp_path):
    run = tmp_path / "run"
    assert is_unused(run)
    run.mkdir()
    (run / LOCK).touch()
    left = locks.temporary_name(run / "recipe.json")
    left.touch()
    locks.temporary_name(run / "model").mkdir()
    (run / f".model{LOCK}").touch()
    assert is_unused(run)
    with locked_folder(run):
        assert [path.name for path in run.iterdir()] == [LOCK]
    assert list(run.iterdir()) == []  # a folder that was there stays
    for name in (".gitconfig.lock", ".thesis.1234.tmp", "thesis.txt"):  # of other programs
        (run / name).touch()
        assert not is_unused(run)
        with locked_folder(run):
            assert (run / name).exists()
        (run / name).unlink()
    (run / "thesis.txt").touch()
    assert not is_unused(run) and not is_unused(run / "thesis.txt")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.skipif(os.name != "posix", reason="imitates flock")
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    """Work goes on, and nothing is removed that somebody else might be writing."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", fail)
    run, said = tmp_path / "run", []
    left = locks.temporary_name(run / "recipe.json")
    run.mkdir()
    left.touch()
    with locked_folder(run, say=said.append), locked_folder(run, say=said.append):
        assert left.exists()
    assert len(said) == 2 and said[0].startswith(f"the file system of {run} has no locks, so ")
    with pytest.warns(UserWarning, match="has no locks"), locked_folder(run):
        pass
    folder = locks.temporary_name(tmp_path / "model")
    folder.mkdir()
    locks.remove_leftovers(tmp_path)
    assert folder.exists()


def test_leftovers_of_living_processes_stay(tmp_path):
    dead, living, file = (locks.temporary_name(tmp_path / name) for name in ("a", "b", "c"))
    for folder in (dead, living):
        folder.mkdir()
    file.touch()
    (tmp_path / f".d{LOCK}").touch()
    with locked_name(tmp_path / "b"):
        locks.remove_leftovers(tmp_path)
        assert living.exists() and file.exists() and (tmp_path / f".b{LOCK}").exists()
        assert not dead.exists() and len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError), locked_folder(tmp_path):
        pass


def test_a_lock_file_of_another_user(tmp_path, monkeypatch):
    (tmp_path / LOCK).touch()
    real = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with locked_folder(tmp_path), pytest.raises(Busy):
        check_free(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(PermissionError), locked_folder(tmp_path):
        pass
