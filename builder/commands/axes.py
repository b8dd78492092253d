"""The torch, CUDA and Python of a new matrix.yaml, or of a command without one: as options or the environment say."""

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.errors import Code, UsageError
from builder.log import print_line
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import MATRIX, Matrix, Selection
from builder.matrix.load import load_matrix
from builder.matrix.plan import selected
from builder.recipes.project_files import axes_text
from builder.wheels.build_scripts.new_environment import stated


class _Options(Protocol):
    """The options of a command that plans."""

    @property
    def matrix(self) -> Path | None: ...
    @property
    def select(self) -> Selection: ...


_O = TypeVar("_O", bound=_Options)
_R = TypeVar("_R")
_NAME_THEM = "name the versions, such as `--torch 2.11 --cuda 13.0 --python 3.12`"
_NAME_A_WHEEL = "to test a wheel without this file, name the wheel, such as `buildfarm smoke torchvision==0.26.0`"


def reads_unknown(command: Callable[[_O], _R]) -> Callable[[_O], _R]:
    """A command that reads the facts of a torch or a CUDA that is unknown from the package index, and starts again.

    An unknown version ends a command before it starts anything.
    """

    @wraps(command)
    def run(options: _O) -> _R:
        try:
            return command(options)
        except UsageError as error:
            from builder.commands.facts import read_unknown  # noqa: PLC0415 - loads slowly

            # The second one is that of a value in matrix.yaml.
            unknown = error.code in (Code.VERSION_UNKNOWN, Code.KEY_INVALID)
            if not unknown or not read_unknown(options.matrix or MATRIX, options.select):
                raise
            return command(options)

    return run


def new_axes(select: Selection, archs: tuple[Arch, ...] = (), pythons_of_source: str = "") -> Matrix:
    """Return a new matrix without extensions; `pythons_of_source` limits the Python that is chosen, as `>=3.12`.

    Raises UsageError if a value is unknown or the values exclude each other.
    """
    compat = Compat.load()
    selected([], select, compat)  # raises the errors, which then name the option
    compat.check_archs(archs, "--arch")
    cudas = [compat.resolve_cuda(text) for text in select.cuda]
    pythons = [compat.resolve_python(text) for text in select.python]
    source = SpecifierSet(pythons_of_source, prereleases=True)
    torches = [compat.resolve_torch(text) for text in select.torch] or [_newest_torch(compat, cudas, pythons, source)]
    last = torches[-1]
    if not cudas:  # that of the torch on the package index, or the newest one that this torch was built for
        default = [cuda for cuda in compat.cudas if compat.is_default_variant(last, cuda)][:1]
        cudas = default or [max(compat.torch(last).variants)]
    if not pythons:  # the one that runs buildfarm, or the newest one of this torch, if the source supports it
        here = Python(sys.version_info.major, sys.version_info.minor)
        fitting = _supported(compat, last, source) or _supported(compat, last, SpecifierSet())
        pythons = [here if here in fitting else max(fitting)]
    return Matrix(MATRIX, tuple(torches), tuple(cudas), tuple(pythons), archs)


def matrix_or_options(file: Path | None, select: Selection, wheels: Sequence[str]) -> Matrix:
    """The matrix for these wheels: that of matrix.yaml, and the versions that `select` names.

    Without a file and without a version in `select`, the versions are those of the current environment. If `select`
    names others but no Python, it is the one in the file names of the wheels. `new_axes` chooses what is missing then.
    The recipes of `select` and the wheels of `dist` need the file.

    Raises UsageError for a wrong file, a missing file that is needed, an unknown version, and a current environment
    that is needed but has no torch for CUDA.
    """
    path, source = file or MATRIX, ""
    if file or path.exists() or select.extensions or not wheels:
        try:
            matrix = load_matrix(path)
            return with_selected(matrix, select) if wheels else matrix
        except UsageError as error:
            if not (path.exists() or file or select.extensions):
                error.hints = (_NAME_A_WHEEL, *error.hints)
            raise
    if not (select.torch or select.cuda or select.python):
        here = current_environment()
        select = Selection((str(here.torch),), (str(here.cuda),), (str(here.python),))
        source = f", as in the current environment ({here.prefix})"
    elif not select.python:
        select = replace(select, python=tuple(map(str, sorted(set(_named_pythons(wheels))))))
    matrix = new_axes(select)
    print_line(f"there is no {path}; the cell is {axes_text(matrix)}{source}")
    return replace(matrix, path=path, platforms=(Platform(f"linux_{os.uname().machine}"),))


def with_selected(matrix: Matrix, select: Selection) -> Matrix:
    """The matrix with all selected versions: for a wheel that others built, they need not be in the file."""
    compat = Compat.load()
    selected([], select, compat)  # raises the errors, which then name the option
    series = [compat.releases(text) for text in select.torch]
    torches = {releases[-1] for releases in series if not set(releases) & set(matrix.torch)}
    return replace(
        matrix,
        torch=tuple(sorted({*matrix.torch, *torches})),
        cuda=tuple(sorted({*matrix.cuda, *map(compat.resolve_cuda, select.cuda)})),
        python=tuple(sorted({*matrix.python, *map(compat.resolve_python, select.python)})),
    )


def _named_pythons(wheels: Sequence[str]) -> Iterator[Python]:
    """Yield the Python of each wheel that is for one Python alone, by its file name."""
    for wheel in wheels:
        try:
            tags = parse_wheel_filename(PurePosixPath(wheel).name)[3]
        except InvalidWheelFilename:
            continue
        for tag in tags:
            if tag.interpreter == tag.abi.removesuffix("t"):  # cp313t: free-threaded
                yield Python.parse(tag.abi)


def _newest_torch(compat: Compat, cudas: list[Cuda], pythons: list[Python], source: SpecifierSet) -> Torch:
    """The newest torch for these values; if possible one with a Python that the source supports."""
    found = []
    for torch in reversed(compat.torches):
        missing = [compat.why_not_cuda(torch, cuda) for cuda in cudas]
        missing += [compat.why_not_python(torch, python) for python in pythons]
        if not any(missing):
            found.append(torch)
    supported = (torch for torch in found if pythons or _supported(compat, torch, source))
    if found:
        return next(supported, found[0])
    wanted = ", ".join([*(f"CUDA {cuda}" for cuda in cudas), *(f"Python {python}" for python in pythons)])
    hint = "pass fewer values of --cuda and --python; buildfarm chooses a value for an option that you omit"
    raise UsageError(f"no torch release has wheels for all of these: {wanted}", Code.NO_SUCH_COMBINATION, hints=[hint])


def _supported(compat: Compat, torch: Torch, source: SpecifierSet) -> list[Python]:
    """The Pythons of a torch that the source supports, without free-threaded ones."""
    pythons = (python for python in compat.torch(torch).pythons[torch] if not python.free_threaded)
    return [python for python in pythons if source.contains(str(python))]


@dataclass(frozen=True)
class CurrentEnvironment:
    """A Python environment: its folder, its python program, and the folder of its distributions.

    `of_buildfarm` is whether no variable names it, so that it is the environment of buildfarm.
    """

    prefix: Path
    interpreter: Path
    site_packages: Path
    of_buildfarm: bool = False

    @property
    def torch(self) -> Torch:
        """The release of its torch. Raises UsageError if it has none."""
        return Torch.parse(self._stated(0, "--torch is not given, and the current environment has no torch"))

    @property
    def cuda(self) -> Cuda:
        """The CUDA of its torch. Raises UsageError if it has no torch for CUDA."""
        missing = "--cuda is not given, and the torch of the current environment is not for CUDA"
        return Cuda.parse(self._stated(1, missing))

    @property
    def python(self) -> Python:
        """Its Python."""
        if self.of_buildfarm:
            return Python(sys.version_info.major, sys.version_info.minor)
        return Python.parse(self.site_packages.parent.name.removeprefix("python"))

    def _stated(self, which: int, missing: str) -> str:
        """The release (0) or the CUDA (1) that its torch states; raises UsageError with `missing` without one."""
        file = self.site_packages / "torch" / "version.py"
        if file.is_file() and (found := stated(file.read_text(encoding="utf-8"))[which]):
            return found
        raise UsageError(f"{missing} ({self.prefix})", Code.NO_ENVIRONMENT, hints=[_NAME_THEM])


def current_environment() -> CurrentEnvironment:
    """Find the current environment; raises UsageError when the folder that a variable names is no environment."""
    named = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    if not named:  # sysconfig, since Debian's Python has its distributions in `dist-packages`
        return CurrentEnvironment(
            Path(sys.prefix), Path(sys.executable), Path(sysconfig.get_path("purelib")), of_buildfarm=True
        )
    prefix = Path(named)
    for site_packages in sorted((prefix / "lib").glob("python3*/site-packages")):
        return CurrentEnvironment(prefix, prefix / "bin" / "python", site_packages)
    sentence = "VIRTUAL_ENV or CONDA_PREFIX names this folder, which is not a Python environment"
    raise UsageError(sentence, Code.NO_ENVIRONMENT, where=str(prefix))
