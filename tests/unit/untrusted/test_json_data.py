"""JSON that others wrote: plain data of the expected shape, or one error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.matrix.axes import Cell
from builder.proof import Check, Proof, Verdict, proofs_of
from builder.publish.index.entry import Entry
from builder.publish.runs.history import Run
from builder.records import BuildRecord
from builder.untrusted import JsonError, parse_json, read_json, text, texts
from tests.unit.wheels.make_record import build_record

NO_JSON = {
    "empty": b"",
    "cut": b"[",
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "one level too deep": b"[" * 201 + b"]" * 201,
    "digits": b"9" * 5000,
    "surrogate": b'"\\ud800"',
    "two values": b"[1] " * 20,
    "large": b"[" + b"1," * 2**19 + b"1]",
}


@pytest.mark.parametrize("data", NO_JSON.values(), ids=NO_JSON.keys())
def test_what_is_no_json_is_one_error(data: bytes) -> None:
    with pytest.raises(JsonError):
        parse_json(data, lambda plain: plain, limit=2**20)


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(JsonError, match="larger than 1024 bytes"):
        read_json(tmp_path / "large.json", dict, limit=1024)


def test_text_and_texts() -> None:
    assert texts(["a", "b"]) == ("a", "b")
    not_text: list[object] = [None, 1, b"x", ["a"]]
    for value in not_text:
        with pytest.raises(TypeError):
            text(value)
    not_texts: list[object] = ["ab", {"a": 1}, ["a", 1], None]
    for value in not_texts:
        with pytest.raises(TypeError):
            texts(value)


READERS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "build record": (build_record().to_json(), BuildRecord.from_json),
    "proofs": (
        [Proof("ab", Cell.parse("torch2.11.0-cu130-cp312"), Check.TAGS, Verdict.PASSED).to_json()],
        proofs_of,
    ),
    "entry": (
        Entry("ops-1.0-py3-none-any.whl", "files/ab/c/ops-1.0-py3-none-any.whl", "ab", 1, "2026", "", "cd").to_json(),
        Entry.from_json,
    ),
    "run": (
        {
            "id": "1",
            "started": "2026-01-01T00:00:00+00:00",
            "seconds": 1,
            "command": "buildfarm",
            "folder": "",
            "interrupted": False,
            "unfinished": [],
            "logs": {},
            "report": {"builds": [{"build": "a", "status": "built"}], "skips": []},
        },
        Run.from_json,
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_wrong_types_are_the_same_error(name: str) -> None:
    """Each value of the data in turn is replaced by values of other types: the data is read, or the error is raised."""
    data, parse = READERS[name]
    parse_json(json.dumps(data), parse)
    refused = 0
    for place in places(data):
        values: list[Any] = [None, 1, -1, 1e999, "x", "", [], {}, [[]], {"x": {}}, True]
        for value in values:
            try:
                parse_json(json.dumps(replaced(data, place, value)), parse)
            except JsonError:
                refused += 1
    assert refused


def places(data: Any) -> list[list[Any]]:
    """The keys on the way to each value."""
    found: list[list[Any]] = [[]]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += [[key, *rest] for rest in places(value)]
    return found


def replaced(data: Any, place: list[Any], value: Any) -> Any:
    """A copy of the data with another value at this place."""
    if not place:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[place[0]] = replaced(data[place[0]], place[1:], value)
    return copy
