"""What is published of a wheel: entry, proofs, statement and SBOM; and whether installers can use the file at all."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import Code, UsageError
from builder.formats import sha256_of
from builder.proof import PROOFS_SUFFIX, Check, Proof, proofs_json, proofs_of, proofs_path
from builder.publish.index.levels import levels
from builder.publish.index.pages import Entry, FarmFacts
from builder.publish.index.repository import Kept, NewWheel, file_path
from builder.publish.proof_lines import gradients_of, proven_on
from builder.publish.provenance import SUFFIX as STATEMENT_SUFFIX
from builder.publish.provenance import statement_path
from builder.untrusted import JsonError, control_character, parse_json, read_json, texts
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import any_linux, check_wheel_name, glibc_of
from builder.wheelfile.limits import MAX_REQUIREMENT

#: Lines of METADATA that require torch. Each is read for each torch and Python.
_MOST_LINES = 20
_SBOM_SUFFIX = ".cdx.json"
_LINKED = (PROOFS_SUFFIX, _SBOM_SUFFIX, STATEMENT_SUFFIX)
#: Bytes of the SBOM of a wheel. Reading JSON needs about twenty times as much memory.
MAX_SBOM = 12 * 2**20
_LONGEST_REQUIRES_PYTHON = 500
#: The files beside a wheel have longer names, and a file system allows 255 bytes.
_LONGEST_NAME = 200
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.whl")
#: What an index has of a wheel that is not published.
_NEW = Kept()


def new_wheel(wheel: Path, proofs: Sequence[Proof], *, origin: str = "", kept: Kept = _NEW) -> NewWheel:
    """Collect what is published with a wheel: its METADATA, proofs, SBOM, and the statement beside it if there is one.

    With `origin`, others built the wheel, and a statement beside it is not used. Without a statement and an origin,
    those of `kept` stay: the index has them already. The proofs of `kept` must be among `proofs`.

    Raises UsageError for a wheel that cannot be read, and for one that no installer can use.
    """
    entry, metadata = read_entry(wheel)
    attached = {".metadata": metadata}
    if proofs:
        attached[PROOFS_SUFFIX] = proofs_json(proofs)
    # The variants in which it was tested; without a test the one that its local version names, as in `1.0+pt22cu121`.
    tested = {proof.cell.cuda.variant for proof in proofs if proof.cell}
    variants = tuple(sorted(tested)) or tuple(filter(None, [entry.local.cuda]))
    is_for_platform = any(tag.platform != "any" for tag in parse_wheel_filename(wheel.name)[3])
    with WheelFile(wheel) as archive:
        check_usable(archive)
        lines = map(str, archive.metadata.get_all("Requires-Dist", []))
        requires_torch = [line for line in lines if re.match(r"torch\b(?![-_.])", line, re.IGNORECASE)]
        if sbom := sbom_of(archive):
            attached[_SBOM_SUFFIX] = sbom
    if not origin:
        path = statement_path(wheel)
        statement = path.read_bytes() if path.is_file() else kept.statement
        if statement:
            attached[STATEMENT_SUFFIX] = statement
        else:
            origin = kept.origin
    place = file_path(entry.sha256, entry.filename)
    places = {suffix: place + suffix if suffix in attached else "" for suffix in _LINKED}
    farm = FarmFacts(
        cuda=variants,
        cells=levels(proofs),
        proofs=places[PROOFS_SUFFIX],
        statement=places[STATEMENT_SUFFIX],
        sbom=places[_SBOM_SUFFIX],
        archs=gpu_code(proofs),
        built_here=STATEMENT_SUFFIX in attached,
        origin=origin,
        gpus=proven_on(proofs),
        gradients=gradients_of(proofs),
        cuda_unknown=not variants and not entry.local.without_cuda and is_for_platform,
        platform=_platform(wheel.name, proofs),
        requires_torch=tuple(requires_torch[:_MOST_LINES]),
    )
    return NewWheel(wheel, replace(entry, farm=farm), attached)


def gpu_code(proofs: Iterable[Proof]) -> tuple[str, ...]:
    """The GPU code that every library with GPU code contains, from the check `device-code`; empty without it.

    Raises KeyError, TypeError or AttributeError for evidence that no check has written.
    """
    libraries = next((proof.evidence.get("libraries") for proof in proofs if proof.check is Check.DEVICE_CODE), None)
    codes = [{*texts(library["sass"]), *texts(library["ptx"])} for library in (libraries or {}).values()]
    return tuple(sorted(set.intersection(*codes))) if codes else ()


def _platform(filename: str, proofs: Iterable[Proof]) -> str:
    """The manylinux platform that the check `tags` found, for a wheel without a tag that promises a glibc; or ""."""
    if any(glibc_of(tag.platform) for tag in parse_wheel_filename(filename)[3]):
        return ""
    found = next((str(proof.evidence.get("platform", "")) for proof in proofs if proof.check is Check.TAGS), "")
    return found if glibc_of(found) else ""


def proofs_beside(wheel: Path, sha256: str) -> list[Proof]:
    """The proofs in the file beside a wheel; none without the file.

    Raises UsageError for an unreadable file, and for proofs of a different wheel file.
    """
    path = proofs_path(wheel)
    if not path.is_file():
        return []
    try:
        proofs = read_json(path, _usable)
    except (OSError, JsonError) as error:
        raise UsageError(f"the proofs cannot be read: {error}", Code.PROOFS_NOT_USABLE, where=str(path)) from None
    if any(proof.wheel != sha256 for proof in proofs):
        raise UsageError(
            f"these are proofs of a different file than {wheel.name}", Code.PROOFS_NOT_USABLE, where=str(path)
        )
    return proofs


def check_statement(wheel: Path, sha256: str) -> None:
    """Raise UsageError if the statement beside a wheel cannot be read, or is about a different file."""
    path = statement_path(wheel)
    if not path.is_file():
        return
    try:
        named = read_json(path, lambda plain: [one["digest"]["sha256"] for one in plain["subject"]])
        fault = "" if named == [sha256] else "the provenance is of a different file"
    except (OSError, JsonError) as error:
        fault = f"the provenance cannot be read: {error}"
    if fault:
        hint = "delete this file to publish the wheel without it, or build the wheel again"
        raise UsageError(fault, Code.PROOFS_NOT_USABLE, where=str(path), hints=[hint])


def _usable(data: list[dict[str, Any]]) -> list[Proof]:
    """Proofs that can also be published: what is read of them has the right type."""
    proofs = proofs_of(data)
    gpu_code(proofs)
    gradients_of(proofs)
    return proofs


def merged(*sources: Iterable[Proof]) -> list[Proof]:
    """The newest proof of each cell and check; "not run" never replaces a verdict."""
    newest: dict[tuple[str, str], Proof] = {}
    found = (proof for proofs in sources for proof in proofs)
    for proof in sorted(found, key=lambda one: (one.has_run, one.when), reverse=True):
        newest.setdefault((str(proof.cell or ""), str(proof.check)), proof)
    return [newest[key] for key in sorted(newest)]


def check_file_name(name: str) -> None:
    """Raise UsageError for a file name that is no wheel's, or that leads out of a folder."""
    if not _FILE_NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            "only wheels can be published, with a file name of up to 200 characters", Code.WHEEL_MISLABELLED
        )
    check_wheel_name(name)


def read_entry(wheel: Path) -> tuple[Entry, bytes]:
    """The entry of a wheel, whose path is its file name, and the bytes of its METADATA.

    The upload time is now. Raises UsageError for a file that cannot be read, for a file name that
    differs from the METADATA, and for a name or a Requires-Python that is not valid.
    """
    from builder.proofs.static.metadata import RELABEL  # noqa: PLC0415 - takes long

    check_wheel_name(wheel.name, str(wheel))
    with WheelFile(wheel) as archive:
        metadata, headers = archive.read_dist_info("METADATA"), archive.metadata
    # Bytes of a header that are no UTF-8 become U+FFFD.
    name, version, requires_python = (str(headers[key] or "") for key in ("Name", "Version", "Requires-Python"))
    try:
        named = (canonicalize_name(name, validate=True), Version(version))
    except ValueError as error:
        raise _damaged(wheel, f"this wheel cannot be read: {error}") from None
    if named != parse_wheel_filename(wheel.name)[:2]:
        sentence = f"METADATA says {named[0]} {named[1]}, but the file name differs"
        raise UsageError(sentence, Code.WHEEL_MISLABELLED, where=str(wheel), hints=[RELABEL])
    try:  # installers read it on the page of the project, with that of every other wheel
        if len(requires_python) > _LONGEST_REQUIRES_PYTHON:
            raise InvalidSpecifier
        SpecifierSet(requires_python)
    except InvalidSpecifier:
        raise _damaged(wheel, f"Requires-Python of METADATA is not valid: {requires_python[:80]!r}") from None
    entry = Entry(
        filename=wheel.name,
        path=wheel.name,
        sha256=sha256_of(wheel),
        size=wheel.stat().st_size,
        uploaded=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        requires_python=requires_python,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
    return entry, metadata


def check_usable(wheel: WheelFile) -> None:
    """Raise UsageError for a wheel that installers refuse, or that contradicts itself, and for a hostile one.

    The rest of a wheel is not read: installers unpack it as it is.
    """
    wheel.read_dist_info("RECORD")  # raises
    if odd := next((name for name in wheel.names if control_character(name)), None):
        raise _damaged(wheel.path, f"the name of a file in the wheel has control characters: {odd[:100]!r}")
    try:
        wheel.read_dist_info("METADATA").decode()
    except UnicodeDecodeError as error:
        sentence = f"METADATA is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        raise _damaged(wheel.path, sentence) from None
    for line in map(str, wheel.metadata.get_all("Requires-Dist", [])):
        if len(line) > MAX_REQUIREMENT:
            raise _damaged(wheel.path, f"Requires-Dist of METADATA is too long: {line[:80]!r}")
    named = parse_wheel_filename(wheel.path.name)[3]
    written = frozenset(tag for line in wheel.tags for tag in parse_tag(line))
    if written and {*map(any_linux, named)}.isdisjoint(map(any_linux, written)):
        sentence = f"WHEEL says {min(map(str, written))}, but the file name says {min(map(str, named))}"
        raise _damaged(wheel.path, sentence)


def sbom_of(wheel: WheelFile) -> bytes:
    """The SBOM inside a wheel (PEP 770), or nothing; raises UsageError for one that is no JSON object."""
    folder = f"{wheel.dist_info}/sboms/"
    name = min((name for name in wheel.names if name.startswith(folder) and name.endswith(".json")), default="")
    if not name:
        return b""
    data = wheel.read(name)
    try:
        parse_json(data, lambda plain: {**plain}, limit=MAX_SBOM)
    except JsonError as error:
        raise _damaged(wheel.path, f"the SBOM {name} cannot be read: {error}") from None
    return data


def _damaged(wheel: Path, sentence: str) -> UsageError:
    return UsageError(sentence, Code.WHEEL_DAMAGED, where=str(wheel))
