"""The software bill of materials of a wheel: CycloneDX for `.dist-info/sboms/` (PEP 770). Same input, same bytes.

It lists what is in the wheel and what the wheel needs. What made the wheel is in its record and its provenance.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from builder.matrix.config import GitSource, SdistSource
from builder.records import Record
from builder.wheelfile.elf import Elf

#: As everywhere in the wheel. An SBOM must have a date, and the time of the build must not change bytes.
_EPOCH = "1980-01-01T00:00:00+00:00"
#: How the wheel uses a library that is not in the wheel.
_BROUGHT, _OF_SYSTEM = "dynamic, excluded: the environment brings it", "dynamic, of the system"
#: Host code calls this function to pass its GPU code to the CUDA runtime (crt/host_runtime.h of any toolkit).
_REGISTERS = "__cudaRegisterFatBinary"

#: A library of the wheel: its path in it, its bytes, and its ELF headers.
Library = tuple[str, bytes, Elf]
#: A component, as CycloneDX has it in JSON.
_Component = dict[str, Any]


def make_sbom(
    name: str, version: str, filename: str, record: Record, libraries: Sequence[Library], provided: Iterable[str]
) -> bytes:
    """The SBOM of a wheel, CycloneDX 1.6, JSON with a final newline.

    `provided` are the libraries that auditwheel excluded. The SBOM lists those that the wheel needs as parts of the
    environment; the others have nothing to do with the wheel.
    """
    purl = f"{_purl(name, version)}?file_name={quote(filename, safe='')}"
    wheel = {"type": "library", "bom-ref": "wheel", "name": name, "version": version, "purl": purl}
    contained = [*_torch(record), *_libraries(libraries, frozenset(provided))]
    data = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "metadata": {
            "timestamp": _EPOCH,
            # Without a version: another release may make the same wheel, and then the bytes must be the same.
            "tools": {"components": [{"type": "application", "name": "buildfarm"}]},
            "component": {**wheel, "pedigree": _pedigree(record)},
        },
        "components": contained,
        "dependencies": [{"ref": "wheel", "dependsOn": [one["bom-ref"] for one in contained]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(data))
    return json.dumps({**data, "serialNumber": serial.urn}, indent=1).encode() + b"\n"


def _pedigree(record: Record) -> dict[str, Any]:
    """The source of the wheel and its patches."""
    name, version, more = record.build.wheel_name, record.build.version, dict[str, Any]()
    match record.source.origin:
        case SdistSource(project=name, version=version, sha256=sha256):
            more = {"purl": _purl(name, version), "hashes": [{"alg": "SHA-256", "content": sha256}]}
        case GitSource(url=url, revision=version):
            more = {"externalReferences": [{"type": "vcs", "url": url}]}
    ancestor = {"type": "library", "name": name, "version": version, **more}
    patches = [{"type": "unofficial", "diff": {"url": quote(patch.name)}} for patch in record.source.patches]
    return {"ancestors": [ancestor], "patches": patches}


def _torch(record: Record) -> Iterator[_Component]:
    for requirement in record.toolchain.packages:
        project, _, version = requirement.partition("==")
        if project == "torch":
            more = {"name": project, "version": version, "purl": _purl(project, version)}
            yield {"type": "library", "bom-ref": project, **more}


def _libraries(libraries: Sequence[Library], provided: frozenset[str]) -> Iterator[_Component]:
    """The wheel's own, grafted and statically linked libraries, and the libraries that it needs."""
    inside = {path.rpartition("/")[2] for path, _, _ in libraries}
    for path, data, elf in libraries:
        # auditwheel copied those in `.libs` from another project.
        hashes = [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
        yield _linked("file", path, "grafted" if path.split("/", 1)[0].endswith(".libs") else "built", hashes=hashes)
        if elf.fatbin and _REGISTERS not in elf.undefined:  # the static CUDA runtime is in it
            yield _linked("library", "libcudart_static.a", "static", inside=path)
    for name in sorted({name for _, _, elf in libraries for name in elf.needed} - inside):
        yield _linked("library", name, _BROUGHT if name in provided else _OF_SYSTEM)


def _linked(kind: str, name: str, link: str, *, inside: str = "", **more: object) -> _Component:
    properties = [{"name": f"buildfarm:{key}", "value": text} for key, text in (("link", link), ("in", inside)) if text]
    return {"type": kind, "bom-ref": f"{name} {inside}".strip(), "name": name, **more, "properties": properties}


def _purl(project: str, version: str) -> str:
    return f"pkg:pypi/{project.lower().replace('_', '-')}@{quote(version, safe='')}"
