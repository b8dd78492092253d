"""Parse compat.yaml and facts.yaml: facts about torch series, CUDA toolkits, images and GPUs.

`buildfarm facts` writes facts.yaml beside matrix.yaml, with rows that compat.yaml of this version lacks:

    torch:
      2.16.0:
        python: [3.11, 3.12, 3.13, 3.14, 3.14t]
        default: cu132                     # the variant on the package index
        variants:                          # architectures of torch's own kernels
          cu132: {x86_64: [7.5, 8.0, 8.6, 9.0, 10.0, 12.0], aarch64: [8.0, 9.0]}
        cxx_standard: 20                   # the oldest C++ standard of an extension
        gcc_max: {12.6: 13, 13.0: 15}      # the newest gcc that torch's build tools accept
        arch_list: [7.5, 8.0, 9.0, 9.0a]   # what TORCH_CUDA_ARCH_LIST may name
        companions: {torchvision: 0.31.0}  # the release that belongs to it
        sources: {FILE: {sha256: ..., read: {default: torch/version.py}}}
    toolkits:
      13.6:
        ptx: 9.6
        archs: [7.5, 8.0, 9.0, 9.0a]       # what its compiler knows
        gcc_max: 16                        # the newest gcc that its headers accept
        sources: ...

A row of this version's own table wins: facts.yaml adds releases and toolkits, and changes none.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from builder.errors import Code, UsageError
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # keeps scalars as text: 2.10 is not 2.1


def read_text_yaml(path: Path) -> Any:  # noqa: ANN401 - the caller knows the keys
    """The contents as text, lists and dicts. Raises yaml.YAMLError for a mistake in the file, which is a bug."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506  # a Base loader makes no objects


#: The image of pypa that buildfarm takes Pythons from.
_MANYLINUX = "manylinux_2_28"
#: NVIDIA builds `devel` on `runtime` on `base`, and the cuDNN images on these: a `devel` tag implies the others.
_DEVEL_TAG = re.compile(r"(\d+\.\d+\.\d+)-(?:cudnn\d*-)?devel-(\w+)")


def read_systems(images: dict[str, Any]) -> dict[str, str]:
    """Return each distribution, as in NVIDIA's tags, with the newest patch version of a CUDA that has a `devel` image.

    `images` are the newest patch version with images, the Ubuntu releases with a `cudnn-devel` image, and complete tags
    that existed when the facts were read.
    """
    found = {f"ubuntu{release}": str(images["version"]) for release in images["ubuntu"]}
    for match in filter(None, map(_DEVEL_TAG.fullmatch, images["rhel_like"])):
        version, system = match.groups()
        found[system] = max(version, found.get(system, version), key=_order)
    return found


@dataclass(frozen=True)
class Distribution:
    """A Linux distribution of base images."""

    #: Its name in NVIDIA's tags: `rockylinux8`, `ubuntu22.04`.
    name: str
    #: Texts in an image's name that identify it.
    names: tuple[str, ...]
    #: Its package manager, `apt` or `dnf`.
    packages: str
    #: Version of its C library, such as `2.28`.
    glibc: str
    #: Major of its package `gcc`.
    default_gcc: int
    #: Majors of gcc in its packages, sorted.
    gcc: tuple[int, ...]

    def newest_gcc(self, oldest: int, newest: int) -> int | None:
        """Return the newest gcc major from `oldest` to `newest`, both included, or None."""
        return max((gcc for gcc in self.gcc if oldest <= gcc <= newest), default=None)


@dataclass(frozen=True)
class ImageTable:
    """The image facts that do not depend on a CUDA toolkit."""

    #: The oldest glibc first.
    distributions: tuple[Distribution, ...]
    #: Pypa's old tags of manylinux_2_28, which are never deleted, with their Pythons.
    frozen: dict[str, tuple[Python, ...]]
    #: Registry and path of pypa's images.
    registry: str
    #: current_tag, current_pythons: the newest tag of pypa's images, and the Pythons in it.
    current_tag: str
    current_pythons: tuple[Python, ...]

    def distribution_of(self, image: str) -> Distribution | None:
        """Return the distribution named in an image name such as `nvidia/cuda:12.1.1-devel-rockylinux8`, or None."""
        name = image.lower()
        return next((d for d in self.distributions if any(word in name for word in d.names)), None)

    def pythons_image(self, python: Python, platform: Platform) -> str | None:
        """Return pypa's image with a Python: the current tag, else the newest old tag that has it, else None."""
        old = max((tag for tag, pythons in self.frozen.items() if python in pythons), default=None)
        tag = self.current_tag if python in self.current_pythons else old
        return f"{self.registry}/{_MANYLINUX}_{platform.machine}:{tag}" if tag else None


def read_images(raw: dict[str, Any]) -> ImageTable:
    """Return the image facts of compat.yaml. A mistake in the file raises KeyError or ValueError."""
    manylinux = raw["manylinux"]
    distributions = (
        Distribution(
            name,
            tuple(row["names"]),
            row["packages"],
            row["glibc"],
            int(row["default_gcc"]),
            tuple(sorted(map(int, row["gcc"]))),
        )
        for name, row in raw["distributions"]["rows"].items()
    )
    frozen = [row for row in manylinux["frozen"]["rows"] if row["image"] == _MANYLINUX]
    return ImageTable(
        distributions=tuple(sorted(distributions, key=lambda d: (_order(d.glibc), d.name))),
        frozen={row["tag"]: tuple(map(Python.parse, row["python"])) for row in frozen},
        registry=manylinux["registry"],
        current_tag=manylinux["current"]["tag"],
        current_pythons=tuple(map(Python.parse, manylinux["current"]["python"])),
    )


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@dataclass(frozen=True)
class TorchFacts:
    """A torch series such as 2.11."""

    #: Major and minor, `2.11`.
    series: str
    #: Its patch releases, oldest first.
    releases: tuple[Torch, ...]
    #: For each CUDA that it was built for, the architectures of its official wheel by platform, sorted; a platform
    #: without an entry has no known wheel.
    variants: dict[Cuda, dict[Platform, tuple[Arch, ...]]]
    #: The variant on the package index.
    default: Cuda
    #: Pythons with wheels for each release, sorted.
    pythons: dict[Torch, tuple[Python, ...]]
    #: The oldest gcc major for the oldest C++ standard that an extension may be compiled with.
    gcc_min: int
    #: The newest gcc major that compiles its headers, if that is older than the toolkit's; else None.
    gcc_max: int | None


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
    #: The distributions of NVIDIA's images; see `read_systems`.
    systems: dict[str, str]


def read_torch(series: str, row: dict[str, Any], gcc_min: int) -> TorchFacts:
    """Return the facts of a torch series; `gcc_min` is the oldest gcc major for its C++ standard."""
    releases = tuple(map(Torch.parse, row["releases"]))
    pythons = sorted(map(Python.parse, row["python"]))
    ended = {release: set(map(Python.parse, gone)) for release, gone in row.get("python_ended", {}).items()}
    return TorchFacts(
        series=series,
        releases=releases,
        variants={
            Cuda.parse(name): {
                platform: tuple(sorted(map(Arch.parse, archs[platform.machine])))
                for platform in Platform
                if platform.machine in archs
            }
            for name, archs in row["variants"].items()
        },
        default=Cuda.parse(row["default"]),
        pythons={r: tuple(p for p in pythons if p not in ended.get(str(r), ())) for r in releases},
        gcc_min=gcc_min,
        gcc_max=int(row["gcc_max"]) if "gcc_max" in row else None,
    )


def read_toolkit(name: str, row: dict[str, Any], floors: dict[str, str]) -> ToolkitFacts:
    """Return the facts of a CUDA toolkit; `floors` are the oldest drivers by CUDA major version."""
    cuda = Cuda.parse(name)
    return ToolkitFacts(
        cuda=cuda,
        archs=frozenset(map(Arch.parse, row["archs"])),
        gcc_max=None if row["gcc_max"]["value"] == "null" else int(row["gcc_max"]["value"]),
        driver_floor=floors[str(cuda.major)],
        ptx=row["ptx"],
        driver=row.get("driver", ""),
        systems=read_systems(row["images"]),
    )


#: The name of facts.yaml, which lies beside matrix.yaml.
FACTS = Path("facts.yaml")
_FORMAT = "1"
_HEAD = """\
# Facts that this version of buildfarm does not have itself, read from the package index by `buildfarm facts`.
# A plan depends on this file: review a change, and commit it like a lock. `buildfarm facts --check` reads all again.
"""

T = TypeVar("T")
Rows = dict[str, dict[str, dict[str, Any]]]


def read_rows(path: Path) -> Rows:
    """The rows of facts.yaml by `torch` and `toolkits`, as text. Raises UsageError for a file that this cannot be."""
    try:
        raw = read_text_yaml(path)
        if raw.pop("format") != _FORMAT or not all(isinstance(rows, dict) for rows in raw.values()):
            raise ValueError("it has a different format")
        return {key: raw.get(key, {}) for key in ("torch", "toolkits")}
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise _wrong(path, error) from error


def facts_text(rows: Rows) -> str:
    """The text of facts.yaml with these rows, sorted: the same rows are the same bytes."""
    listed = {
        "torch": sorted(rows["torch"].items(), key=lambda row: Torch.parse(row[0])),
        "toolkits": sorted(rows["toolkits"].items(), key=lambda row: Cuda.parse(row[0])),
    }
    data = {"format": _FORMAT, **{key: dict(found) for key, found in listed.items() if found}}
    text: str = yaml.safe_dump(data, default_flow_style=None, sort_keys=False, width=110)
    return _HEAD + text


def with_facts(raw: dict[str, Any], path: Path, parse: Callable[[dict[str, Any]], T]) -> T:
    """What `parse` makes of compat.yaml and the rows of facts.yaml that it lacks, which become rows of compat.yaml.

    Raises UsageError for a file that cannot be read.
    """
    rows = read_rows(path)
    try:
        for name, row in rows["toolkits"].items():
            _add_toolkit(raw, Cuda.parse(name), row)
        for name, row in sorted(rows["torch"].items(), key=lambda row: Torch.parse(row[0])):
            _add_torch(raw, Torch.parse(name), row)
        return parse(raw)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise _wrong(path, error) from error


def _add_toolkit(raw: dict[str, Any], cuda: Cuda, row: dict[str, Any]) -> None:
    # A rule, because no package says it: all CUDA of one major version run on the same oldest driver.
    floors = raw["driver_floors"]["rows"]
    floors.setdefault(str(cuda.major), floors[max(floors, key=int)])
    images = {"version": "", "ubuntu": [], "rhel_like": []}
    facts = {"ptx": row["ptx"], "archs": row["archs"], "gcc_max": {"value": row["gcc_max"]}, "images": images}
    raw["toolkits"].setdefault(str(cuda), facts)


def _add_torch(raw: dict[str, Any], torch: Torch, row: dict[str, Any]) -> None:
    old = raw["torch"].get(torch.series)
    if old and str(torch) in old["releases"]:
        return
    for name, version in row["companions"].items():
        raw["companions"]["rows"][name][str(torch)] = version
    if old:  # a patch release: the rest of the series is known
        ended = old.setdefault("python_ended", {})
        ended[str(torch)] = [python for python in old["python"] if python not in row["python"]]
        new = [python for python in row["python"] if python not in old["python"]]
        for release in old["releases"]:
            ended[release] = [*ended.get(release, []), *new]
        old["python"], old["releases"] = [*old["python"], *new], [*old["releases"], str(torch)]
        return
    standards = raw["cxx_standards"]  # a rule for a newer one: at least what the newest known standard needs
    standards.setdefault(row["cxx_standard"], standards[max(standards, key=int)])
    keys = ("python", "default", "cxx_standard", "variants")
    raw["torch"][torch.series] = {"releases": [str(torch)], **{key: row[key] for key in keys}}
    raw["torch_gcc_checks"]["rows"].append({"torch": [torch.series], "gcc_max": row["gcc_max"]})
    since, until = (raw["torch_arch_list"][key] for key in ("since", "until"))
    known = {arch for archs in since.values() for arch in archs}
    gone = known - set(row["arch_list"]) - {arch for archs in until.values() for arch in archs}
    since[torch.series], until[torch.series] = sorted(set(row["arch_list"]) - known), sorted(gone)


def _wrong(path: Path, error: Exception) -> UsageError:
    reason = error.sentence if isinstance(error, UsageError) else str(error).splitlines()[0]
    if isinstance(error, KeyError):
        reason = f"the key {reason} is missing"
    return UsageError(
        f"the file cannot be read: {reason}",
        Code.FILE_INVALID,
        where=str(path),
        hints=["delete the file, and run `buildfarm facts`, which writes it again"],
    )
