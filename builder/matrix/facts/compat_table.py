"""Parse compat.yaml: facts about torch series, CUDA toolkits, images and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.facts.image_table import ImageFacts, ImageTable, read_images
from builder.matrix.facts.text_yaml import read_text_yaml


@dataclass(frozen=True)
class VariantFacts:
    """One CUDA variant of a torch series."""

    #: The CUDA of the variant.
    cuda: Cuda
    #: torch's official architectures by platform, sorted; a platform without an entry has no known wheel.
    archs: dict[Platform, tuple[Arch, ...]]


@dataclass(frozen=True)
class TorchFacts:
    """A torch series such as 2.11."""

    #: Major and minor, `2.11`.
    series: str
    #: Its patch releases, oldest first.
    releases: tuple[Torch, ...]
    #: The CUDA variants it was built for.
    variants: dict[Cuda, VariantFacts]
    #: Variants that only a third party names; the plan never uses them.
    unlisted: tuple[Cuda, ...]
    #: The variant on the package index.
    default: Cuda
    #: Pythons with wheels for each release, sorted.
    pythons: dict[Torch, tuple[Python, ...]]
    #: The exact `cuda-toolkit` that the default wheel pins, or empty.
    toolkit_pin: str
    #: The oldest gcc major for the oldest C++ standard that an extension may be compiled with.
    gcc_min: int
    #: The newest gcc major that compiles its headers, if that is older than the toolkit's; else None.
    gcc_max: int | None

    @property
    def newest(self) -> Torch:
        """The newest patch release."""
        return self.releases[-1]


@dataclass(frozen=True)
class ToolkitFacts:
    """One CUDA toolkit."""

    #: Major and minor.
    cuda: Cuda
    #: Every architecture that its nvcc accepts, with suffixes, without PTX.
    archs: frozenset[Arch]
    #: Newest major of gcc that nvcc accepts; None: unknown.
    gcc_max: int | None
    #: The oldest Linux driver that runs its programs if they hold machine code for the GPU.
    driver_floor: str
    #: Version of the PTX language that its nvcc writes.
    ptx: str
    #: The first Linux driver that knows this CUDA, and so compiles its PTX; empty: unknown.
    driver: str
    #: NVIDIA's images.
    images: ImageFacts


@dataclass(frozen=True)
class Table:
    """All facts of compat.yaml."""

    first_packaged_toolkit: Cuda
    torch: dict[str, TorchFacts]
    toolkits: dict[Cuda, ToolkitFacts]
    gcc_checks: dict[tuple[str, Cuda], int]
    arch_suffixes: frozenset[str]
    images: ImageTable
    gpus: dict[tuple[int, int], tuple[str, ...]]
    companions: dict[str, dict[Torch, str]]


def read_table(path: Path) -> Table:
    """Read compat.yaml. A mistake in the file is a bug and raises KeyError, ValueError or yaml.YAMLError."""
    raw = read_text_yaml(path)
    gcc_min = {s: int(row["gcc_min"]) for s, row in raw["cxx_standards"].items()}
    floors = raw["driver_floors"]["rows"]
    return Table(
        first_packaged_toolkit=Cuda.parse(raw["first_packaged_toolkit"]["value"]),
        torch={s: _torch(s, row, gcc_min) for s, row in raw["torch"].items()},
        toolkits={c.cuda: c for c in (_toolkit(k, row, floors) for k, row in raw["toolkits"].items())},
        gcc_checks={
            (series, Cuda.parse(cuda)): int(limit)
            for row in raw["torch_gcc_checks"]["rows"]
            for series in row["torch"]
            for cuda, limit in row["gcc_max"].items()
        },
        arch_suffixes=frozenset(["", *raw["torch_arch_suffixes"]["value"]]),
        images=read_images(raw),
        gpus={_capability(arch): tuple(names) for arch, names in raw["gpus"]["rows"].items()},
        companions={
            name: {Torch.parse(torch): version for torch, version in row.items()}
            for name, row in raw["companions"]["rows"].items()
        },
    )


def _capability(text: str) -> tuple[int, int]:
    arch = Arch.parse(text)
    return arch.major, arch.minor


def _torch(series: str, row: dict[str, Any], gcc_min: dict[str, int]) -> TorchFacts:
    releases = tuple(map(Torch.parse, row["releases"]))
    pythons = sorted(map(Python.parse, row["python"]))
    ended = {release: set(map(Python.parse, gone)) for release, gone in row.get("python_ended", {}).items()}
    variants = [_variant(name, facts) for name, facts in row["variants"].items()]
    return TorchFacts(
        series=series,
        releases=releases,
        variants={v.cuda: v for v in variants},
        unlisted=tuple(map(Cuda.parse, row.get("unlisted", []))),
        default=Cuda.parse(row["default"]),
        pythons={r: tuple(p for p in pythons if p not in ended.get(str(r), ())) for r in releases},
        toolkit_pin=row.get("toolkit_pin", ""),
        gcc_min=gcc_min[row["cxx_standard"]],
        gcc_max=int(row["gcc_max"]) if "gcc_max" in row else None,
    )


def _variant(name: str, facts: dict[str, Any]) -> VariantFacts:
    return VariantFacts(
        cuda=Cuda.parse(name),
        archs={
            platform: tuple(sorted(map(Arch.parse, facts[platform.removeprefix("linux_")])))
            for platform in Platform
            if platform.removeprefix("linux_") in facts
        },
    )


def _toolkit(name: str, row: dict[str, Any], floors: dict[str, str]) -> ToolkitFacts:
    cuda = Cuda.parse(name)
    images = row["images"]
    return ToolkitFacts(
        cuda=cuda,
        archs=frozenset(map(Arch.parse, row["archs"])),
        gcc_max=None if row["gcc_max"]["value"] == "null" else int(row["gcc_max"]["value"]),
        driver_floor=floors[str(cuda.major)],
        ptx=row["ptx"],
        driver=row.get("driver", ""),
        images=ImageFacts(
            version=images["version"],
            ubuntu=tuple(images["ubuntu"]),
            rhel_like=tuple(images["rhel_like"]),
        ),
    )
