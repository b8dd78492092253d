"""Parse compat.yaml: facts about torch series, CUDA toolkits, images and GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.facts.image_table import ImageFacts, ImageTable, read_images

T = TypeVar("T")
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # keeps scalars as text: 2.10 is not 2.1


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value, and whether it was read at its source. False: inferred, from a secondary source, or not found."""

    value: T
    verified: bool = True


@dataclass(frozen=True)
class VariantFacts:
    """One CUDA variant of a torch series.

    Attributes:
        cuda: the CUDA of the variant.
        archs: torch's official architectures by platform, sorted; a platform without an entry has no known wheel.
        cxx11_abi: whether torch is compiled with _GLIBCXX_USE_CXX11_ABI=1.
        glibc: oldest glibc that its wheels run on, `2.17` or `2.28`.
        built_with: the exact toolkit that PyTorch's CI builds it with, such as `12.8.1`; empty: unknown.
        verified: whether the arch list was read at its source.

    """

    cuda: Cuda
    archs: dict[Platform, tuple[Arch, ...]]
    cxx11_abi: Fact[bool]
    glibc: str
    built_with: Fact[str]
    verified: bool


@dataclass(frozen=True)
class TorchFacts:
    """A torch series such as 2.11.

    Attributes:
        series: major and minor, `2.11`.
        releases: its patch releases, oldest first.
        variants: the CUDA variants it was built for.
        unlisted: variants that only a third party names; the plan never uses them.
        default: the variant on the package index.
        pythons: Pythons with wheels for each release, sorted.
        torchvision, torchaudio: the version that belongs to each release.
        toolkit_pin: the exact `cuda-toolkit` that the default wheel pins, or empty.
        runtime_pin: the exact `nvidia-cuda-runtime` that an older default wheel pins, or empty.
        cxx_standard: the oldest C++ standard that an extension may be compiled with.
        gcc_min: the oldest gcc major for that standard.
        gcc_max: the newest gcc major that compiles its headers, if that is older than the toolkit's; else None.

    """

    series: str
    releases: tuple[Torch, ...]
    variants: dict[Cuda, VariantFacts]
    unlisted: tuple[Cuda, ...]
    default: Cuda
    pythons: dict[Torch, tuple[Python, ...]]
    torchvision: dict[Torch, str]
    torchaudio: dict[Torch, str]
    toolkit_pin: str
    runtime_pin: str
    cxx_standard: int
    gcc_min: Fact[int]
    gcc_max: int | None

    @property
    def newest(self) -> Torch:
        """The newest patch release."""
        return self.releases[-1]


@dataclass(frozen=True)
class ToolkitFacts:
    """One CUDA toolkit.

    Attributes:
        cuda: major and minor.
        full_version: its newest patch version, `13.0.3`.
        patch_versions: all published patch versions, oldest first.
        archs: every architecture that its nvcc accepts, with suffixes, without PTX.
        gcc_max, clang_max: newest major of the host compiler that nvcc accepts; None: unknown.
        driver: the Linux driver shipped with its newest patch, or None.
        driver_floor: the oldest Linux driver that runs its programs if they hold machine code for the GPU.
        images: NVIDIA's images.

    """

    cuda: Cuda
    full_version: str
    patch_versions: tuple[str, ...]
    archs: frozenset[Arch]
    gcc_max: Fact[int | None]
    clang_max: Fact[int | None]
    driver: Fact[str | None]
    driver_floor: str
    images: ImageFacts


@dataclass(frozen=True)
class Table:
    """All facts of compat.yaml."""

    read_on: str
    first_packaged_toolkit: Cuda
    torch: dict[str, TorchFacts]
    toolkits: dict[Cuda, ToolkitFacts]
    gcc_checks: dict[tuple[str, Cuda], int]
    arch_suffixes: frozenset[str]
    images: ImageTable
    gpus: dict[tuple[int, int], tuple[str, ...]]


def read_table(path: Path) -> Table:
    """Read compat.yaml. A mistake in the file is a bug and raises KeyError, ValueError or yaml.YAMLError."""
    with path.open(encoding="utf-8") as file:
        raw = yaml.load(file, Loader=_LOADER)  # noqa: S506  # a Base loader makes text, lists and dicts only
    gcc_min = {s: Fact(int(row["gcc_min"]), _verified(row)) for s, row in raw["cxx_standards"].items()}
    floors = raw["driver_floors"]["rows"]
    return Table(
        read_on=raw["read_on"],
        first_packaged_toolkit=Cuda.parse(raw["first_packaged_toolkit"]["value"]),
        torch={s: _torch(s, row, gcc_min, raw["official_toolkits"]["rows"]) for s, row in raw["torch"].items()},
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
    )


def _verified(row: dict[str, Any]) -> bool:
    return str(row.get("verified", "true")) == "true"


def _capability(text: str) -> tuple[int, int]:
    arch = Arch.parse(text)
    return arch.major, arch.minor


def _torch(series: str, row: dict[str, Any], gcc_min: dict[str, Fact[int]], built: dict[str, Any]) -> TorchFacts:
    releases = tuple(map(Torch.parse, row["releases"]))
    pythons = sorted(map(Python.parse, row["python"]))
    ended = {release: set(map(Python.parse, gone)) for release, gone in row.get("python_ended", {}).items()}
    variants = [_variant(series, name, row, built.get(name, {})) for name in row["variants"]]
    return TorchFacts(
        series=series,
        releases=releases,
        variants={v.cuda: v for v in variants},
        unlisted=tuple(map(Cuda.parse, row.get("unlisted", []))),
        default=Cuda.parse(row["default"]),
        pythons={r: tuple(p for p in pythons if p not in ended.get(str(r), ())) for r in releases},
        torchvision={Torch.parse(k): v for k, v in row["torchvision"].items()},
        torchaudio={Torch.parse(k): v for k, v in row["torchaudio"].items()},
        toolkit_pin=row.get("toolkit_pin", ""),
        runtime_pin=row.get("runtime_pin", ""),
        cxx_standard=int(row["cxx_standard"]),
        gcc_min=gcc_min[row["cxx_standard"]],
        gcc_max=int(row["gcc_max"]) if "gcc_max" in row else None,
    )


def _variant(series: str, name: str, row: dict[str, Any], built: dict[str, Any]) -> VariantFacts:
    facts = row["variants"][name]
    abi, glibc = row["cxx11_abi"], row["glibc"]
    abi_value = abi["value"][name] if isinstance(abi["value"], dict) else abi["value"]
    version = built.get("other", {}).get(series) or built.get("version", "")
    return VariantFacts(
        cuda=Cuda.parse(name),
        archs={
            platform: tuple(sorted(map(Arch.parse, facts[platform.removeprefix("linux_")])))
            for platform in Platform
            if platform.removeprefix("linux_") in facts
        },
        cxx11_abi=Fact(abi_value == "1", _verified(abi)),
        glibc=glibc[name] if isinstance(glibc, dict) else glibc,
        built_with=Fact(version, bool(version) and _verified(built)),
        verified=_verified(facts),
    )


def _toolkit(name: str, row: dict[str, Any], floors: dict[str, str]) -> ToolkitFacts:
    cuda = Cuda.parse(name)
    images = row["images"]
    return ToolkitFacts(
        cuda=cuda,
        full_version=row["versions"][-1],
        patch_versions=tuple(row["versions"]),
        archs=frozenset(map(Arch.parse, row["archs"])),
        gcc_max=_limit(row["gcc_max"]),
        clang_max=_limit(row["clang_max"]),
        driver=Fact(None if row["driver"]["value"] == "null" else row["driver"]["value"], _verified(row["driver"])),
        driver_floor=floors[str(cuda.major)],
        images=ImageFacts(
            version=images["version"],
            cudnn_label=images["cudnn_label"],
            ubuntu=tuple(images["ubuntu"]),
            rhel_like=tuple(images["rhel_like"]),
            verified=_verified(images),
        ),
    )


def _limit(row: dict[str, Any]) -> Fact[int | None]:
    return Fact(None if row["value"] == "null" else int(row["value"]), _verified(row))
