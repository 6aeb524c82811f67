"""JSON files: what is refused, in one sentence that names the file; seals."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from bighmm.base.files import write_sealed
from bighmm.base.json_files import (
    DEEPEST,
    MOST_COMMAS,
    MOST_NESTED,
    read_json,
    read_object,
    read_record,
    read_sealed,
)
from bighmm.base.settings import Between, Positive, check_seed, fill, shown


@dataclass(frozen=True)
class Inner:
    share: Annotated[float, Between(0, 1)] = 0.5


@dataclass(frozen=True)
class Record:
    size: Positive
    kind: Literal["a", "b"] = "a"
    exact: bool = True
    names: list[str] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    anything: Any = None


@pytest.fixture
def path(tmp_path):
    return tmp_path / "it.json"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "nested more than"),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "nested more than"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested more than"),
        (b"[NaN]", "NaN is not a finite number"),
        (b"[-Infinity]", "-Infinity is not a finite number"),
        (b"[1e999]", "1e999 is not a finite number"),
        (b"9" * 5000, "too many digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' is there twice"),
        (b'["\\ud800"]', "is not Unicode text"),
        (b'{"\\ud800": 1}', "is not Unicode text"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" + b"{}," * (MOST_NESTED + 1), "more than 2,097,152 objects and lists"),
        (b"[" + b"1," * (MOST_COMMAS + 1), "more than 8,388,608 values"),
    ],
    ids=range(15),
)
def test_what_is_refused(path, content, reason):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} is damaged: ") and "\n" not in str(caught.value)


def test_what_is_accepted(path):
    deep = json.loads("[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))
    value = {"deep": deep, "pair": "\U0001f600", "number": 1e300, "brackets": "[" * 1000}
    path.write_text(json.dumps(value))
    assert read_json(path) == value
    path.write_text("[-Infinity, 1e999]")
    assert read_json(path, finite=False) == [-float("inf"), float("inf")]


def test_large_files_and_devices_are_not_read(path, tmp_path):
    path.write_bytes(b" " * 101)
    with pytest.raises(ValueError, match=r"it\.json is larger than 100 bytes"):
        read_json(path, 100)
    path.unlink()
    with pytest.raises(ValueError, match=r"has no it\.json; it is not complete"):
        read_json(path)
    path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"it\.json cannot be read: it is not a regular file"):
        read_json(path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_json(tmp_path)


def test_seals(path):
    value = {"b": [1, 0.1], "a": {"ä": None}}
    write_sealed(path, value)
    assert read_sealed(path) == (value, True)
    text = path.read_text()
    path.write_text(text.replace("0.1", "0.2"))
    with pytest.raises(ValueError, match="is damaged: its content is not what was saved"):
        read_object(path)
    path.write_text(json.dumps(value))  # from before there were seals
    assert read_sealed(path) == (value, False)
    path.write_text("7")
    with pytest.raises(ValueError, match="it holds 7, not a JSON object"):
        read_object(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"size": 0}, "it: size = 0 is not of the kind int from 1"),
        ({"size": True}, "size = True is not of the kind int"),
        ({"size": 2**63}, "size = 9223372036854775808 is not of the kind int"),
        ({"size": 1.0}, "size = 1.0"),
        ({"kind": "c"}, "kind = 'c' is not of the kind a | b"),
        ({"kind": []}, r"kind = \[\]"),
        ({"exact": 1}, "exact = 1 is not of the kind bool"),
        ({"names": ["a", 1]}, r"names = \['a', 1\] is not of the kind list of str"),
        ({"hashes": {"a": 1}}, "is not of the kind dict of str"),
        ({"inner": 3}, "it: inner must be a section, not 3"),
        ({"inner": {"share": 1.5}}, "inner: share = 1.5 is not of the kind float from 0 to 1"),
        ({"inner": {"share": 10**400}}, "inner: share = 1000"),
        ({"knid": "a"}, "an unknown field 'knid'; did you mean 'kind'"),
    ],
)
def test_records_name_the_field(path, changes, reason):
    path.write_text(json.dumps({"size": 1} | changes))
    with pytest.raises(ValueError, match=reason) as caught:
        read_record(Record, path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 300 + len(str(path))


def test_records(path):
    path.write_text(json.dumps({"size": 3, "inner": {"share": 1}, "anything": [1]}))
    found = read_record(Record, path)
    assert found == Record(3, inner=Inner(1.0), anything=[1])
    assert isinstance(found.inner.share, float)
    with pytest.raises(ValueError, match="the file has no field 'size'"):
        fill(Record, {}, "the file")


def test_numbers_that_python_does_not_write():
    endless = 1 << 400_000
    assert shown({"a": [endless, 3]}) == "{'a': [a number with too many digits, 3]}"
    assert shown(10**70).startswith("1000") and len(shown(10**70)) == 60
    with pytest.raises(ValueError, match=r"a seed is .*, not a number with too many digits"):
        check_seed(endless)
