"""The folder `dist/`: wheels without a failed check, their provenance, and report.json."""

from collections.abc import Collection, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.hashing import sha256_of
from builder.log import print_line, print_warning
from builder.matrix.axes import AbiClass
from builder.matrix.local_version import current_form
from builder.matrix.plan import Build, Plan
from builder.proof import Proof, proofs_json, proofs_path
from builder.publish.provenance import make_statement, statement_path
from builder.publish.results import BuildResult, report_json
from builder.store import Store, StoredBuild, project_key, remove_temporary_files, write_if_changed


def publish_wheels(dist: Path, plan: Plan, results: Sequence[BuildResult], store: Store) -> None:
    """Copy every wheel without a failed check to `dist`, with its provenance, and write report.json.

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
        write_if_changed(dist / "report.json", report_json(plan, results).encode())


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
