"""Inspect a source without running it, and draft its recipe."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NoReturn

from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.diagnosis.setup_script import UNKNOWN, SetupFacts, read_setup_script
from builder.diagnosis.target_version import target_version
from builder.errors import Code, UsageError
from builder.matrix.axes import STABLE_FLOOR, AbiClass
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import GitSource, PathSource, SdistSource, name_pattern, version_pattern
from builder.proofs.static.contents import is_common_namespace
from builder.recipes.fetch import PinnedSource
from builder.recipes.inspection.build_settings import (
    PackageFacts,
    add_build_settings,
    project_of,
    provides,
    read_packages,
)
from builder.recipes.inspection.findings import Draft, RecipeEntry
from builder.recipes.inspection.metadata import (
    BackendMetadata,
    Metadata,
    read_metadata,
    valid_requirements,
)
from builder.recipes.inspection.native_code import NativeFacts, read_native_code

_NO_VERSION = "0.0.0"
#: What a build with setuptools may need that compiles nothing; arguments of `setup()` that may compile something.
_PLAIN_BUILDS = {"setuptools", "setuptools_scm", "wheel", "pip", "packaging", "versioneer"}
_COMPILING = {UNKNOWN, "ext_modules", "cmdclass", "cffi_modules", "rust_extensions", "distclass"}
#: The macro that torch's build defines as the name of the library; TORCH_LIBRARY_EXPAND makes a namespace of it.
_EXTENSION_NAME = "TORCH_EXTENSION_NAME"
#: How to add a folder whose setup.py compiles files above the folder.
_FILES_ABOVE = (
    "of a git repository, buildfarm builds a subfolder with the files above it; commit them, and run"
    " `buildfarm add REPOSITORY@BRANCH#subdirectory=FOLDER`"
)


def inspect_source(pinned: PinnedSource, tree: Path, made: BackendMetadata | None = None) -> Draft:
    """Draft a recipe for the source in `tree`. Raises UsageError if there is nothing to build in it.

    `made` is what the build backend says of a source whose files do not state name and version.
    """
    script = read_setup_script(tree)
    native = read_native_code(tree, also=_folders_above(pinned, tree, script))
    stated = read_metadata(tree, script, made)
    _refuse_impossible(pinned, tree, stated, script, native)
    tops = {extension.name.partition(".")[0] for extension in script.extensions if "*" not in extension.name}
    packages = read_packages(tree, stated.name or pinned.default_name, tops, stated.places)
    named = {"packages", "py_modules", UNKNOWN} & set(script.arguments)
    if stated.by_setuptools and "ext_modules" in script.arguments and not named and not stated.finds_packages:
        packages = PackageFacts((), (), imports_torch=False)  # setuptools then installs the compiled modules only
    states = {"name": stated.name, "version": stated.version or stated.versioned_by_git}
    unknown = tuple(key for key, value in states.items() if not value)
    name = canonicalize_name(stated.name or pinned.default_name).replace("-", "_")
    tag = re.search(r"@\D{0,20}?(\d+(?:\.\d+)+\w*)$", pinned.label) if isinstance(pinned.source, GitSource) else None
    version = stated.version or (tag[1] if tag else _NO_VERSION)  # the user may name a tag such as `v1.2`
    if made and "name" in made.asked:
        name = name_pattern(name, made.torch, made.cuda)
    if made and "version" in made.asked:
        version = version_pattern(Version(version), made.torch, made.cuda)
    draft = Draft(re.sub(r"_*\{\w+\}", "", name), version, () if made else unknown)
    _add_identity(draft, pinned, stated, name, asked=made.asked if made else ())
    _add_abi(draft, tree, script, native, packages)
    _add_imports(draft, script, native, packages, stated)
    add_build_settings(draft, script, native, stated)
    _add_requirements(draft, stated, packages)
    _note_sources(draft, tree, script, stated)
    if native.cmake_downloads:
        draft.note(
            f"CMake can download {and_list(list(dict.fromkeys(native.cmake_downloads))[:3])} during the build",
            "the build then needs a network, and the recipe does not pin what CMake downloads",
        )
    return draft


def _folders_above(pinned: PinnedSource, tree: Path, script: SetupFacts) -> list[Path]:
    """The folders outside of a git subfolder that links lead to, or whose files setup.py compiles."""
    if not isinstance(pinned.source, GitSource) or not pinned.source.subdirectory:
        return []
    root = tree.resolve().parents[len(PurePosixPath(pinned.source.subdirectory).parts) - 1]
    found = set()
    names = (source.removeprefix("*/") for extension in script.extensions for source in extension.sources)
    places = [(tree / name).parent for name in names if name.startswith("../")]
    for folder in map(Path.resolve, [*places, *(path for path in tree.rglob("*") if path.is_symlink())]):
        # Not the top of the repository, or a folder around the subfolder: that would read other projects too.
        if "*" not in folder.parts and folder.is_dir():
            around = tree.resolve().is_relative_to(folder) or folder.is_relative_to(tree.resolve())
            found |= {folder} if folder.is_relative_to(root) and not around else set()
    return sorted(found)


def _refuse_impossible(
    pinned: PinnedSource, tree: Path, stated: Metadata, script: SetupFacts, native: NativeFacts
) -> None:
    def refuse(sentence: str, *hints: str, where: str = pinned.label) -> NoReturn:
        raise UsageError(sentence, Code.SOURCE_UNSUPPORTED, where=where, hints=hints)

    if not (tree / "setup.py").is_file() and not (tree / "pyproject.toml").is_file():
        refuse(f"the {pinned.kind} has no setup.py and no pyproject.toml at its top", *_other_folders(pinned, tree))
    if script.syntax_error[0]:
        place, message = script.syntax_error
        hint = "if the source needs a newer Python than the one that runs buildfarm, run buildfarm with that Python"
        between = "/" if isinstance(pinned.source, PathSource) else ": "
        refuse(message, hint, where=f"{pinned.label}{between}{place}")
    native_files = [*native.cuda_files, *native.cpp_files, *native.foreign_cuda_files]
    if not native_files:
        hints = []
        if (url := stated.repository) and pinned.kind == "source distribution":
            hints.append(f"if the git repository has the missing files, add the repository: `buildfarm add {url}`")
        compiled = [source for extension in script.extensions for source in extension.sources]
        sentence = f"the {pinned.kind} has no C++ or CUDA file, so there is nothing to compile"
        real = os.path.relpath((tree / compiled[0]).resolve(), tree.resolve()) if compiled else ""
        if real.startswith("../"):
            sentence = f"setup.py compiles {compiled[0]}, which is outside of the folder that buildfarm builds"
            hints += [_FILES_ABOVE] if isinstance(pinned.source, PathSource) else []
        elif compiled:
            sentence = f"setup.py compiles {compiled[0]}, but the {pinned.kind} does not contain this file"
        refuse(sentence, *hints)
    if not native.cmake and _compiles_nothing(tree, stated, script):
        why = script.run_time_compile or "no extension module is named, so the wheel would be pure Python"
        hint = "install the project with pip or uv: a pure Python wheel fits every torch and CUDA"
        refuse(f"the build compiles nothing: {why}", hint)


def _compiles_nothing(tree: Path, stated: Metadata, script: SetupFacts) -> bool:
    """Whether it is certain that setuptools compiles nothing: nothing names a module or brings commands of its own."""
    unread = (tree / "setup.py").is_file() and not script.arguments
    if not stated.by_setuptools or stated.compiles or script.extensions or unread:
        return False
    needs = {canonicalize_name(each.name).replace("-", "_") for each in valid_requirements(stated.build_requires)}
    # A setup.py imports torch for its extension modules; they may be commented out.
    plain = _PLAIN_BUILDS | ({"torch"} if script.run_time_compile else set())
    return needs.union(script.imports) <= plain and _COMPILING.isdisjoint(script.arguments)


def _other_folders(pinned: PinnedSource, tree: Path) -> list[str]:
    """Hints for a source whose project is in a folder further down, or that has none."""
    found = sorted({path.parent.name for name in ("setup.py", "pyproject.toml") for path in tree.glob(f"*/{name}")})
    if not found:
        return ["for a folder with one .cu file, `buildfarm init` writes a setup.py"] if any(tree.glob("*.cu")) else []
    if not isinstance(pinned.source, PathSource):
        return [f"name the folder: `buildfarm add {pinned.label}#subdirectory={shlex.quote(found[0])}`"]
    sources = [one for each in read_setup_script(tree / found[0]).extensions for one in each.sources]
    if any(one.startswith("../") for one in sources):
        return [_FILES_ABOVE]
    return [f"name the folder: `buildfarm add {shlex.quote(str(Path(pinned.label, found[0])))}`"]


def _add_identity(draft: Draft, pinned: PinnedSource, stated: Metadata, name: str, asked: Sequence[str]) -> None:
    draft.entries += [RecipeEntry("name", name), RecipeEntry("version", draft.version)]
    if asked:
        found = f"the files of the source do not state the {and_list(asked)} of the wheel"
        draft.note(found, f"the build backend said {name} {draft.version}")
    for text, contains in ((name, "the name contains the version"), (draft.version, "the version contains that")):
        if "{" in text:
            draft.note(f"{contains} of CUDA or torch", "buildfarm fills it in for each build")
    if draft.version == _NO_VERSION:
        draft.ask("the version is not a constant in the source", "set `version` to the version of the wheel")
    if "name" in draft.unknown:
        draft.ask("the name is not a constant in the source", "set `name` to the name of the wheel")
    if stated.summary:
        draft.entries.append(RecipeEntry("summary", stated.summary))
    match pinned.source:
        case PathSource():
            value: dict[str, str] = {"path": "."}
        case GitSource(url=url, revision=revision, subdirectory=subdirectory):
            value = {"git": url, "revision": revision} | ({"subdirectory": subdirectory} if subdirectory else {})
        case SdistSource(project=project, version=version, sha256=sha256):
            value = {"sdist": project, "version": version, "sha256": sha256}
        case _:
            raise AssertionError("an official wheel has no source to inspect")
    draft.entries.append(RecipeEntry("source", value))
    if stated.requires_python:
        draft.entries.append(RecipeEntry("python", stated.requires_python, "the Pythons that the source supports"))


def _add_abi(draft: Draft, tree: Path, script: SetupFacts, native: NativeFacts, packages: PackageFacts) -> None:
    python, torch = native.python_headers, native.torch_headers
    if native.stable_headers and not torch and not python:
        found = f"the sources include only torch headers of the stable ABI ({native.stable_headers[0]})"
        oldest, newest = STABLE_FLOOR, Compat.load().torches[-1]
        target = target_version(tree, newest)
        if target and target.suits(newest):
            oldest = max(oldest, target.torch)
            found = f"{found}, and {target} sets TORCH_TARGET_VERSION for torch {target.torch.series}"
        rule = [{"class": str(AbiClass.STABLE), "torch": f">={oldest.series}"}]
        draft.add("abi", rule, found, "one wheel for each CUDA major version")
    elif script.limited_api and not python:
        found = "setup.py sets py_limited_api, and no file uses Python's unlimited C API"
        draft.add("abi", str(AbiClass.ABI3), found, "one wheel for each torch series and CUDA")
    else:
        used = [*(["torch's C++ API"] if torch else []), *([f"Python's C API ({python[0]})"] if python else [])]
        found = f"the sources use {and_list(used)}" if used else "the sources include no header of torch or Python"
        draft.add("abi", str(AbiClass.CPYTHON), found, "one wheel for each torch series, CUDA and Python")
        if not torch and "torch" not in script.imports and not packages.imports_torch:
            draft.ask("neither the build nor the package uses torch", "is this an extension of PyTorch?")
    if native.namespaces:
        own = sorted(native.namespaces - {_EXTENSION_NAME})
        named = and_list(own) or "that the build names"
        draft.note(f"ops in the namespace {named}", "buildfarm finds them in the wheel")
        if common := [name for name in own if is_common_namespace(name, draft.name)]:
            draft.note(
                f"many projects register ops in a namespace {and_list(common)}",
                "torch refuses the second TORCH_LIBRARY of a name: name the namespace after the project",
            )
    elif native.python_modules:
        draft.note(
            "no op is registered with torch, only Python functions", "buildfarm tests the functions that a case calls"
        )


def _add_imports(
    draft: Draft, script: SetupFacts, native: NativeFacts, packages: PackageFacts, stated: Metadata
) -> None:
    names = [each.name for each in script.extensions]
    literal = list(dict.fromkeys(name for name in names if "*" not in name))
    # A library that only registers ops is loaded by torch.ops.load_library; it is no Python module.
    within = tuple(f"{package}." for package in packages.packages)
    inner = [name for name in literal if name.startswith(within)] if native.python_modules else []
    imports = [*packages.packages, *(inner if packages.imports_torch and not native.namespaces else [])]
    if not imports:
        imports = literal or [canonicalize_name(stated.name or draft.name).replace("-", "_")]
    if names:
        # `…` stands for a part that only the run knows.
        known = dict.fromkeys(name.replace(UNKNOWN, "…") for name in names if re.search(r"\w", name))
        computed = ["a module whose name it computes"] if any(not re.search(r"\w", name) for name in names) else []
        found = f"setup.py compiles {and_list([*known, *computed])}"
    else:
        found = f"the package is {imports[0]}"
    draft.add("imports", imports, found, f"the wheel must import {and_list(imports)}")
    if (native.torch_headers or native.stable_headers) and not packages.imports_torch:
        found = f"{imports[0]} does not import torch itself"
        draft.add("needs_first", ["torch"], found, "every check imports torch first")


def _add_requirements(draft: Draft, stated: Metadata, packages: PackageFacts) -> None:
    declared = {canonicalize_name(requirement.name) for requirement in valid_requirements(stated.requires)}
    missing = [name for name in packages.imported if not any(provides(project, name) for project in declared)]
    if known := {name: project for name in missing if (project := project_of(name))}:
        found = f"the package imports {and_list(known)}, which its metadata does not require"
        draft.add("requires", sorted(known.values()), found, "added to the metadata of the wheel")
    if unknown := [name for name in missing if name not in known]:
        draft.ask(
            f"the package imports {and_list(unknown)}, and no requirement of its metadata has such a name",
            "if the import fails in a new environment, add the project to `requires` in the recipe",
        )


def _note_sources(draft: Draft, tree: Path, script: SetupFacts, stated: Metadata) -> None:
    for extension in script.extensions:
        files: set[str] = set()
        for pattern in (source.removeprefix("*/").removeprefix("./") for source in extension.sources):
            if not pattern.startswith("/") and ".." not in pattern:
                with suppress(ValueError):  # "" and "**.cu" are no patterns
                    files |= {path.relative_to(tree).as_posix() for path in tree.glob(pattern)}
        stems = Counter(file.rpartition(".")[0] for file in files)
        if alike := sorted(file for file in files if stems[file.rpartition(".")[0]] > 1):
            draft.ask(
                f"setup.py compiles {and_list(alike[:4])} into one module, and they differ only in the ending",
                "torch gives their objects one name: rename one of them with a patch",
            )
    packaged = stated.finds_packages or script.keywords.get("include_package_data")
    if packaged and any(source.startswith("*/") for each in script.extensions for source in each.sources):
        draft.note(
            "setup.py may name source files by absolute paths",
            "setuptools refuses this for files inside a package: use paths relative to the folder of setup.py",
        )
