"""The corpus that comes with Python: deterministic prose in splits that do not overlap."""

import os
import subprocess
import sys

import pytest

from bighmm.data.corpus import prepare
from bighmm.data.pydoc_corpus import documents, fingerprint, prose, splits


def test_another_process_gives_the_same_text(tmp_path):
    code = "from bighmm.data.pydoc_corpus import splits; print(ascii(splits()))"
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        text=True,
    )
    here = ascii(splits())  # at the same time as the other process
    assert other.communicate()[0].strip() == here


def test_size_and_splits():
    found = documents()
    words = sum(len(text.split()) for _, text in found)
    assert words >= 250_000
    assert found == documents()
    parts = splits()
    assert sorted(item for part in parts.values() for item in part) == sorted(found)
    assert len({name for name, _ in found}) == len(found)
    for name, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
        part = sum(len(text.split()) for _, text in parts[name])
        assert part / words == pytest.approx(share, abs=0.01)
        assert {document.split(":")[0] for document, _ in parts[name]} == {"topic", "module"}
    lines = [line.lower() for _, text in found for line in text.splitlines()]
    assert len(set(lines)) == len(lines)


def test_prepare_pydoc():
    corpus = prepare("pydoc")
    manifest = corpus.manifest
    assert manifest["settings"] == {
        "min_count": 3,
        "max_size": None,
        "lowercase": True,
        "split": "words",
    }
    for name, part in splits().items():
        split = manifest["splits"][name]
        assert split["documents"] == len(part)
        assert split["lines"] == sum(text.count("\n") for _, text in part)
        assert 0.01 < split["unknown"] / split["tokens"] < 0.1


def test_prose_has_no_markup_and_no_code():
    text = """\
Frobnicate a thing
==================

Return the *first* ``thing`` of :class:`~pkg.Thing`, e.g. a `spoon`; see
"help". It wraps
over lines::

    x = 1
    for y in things:
        print(y)

>>> frobnicate(1)
2

The arguments are:

  - name: the name of it
    all
  - size: how big it is (default: 3)

    if not things: raise ValueError

Copyright (c) by somebody and others.
See https://www.example.org for the rest of it.

====  ====
this  that
====  ====
"""
    assert prose(text) == [
        "Frobnicate a thing",
        "Return the first thing of pkg.Thing, e.g. a spoon; see help.",
        "It wraps over lines:",
        "The arguments are:",
        "name: the name of it all",
        "size: how big it is (default: 3)",
    ]


def test_error_if_python_has_no_sources(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match="needs the sources of the Python standard library"):
        fingerprint()
