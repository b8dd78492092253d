"""The software bill of materials of a wheel: CycloneDX for `.dist-info/sboms/` (PEP 770). Same input, same bytes.

Import it inside functions: the library takes half a second to load, and only a repair needs it.
"""

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cyclonedx.model.bom import Bom
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from builder.matrix.config import GitSource, SdistSource
from builder.records import PROGRAMS, Part, Record
from builder.wheelfile.elf import Elf

#: File name inside `.dist-info/sboms`. auditwheel adds its own SBOM of grafted libraries there.
FILE = "buildfarm.cdx.json"

#: As everywhere in the wheel. An SBOM must have a date, and the time of the build must not change bytes.
_EPOCH = "1980-01-01T00:00:00+00:00"

#: How the wheel uses a library that is not in the wheel.
_BROUGHT, _OF_SYSTEM = "dynamic, excluded: the environment brings it", "dynamic, of the system"

#: A library of the wheel: its path in it, its bytes, and its ELF headers.
Library = tuple[str, bytes, Elf]
#: A component, as CycloneDX has it in JSON.
_Component = dict[str, Any]
#: Host code calls this function to pass its GPU code to the CUDA runtime (crt/host_runtime.h of any toolkit).
_REGISTERS = "__cudaRegisterFatBinary"


def make_sbom(
    name: str, version: str, filename: str, record: Record, libraries: Sequence[Library], provided: Iterable[str]
) -> bytes:
    """The SBOM of a wheel, CycloneDX 1.6, JSON with a final newline.

    `provided` are the libraries that auditwheel excluded. The SBOM lists those that the wheel needs as parts of the
    environment; the others have nothing to do with the wheel.
    """
    properties = {
        "build": str(record.build),
        "gpu-archs": " ".join(map(str, record.build.archs)),
        "stands-in-for": record.toolchain.get(Part.REQUESTED_CUDA),
    }
    wheel = _component("library", name, "wheel", properties, version=version)
    wheel |= {"purl": _purl(name, version, file_name=filename), "pedigree": _pedigree(record)}
    # Each patch is a file component, because a pedigree cannot hold digests.
    patches = [
        _component("file", patch.name, f"patch-{number}", {"role": "patch", "order": str(number)}, sha256=patch.sha256)
        for number, patch in enumerate(record.source.patches, 1)
    ]
    made_with = [*patches, *_toolchain(record)]
    contained = [*_torch(record), *_libraries(libraries, provided)]
    # Without a version: another release may make the same wheel, and then the bytes must be the same.
    farm = _component("application", "buildfarm", "buildfarm")
    data = {
        "metadata": {"component": wheel, "tools": {"components": [farm]}, "timestamp": _EPOCH},
        "components": [
            *(one | {"scope": "excluded"} for one in made_with),
            *(one | {"scope": "required"} for one in contained),
        ],
        "dependencies": [{"ref": "wheel", "dependsOn": [one["bom-ref"] for one in contained]}],
    }
    bom: Bom = Bom.from_json(data)  # type: ignore[attr-defined]  # added by a decorator
    for package in [one for one in bom.components if "://" in one.name]:  # a URL with `//`, which the reader changes
        bom.components.remove(package)
        package.purl = PackageURL("pypi", name=package.name, version="")
        bom.components.add(package)
    # The serial number is derived from the text with a constant number.
    bom.serial_number = uuid.UUID(int=0)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, text)
    return JsonV1Dot6(bom).output_as_string(indent=1).encode() + b"\n"


def _pedigree(record: Record) -> dict[str, Any]:
    """The source of the wheel and its patches."""
    source = record.source
    name, version, sha256, subdirectory = record.build.wheel_name, record.build.version, "", ""
    more: dict[str, Any] = {}
    match source.origin:
        case SdistSource(project=name, version=version, sha256=sha256):
            more = {"purl": _purl(name, version)}
        case GitSource(url=url, revision=version, subdirectory=subdirectory):
            more = {"externalReferences": [{"type": "vcs", "url": url}]}
    properties = {"source": source.kind, "source-digest": source.digest, "subdirectory": subdirectory}
    ancestor = _component("library", name, "source", properties, version=version, sha256=sha256) | more
    patches = [{"type": "unofficial", "diff": {"url": quote(patch.name)}} for patch in source.patches]
    return {"ancestors": [ancestor], "patches": patches}


def _toolchain(record: Record) -> Iterator[_Component]:
    """Compilers, tools, images and packages that made the wheel, without torch; none is in it."""
    toolchain = record.toolchain
    for part, value in toolchain.parts().items():
        if part in PROGRAMS and value:
            program, _, number = value.rpartition(" ")
            yield _component("application", program or part, f"tool-{part}", {"role": "toolchain"}, version=number)
    images = (
        (Part.BASE, "base image", toolchain.get(Part.BASE_DIGEST), toolchain.get(Part.BASE_ID)),
        (Part.IMAGE, "rendered image", "", ""),
    )
    for part, role, sha256, engine_id in images:
        if name := toolchain.get(part):
            properties = {"role": role, "engine-id": engine_id}
            yield _component("container", name, f"tool-{part}", properties, sha256=sha256)
    yield from (_package(each) for each in toolchain.packages if not each.startswith("torch=="))


def _torch(record: Record) -> Iterator[_Component]:
    """The torch of the build, which the wheel needs at run time."""
    yield from (_package(each) for each in record.toolchain.packages if each.startswith("torch=="))


def _package(requirement: str) -> _Component:
    project, _, version = requirement.partition("==")
    made = _component("library", project, f"package-{project}", {"role": "build environment"}, version=version)
    return made | {"purl": _purl(project, version)}


def _libraries(libraries: Sequence[Library], provided: Iterable[str]) -> Iterator[_Component]:
    """The wheel's own, grafted and statically linked libraries, and the libraries that it needs."""
    brought = frozenset(provided)
    inside = {path.rpartition("/")[2] for path, _, _ in libraries}
    for path, data, elf in libraries:
        # auditwheel copied those in `.libs` from another project.
        link = {"link": "grafted" if path.split("/", 1)[0].endswith(".libs") else "built"}
        yield _component("file", path, f"file-{path}", link, sha256=hashlib.sha256(data).hexdigest())
        if elf.fatbin and _REGISTERS not in elf.undefined:  # the static CUDA runtime is in it
            yield _component("library", "libcudart_static.a", f"static-cudart-{path}", {"link": "static", "in": path})
    for name in sorted({name for _, _, elf in libraries for name in elf.needed} - inside):
        yield _component("library", name, f"library-{name}", {"link": _BROUGHT if name in brought else _OF_SYSTEM})


def _component(
    kind: str,
    name: str,
    ref: str,
    properties: Mapping[str, str] | None = None,
    *,
    version: str | None = None,
    sha256: str = "",
) -> _Component:
    made: _Component = {"type": kind, "name": name, "bom-ref": ref}
    made["properties"] = [
        {"name": f"buildfarm:{key}", "value": text} for key, text in (properties or {}).items() if text
    ]
    if version is not None:
        made["version"] = version
    if sha256:
        made["hashes"] = [{"alg": "SHA-256", "content": sha256.removeprefix("sha256:")}]
    return made


def _purl(project: str, version: str, **qualifiers: str) -> str:
    return PackageURL("pypi", name=project, version=version, qualifiers=qualifiers).to_string()
