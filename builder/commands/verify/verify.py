"""`buildfarm verify`: judge wheels from their files alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name, is_normalized_name

from builder.commands.current_environment import current_environment
from builder.commands.index.foreign_wheels import ForeignWheels
from builder.commands.verify.beside import neighbours
from builder.errors import UsageError
from builder.matrix.axes import Cuda, Python
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proofs.inventory.shelf import shelf_of
from builder.proofs.verify.clash import Together
from builder.proofs.verify.gpus import Gpu, gpu_named
from builder.proofs.verify.judge import Judge, WheelVerdict, with_clashes
from builder.store import Store
from builder.wheelfile.archive import WheelContents
from builder.wheelfile.facts import WheelFacts, facts_of, open_wheel, read_facts
from builder.wheelfile.installed import InstalledWheel


@dataclass(frozen=True)
class VerifyOptions:
    """The options of one `buildfarm verify`.

    Attributes:
        wheels: files, folders, URLs, NAME==VERSION, names of installed packages, or `.dist-info` folders.
        select: the torch, CUDA and Python that the user asks about; empty: all that the wheel suits.
        gpus: names of GPUs (RTX 4090), or architectures (8.9, sm_89).
        driver: version of the NVIDIA driver, such as 550 or 550.54.14; empty: any.
        index: URL of a package index to ask before the default one, or empty.
        max_size: bytes that a wheel file may have; 0: any number.
        beside: wheels, as `wheels` names them, and environments, whose packages are used together with the wheels.

    """

    wheels: tuple[str, ...]
    select: Selection = field(default_factory=Selection)
    gpus: tuple[str, ...] = ()
    driver: str = ""
    index: str = ""
    max_size: int = 0
    beside: tuple[str, ...] = ()


def run_verify(options: VerifyOptions, store: Store) -> list[WheelVerdict]:
    """Judge each wheel. Nothing in a wheel is executed.

    Raises UsageError for an argument that names no wheel, for a file that is no readable wheel, and for the selection;
    MissingToolError when a download fails.
    """
    compat = Compat.load()
    pythons = [compat.resolve_python(text) for text in options.select.python]
    for text in options.select.torch:
        compat.releases(text)
    for text in options.select.cuda:
        Cuda.parse(text)
    gpus = tuple(Gpu(text, gpu_named(text, compat)) for text in options.gpus)
    if options.driver and not re.fullmatch(r"\d+(?:\.\d+)*", options.driver):
        raise UsageError(
            f"{options.driver!r} is not a driver version; write it like 550 or 550.54.14", where="--driver"
        )
    finder = ForeignWheels(store.root / "sources", options.index, pythons or [Python(*sys.version_info[:2])])
    beside = tuple(one for text in options.beside for one in neighbours(text, finder))
    judge = Judge(shelf_of(store), options.select, gpus, options.driver, options.max_size, beside)
    found = [one for text in options.wheels for one in _found(text, finder)]
    several = len({one.project for one in found}) > 1
    verdicts: list[WheelVerdict] = []
    shared: list[Together] = []
    for one in found:
        with one.opened() as (wheel, facts):
            verdicts.append(judge.judge(wheel, facts, one.origin))
            if several:
                shared.append(judge.together(wheel, facts))
    return [with_clashes(one, own, shared) for one, own in zip(verdicts, shared, strict=True)] if several else verdicts


@dataclass(frozen=True)
class _Found:
    """One wheel to judge: a file, or the `.dist-info` folder of an installed package."""

    path: Path
    origin: str

    @property
    def project(self) -> str:
        return canonicalize_name(self.path.name.partition("-")[0])

    @contextmanager
    def opened(self) -> Iterator[tuple[WheelContents, WheelFacts]]:
        if self.path.name.endswith(".dist-info"):
            installed = InstalledWheel(self.path)
            yield installed, facts_of(installed, installed.digest, installed.size)
        else:
            facts = read_facts(self.path)
            with open_wheel(self.path) as archive:
                yield archive, facts


def _found(text: str, finder: ForeignWheels) -> Iterator[_Found]:
    """The wheels that one argument names."""
    if dist_info := _installed(text):
        yield _Found(dist_info, str(dist_info))
        return
    yield from (_Found(wheel.path, wheel.origin) for wheel in finder.find([text]))


def _installed(text: str) -> Path | None:
    """The `.dist-info` folder that an argument names: by its path, or by the name of an installed package."""
    path = Path(text)
    if path.name.endswith(".dist-info") and path.is_dir():
        return path
    if not is_normalized_name(canonicalize_name(text)) or path.exists() or text.endswith(".whl"):
        return None
    here = current_environment()
    for found in sorted(here.site_packages.glob("*.dist-info")):
        if canonicalize_name(found.stem.partition("-")[0]) == canonicalize_name(text):
            return found
    raise UsageError(
        f"no package {text} is installed in {here.prefix}",
        hints=["name a file, a URL, or NAME==VERSION for the package index"],
    )
