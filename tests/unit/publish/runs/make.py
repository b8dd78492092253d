"""A run with a good, a refused and a failed build; every text of it is hostile."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.progress.display import StageTime, Timeline
from builder.publish.runs.history import Run

CELL, OTHER = "torch2.11.0-cu130-cp311", "torch2.11.0-cu130-cp312"
#: What a log or a wheel may contain to break out of the page, of Markdown or of a terminal.
HOSTILE = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \x1b]0;title\x07 \x00\x08"
    " \u202eback ``` | `` [link](https://evil.example/) ![p](https://evil.example/p.png) **bold** @everyone {{ 7 * 7 }}"
)
GOOD, REFUSED, FAILED = (f"{name}-1.0-cpython-torch2.11.0-cu130-cp311" for name in ("good", "refused", "failed"))


def proof(check: str, verdict: str, cell: str | None = CELL, reason: str = "", **evidence: Any) -> dict[str, Any]:
    return {
        "wheel": "ab" * 32, "cell": cell, "check": check, "verdict": verdict, "reason": reason, "evidence": evidence,
        "when": "2026-11-22T09:00:00+00:00", "basis": "",
    }  # fmt: skip


def entry(
    build: str, status: str, *proofs: dict[str, Any], cell: str = CELL, error: str | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "build": build, "extension": build.partition("-")[0], "version": "1.0", "serves": [cell], "archs": ["9.0"],
        "status": status, "error": error, "code": error and "compile-failed",
        "hints": [f"look at {HOSTILE}"] if error else [],
    }  # fmt: skip
    if proofs:
        objects = {"reused": 1, "compiled": 1}
        made |= {"wheel": f"{build}.whl", "size": 4096, "record": {"objects": objects}, "proofs": list(proofs)}
    return made


def log(folder: Path) -> Path:
    """The log of the failed build, of 141 lines; line 130 is long."""
    path = folder / "failed.log"
    lines = [f"line {number} {HOSTILE}" for number in range(1, 141)]
    lines[129] = "x" * 100_000
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe end\n")
    return path


def run(folder: Path, **changes: Any) -> Run:
    """The run; its log is in `folder`."""
    outcomes = [
        {"op": "ns::op", "case": "plain", "verdict": "failed", "reason": HOSTILE, "evidence": {"stack": HOSTILE}},
        {"op": "ns::op", "case": "empty", "verdict": "passed", "reason": ""},
    ]
    passed = (
        proof("tags", "passed", None),
        proof("linkage", "passed"),
        proof("gpu-values", "not run", reason="no GPU"),
    )
    tested = tuple(proof(check, "passed") for check in ("import", "ops", "loaded", "values"))
    bad = (proof("tags", "passed", None), proof("values", "failed", reason=HOSTILE, outcomes=outcomes, shape=[1, 2]))
    values: dict[str, Any] = {
        "id": "20261122-090000-abcd",
        "started": datetime(2026, 11, 22, 9, tzinfo=UTC),
        "seconds": 125.0,
        "command": f"buildfarm build {HOSTILE}",
        "folder": f"/project/{HOSTILE}",
        "report": {
            "builds": [
                entry(GOOD, "built", *passed, *tested),
                entry(REFUSED, "failed", *bad, error=f"{REFUSED}: values: {HOSTILE}"),
                entry(FAILED, "failed", cell=OTHER, error=f"{HOSTILE}.cu(3): error: no (2 errors in all)"),
            ],
            "skips": [{"reason": f"never built {HOSTILE}"}] * 2,
        },
        "logs": {FAILED: str(log(folder))},
        "timeline": timeline(),
    }
    return Run(**values | changes)


def timeline() -> Timeline:
    stages = (
        StageTime(GOOD, "resolve", 0.0, 2.0),
        StageTime(GOOD, "compile", 2.0, 70.0),
        StageTime(GOOD, f"prove in {CELL}", 70.0, 90.0),
        StageTime(FAILED, HOSTILE, 1.0, 120.0),
        StageTime(f"new {HOSTILE}", "compile", 1.0, 1.1),
    )
    return Timeline(stages)
