"""The metadata of a source: PKG-INFO or what the build backend says, pyproject.toml, constants of setup.py."""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeGuard

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.diagnosis.setup_script import SetupFacts, read_setup_script
from builder.errors import BuildfarmError, Code, UsageError
from builder.matrix.axes import Cuda, Torch
from builder.matrix.config import RECIPE, PathSource, Recipe

#: Tools that take the version from git, and from a variable that buildfarm sets (`builder.wheels.variables`).
_BY_GIT = re.compile(r"setuptools_scm|hatch_vcs|vcs_versioning|pbr\b|poetry_dynamic_versioning")


@dataclass(frozen=True)
class PackagePlaces:
    """Where the files of a source say that its Python packages are. Paths are relative to the source."""

    #: Folders that hold packages; empty if the source names none.
    bases: tuple[str, ...] = ()
    #: Name and folder of packages.
    packages: tuple[tuple[str, str], ...] = ()
    #: Patterns of the top-level packages that setuptools installs; empty: the source does not say.
    include: tuple[str, ...] = ()
    #: Patterns of those that it leaves out.
    exclude: tuple[str, ...] = ()
    #: The modules outside of packages that setuptools installs.
    modules: tuple[str, ...] = ()

    def installs(self, name: str) -> bool:
        """Whether setuptools installs the top-level package of this name."""
        listed = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return listed and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


@dataclass(frozen=True)
class Metadata:
    """What a source says about itself; empty where it says nothing."""

    name: str
    #: Without a local part.
    version: str
    summary: str
    requires_python: str
    #: Of the run.
    requires: tuple[str, ...]
    #: Of pyproject.toml and `setup_requires`.
    build_requires: tuple[str, ...]
    #: The build backend of pyproject.toml.
    backend: str
    #: Whether setuptools_scm or a similar tool takes the version from git.
    versioned_by_git: bool
    #: URL.
    repository: str
    #: Whether setuptools installs packages that setup.py does not name.
    finds_packages: bool
    #: Whether pyproject.toml names extension modules.
    compiles: bool
    by_setuptools: bool
    places: PackagePlaces


@dataclass(frozen=True)
class BackendMetadata:
    """METADATA of the wheel of one build, as the build backend makes it before the compile."""

    #: The file METADATA.
    text: str
    #: Which of name and version the files of the source do not state.
    asked: tuple[str, ...]
    #: The torch and the CUDA of the build: name and version may contain them.
    torch: Torch
    cuda: Cuda


def read_metadata(tree: Path, script: SetupFacts, made: BackendMetadata | None = None) -> Metadata:
    """The metadata of a source tree; what the backend made, or PKG-INFO, wins over the other files."""
    info = HeaderParser().parsestr(made.text if made else _read(tree / "PKG-INFO"))
    pyproject = _read_toml(tree / "pyproject.toml")
    project, build = pyproject.get("project", {}), pyproject.get("build-system", {})
    config = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, UnicodeDecodeError):
        config.read(tree / "setup.cfg")
    section = dict(config["metadata"]) if config.has_section("metadata") else {}
    keywords, setuptools = script.keywords, _table(pyproject, "tool", "setuptools")
    build_requires = [*_texts(build.get("requires")), *_texts(keywords.get("setup_requires"))]
    dynamic = any(_BY_GIT.match(each.replace("-", "_")) for each in (*build_requires, *script.imports))
    version = _first(info["Version"], project.get("version"), section.get("version"), keywords.get("version"))
    return Metadata(
        name=_first(info["Name"], project.get("name"), section.get("name"), keywords.get("name")),
        version=_public(version),
        summary=_first(info["Summary"], project.get("description"), keywords.get("description"))[:200],
        requires_python=_specifier(
            info["Requires-Python"], project.get("requires-python"), keywords.get("python_requires")
        ),
        requires=_requires(tree, info, project, keywords),
        build_requires=tuple(build_requires),
        backend=_first(build.get("build-backend")),
        versioned_by_git=dynamic or "use_scm_version" in keywords,
        repository=_repository(info, project, keywords),
        finds_packages="project" in pyproject or bool(setuptools) or config.has_section("options"),
        compiles="ext-modules" in setuptools,
        by_setuptools=_first(build.get("build-backend"), "setuptools.build_meta").startswith("setuptools."),
        places=_places(setuptools, keywords),
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def _first(*values: object) -> str:
    """The first value that is text without unknown parts."""
    found = (value.strip() for value in values if isinstance(value, str) and "*" not in value)
    return next((" ".join(value.split()) for value in found if value and value != "UNKNOWN"), "")


def _specifier(*values: object) -> str:
    """The first value that limits a version, without spaces; unlike an unknown part, `!=3.11.*` has a valid `*`."""
    for value in values:
        if isinstance(value, str) and value.strip():
            with suppress(InvalidSpecifier):
                SpecifierSet(value)
                return value.replace(" ", "").strip()
    return ""


def _texts(value: object) -> list[str]:
    return [item for item in _patterns(value) if not item.startswith("*")]


def _public(text: str) -> str:
    with suppress(InvalidVersion):
        return Version(text).public
    return ""


def _requires(tree: Path, info: Message, project: dict[str, Any], keywords: dict[str, object]) -> tuple[str, ...]:
    if stated := info.get_all("Requires-Dist"):
        return tuple(each for each in stated if "extra ==" not in each)
    for listed in sorted(tree.glob("*.egg-info/requires.txt")):
        return tuple(_texts(_read(listed).partition("[")[0]))
    return tuple(_texts(project.get("dependencies")) or _texts(keywords.get("install_requires")))


def _places(setuptools: dict[str, Any], keywords: dict[str, object]) -> PackagePlaces:
    """Where setuptools finds the packages: its table in pyproject.toml, and the arguments of `setup()`."""
    folders: dict[str, str] = {}
    for stated in (setuptools.get("package-dir"), keywords.get("package_dir")):
        folders |= stated if isinstance(stated, dict) else {}
    find = _table(setuptools, "packages", "find")
    bases = [path for path in (folders.get(""), *_texts(find.get("where"))) if path]
    named = _names(setuptools.get("packages"), keywords.get("packages"))
    return PackagePlaces(
        tuple(filter(_inside, bases)),
        tuple((name, path) for name, path in folders.items() if name and _inside(path)),
        include=tuple([name.partition(".")[0] for name in named] or _patterns(find.get("include"))),
        exclude=tuple(_patterns(find.get("exclude"))),
        modules=tuple(_names(setuptools.get("py-modules"), keywords.get("py_modules"))),
    )


def _patterns(value: object) -> list[str]:
    items = value if isinstance(value, list) else value.splitlines() if isinstance(value, str) else []
    return [item.strip() for item in items if isinstance(item, str) and item.strip()]


def _names(*values: object) -> list[str]:
    """The first value that lists names of modules, all of them known; `find:` of setup.cfg names none."""
    for value in values:
        names = _patterns(re.sub(r"[,\s]+", "\n", value) if isinstance(value, str) else value)
        if names and all(re.fullmatch(r"\w+(?:\.\w+)*", name) for name in names):
            return names
    return []


def _table(table: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table


def _inside(path: object) -> TypeGuard[str]:
    """Whether a value is the path of a folder inside the source, without unknown parts."""
    if not isinstance(path, str) or not path or "*" in path:
        return False
    return not path.startswith("/") and ".." not in path.split("/")


def _repository(info: Message, project: dict[str, Any], keywords: dict[str, object]) -> str:
    urls = [each.partition(",")[2].strip() for each in info.get_all("Project-URL") or ()]
    urls += [info["Home-page"] or "", *map(str, project.get("urls", {}).values()), str(keywords.get("url", ""))]
    found = (re.match(r"https?://(?:github|gitlab)\.com/[\w.-]+/[\w.-]+", url) for url in urls)
    return next((match[0].removesuffix(".git") for match in found if match), "")


def valid_requirements(texts: Iterable[str]) -> Iterator[Requirement]:
    """The texts as requirements, without those that are none."""
    for text in texts:
        with suppress(InvalidRequirement):
            yield Requirement(text)


def other_versions(recipes: Iterable[Recipe]) -> list[BuildfarmError]:
    """Recipes with another version than their source folder states: the compile would end with the same error."""
    found: list[BuildfarmError] = []
    for recipe in recipes:
        if not isinstance(recipe.source, PathSource) or (recipe.source.path / "PKG-INFO").exists():
            continue
        stated = read_metadata(recipe.source.path, read_setup_script(recipe.source.path)).version
        if stated and not recipe.is_version(Version(stated)):
            found.append(
                UsageError(
                    f"the recipe has version {recipe.stated_version}, and setup.py or pyproject.toml has {stated}",
                    Code.VERSION_DIFFERS,
                    where=str(recipe.folder / RECIPE),
                    hints=[f"set `version: {stated}` in {RECIPE}, or correct the version of the source"],
                )
            )
    return found
