"""The metadata of a source: PKG-INFO, pyproject.toml, constants of setup.py, or what the build backend says."""

from collections.abc import Iterable
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from contextlib import suppress
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.diagnosis.setup_script import SetupFacts, read_setup_script, read_toml
from builder.errors import BuildfarmError, Code, UsageError
from builder.matrix.axes import Cuda, Torch
from builder.matrix.config import RECIPE, PathSource, Recipe, name_pattern, version_pattern


@dataclass(frozen=True)
class Metadata:
    """What a source says about itself; empty where it says nothing."""

    name: str
    version: str  # without a local part
    requires_python: str
    requires: tuple[Requirement, ...]  # what the wheel will require
    build_requires: tuple[Requirement, ...]  # of pyproject.toml and `setup_requires`
    backend: str  # the build backend of pyproject.toml, or that of a source without one
    finds_packages: bool  # whether setuptools installs packages that setup.py does not name


def read_metadata(tree: Path, script: SetupFacts) -> Metadata:
    """The metadata in the files of a source; PKG-INFO wins over pyproject.toml, and that over setup.py."""
    info, pyproject = HeaderParser().parsestr(_read(tree / "PKG-INFO")), read_toml(tree / "pyproject.toml")
    project, build, keywords = pyproject.get("project", {}), pyproject.get("build-system", {}), script.keywords
    setuptools = pyproject.get("tool", {}).get("setuptools", {})
    options = _read_options(tree / "setup.cfg")
    return Metadata(
        name=_first(info["Name"], project.get("name"), keywords.get("name")),
        version=_public(_first(info["Version"], project.get("version"), keywords.get("version"))),
        requires_python=_specifier(
            info["Requires-Python"], project.get("requires-python"), keywords.get("python_requires")
        ),
        requires=_requirements(
            info.get_all("Requires-Dist"),
            [line for file in tree.glob("*.egg-info/requires.txt") for line in _read(file).splitlines()],
            project.get("dependencies"),
            keywords.get("install_requires"),
            options.get("install_requires", "").splitlines(),
        ),
        build_requires=_requirements(
            build.get("requires"), keywords.get("setup_requires"), options.get("setup_requires", "").splitlines()
        ),
        backend=_first(build.get("build-backend"), "setuptools.build_meta"),
        finds_packages="project" in pyproject or bool(setuptools or options),
    )


def completed(stated: Metadata, text: str, torch: Torch, cuda: Cuda) -> Metadata:
    """The metadata with what the files of the source do not state.

    `text` is METADATA as the build backend makes it before a compile for this torch and CUDA, whose versions it may
    contain.
    """
    info = HeaderParser().parsestr(text)
    version = _public(info["Version"] or "")
    return replace(
        stated,
        name=stated.name or name_pattern(info["Name"] or "", torch, cuda),
        version=stated.version or (version and version_pattern(Version(version), torch, cuda)),
        requires_python=stated.requires_python or _specifier(info["Requires-Python"]),
        requires=_requirements(info.get_all("Requires-Dist")) or stated.requires,
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _read_options(path: Path) -> dict[str, str]:
    """What the section `options` of a setup.cfg says."""
    config = RawConfigParser()
    with suppress(ConfigParserError):
        config.read_string(_read(path))
    return dict(config["options"]) if config.has_section("options") else {}


def _first(*values: object) -> str:
    """The first value that is text without unknown parts, in one line of 200 characters."""
    found = (" ".join(value.split()) for value in values if isinstance(value, str) and "*" not in value)
    return next((value for value in found if value not in ("", "UNKNOWN")), "")[:200]


def _specifier(*values: object) -> str:
    """The first value that limits a version, without spaces; unlike an unknown part, `!=3.11.*` has a valid `*`."""
    for value in values:
        if isinstance(value, str) and value.strip():
            with suppress(InvalidSpecifier):
                SpecifierSet(value)
                return value.replace(" ", "").strip()
    return ""


def _public(text: str) -> str:
    with suppress(InvalidVersion):
        return Version(text).public
    return ""


def _requirements(*lists: object) -> tuple[Requirement, ...]:
    """The valid requirements of lists, or of a text alone."""
    found = []
    for text in (one for each in lists for one in (each if isinstance(each, list) else [each])):
        with suppress(InvalidRequirement):
            found += [Requirement(text)] if isinstance(text, str) else []
    return tuple(found)


def other_versions(recipes: Iterable[Recipe]) -> list[BuildfarmError]:
    """Recipes with another version than their source folder states: the compile would end with the same error."""
    found: list[BuildfarmError] = []
    for recipe in recipes:
        if not isinstance(recipe.source, PathSource) or (recipe.source.path / "PKG-INFO").exists():
            continue
        stated = read_metadata(recipe.source.path, read_setup_script(recipe.source.path)).version
        if stated and not recipe.is_version(Version(stated)):
            project = read_toml(recipe.source.path / "pyproject.toml").get("project", {})
            file = "pyproject.toml" if "version" in project else "setup.py"
            sentence = f"{RECIPE} says {recipe.stated_version} and {file} {stated}"
            hints = ["write the same version into both"]
            where = str(recipe.folder / RECIPE)
            found.append(UsageError(sentence, Code.VERSION_DIFFERS, where=where, hints=hints))
    return found
