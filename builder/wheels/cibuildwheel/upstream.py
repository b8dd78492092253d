"""A source's own [tool.cibuildwheel]: the settings for one build that buildfarm supports.

cibuildwheel's own reader resolves the options: its defaults, [tool.cibuildwheel], the `linux` table, and the
`overrides` that select the build.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import BuildError

if TYPE_CHECKING:
    from cibuildwheel.environment import ParsedEnvironment
    from cibuildwheel.options import BuildOptions, Options

#: Values of `cibuildwheel_skip` in a recipe, besides `all`.
PARTS = ("before-all", "before-build", "environment", "config-settings", "build-frontend", "test")

#: Options that buildfarm decides, and the subject of each.
_DECIDED = {
    "audit-command": "the audit",
    "audit-requires": "the audit",
    "container-engine": "the container",
    "dependency-versions": "package versions",
    "environment-pass": "the environment",
    "repair-wheel-command": "the repair",
}

#: Front end options that buildfarm's own options already imply.
_IMPLIED = frozenset({"--no-isolation", "-n", "--no-build-isolation", "--skip-dependency-check", "-x", "--wheel", "-w"})

_CONFIG_SETTING = re.compile(r"(?:-C|--config-settings?)(?:=|$)|-C(?=.)")

_NEEDS_ROOT = re.compile(r"\b(?:yum|dnf|microdnf|apt|apt-get|apk|zypper|sudo)\s")


@dataclass(frozen=True)
class UpstreamTests:
    """A source's own tests of its wheel; the commands are shell commands with cibuildwheel's placeholders.

    Attributes:
        command, before: the test command, and the command before the wheel is installed (may be empty).
        sources: files and directories, relative to the project, that are copied into the tests' working directory.
        requires: requirements installed after the wheel, dependency groups included.
        extras: extras of the wheel, separated by commas, or empty.
        environment: variables with values in bash syntax.

    """

    command: str
    before: str = ""
    sources: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    extras: str = ""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Upstream:
    """The settings of a source's [tool.cibuildwheel] for one build.

    Attributes:
        before_all, before_build: shell commands, or empty.
        environment: variables in order, with values in bash syntax (`"$HOME/bin:$PATH"`).
        config_settings: `key=value` settings of the build backend, quoted for a shell.
        frontend_args: options of `uv build`.
        tests: the source's tests of its wheel, or None.
        notes: one sentence about each group of ignored settings.

    """

    before_all: str = ""
    before_build: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    config_settings: str = ""
    frontend_args: tuple[str, ...] = ()
    tests: UpstreamTests | None = None
    notes: tuple[str, ...] = ()

    @property
    def has_commands(self) -> bool:
        """Whether commands of the source, which may install packages, run besides the build."""
        return bool(self.before_all or self.before_build or self.tests)

    @property
    def needs_root(self) -> bool:
        """Whether the commands expect to run as root, as they do in cibuildwheel's default images."""
        before_test = self.tests.before if self.tests else ""
        return bool(self.before_all) or bool(_NEEDS_ROOT.search(f"{self.before_build}\n{before_test}\n"))


def read_upstream(source: Path, identifier: str, skip: Collection[str] = ()) -> Upstream:
    """The cibuildwheel settings in a source tree's pyproject.toml for one build (`cp311-manylinux_x86_64`).

    `skip` are the PARTS to ignore, or `all`. Raises BuildError (stage `environment`) when cibuildwheel cannot read
    the settings.
    """
    file = source / "pyproject.toml"
    if "all" in skip or not file.is_file():
        return Upstream()
    try:
        if "cibuildwheel" not in tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}):
            return Upstream()
    except (AttributeError, TypeError, ValueError) as error:  # not TOML, not UTF-8, or `tool` is no table
        raise _unreadable(str(error)) from None
    # Imported here because the import takes a third of a second, and most sources have no such table.
    from cibuildwheel.errors import FatalError  # noqa: PLC0415

    try:
        return _read(source, identifier, skip)
    except FatalError as error:
        raise _unreadable(str(error)) from None
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:  # values of a wrong shape
        raise _unreadable(f"{type(error).__name__}: {error}") from None


def _read(source: Path, identifier: str, skip: Collection[str]) -> Upstream:
    from cibuildwheel import options as cibw  # noqa: PLC0415

    arguments = cibw.CommandLineArguments.defaults()
    arguments.package_dir = source
    # Variables override every file. For options that buildfarm decides, values of the source could be errors, for
    # example an image that this version of cibuildwheel no longer knows. Variables of the host are not read.
    images = [*(f"MANYLINUX_{arch}" for arch in cibw.MANYLINUX_ARCHS)]
    images += [*(f"MUSLLINUX_{arch}" for arch in cibw.MUSLLINUX_ARCHS)]
    decided = {f"CIBW_{name.upper()}_IMAGE": "decided-by-buildfarm" for name in images}
    decided |= {"CIBW_CONTAINER_ENGINE": "docker", "CIBW_DEPENDENCY_VERSIONS": "latest"}
    decided |= {"CIBW_ENABLE": "all", "CIBW_INHERIT": "enable: none"}
    options = cibw.Options("linux", arguments, env=decided)
    resolved = options.build_options(identifier)

    def unless_skipped(part: str, value: str) -> str:
        return "" if part in skip else value.strip()

    frontend, unsupported = ((), []) if "build-frontend" in skip else _frontend(resolved)
    tested = "test" not in skip and options.globals.test_selector(identifier)
    return Upstream(
        before_all=unless_skipped("before-all", resolved.before_all),
        before_build=unless_skipped("before-build", resolved.before_build or ""),
        environment=() if "environment" in skip else _assignments(resolved.environment),
        config_settings=unless_skipped("config-settings", resolved.config_settings),
        frontend_args=frontend,
        tests=_tests(resolved) if tested and (resolved.test_command or "").strip() else None,
        notes=(*_selection_notes(options, identifier), *_ignored_notes(options, identifier, unsupported)),
    )


def _tests(resolved: BuildOptions) -> UpstreamTests:
    return UpstreamTests(
        command=(resolved.test_command or "").strip(),
        before=(resolved.before_test or "").strip(),
        sources=tuple(resolved.test_sources),
        requires=tuple(resolved.test_requires),
        extras=resolved.test_extras.strip("[]"),
        environment=_assignments(resolved.test_environment),
    )


def _assignments(environment: ParsedEnvironment) -> tuple[tuple[str, str], ...]:
    pairs = (repr(assignment).partition("=") for assignment in environment.assignments)
    return tuple((name, value) for name, _, value in pairs)


def _frontend(resolved: BuildOptions) -> tuple[tuple[str, ...], list[str]]:
    """Options that `uv build` supports, and options that only the source's front end supports."""
    given = list(resolved.build_frontend.args)
    taken: list[str] = []
    unsupported: list[str] = []
    while given:
        option = given.pop(0)
        if found := _CONFIG_SETTING.match(option):
            value = option[found.end() :] or (given.pop(0) if given else "")
            taken.append(f"--config-setting={value}")
        elif option not in _IMPLIED:
            (taken if resolved.build_frontend.name == "uv" else unsupported).append(option)
    return tuple(taken), unsupported


def _selection_notes(options: Options, identifier: str) -> list[str]:
    """A sentence if the source's own selection excludes the build."""
    from cibuildwheel.selector import selector_matches  # noqa: PLC0415

    selector = options.globals.build_selector
    reasons = {
        "skip": selector_matches(selector.skip_config, identifier),
        "build": not selector_matches(selector.build_config, identifier),
        "archs": not any(identifier.endswith(f"_{arch}") for arch in options.globals.architectures),
    }
    names = [f"`{name}`" for name, holds in reasons.items() if holds]
    if not names:
        return []
    return [
        f"ignored {' and '.join(names)} in the source's [tool.cibuildwheel]:"
        f" the source excludes {identifier}, which the plan builds"
    ]


def _ignored_notes(options: Options, identifier: str, unsupported: Sequence[str]) -> list[str]:
    """A sentence about the settings that buildfarm decides itself, if the source has any."""
    reader = options.reader
    with reader.identifier(identifier):
        tables: list[Mapping[str, Any]] = [reader.config_options, reader.config_platform_options]
        tables += [override.options for override in reader.active_config_overrides]
    machine = identifier.split("_", 1)[1]
    decided = {**_DECIDED, f"manylinux-{machine}-image": "the image"}
    named = {name: decided[name] for table in tables for name in table if name in decided}
    if unsupported:
        named[f"build-frontend ({' '.join(unsupported)})"] = "the front end"
    if not named:
        return []
    about = list(dict.fromkeys(named.values()))
    return [
        f"ignored {', '.join(f'`{name}`' for name in named)} in the source's [tool.cibuildwheel]:"
        f" buildfarm decides {', '.join(about)}"
    ]


def _unreadable(reason: str) -> BuildError:
    return BuildError(
        f"cibuildwheel cannot read the source's [tool.cibuildwheel]: {reason}",
        stage="environment",
        where="pyproject.toml",
        hints=["ignore the table with `cibuildwheel_skip: [all]` in the recipe", "correct the table with a patch"],
    )
