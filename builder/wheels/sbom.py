"""What a wheel is made of, as CycloneDX for `.dist-info/sboms/` (PEP 770). The same facts give the same bytes.

To be imported where it is used: the library takes half a second to load, which only a repair has a use for.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

from builder.wheels.elf import Elf
from builder.wheels.record import Record

#: Its name inside `.dist-info/sboms`; auditwheel's own, of what it grafted, stands beside it.
FILE = "buildfarm.cdx.json"

#: 1980-01-01, the date of everything else in the wheel: an SBOM must have one, and no clock may reach a wheel.
_EPOCH = datetime.fromtimestamp(315532800, UTC)

#: Parts of a toolchain that are no program with a version.
_NO_TOOLS = frozenset({"packages", "stands in for", "image", "base", "base digest", "base id", "scripts", "cc"})

#: How a library is linked that is not in the wheel.
_BROUGHT, _OF_SYSTEM = "dynamic, excluded: the environment brings it", "dynamic, of the system"

#: What host code calls to hand its GPU code to the CUDA runtime (crt/host_runtime.h of any toolkit).
_REGISTERS = "__cudaRegisterFatBinary"


@dataclass(frozen=True)
class Linked:
    """One library of the wheel and what its link is made of.

    Attributes:
        path: where it lies in the wheel.
        sha256: of its bytes, hex.
        needed: libraries it asks the loader for.
        grafted: auditwheel copied it in from another project.
        static_cudart: it holds a CUDA runtime of its own: it has GPU code, and what registers that with the
            runtime is not left for another library to define.

    """

    path: str
    sha256: str
    needed: tuple[str, ...]
    grafted: bool
    static_cudart: bool

    @classmethod
    def of(cls, path: str, data: bytes, elf: Elf) -> Linked:
        """From a member of a wheel and what its ELF headers say."""
        return cls(
            path,
            hashlib.sha256(data).hexdigest(),
            elf.needed,
            grafted=path.split("/", 1)[0].endswith(".libs"),
            static_cudart=elf.fatbin and _REGISTERS not in elf.undefined,
        )


def make_sbom(
    name: str, version: str, filename: str, record: Record, libraries: Sequence[Linked], provided: Iterable[str]
) -> bytes:
    """The SBOM of a wheel, CycloneDX 1.6, JSON with a final newline.

    `provided` are the libraries that auditwheel was told to leave out. Those of them that the wheel asks for are
    listed as being of the environment, the others are no part of the wheel and stay away.
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
                "stands-in-for": record.toolchain.part("stands in for"),
            }
        ),
    )
    components = [*_patches(record), *_toolchain(record), *_packages(record), *_libraries(libraries, provided)]
    # Without its version: another release may make the same bytes, and a wheel must not depend on it.
    farm = Component(name="buildfarm", type=ComponentType.APPLICATION, bom_ref="buildfarm")
    bom = Bom(
        components=components,
        metadata=BomMetaData(component=wheel, tools=ToolRepository(components=[farm]), timestamp=_EPOCH),
    )
    bom.register_dependency(wheel, [c for c in components if c.scope is None or c.scope.value != "excluded"])
    # First with a number that is the same for all, to have a text to take the number from.
    bom.serial_number = uuid.UUID(int=0)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, text)
    return JsonV1Dot6(bom).output_as_string(indent=1).encode() + b"\n"


def _pedigree(record: Record) -> Pedigree:
    """The source the wheel is made from, and that patches changed it."""
    source = record.source
    version, references, purl = record.build.version, [], None
    if source["kind"] == "sdist":
        purl = PackageURL("pypi", name=source["project"], version=source["version"])
    elif source["kind"] == "git":
        version = source["revision"]
        references = [ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(source["url"]))]
    ancestor = Component(
        name=source.get("project", record.build.extension),
        version=source.get("version", version),
        type=ComponentType.LIBRARY,
        bom_ref="source",
        purl=purl,
        hashes=_sha256(source.get("sha256", "")),
        external_references=references,
        properties=_properties(
            {
                "source": source["kind"],
                "source-digest": source["digest"],
                "subdirectory": source.get("subdirectory", ""),
            }
        ),
    )
    patches = [
        Patch(type=PatchClassification.UNOFFICIAL, diff=Diff(url=XsUri(quote(patch["name"]))))
        for patch in source["patches"]
    ]
    return Pedigree(ancestors=[ancestor], patches=patches)


def _patches(record: Record) -> Iterator[Component]:
    """A pedigree has no room for digests, so each patch is a file beside."""
    for number, patch in enumerate(record.source["patches"], 1):
        yield Component(
            name=patch["name"],
            type=ComponentType.FILE,
            bom_ref=f"patch-{number}",
            scope=ComponentScope.EXCLUDED,
            hashes=_sha256(patch["sha256"]),
            properties=_properties({"role": "patch", "order": str(number)}),
        )


def _toolchain(record: Record) -> Iterator[Component]:
    """Compilers, tools and the image: they made the wheel and are not in it."""
    parts = dict(record.toolchain.parts)
    for part, value in parts.items():
        if part in _NO_TOOLS or not value:
            continue
        program, _, number = value.rpartition(" ")
        yield Component(
            name=program or part,
            version=number,
            type=ComponentType.APPLICATION,
            bom_ref=f"tool-{part}",
            scope=ComponentScope.EXCLUDED,
            properties=_properties({"role": "toolchain"}),
        )
    for part, role, digest in (("base", "base image", parts.get("base digest", "")), ("image", "rendered image", "")):
        if name := parts.get(part):
            yield Component(
                name=name,
                type=ComponentType.CONTAINER,
                bom_ref=f"tool-{part}",
                scope=ComponentScope.EXCLUDED,
                hashes=_sha256(digest),
                properties=_properties({"role": role, "engine-id": parts.get("base id", "") if part == "base" else ""}),
            )


def _packages(record: Record) -> Iterator[Component]:
    """Packages of the build's environment, exact; torch is also what the wheel runs beside."""
    for requirement in record.toolchain.part("packages").split():
        project, _, version = requirement.partition("==")
        yield Component(
            name=project,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"package-{project}",
            purl=PackageURL("pypi", name=project, version=version),
            scope=ComponentScope.REQUIRED if project == "torch" else ComponentScope.EXCLUDED,
            properties=_properties({"role": "build environment"}),
        )


def _libraries(libraries: Sequence[Linked], provided: Iterable[str]) -> Iterator[Component]:
    """What is linked: the wheel's own libraries, what was grafted, what is static inside, what others bring."""
    brought = frozenset(provided)
    inside = {library.path.rpartition("/")[2] for library in libraries}
    for library in libraries:
        yield Component(
            name=library.path,
            type=ComponentType.FILE,
            bom_ref=f"file-{library.path}",
            scope=ComponentScope.REQUIRED,
            hashes=_sha256(library.sha256),
            properties=_properties({"link": "grafted" if library.grafted else "built"}),
        )
        if library.static_cudart:
            yield Component(
                name="libcudart_static.a",
                type=ComponentType.LIBRARY,
                bom_ref=f"static-cudart-{library.path}",
                scope=ComponentScope.REQUIRED,
                properties=_properties({"link": "static", "in": library.path}),
            )
    for name in sorted({name for library in libraries for name in library.needed} - inside):
        yield Component(
            name=name,
            type=ComponentType.LIBRARY,
            bom_ref=f"library-{name}",
            scope=ComponentScope.REQUIRED,
            properties=_properties({"link": _BROUGHT if name in brought else _OF_SYSTEM}),
        )


def _sha256(digest: str) -> list[HashType]:
    text = digest.removeprefix("sha256:")
    return [HashType(alg=HashAlgorithm.SHA_256, content=text)] if text else []


def _properties(values: Mapping[str, str]) -> list[Property]:
    return [Property(name=f"buildfarm:{name}", value=value) for name, value in values.items() if value]
