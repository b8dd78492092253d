"""The results of `build` and `smoke`, their report.json, and `dist/`: wheels without a failed check, and provenance."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import BuildError, BuildfarmError, Exit
from builder.formats import sha256_of
from builder.gate.amounts import size_text
from builder.gate.outcome import FAILED, MISTAKE_IN_CASES, NOT_RUN, PASSED, Answer, Outcome
from builder.gate.report import Causes, PlacedOutcome, causes_of
from builder.log import print_line, print_warning
from builder.matrix.axes import AbiClass, Cell
from builder.matrix.local_version import current_form
from builder.matrix.plan import Build, Plan
from builder.proof import Check, Proof, Verdict, proofs_json, proofs_path
from builder.publish.proof_lines import failed_lines, findings, gradients_of, hints_of, recorded
from builder.publish.provenance import make_statement, statement_path
from builder.store import Store, StoredBuild, project_key, remove_temporary_files, write_if_changed


@dataclass(frozen=True)
class BuildResult:
    """The result of one build of the plan."""

    build: Build
    #: stored, error: the finished wheel in the store, or None; why the build or its proofs failed, or None.
    stored: StoredBuild | None
    error: BuildfarmError | None
    #: Whether the store already had the wheel.
    reused: bool
    #: Wall time of this run for the build and its proofs.
    seconds: float
    #: Verdicts about the file and about each cell that the build serves.
    proofs: tuple[Proof, ...] = ()
    #: The file with the output of the build and of its proofs, or None.
    log: Path | None = None

    @property
    def refused(self) -> bool:
        """Whether a check of the wheel failed; such a wheel is not published."""
        return any(proof.verdict is Verdict.FAILED for proof in self.proofs)

    @property
    def mistake_in_cases(self) -> bool:
        """Whether a check failed, and each failed because of a mistake in cases.py: no check found the wheel at fault.

        The name of an op that exists in one of the cells is no mistake.
        """
        failed = [proof for proof in self.proofs if proof.verdict is Verdict.FAILED]
        found = {one["op"] for one in recorded(self.proofs) if one["verdict"] == PASSED}
        found |= {op.partition(".")[0] for op in found if "::" in op}
        return bool(failed) and all(_is_mistake(proof, found) for proof in failed)

    @property
    def exit(self) -> Exit:
        """The exit code that this build asks for; the run exits with the highest."""
        if self.error is not None:
            return self.error.exit_code
        return Exit.FAILED if self.refused else Exit.OK

    @property
    def problem(self) -> BuildfarmError | None:
        """The error that stopped the build, or why its wheel was refused; None for a wheel without a failed check."""
        if self.error or not self.refused:
            return self.error
        where = []
        if self.stored:
            where.append(f"the refused wheel is {self.stored.wheel}")
        if self.mistake_in_cases:
            where = ["correct cases.py and run the same command again; no wheel is compiled again"]
        if self.log:
            where.append(f"the full output is in {self.log}")
        return BuildError(
            "; ".join(failed_lines(self.proofs)),
            stage="verify",
            log=self.log,
            where=str(self.build),
            hints=[*hints_of(self.proofs), *where],
        )


def _is_mistake(proof: Proof, found: Set[str]) -> bool:
    """Whether each failure of this check is a mistake in cases.py; `found` are the ops of any cell."""
    failed = [one for one in recorded([proof]) if one["verdict"] == FAILED]
    mistakes = [one for one in failed if MISTAKE_IN_CASES.items() <= one.get("evidence", {}).items()]
    lost = [one for one in mistakes if one["evidence"].get("unknown") and one["op"] in found]
    return bool(failed) and len(mistakes) == len(failed) and not lost


@dataclass(frozen=True)
class SmokeResult:
    """The result of one wheel in one cell."""

    #: The wheel's file name, or NAME VERSION of an installed distribution.
    subject: str
    cell: Cell
    #: Verdicts of the checks of the wheel file, the same in each cell, and of those in the cell.
    proofs: tuple[Proof, ...]
    #: Every outcome of the op gate; None where it did not run.
    answer: Answer | None


def causes_of_builds(results: Iterable[BuildResult]) -> Causes:
    """Why checks of the wheels of a run failed or did not run, and what is remarked on."""
    found: list[PlacedOutcome] = []
    for result in results:
        found += findings(result.proofs, str(result.build))
        if text := _beyond_plan(result):
            remark = Outcome(str(Check.DEVICE_CODE), "", "", NOT_RUN, text, remark=True)
            found.append(PlacedOutcome(remark, "", str(result.build)))
    return causes_of(found)


def _beyond_plan(result: BuildResult) -> str:
    """The GPU code, what it costs in size, and the cure; empty for a wheel with the plan's code only."""
    proof = next((proof for proof in result.proofs if proof.check is Check.DEVICE_CODE), None)
    sizes: Mapping[str, int] = proof.evidence.get("beyond", {}) if proof else {}
    if not sizes:
        return ""
    return (
        f"the wheel also has {', '.join(sizes)}; the plan asks for {', '.join(map(str, result.build.archs))}."
        f" This extra code costs {size_text(sum(sizes.values()))}. `override_architectures: true` in the recipe leaves"
        " it out, if it is not in a library that the extension links statically"
    )


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
    problem = result.problem
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


def publish_wheels(dist: Path, plan: Plan, results: Sequence[BuildResult], store: Store) -> str:
    """Copy every wheel without a failed check to `dist`, with its provenance, and write report.json; return its text.

    Tells what changes there, and warns of each wheel that is removed. Other farms of the store wait.

    `dist` keeps the last good wheel of each build, also when a new build fails or is refused, or when only cases.py is
    wrong. A wheel is removed when a check fails for this very file, and when a wheel of the same version with another
    platform tag, or without the point in the torch of its version, replaces it: pip would still install the old one.
    """
    dist.mkdir(parents=True, exist_ok=True)
    with store.lock(f"dist-{project_key(dist)}"):
        remove_temporary_files(dist)
        good = [_publish(dist, one.stored, one.proofs) for one in results if one.stored and not one.exit]
        for result in results:
            if result.exit:
                _keep_or_delete(dist, result, good)
        report = report_json(plan, results)
        write_if_changed(dist / "report.json", report.encode())
    return report


def _publish(dist: Path, stored: StoredBuild, proofs: Sequence[Proof]) -> Path:
    """Copy one wheel to `dist`; remove wheels of the same version and Python with another platform tag or spelling."""
    target = dist / stored.wheel.name
    for other in dist.glob("*.whl"):
        if other.name != target.name and _without_platform(other) == _without_platform(target):
            _remove(other, f"{target.name} replaces it")
    data = stored.wheel.read_bytes()
    if not target.exists():
        print_line(f"{dist}: added {target.name}")
    elif target.read_bytes() != data:
        print_line(f"{dist}: replaced {target.name}")
    write_if_changed(target, data)
    statement = make_statement(stored, proofs).encode()
    for wheel in (stored.wheel, target):
        write_if_changed(statement_path(wheel), statement)
    write_if_changed(proofs_path(target), proofs_json(proofs))
    return target


def _without_platform(wheel: Path) -> str:
    return current_form(wheel.name.rpartition("-")[0])


def _keep_or_delete(dist: Path, result: BuildResult, good: Collection[Path]) -> None:
    """Remove the wheel of `dist` if this run refused it; tell of an earlier wheel that stays. `good` were published."""
    why = "a check of the new wheel failed" if result.refused else "the new build failed"
    tested = sha256_of(result.stored.wheel) if result.stored and result.refused else ""
    for wheel in sorted(dist.glob("*.whl")):
        if wheel in good or not is_of(wheel, result.build):
            continue
        if tested != sha256_of(wheel):
            print_line(f"{dist}: kept {wheel.name} of an earlier run: {why}")
        elif result.mistake_in_cases:
            print_line(f"{dist}: kept {wheel.name}: only cases.py is wrong")
        else:
            why = "a check of this wheel failed; the next `build` in which no check fails adds it again"
            _remove(wheel, f"{why}, without a compile")


def is_of(wheel: Path, build: Build) -> bool:
    """Whether a wheel of `dist` comes from this build, by its name, version and Python."""
    try:
        name, version, _, tags = parse_wheel_filename(wheel.name)
    except ValueError:
        return False
    written = current_form(f"+{version.local}")
    local = f".{written[1:]}".endswith(f".{build.local_version}")  # the source may have a local version of its own
    same = name == canonicalize_name(build.wheel_name) and version.public == Version(build.version).public and local
    python = build.pythons[0]
    if build.abi is AbiClass.CPYTHON:
        return same and any(tag.interpreter == python.tag for tag in tags)
    return same and any(tag.abi == "abi3t" for tag in tags) is python.free_threaded


def _remove(wheel: Path, why: str) -> None:
    """Delete a wheel, its proofs and its provenance, and say why, also with --quiet."""
    wheel.unlink()
    proofs_path(wheel).unlink(missing_ok=True)
    statement_path(wheel).unlink(missing_ok=True)
    print_warning(f"{wheel.parent}: removed {wheel.name}: {why}")
