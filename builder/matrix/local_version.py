"""What a local version (PEP 440) says about torch and CUDA: that of buildfarm, and those of other projects."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat

#: A word for torch or CUDA and its number. A letter before it makes another word, such as `opt2` or `gcu3`; the letters
#: a to f may end the hash of a commit.
_TORCH = re.compile(r"(?<![g-z])(?:(?:py)?torch|pt)\.?(\d+(?:\.\d+)*)")
_CUDA = re.compile(r"(?<![g-z])cu(?:da)?\.?(\d+(?:\.\d+)*)")
_OTHER_BACKEND = re.compile(r"(?<![a-z])(?:cpu|rocm|xpu)")
#: A number without a word, as in `2.4.cu121` or `12.8torch2.7`.
_BARE = re.compile(r"(?:^|\.)\d{1,2}\.\d{1,2}(?=[. ]|$)")
#: No release of torch has more minor versions after the newest known one.
_MOST_NEWER = 20
#: The torch of buildfarm's earlier local versions, such as `cu130.torch211`, also in the name of a file.
_EARLIER = re.compile(r"(?<=[+.])(cu\d{3}\.torch\d)(\d{1,2})(?=-|$)")


class LocalVersion(NamedTuple):
    """What a local version says about torch and CUDA."""

    #: The series of torch that it names, such as `2.4`; several if it can be read in more than one way.
    series: tuple[str, ...] = ()
    #: The CUDA that it names, such as `cu121`, or `cu12` for every CUDA of a major version; or empty.
    cuda: str = ""
    #: Whether it names a build without CUDA, such as `cpu` or `rocm6.2`.
    without_cuda: bool = False
    #: `torch` or `CUDA`, if it seems to name them in a form that this module does not read.
    unread: tuple[str, ...] = ()

    @property
    def remark(self) -> str:
        """What is not certain about it, as the end of a sentence; empty if all is."""
        if self.unread:
            return f"seems to name {' and '.join(self.unread)} in a form that buildfarm does not read"
        return f"names torch {' or '.join(self.series)}" if len(self.series) > 1 else ""


@lru_cache(maxsize=2**12)
def read_local(local: str) -> LocalVersion:
    """Read a local version in its normal form, such as `cu130.torch2.11`, `pt24cu121` or `cu12torch2.8cxx11abitrue`."""
    torch, cuda = _TORCH.search(local), _CUDA.search(local)
    variant = _variant(cuda[1]) if cuda else ""
    series = tuple(_series(torch[1], variant)) if torch else ()
    without_cuda = not cuda and _OTHER_BACKEND.search(local) is not None
    bare = _BARE.search(_CUDA.sub(" ", _TORCH.sub(" ", local))) is not None
    named = {"torch": (torch, series), "CUDA": (cuda or without_cuda, variant or without_cuda)}
    any_named = any(found for found, _ in named.values())
    unread = [what for what, (found, read) in named.items() if not read and (found or (any_named and bare))]
    return LocalVersion(series, variant, without_cuda, tuple(unread))


def current_form(version: str) -> str:
    """A version, or the start of a file name, in which a local version has the form that buildfarm writes now.

    Earlier it wrote `cu130.torch29`, which is newer than `cu130.torch211` for installers: they compare letters as text.
    """
    return _EARLIER.sub(r"\1.\2", version)


def _variant(number: str) -> str:
    """The variant of `128`, `12.8` or `12`; empty for a number that can be none."""
    first, *rest = number.split(".")
    minor = rest[0] if rest and len(rest[0]) == 1 else ""
    if len(first) == 3 or (len(first) == 2 and not first.startswith("1")):  # `128`, and `92` for CUDA 9.2
        return f"cu{first}"
    return f"cu{first}{minor}" if len(first) == 2 or (len(first) == 1 and minor) else ""


def _series(number: str, variant: str) -> list[str]:
    """The series of `2.11`, `2.11.0`, `211` or `2110`, the ones with this CUDA if the number has several readings."""
    first, *rest = number.split(".")
    if len(first) == 1:
        return [f"{first}.{rest[0]}"] if rest and len(rest[0]) <= 2 else []
    readings = [] if rest and len(first) == 2 else [*_readings(first)]  # there is no torch 12.8
    fitting = [one for one in readings if _has_cuda(*one, variant)] if len(readings) > 1 else []
    return [f"{major}.{minor}" for major, minor, _ in fitting or readings]


def _readings(digits: str) -> Iterator[tuple[int, int, int | None]]:
    """The releases that digits without a point can mean, each as major, minor and patch, if there is one.

    `torch210` is 2.10 in wheels of PyG for `cu128`, and 2.1.0 in wheels of NATTEN for `cu121`.
    """
    for found in filter(None, (re.fullmatch(r"(\d)(\d)(\d?)", digits), re.fullmatch(r"(\d)([1-9]\d)(\d?)", digits))):
        major, minor, patch = int(found[1]), int(found[2]), int(found[3]) if found[3] else None
        # `24` and `2142` have one reading, also if this patch is newer than compat.yaml.
        if len(digits) == 2 or _can_exist(major, minor, patch if len(digits) == 3 else None):
            yield major, minor, patch


def _can_exist(major: int, minor: int, patch: int | None) -> bool:
    """Whether there is or can be such a release: known, older than the known ones, or newer."""
    torches = Compat.load().torches
    oldest, newest = min(torches), max(torches)
    if (major, minor) < (oldest.major, oldest.minor):
        return major == oldest.major
    if (major, minor) > (newest.major, newest.minor):
        return major == newest.major + 1 or (major == newest.major and minor <= newest.minor + _MOST_NEWER)
    of_series = [torch.patch for torch in torches if (torch.major, torch.minor) == (major, minor)]
    return bool(of_series) and (patch is None or patch in of_series or (major, minor) == (newest.major, newest.minor))


def _has_cuda(major: int, minor: int, patch: int | None, variant: str) -> bool:
    """Whether torch has a build of this release for a CUDA; a torch that is not known has those of the newest one."""
    compat = Compat.load()
    newest = max(compat.torches)
    known = [torch for torch in compat.torches if (torch.major, torch.minor) == (major, minor)]
    cudas = {cuda for torch in known if patch in (None, torch.patch) for cuda in compat.torch(torch).variants}
    if variant in {name for cuda in cudas for name in (cuda.variant, f"cu{cuda.major}")}:
        return True
    is_newer = (major, minor) > (newest.major, newest.minor)
    return is_newer and len(variant) > 4 and Cuda.parse(variant) >= min(compat.torch(newest).variants)
