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
    REQUESTED_CUDA = "stands in for"
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
    """The exact identity of what compiles; part of the build's digest. None: this toolchain has no such part.

    Attributes:
        executor: `local` or `docker`.
        python: the Python the build runs under.
        packages: the exact requirements of the build's environment, `torch==2.11.0`.
        python_version: the exact version of that Python, `3.12.1`.
        cxx: name and version of the C++ compiler, `g++ 12.2.0`.
        cc: file name of the C compiler.
        nvcc: version of nvcc, `13.0.88`; empty where none is known.
        requested_cuda: the requested CUDA, when nvcc has a different minor version.
        uv, cibuildwheel: version of the front end that ran the build.
        auditwheel, cyclonedx, patchelf, zlib: versions of what repairs the wheel.
        sccache: version of the local compiler cache; images bring their own.
        scripts: only in records of an early buildfarm: digest of its scripts around the compilers.
        image: tag of the build image.
        base: name of its base image.
        base_id: the engine's id of the base image.
        base_digest: digest of the base image's manifest in its registry, when the base is pinned.

    """

    executor: str
    python: Python
    packages: tuple[str, ...] = ()
    python_version: str | None = None
    cxx: str | None = None
    cc: str | None = None
    nvcc: str | None = None
    requested_cuda: Cuda | None = None
    uv: str | None = None
    cibuildwheel: str | None = None
    auditwheel: str | None = None
    cyclonedx: str | None = None
    patchelf: str | None = None
    zlib: str | None = None
    sccache: str | None = None
    scripts: str | None = None
    image: str | None = None
    base: str | None = None
    base_id: str | None = None
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
