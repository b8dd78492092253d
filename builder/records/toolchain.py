"""The exact identity of what compiles a wheel, typed here and plain data in records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from builder.matrix.axes import Cuda, Python


class Part(StrEnum):
    """A part of a toolchain: the value is its key in records and its name in messages.

    The name in lower case is the field of `Toolchain` that holds it.
    """

    AUDITWHEEL = "auditwheel"
    BASE = "base"
    BASE_DIGEST = "base digest"
    BASE_ID = "base id"
    CXX = "c++"
    CC = "cc"
    CIBUILDWHEEL = "cibuildwheel"
    CYCLONEDX = "cyclonedx-python-lib"
    IMAGE = "image"
    NVCC = "nvcc"
    PACKAGES = "packages"
    PATCHELF = "patchelf"
    PYTHON_VERSION = "python"
    SCCACHE = "sccache"
    SCRIPTS = "scripts"
    REQUESTED_CUDA = "stands in for"  # the key in the records of earlier wheels
    UV = "uv"
    ZLIB = "zlib"


#: Parts that are programs or libraries with a version; an SBOM lists them as such.
PROGRAMS = frozenset(
    {
        Part.AUDITWHEEL, Part.CXX, Part.CIBUILDWHEEL, Part.CYCLONEDX, Part.NVCC, Part.PATCHELF,
        Part.PYTHON_VERSION, Part.SCCACHE, Part.UV, Part.ZLIB,
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The exact identity of what compiles; part of the build's digest. None: this toolchain has no such part."""

    #: `local` or `docker`.
    executor: str
    #: The Python the build runs under.
    python: Python
    #: The exact requirements of the build's environment, `torch==2.11.0`.
    packages: tuple[str, ...] = ()
    #: The exact version of that Python, `3.12.1`.
    python_version: str | None = None
    #: Name and version of the C++ compiler, `g++ 12.2.0`.
    cxx: str | None = None
    #: File name of the C compiler.
    cc: str | None = None
    #: Version of nvcc, `13.0.88`; empty where none is known.
    nvcc: str | None = None
    #: The requested CUDA, when nvcc has a different minor version.
    requested_cuda: Cuda | None = None
    #: uv, cibuildwheel: version of the front end that ran the build.
    uv: str | None = None
    cibuildwheel: str | None = None
    #: auditwheel, cyclonedx, patchelf, zlib: versions of what repairs the wheel.
    auditwheel: str | None = None
    cyclonedx: str | None = None
    patchelf: str | None = None
    zlib: str | None = None
    #: Version of the local compiler cache; images bring their own.
    sccache: str | None = None
    #: Only in records of an early buildfarm: digest of its scripts around the compilers.
    scripts: str | None = None
    #: Tag of the build image.
    image: str | None = None
    #: Name of its base image.
    base: str | None = None
    #: The engine's id of the base image.
    base_id: str | None = None
    #: Digest of the base image's manifest in its registry, when the base is pinned.
    base_digest: str | None = None

    def parts(self) -> dict[Part, str]:
        """Every part that this toolchain has, as text, sorted by key."""
        found: dict[Part, str] = {}
        for part in sorted(Part):
            match getattr(self, part.name.lower()):
                case None:
                    continue
                case tuple() as packages:
                    found[part] = " ".join(packages)
                case Cuda() as cuda:
                    found[part] = f"CUDA {cuda}"
                case text:
                    found[part] = text
        return found

    @classmethod
    def from_parts(cls, executor: str, python: Python, parts: Mapping[str, str]) -> Toolchain:
        """Read what `parts` wrote; raises ValueError for an unknown part, BuildfarmError for a malformed version."""
        values = {Part(key): str(text) for key, text in parts.items()}
        packages = values.pop(Part.PACKAGES, "").split()
        requested_cuda = values.pop(Part.REQUESTED_CUDA, None)
        return cls(
            executor=executor,
            python=python,
            packages=tuple(packages),
            requested_cuda=Cuda.parse(requested_cuda.removeprefix("CUDA ")) if requested_cuda else None,
            **{part.name.lower(): text for part, text in values.items()},
        )
