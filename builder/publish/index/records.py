"""The records of an index as text: one for each wheel, its yank beside it, and the status of a project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from builder.errors import UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import Status
from builder.untrusted.json_data import JsonError, parse_json, texts

#: The end of the name of a yank's record, and the name of a status's record.
YANK = ".yank"
STATUS = "status"


def read_entries(records: Mapping[str, bytes]) -> list[Entry]:
    """The wheels in the records of a project, by their names; raises UsageError for a damaged record."""
    entries = []
    for name, data in records.items():
        if name.endswith(".json"):
            entry = read_record(name, data)
            yanked = records.get(f"{entry.filename}{YANK}")
            entries.append(replace(entry, yanked=None if yanked is None else yanked.decode(errors="replace")))
    return entries


def read_record(name: str, data: bytes) -> Entry:
    """The wheel in a record; raises UsageError for a damaged record."""
    try:
        return parse_json(data, Entry.from_json)
    except JsonError as error:
        raise _damaged(name, error) from None


def read_status(records: Mapping[str, bytes]) -> Status:
    """The status in the records of a project; raises UsageError for a damaged record."""
    try:
        return parse_json(records[STATUS], lambda data: Status(*texts(data))) if STATUS in records else Status()
    except JsonError as error:
        raise _damaged(STATUS, error) from None


def entry_json(entry: Entry) -> bytes:
    """The record of a wheel; `read_record` reads it."""
    return (json.dumps(entry.to_json(), indent=1) + "\n").encode()


def status_json(status: Status) -> bytes:
    """The record of a status; `read_status` reads it."""
    return json.dumps([status.name, status.reason]).encode()


def _damaged(name: str, error: Exception) -> UsageError:
    return UsageError(
        f"this record of the index cannot be read: {error}",
        where=name,
        hints=["restore the record from a copy of the index, or delete it and publish the wheel again"],
    )
