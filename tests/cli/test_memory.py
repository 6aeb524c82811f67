"""Memory of commands that read a whole text."""

from bighmm.cli import common


def test_freed_memory_is_kept_where_the_process_ends_with_the_command(monkeypatch):
    calls = []
    monkeypatch.setattr(common, "keep_freed_memory", lambda: calls.append("kept"))
    common.keep_memory("cpu")
    assert calls == ["kept"]
    with common.models_stay_open():
        common.keep_memory("cpu")
    assert calls == ["kept"]
