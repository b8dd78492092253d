"""What a wheel works with: Pythons and machines by its tags, GPUs by its code, torch by what it requires and calls.

`shims.yaml` lists which torch release first exports each C function of torch's stable ABI; `tools/make_shims.py`
measured it from the wheels.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from builder.errors import Code, UsageError
from builder.matrix.axes import ABI3T_SINCE, Arch, Python, Torch
from builder.matrix.compat_table import read_text_yaml

#: Architectures of Jetson and DRIVE.
_JETSON = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (11, 0)})
#: Libraries of NVIDIA's driver: the machine that runs a wheel has them, and no build machine needs them. Source: its
#: README for Linux.
DRIVER_LIBRARIES = frozenset(
    {
        "libcuda.so.1", "libcudadebugger.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1",
        "libnvidia-ml.so.1", "libnvidia-nvvm.so.4", "libnvidia-opticalflow.so.1",
        "libnvidia-ptxjitcompiler.so.1", "libnvoptix.so.1",
    }
)  # fmt: skip
#: manylinux tags with a name instead of a glibc version (PEP 513, 571, 599).
_NAMED = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
#: Releases that two ranges of torch are compared on: existing ones and those to be expected.
TORCHES = tuple(Version(f"{major}.{minor}.{patch}") for major in (1, 2, 3) for minor in range(41) for patch in range(4))
#: Names of the functions in torch's C interface.
SHIM = re.compile(r"(aoti_torch|torch|aoti)_\w+")


def is_compatible(filename: str, python: Python, *, any_glibc: bool = False) -> bool:
    """Whether a wheel installs under this Python here, by its tags; with `any_glibc`, in a container with its glibc."""
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    if any_glibc:
        return any(admits(tag, python, os.uname().machine) for tag in tags)
    return not tags.isdisjoint(_tags(python))


def check_wheel_name(name: str, where: str = "") -> None:
    """Raise UsageError for a file name that is no wheel's. A wheel variant (PEP 825) has a label at the end."""
    try:
        parse_wheel_filename(name)
    except ValueError:
        stem, _, label = name.removesuffix(".whl").rpartition("-")
        with suppress(ValueError):
            parse_wheel_filename(f"{stem}.whl")
            reason = f"this is a wheel variant ({label}), which buildfarm does not support"
            raise UsageError(reason, Code.WHEEL_MISLABELLED, where=where or name) from None
        raise UsageError("this is not the file name of a wheel", Code.WHEEL_MISLABELLED, where=where or name) from None


def admits(tag: Tag, python: Python, machine: str) -> bool:
    """Whether a tag suits this Python on Linux of this machine (`x86_64`), whatever its glibc."""
    return (tag.interpreter, tag.abi) in suiting(python) and re.fullmatch(
        rf"any|(?:manylinux\w*|linux)_{machine}", tag.platform
    ) is not None


def oldest_python(tag: Tag) -> Python | None:
    """The oldest Python that a tag of the stable ABI (`cp310-abi3`) names; None for other tags.

    The ABI abi3t exists since Python 3.15 (PEP 803). packaging lists `cp310-abi3t` for Python 3.13t and 3.14t too.
    """
    match = re.fullmatch(r"cp(\d)(\d{1,3})", tag.interpreter)
    if match is None or tag.abi not in ("abi3", "abi3t"):
        return None
    python = Python(int(match[1]), int(match[2]))
    return max(python, ABI3T_SINCE) if tag.abi == "abi3t" else python


def finds(python: Python, file: re.Match[str], machine: str) -> bool:
    """Whether the `import` of a Python on this machine (`x86_64`) looks for a file, as a match of `MODULE_FILE`."""
    if file["triplet"] and machine in ("x86_64", "aarch64") and file["triplet"] != f"{machine}-linux-gnu":
        return False
    if file["version"]:
        return f"cp{file['version']}" == python.tag
    if only_new(file) and python < ABI3T_SINCE:
        return False
    return file["abi"] != "abi3" or not python.free_threaded


def only_new(file: re.Match[str]) -> bool:
    """Whether no Python before 3.15 looks for a file, as a match of `MODULE_FILE`."""
    return file["abi"] == "abi3t" or bool(file["abi"] and file["triplet"])


def glibc_of(platform: str) -> tuple[int, int] | None:
    """The glibc that the platform of a tag promises (PEP 600); None for a platform that promises none."""
    if match := re.match(r"manylinux_(\d+)_(\d+)_", platform):
        return int(match[1]), int(match[2])
    return _NAMED.get(platform.partition("_")[0])


def any_linux(tag: Tag) -> tuple[str, str, str]:
    """What a wheel has in common with one for another libc: PyTorch's wheels are manylinux, and `linux` in WHEEL."""
    return tag.interpreter, tag.abi, re.sub(r"^(?:many|musl)?linux(?:_\d+_\d+|\d+)?_", "linux_", tag.platform)


def codes_for(codes: Iterable[str], gpu: Arch) -> list[str]:
    """The code that a GPU can run, as it is (`sm_80`) or compiled by its driver (`compute_90`), the best last of each.

    Machine code for X.Y runs on X.Z with Z >= Y, and PTX for X.Y on every later GPU. Code with the suffix `a` runs on
    its own architecture only, `f` on its major version (CUDA C++ Programming Guide, "Compute Capabilities"). Machine
    code for Jetson runs on nothing else, and Jetson runs no other (the same guide, "Binary Compatibility").
    """
    ours = gpu.capability
    found = []
    for code in codes:
        arch, is_sass = Arch.of_code(code), code.startswith("sm_")
        if arch is None:
            continue
        if arch.suffix == "a" or (is_sass and not _JETSON.isdisjoint((arch.capability, ours))):
            fits = arch.capability == ours
        elif is_sass or arch.suffix == "f":
            fits = arch.major == gpu.major and arch.minor <= gpu.minor
        else:
            fits = arch.capability <= ours
        if fits:
            found.append((not is_sass, arch.capability, code))
    return [code for _, _, code in sorted(found)]


def code_number(code: str) -> int:
    """The number of an architecture: 90 for `sm_90a` and `compute_90`."""
    return int(code.partition("_")[2].rstrip("af"))


def is_driver_library(name: str) -> bool:
    """Whether the driver brings a library of this file name, whatever its version."""
    return re.match(r"lib(?:cuda|cudadebugger|nvcuvid|nvidia-[\w-]+|nvoptix)\.so", name) is not None


@cache
def suiting(python: Python) -> frozenset[tuple[str, str]]:
    """The interpreter and the ABI of every tag that pip accepts under this Python, whatever the platform."""
    return frozenset((tag.interpreter, tag.abi) for tag in _tags(python, ("any",)))


@cache
def _tags(python: Python, platforms: tuple[str, ...] | None = None) -> frozenset[Tag]:
    """The tags that pip accepts under this Python on these platforms; None: those of this machine."""
    version = (python.major, python.minor)
    own = cpython_tags(version, abis=[python.tag], platforms=platforms)
    return frozenset([*own, *compatible_tags(version, platforms=platforms)])


def numbers(driver: str) -> tuple[int, ...]:
    """The numbers of a driver's version."""
    return tuple(int(part) for part in driver.split(".") if part.isdecimal())


def is_older(driver: str, floor: str) -> bool:
    """Whether a driver is older than a floor; `550` stands for the newest release of its branch."""
    given = numbers(driver)
    return bool(floor) and given < numbers(floor)[: len(given)]


def admitted(specifiers: Iterable[Specifier]) -> frozenset[Version]:
    """The releases of TORCHES that all specifiers admit. Raises ValueError for a number that is too long."""
    wanted = SpecifierSet(",".join(map(str, specifiers)))
    return frozenset(wanted.filter(TORCHES))


def narrowed(window: str, lines: Iterable[str], built_with: str = "") -> Requirement:
    """A requirement of torch, such as `torch==2.11.*`, with what other requirements of torch exclude in addition.

    The lines count if together they are narrower: if they admit a release of the window, and the release that the wheel
    was built with. Lines that cannot be read, have a marker, or name a URL do not count. Needless specifiers are left
    out, so `torch==2.11.*` and `torch==2.11.0` make `torch==2.11.0`.
    """
    result = Requirement(window)
    theirs = sorted(specifier for line in lines for specifier in _specifiers(line))
    clauses = [*sorted(result.specifier, key=str), *map(Specifier, theirs)]
    try:
        both, all_of_it = admitted(clauses), admitted(result.specifier)
    except ValueError:
        return result
    if not both or both == all_of_it or (built_with and Version(built_with) not in both):
        return result
    for clause in list(clauses):
        rest = [one for one in clauses if one is not clause]
        if admitted(rest) == both:
            clauses = rest
    result.specifier = SpecifierSet(",".join(map(str, clauses)))
    return result


def _specifiers(line: str) -> list[str]:
    try:
        one = Requirement(line)
    except InvalidRequirement:
        return []
    return [] if one.marker or one.url else list(map(str, one.specifier))


@cache
def shims() -> dict[str, Torch]:
    """Every C function in `shims.yaml`, with the first release of the series that first exports it."""
    table = read_text_yaml(Path(__file__).with_name("shims.yaml"))
    return {
        name: Torch.parse(f"{series}.0")
        for series, kinds in table["since"].items()
        for names in kinds.values()
        for name in names
    }


def oldest_torch(symbols: Iterable[str]) -> Torch | None:
    """The oldest torch release that has every C function among these symbols; None if there is none among them."""
    return max((shims()[symbol] for symbol in symbols if symbol in shims()), default=None)
