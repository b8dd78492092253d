"""What to do about the first error of a build, if its cause is known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

from packaging.utils import canonicalize_name

from builder.diagnosis.first_error import FirstError
from builder.diagnosis.known_errors import NO_HEADER, KnownError, Package, knowledge, plain_quotes
from builder.matrix.axes import Cuda, Torch

_NO_MODULE = re.compile(r"No module named '?(\w[\w.]*)")
_NO_HEADER = re.compile(NO_HEADER.replace("{headers}", r"\S+"))
_NO_LIBRARY = re.compile(r"cannot find -l(\S+?):?(?:\s|$)|unable to find library -l(\S+)|library not found: (\S+)")
_NO_CMAKE_PACKAGE = re.compile(r"configuration file provided by '([\w-]+)'|Could NOT find (\w+)")
_NO_PROGRAM = re.compile(
    r"No such file or directory: '([\w-]+)'|sh: (?:line )?\d+: ([\w-]+): (?:command )?not found"
    r"|error: command '([\w-]+)' failed: No such file"
)


def hints_for(
    error: FirstError, torch: Torch, cuda: Cuda, *, container: bool, packages: Sequence[str] = ()
) -> list[str]:
    """What to do about an error in a build for this torch and CUDA; empty if the cause is not known.

    `container` is whether the build runs in a container of an image. `packages` are those of its environment, as exact
    requirements.
    """
    message = plain_quotes(error.message)
    shown = plain_quotes("\n".join((error.message, *error.excerpt)))  # some rows name a macro, which gcc only shows
    for known in (each for each in knowledge().errors if each.section != "imports"):
        if not (known.torch and torch < known.torch) and not (known.cuda and cuda < known.cuda):
            for form in known.forms:
                if found := form.search(shown if known.section == "missing_include" else message):
                    return [_hint(known, found, torch, cuda)]
    installed = {canonicalize_name(package.partition("==")[0]) for package in packages}
    return next((hints for hints in _missing(message, cuda, installed, container=container) if hints), [])


def _hint(known: KnownError, found: re.Match[str], torch: Torch, cuda: Cuda) -> str:
    groups = {key: text for key, text in found.groupdict().items() if text}
    name = next((groups[key] for key in ("name", "member", "header", "clang", "nvcc") if key in groups), "")
    hint = known.hint.format_map(groups | {"name": name, "torch": torch, "cuda": cuda})
    if known.section == "removed_from_torch" and known.torch and "{torch}" not in known.hint:
        return f"torch {known.torch.series} removed {name or known.about}: {hint}"
    if known.section == "removed_from_cuda" and known.cuda and name:
        return f"CUDA {known.cuda} moved or removed {name}: {hint}"
    return hint


def _missing(message: str, cuda: Cuda, installed: Set[str], *, container: bool) -> Iterator[list[str]]:
    """Hints for a module, a header, a library, a CMake package or a program that is not there."""
    knows = knowledge()
    if found := _NO_MODULE.search(message):
        yield [_module(found[1])]
    if found := _NO_HEADER.search(message):
        header = next(filter(None, found.groups()))
        for package in knows.packages:
            if package.has_header(header):
                yield [_package(package, f"the header {header}", cuda, installed, container=container)]
    if found := _NO_LIBRARY.search(message):
        library = next(filter(None, found.groups()))
        for package in knows.packages:
            if package.library == library:
                yield [_package(package, f"the library {library}", cuda, installed, container=container)]
    if found := _NO_CMAKE_PACKAGE.search(message):
        name = next(filter(None, found.groups()))
        for package in knows.packages:
            if package.cmake and package.cmake.lower() == name.lower():
                yield [_package(package, name, cuda, installed, container=container)]
    if (found := _NO_PROGRAM.search(message)) and (name := next(filter(None, found.groups()))) in knows.programs:
        yield [f"add `{knows.programs[name]}` to `build_requires` in the recipe: the build calls the program {name}"]


def _module(module: str) -> str:
    top = module.partition(".")[0]
    if top == "torch":
        return (
            "the environment of the build has torch, so the source starts a second, isolated build: pass"
            " --no-build-isolation to the pip that it calls"
        )
    requirement = knowledge().modules.get(top, top)
    return f"add `{requirement}` to `build_requires` in the recipe: the build needs this module"


def _package(package: Package, what: str, cuda: Cuda, installed: Set[str], *, container: bool) -> str:
    if package.submodule:
        return (
            f"{what} is of {package.submodule}, which is a git submodule of most sources: use the git repository as"
            " `source`, because archives of it have no submodules"
        )
    if package.pypi:
        requirement = package.pypi.format(cuda_major=cuda.major)
        brings = package.brings.format(cuda_major=cuda.major) or canonicalize_name(requirement)
        if brings in installed:
            return (
                f"{what} is in `{brings}`, which is installed, and the compiler does not search its folder: add the"
                " folder to the extension in setup.py with a patch (CUDAExtension of torch adds that of the toolkit)"
            )
        return f"{what} is in `{requirement}`: add it to `build_requires` in the recipe"
    where = f"{what} is in `{package.debian}` (Debian, Ubuntu) and `{package.dnf}` (dnf)"
    if container:
        return f"{where}: under `images:` in matrix.yaml, name an image that has it"
    return f"{where}: install it"
