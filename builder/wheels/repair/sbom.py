"""The software bill of materials of a wheel: CycloneDX for `.dist-info/sboms/` (PEP 770). Same input, same bytes.

Import it inside functions: the library takes half a second to load, and only a repair needs it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from builder.matrix.config import GitSource, SdistSource
from builder.records import PROGRAMS, Part, Record
from builder.wheelfile.elf import Elf

#: File name inside `.dist-info/sboms`. auditwheel adds its own SBOM of grafted libraries there.
FILE = "buildfarm.cdx.json"

#: 1980-01-01, as everywhere in the wheel. An SBOM must have a date, and the time of the build must not change bytes.
_EPOCH = datetime.fromtimestamp(315532800, UTC)

_REQUIRED, _EXCLUDED = ComponentScope.REQUIRED, ComponentScope.EXCLUDED

#: How the wheel uses a library that is not in the wheel.
_BROUGHT, _OF_SYSTEM = "dynamic, excluded: the environment brings it", "dynamic, of the system"

#: A library of the wheel: its path in it, its bytes, and its ELF headers.
Library = tuple[str, bytes, Elf]
#: Host code calls this function to pass its GPU code to the CUDA runtime (crt/host_runtime.h of any toolkit).
_REGISTERS = "__cudaRegisterFatBinary"


def make_sbom(
    name: str, version: str, filename: str, record: Record, libraries: Sequence[Library], provided: Iterable[str]
) -> bytes:
    """The SBOM of a wheel, CycloneDX 1.6, JSON with a final newline.

    `provided` are the libraries that auditwheel excluded. The SBOM lists those that the wheel needs as parts of the
    environment; the others have nothing to do with the wheel.
    """
    wheel = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="wheel",
        purl=PackageURL("pypi", name=name, version=version, qualifiers={"file_name": filename}),
        pedigree=_pedigree(record),
        properties=_properties(
            {
                "build": str(record.build),
                "gpu-archs": " ".join(map(str, record.build.archs)),
                "stands-in-for": record.toolchain.get(Part.REQUESTED_CUDA),
            }
        ),
    )
    # Each patch is a file component, because a pedigree cannot hold digests.
    patches = [
        _part(
            patch.name,
            ComponentType.FILE,
            f"patch-{number}",
            _EXCLUDED,
            {"role": "patch", "order": str(number)},
            sha256=patch.sha256,
        )
        for number, patch in enumerate(record.source.patches, 1)
    ]
    components = [*patches, *_toolchain(record), *_libraries(libraries, provided)]
    # Without a version: another release may make the same wheel, and then the bytes must be the same.
    farm = Component(name="buildfarm", type=ComponentType.APPLICATION, bom_ref="buildfarm")
    bom = Bom(
        components=components,
        metadata=BomMetaData(component=wheel, tools=ToolRepository(components=[farm]), timestamp=_EPOCH),
    )
    bom.register_dependency(wheel, [c for c in components if c.scope is None or c.scope.value != "excluded"])
    # The serial number is derived from the text with a constant number.
    bom.serial_number = uuid.UUID(int=0)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, text)
    return JsonV1Dot6(bom).output_as_string(indent=1).encode() + b"\n"


def _pedigree(record: Record) -> Pedigree:
    """The source of the wheel and its patches."""
    source = record.source
    name, version, sha256, subdirectory = record.build.wheel_name, record.build.version, "", ""
    references, purl = [], None
    match source.origin:
        case SdistSource(project=name, version=version, sha256=sha256):
            purl = PackageURL("pypi", name=name, version=version)
        case GitSource(url=url, revision=version, subdirectory=subdirectory):
            references = [ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(url))]
    ancestor = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="source",
        purl=purl,
        hashes=_sha256(sha256),
        external_references=references,
        properties=_properties({"source": source.kind, "source-digest": source.digest, "subdirectory": subdirectory}),
    )
    patches = [
        Patch(type=PatchClassification.UNOFFICIAL, diff=Diff(url=XsUri(quote(patch.name)))) for patch in source.patches
    ]
    return Pedigree(ancestors=[ancestor], patches=patches)


def _toolchain(record: Record) -> Iterator[Component]:
    """Compilers, tools, images and packages that made the wheel; none is in it, and it needs torch at run time."""
    toolchain = record.toolchain
    for part, value in toolchain.parts().items():
        if part in PROGRAMS and value:
            program, _, number = value.rpartition(" ")
            properties, ref = {"role": "toolchain"}, f"tool-{part}"
            yield _part(program or part, ComponentType.APPLICATION, ref, _EXCLUDED, properties, version=number)
    images = (
        (Part.BASE, "base image", toolchain.get(Part.BASE_DIGEST), toolchain.get(Part.BASE_ID)),
        (Part.IMAGE, "rendered image", "", ""),
    )
    for part, role, sha256, engine_id in images:
        if name := toolchain.get(part):
            properties = {"role": role, "engine-id": engine_id}
            ref = f"tool-{part}"
            yield _part(name, ComponentType.CONTAINER, ref, _EXCLUDED, properties, sha256=sha256)
    for requirement in toolchain.packages:
        project, _, version = requirement.partition("==")
        purl = PackageURL("pypi", name=project, version=version)
        scope, properties = _REQUIRED if project == "torch" else _EXCLUDED, {"role": "build environment"}
        ref = f"package-{project}"
        yield _part(project, ComponentType.LIBRARY, ref, scope, properties, version=version, purl=purl)


def _libraries(libraries: Sequence[Library], provided: Iterable[str]) -> Iterator[Component]:
    """The wheel's own, grafted and statically linked libraries, and the libraries that it needs."""
    brought = frozenset(provided)
    inside = {path.rpartition("/")[2] for path, _, _ in libraries}
    for path, data, elf in libraries:
        # auditwheel copied those in `.libs` from another project.
        link = {"link": "grafted" if path.split("/", 1)[0].endswith(".libs") else "built"}
        sha256 = hashlib.sha256(data).hexdigest()
        yield _part(path, ComponentType.FILE, f"file-{path}", _REQUIRED, link, sha256=sha256)
        if elf.fatbin and _REGISTERS not in elf.undefined:  # the static CUDA runtime is in it
            link, ref = {"link": "static", "in": path}, f"static-cudart-{path}"
            yield _part("libcudart_static.a", ComponentType.LIBRARY, ref, _REQUIRED, link)
    for name in sorted({name for _, _, elf in libraries for name in elf.needed} - inside):
        link = {"link": _BROUGHT if name in brought else _OF_SYSTEM}
        yield _part(name, ComponentType.LIBRARY, f"library-{name}", _REQUIRED, link)


def _part(
    name: str,
    kind: ComponentType,
    ref: str,
    scope: ComponentScope,
    properties: Mapping[str, str],
    *,
    version: str | None = None,
    purl: PackageURL | None = None,
    sha256: str = "",
) -> Component:
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref=ref,
        purl=purl,
        scope=scope,
        hashes=_sha256(sha256),
        properties=_properties(properties),
    )


def _sha256(digest: str) -> list[HashType]:
    text = digest.removeprefix("sha256:")
    return [HashType(alg=HashAlgorithm.SHA_256, content=text)] if text else []


def _properties(values: Mapping[str, str]) -> list[Property]:
    return [Property(name=f"buildfarm:{name}", value=value) for name, value in values.items() if value]
