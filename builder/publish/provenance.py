"""The provenance of a wheel: an unsigned in-toto Statement v1 with a SLSA v1 provenance predicate.

(in-toto attestation spec/v1/statement.md, SLSA spec v1.0 provenance.)
"""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from builder import __version__
from builder.formats import sha256_of
from builder.matrix.config import GitSource, SdistSource
from builder.proof import Proof, Verdict
from builder.records import Part, Record
from builder.store import StoredBuild

#: The statement of `x.whl` is `x.whl.intoto.json`; tools take `.jsonl` for a bundle of signed statements.
SUFFIX = ".intoto.json"


def make_statement(stored: StoredBuild, proofs: Sequence[Proof] = ()) -> str:
    """The statement of a stored wheel, JSON with a final newline; the same for the same build and accepted findings."""
    build_record, record = stored.record, stored.record.record
    record_data = record.to_json()
    toolchain = {str(part): text for part, text in record.toolchain.parts().items() if part is not Part.PACKAGES}
    wheel = {"name": stored.wheel.name, "digest": {"sha256": sha256_of(stored.wheel)}}
    requested = ("build", "extension", "version", "abi", "torch", "cuda", "platform", "archs", "stand_in", "recipe")
    # What the checks found and the recipe accepts, as an extension field too.
    accepted = [
        {
            "check": str(proof.check),
            "cell": str(proof.cell) if proof.cell else None,
            "finding": proof.reason,
            "reason": proof.accepted,
        }
        for proof in proofs
        if proof.verdict is Verdict.ACCEPTED
    ]
    data = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [wheel],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                # Defines the parameters below: they are keys of `Record` and of the store's `BuildRecord`.
                "buildType": "urn:buildfarm:wheel:1",
                "externalParameters": {name: record_data[name] for name in requested},
                "internalParameters": {
                    "toolchain": toolchain,
                    "python": str(record.toolchain.python),
                    "jobs": build_record.jobs,
                    "excluded_libraries": sorted(build_record.provided),
                    "build_format": build_record.format,
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
                    "startedOn": _time(build_record.started),
                    "finishedOn": _time(build_record.started + timedelta(seconds=build_record.seconds)),
                },
                # Extension field, as SLSA lets a builder add under its own name.
                "buildfarm_signature": "none: this statement is unsigned",
                **({"buildfarm_accepted": accepted} if accepted else {}),
            },
        },
    }
    return json.dumps(data, indent=1) + "\n"


def statement_path(wheel: Path) -> Path:
    """The path of a wheel's statement."""
    return wheel.with_name(f"{wheel.name}{SUFFIX}")


def _dependencies(record: Record) -> Iterator[dict[str, Any]]:
    """The inputs of the build: source, patches, base image, and packages by name and version."""
    match record.source.origin:
        case SdistSource(project=project, version=version, sha256=sha256):
            yield {"name": "source", "uri": f"pkg:pypi/{project}@{version}", "digest": {"sha256": sha256}}
        case GitSource(url=url, revision=revision):
            yield {"name": "source", "uri": f"git+{url}", "digest": {"gitCommit": revision}}
        case None:  # a tree and no file: named by buildfarm's own digest (`source_digest`)
            yield {"name": "source", "digest": {"buildfarm_source_1": record.source.digest}}
    for patch in record.source.patches:
        yield {"name": patch.name, "digest": {"sha256": patch.sha256}}
    toolchain = record.toolchain
    if base := toolchain.get(Part.BASE):
        image = {"name": "base image", "uri": f"docker://{base}"}
        digest = toolchain.get(Part.BASE_DIGEST).removeprefix("sha256:")
        yield {**image, "digest": {"sha256": digest}} if digest else image
    for requirement in toolchain.packages:
        project, _, version = requirement.partition("==")
        yield {"uri": f"pkg:pypi/{project}@{version}"}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
