"""What is published with a wheel: proofs, statement, SBOM, and the CUDA variants under which it is listed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename

from builder.check import Check
from builder.errors import Code, UsageError
from builder.proof import PROOFS_SUFFIX, Proof, proofs_json, proofs_of, proofs_path
from builder.publish.gpu_models import proven_on
from builder.publish.gradients import gradients_of
from builder.publish.index.entry import FarmFacts
from builder.publish.index.levels import levels
from builder.publish.index.repository import Kept, NewWheel, file_path
from builder.publish.index.wheel_file import check_usable, read_entry, sbom_of
from builder.publish.provenance import SUFFIX as STATEMENT_SUFFIX
from builder.publish.provenance import statement_fault, statement_path
from builder.untrusted import JsonError, read_json, texts
from builder.wheelfile.archive import WheelFile
from builder.wheelfile.compatibility import glibc_of
from builder.wheelfile.facts import Library, facts_of

#: Levels of lists and objects in proofs. The writer of JSON accepts fewer than the reader.
_MOST_LEVELS = 50
#: Lines of METADATA that require torch. Each is read for each torch and Python.
_MOST_LINES = 20
_SBOM_SUFFIX = ".cdx.json"
_LINKED = (PROOFS_SUFFIX, _SBOM_SUFFIX, STATEMENT_SUFFIX)
#: Files with machine code.
_BINARY = re.compile(r"\.(?:so(?:\.[\d.]+)?|pyd|dll|dylib)$")
#: Libraries of CUDA, of the driver, and of torch for CUDA; auditwheel adds a hash to the name of a copy.
_CUDA_LIBRARY = re.compile(
    r"lib(?:cuda|cu(?:dart|blas|dnn|dss|fft|file|pti|rand|solver|sparse|tensor)\w*|nccl|\w+_cuda(?:_\w+)?"
    r"|nv(?:comp|fatbin|idia|infer|JitLink|jpeg|rtc|shmem|ToolsExt)\w*)(?:-[\w.]+)?(?:\.[0-9a-f]{8,})?\.so\b"
)
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
    with WheelFile(wheel) as archive:
        check_usable(archive)
        lines = map(str, archive.metadata.get_all("Requires-Dist", []))
        requires_torch = [line for line in lines if re.match(r"torch\b(?![-_.])", line, re.IGNORECASE)]
        cuda_unknown = not variants and not _is_without_cuda(archive)
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
        cuda_unknown=cuda_unknown,
        platform=_platform(wheel.name, proofs),
        requires_torch=tuple(requires_torch[:_MOST_LINES]),
    )
    return NewWheel(wheel, replace(entry, farm=farm), attached)


def _is_without_cuda(archive: WheelFile) -> bool:
    """Whether a wheel is known to have no CUDA: no GPU code, and it needs no library and no package of CUDA."""
    required = [line.lower() for line in archive.metadata.get_all("Requires-Dist", [])]
    if any(line.startswith(("nvidia-", "nvidia_", "cupy", "cuda-")) for line in required):
        return False
    binaries = {name for name in archive.names if _BINARY.search(name)}
    libraries: Sequence[Library] = ()
    with suppress(UsageError):  # others may have built it
        libraries = facts_of(archive, "", 0).libraries if binaries else ()
    needed = [name for library in libraries for name in library.needed]
    is_known = binaries <= {library.path for library in libraries}
    return is_known and not any(map(_CUDA_LIBRARY.match, needed)) and not any(one.fatbin for one in libraries)


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
        fault = statement_fault(path.read_bytes(), sha256)
    except OSError as error:
        fault = f"the provenance cannot be read: {error}"
    if fault:
        raise UsageError(
            fault,
            Code.PROOFS_NOT_USABLE,
            where=str(path),
            hints=["delete this file to publish the wheel without it, or build the wheel again"],
        )


def _usable(data: list[dict[str, Any]]) -> list[Proof]:
    """Proofs that can also be published: what is read of them has the right type, and they can be written again."""
    level: list[Any] = [data]
    for _ in range(_MOST_LEVELS):
        level = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in level if isinstance(one, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    proofs = proofs_of(data)
    gpu_code(proofs)
    gradients_of(proofs)
    return proofs


def merged(*sources: Iterable[Proof]) -> list[Proof]:
    """The newest proof of each cell and check; "not run" never replaces a verdict."""
    newest: dict[tuple[str, str], Proof] = {}
    for proof in (proof for proofs in sources for proof in proofs):
        key = (str(proof.cell or ""), str(proof.check))
        if key not in newest or _rank(proof) > _rank(newest[key]):
            newest[key] = proof
    return [newest[key] for key in sorted(newest)]


def _rank(proof: Proof) -> tuple[bool, str]:
    return proof.has_run, proof.when
