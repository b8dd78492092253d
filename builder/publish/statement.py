"""Where a wheel came from, as an in-toto Statement v1 with SLSA provenance v1. Unsigned: it says, and proves nothing.

(in-toto attestation spec/v1/statement.md, SLSA spec v1.0 provenance.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from builder import __version__
from builder.errors import FarmError
from builder.store import Stored, write_whole
from builder.wheels.record import Record

#: The statement of `x.whl` is `x.whl.intoto.json`; `.jsonl` would be taken for a bundle of signed ones.
SUFFIX = ".intoto.json"

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

#: What the parameters below mean: the keys of `Record`, and of the store's record beside it.
_BUILD_TYPE = "urn:buildfarm:wheel:1"


def make_statement(stored: Stored) -> str | None:
    """The statement of a stored wheel, JSON with a final newline; the same for the same build.

    None where the store's record cannot tell how the wheel was made (one of another release of the farm).
    """
    kept = stored.record
    try:
        record = Record.from_json(kept)
        started = datetime.fromisoformat(kept["started"])
        finished = started + timedelta(seconds=kept["seconds"])
    except (KeyError, ValueError, TypeError, FarmError):
        return None
    wheel = {"name": stored.wheel.name, "digest": {"sha256": hashlib.sha256(stored.wheel.read_bytes()).hexdigest()}}
    asked = ("build", "extension", "version", "abi", "torch", "cuda", "platform", "archs", "stand_in", "recipe")
    data = {
        "_type": STATEMENT_TYPE,
        "subject": [wheel],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {name: kept[name] for name in asked},
                "internalParameters": {
                    "toolchain": {k: v for k, v in kept["toolchain"].items() if k != "packages"},
                    "python": kept["python"],
                    "jobs": kept.get("jobs"),
                    "excluded_libraries": kept.get("provided", []),
                    "farm_code_sha256": kept.get("farm", ""),
                },
                "resolvedDependencies": list(_dependencies(record)),
            },
            "runDetails": {
                "builder": {
                    "id": f"urn:buildfarm:executor:{record.toolchain.executor}",
                    "version": {"buildfarm": __version__},
                },
                "metadata": {
                    "invocationId": stored.digest,
                    "startedOn": _time(started),
                    "finishedOn": _time(finished),
                },
                # Extension field, as SLSA lets a builder add under its own name.
                "buildfarm_signature": "none: this statement is unsigned",
            },
        },
    }
    return json.dumps(data, indent=1) + "\n"


def put_statement(stored: Stored, folder: Path) -> Path | None:
    """Write the statement beside the stored wheel and beside its copy in `folder`; returns the latter.

    None, and no file in `folder`, where there is no statement to make. Files that would not change are left alone.
    """
    text = make_statement(stored)
    target = statement_path(folder / stored.wheel.name)
    if text is None:
        target.unlink(missing_ok=True)
        return None
    for path in (statement_path(stored.wheel), target):
        if not path.exists() or path.read_bytes() != text.encode():
            write_whole(path, text.encode())
    return target


def statement_path(wheel: Path) -> Path:
    """Where the statement of a wheel lies."""
    return wheel.with_name(f"{wheel.name}{SUFFIX}")


def farm_code(wheel: Path) -> str:
    """The digest of the farm's code that made a wheel, as the statement beside it says; empty where none does."""
    try:
        data = json.loads(statement_path(wheel).read_bytes())
        return str(data["predicate"]["buildDefinition"]["internalParameters"]["farm_code_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _dependencies(record: Record) -> Iterator[dict[str, Any]]:
    """Everything that went in: source, patches, base image, packages (by name and version: an index gave the file)."""
    source = record.source
    if source["kind"] == "sdist":
        uri = f"pkg:pypi/{source['project']}@{source['version']}"
        yield {"name": "source", "uri": uri, "digest": {"sha256": source["sha256"]}}
    elif source["kind"] == "git":
        yield {"name": "source", "uri": f"git+{source['url']}", "digest": {"gitCommit": source["revision"]}}
    else:  # no file: a tree, under a digest of the farm's own (source_digest)
        yield {"name": "source", "digest": {"buildfarm_source_1": source["digest"]}}
    for patch in source["patches"]:
        yield {"name": patch["name"], "digest": {"sha256": patch["sha256"]}}
    parts = dict(record.toolchain.parts)
    if base := parts.get("base"):
        digest = parts.get("base digest", "").removeprefix("sha256:")
        image = {"name": "base image", "uri": f"docker://{base}"}
        yield {**image, "digest": {"sha256": digest}} if digest else image
    for requirement in parts.get("packages", "").split():
        project, _, version = requirement.partition("==")
        yield {"uri": f"pkg:pypi/{project}@{version}"}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
