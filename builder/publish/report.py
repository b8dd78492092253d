"""report.json, and what `build --json` prints: the builds with their proofs, and the skipped cells."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from builder.matrix.plan import Plan
from builder.proof import Proof
from builder.publish.op_evidence import gradients_of
from builder.publish.proof_lines import failed_lines, problem_of
from builder.publish.provenance import statement_path
from builder.result import BuildResult, SmokeResult


def report_json(plan: Plan, results: Sequence[BuildResult]) -> str:
    """Everything about the builds and the skipped cells, without times of this run: equal state gives equal bytes."""
    data: dict[str, Any] = {
        "builds": [_entry(result) for result in results],
        "skips": [skip.to_json() for skip in plan.skips],
    }
    return json.dumps(data, indent=1) + "\n"


def smoke_report_json(results: Sequence[SmokeResult], known: Mapping[str, Sequence[Proof]]) -> str:
    """The results of `smoke` with the keys of report.json: an entry for each wheel, named by its file.

    `known` has the proofs of each wheel from this run and from earlier ones, such as those about the file.
    """
    entries = []
    for subject in dict.fromkeys(result.subject for result in results):
        about = [result for result in results if result.subject == subject]
        cells = {None, *(result.cell for result in about)}
        proofs = [proof for proof in known[subject] if proof.cell in cells]
        failed = failed_lines(proofs)
        entries.append(
            {
                "build": subject,
                "extension": subject.split("-")[0],
                "version": "-".join(subject.split("-")[1:2]),
                "serves": [str(result.cell) for result in about],
                "archs": [],
                "status": "failed" if failed else "tested",
                "error": "; ".join(failed) or None,
                "hints": [],
                "proofs": [proof.to_json() for proof in proofs],
                "gradients": gradients_of(proofs),
            }
        )
    return json.dumps({"builds": entries, "skips": []}, indent=1) + "\n"


def _entry(result: BuildResult) -> dict[str, Any]:
    problem = problem_of(result)
    entry: dict[str, Any] = {
        "build": str(result.build),
        "extension": result.build.extension,
        "version": result.build.version,
        "serves": [str(cell) for cell in result.build.serves],
        "archs": [str(arch) for arch in result.build.archs],
        "status": "failed" if result.exit else "built",
        "error": str(problem) if problem else None,
        "code": problem.code if problem else None,
        "hints": list(problem.hints) if problem else [],
    }
    if result.stored:
        statement = statement_path(result.stored.wheel)  # the provenance; buildfarm does not sign it
        entry |= {
            "wheel": result.stored.wheel.name,
            "size": result.stored.wheel.stat().st_size,
            "digest": result.stored.digest,
            "record": result.stored.record.to_json() | {"wheel": result.stored.wheel.name},
            "provenance": {"statement": statement.name, "signed": False} if statement.is_file() else None,
            "proofs": [proof.to_json() for proof in result.proofs],
            "gradients": gradients_of(result.proofs),
        }
    return entry
