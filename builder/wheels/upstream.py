"""A source's own [tool.cibuildwheel]: what it asks for one build, as far as the farm does it.

Options are resolved by cibuildwheel's own reader: its defaults, then [tool.cibuildwheel], its `linux` table, and the
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

#: What `cibuildwheel_skip` of a recipe can name, beside `all`.
PARTS = ("before-all", "before-build", "environment", "config-settings", "build-frontend", "test")

#: Options that the farm decides, by what they are about.
_DECIDED = {
    "audit-command": "the audit",
    "audit-requires": "the audit",
    "container-engine": "the container",
    "dependency-versions": "package versions",
    "environment-pass": "the environment",
    "repair-wheel-command": "the repair",
}

#: Options of a front end that say what the farm's own says already.
_IMPLIED = frozenset({"--no-isolation", "-n", "--no-build-isolation", "--skip-dependency-check", "-x", "--wheel", "-w"})

_CONFIG_SETTING = re.compile(r"(?:-C|--config-settings?)(?:=|$)|-C(?=.)")

_NEEDS_ROOT = re.compile(r"\b(?:yum|dnf|microdnf|apt|apt-get|apk|zypper|sudo)\s")


@dataclass(frozen=True)
class OwnTests:
    """A source's own tests of its wheel; commands in the shell's words, with cibuildwheel's placeholders.

    Attributes:
        command, before: what runs, and what runs before the wheel is installed (may be empty).
        sources: files and folders, relative to the project, that the tests find in their working directory.
        requires: requirements installed after the wheel, dependency groups included.
        extras: extras of the wheel, separated by commas, or empty.
        environment: variables, values in bash's words.

    """

    command: str
    before: str = ""
    sources: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    extras: str = ""
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Upstream:
    """What a source's [tool.cibuildwheel] asks for one build, as far as the farm does it.

    Attributes:
        before_all, before_build: commands in the shell's words, or empty.
        environment: variables in order, values in bash's words (`"$HOME/bin:$PATH"`).
        config_settings: `key=value` words for the build backend, quoted for the shell.
        frontend_args: options for `uv build`.
        tests: what it runs against its wheel, or None.
        words: what was left aside, a sentence each, for the person.

    """

    before_all: str = ""
    before_build: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    config_settings: str = ""
    frontend_args: tuple[str, ...] = ()
    tests: OwnTests | None = None
    words: tuple[str, ...] = ()

    @property
    def needs_root(self) -> bool:
        """Whether its commands expect to be root, as they are in the images cibuildwheel takes by itself."""
        before_test = self.tests.before if self.tests else ""
        return bool(self.before_all) or bool(_NEEDS_ROOT.search(f"{self.before_build}\n{before_test}\n"))


def read_upstream(source: Path, identifier: str, skip: Collection[str] = ()) -> Upstream:
    """What the pyproject.toml of a source tree asks of cibuildwheel for one build (`cp311-manylinux_x86_64`).

    `skip` are the PARTS to leave out, or `all`. Raises BuildError (stage `environment`) when cibuildwheel cannot
    read it.
    """
    file = source / "pyproject.toml"
    if "all" in skip or not file.is_file():
        return Upstream()
    try:
        if "cibuildwheel" not in tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}):
            return Upstream()
    except (AttributeError, TypeError, ValueError) as error:  # not TOML, not UTF-8, or `tool` is no table
        raise _unreadable(str(error)) from None
    # Here, for it takes a third of a second to load, and most sources have no such table.
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
    # Variables come after every file: what the farm decides is thereby never read from the source, where an image
    # or a group that this cibuildwheel has dropped would be an error. Of the host's variables none is looked at.
    images = [*(f"MANYLINUX_{arch}" for arch in cibw.MANYLINUX_ARCHS)]
    images += [*(f"MUSLLINUX_{arch}" for arch in cibw.MUSLLINUX_ARCHS)]
    decided = {f"CIBW_{name.upper()}_IMAGE": "the-farms" for name in images}
    decided |= {"CIBW_CONTAINER_ENGINE": "docker", "CIBW_DEPENDENCY_VERSIONS": "latest"}
    decided |= {"CIBW_ENABLE": "all", "CIBW_INHERIT": "enable: none"}
    options = cibw.Options("linux", arguments, env=decided)
    asked = options.build_options(identifier)

    def unless(part: str, value: str) -> str:
        return "" if part in skip else value.strip()

    frontend, foreign = ((), []) if "build-frontend" in skip else _frontend(asked)
    tested = "test" not in skip and options.globals.test_selector(identifier)
    return Upstream(
        before_all=unless("before-all", asked.before_all),
        before_build=unless("before-build", asked.before_build or ""),
        environment=() if "environment" in skip else _assignments(asked.environment),
        config_settings=unless("config-settings", asked.config_settings),
        frontend_args=frontend,
        tests=_tests(asked) if tested and (asked.test_command or "").strip() else None,
        words=(*_left_out(options, identifier), *_left_aside(options, identifier, foreign)),
    )


def _tests(asked: BuildOptions) -> OwnTests:
    return OwnTests(
        command=(asked.test_command or "").strip(),
        before=(asked.before_test or "").strip(),
        sources=tuple(asked.test_sources),
        requires=tuple(asked.test_requires),
        extras=asked.test_extras.strip("[]"),
        environment=_assignments(asked.test_environment),
    )


def _assignments(environment: ParsedEnvironment) -> tuple[tuple[str, str], ...]:
    pairs = (repr(assignment).partition("=") for assignment in environment.assignments)
    return tuple((name, value) for name, _, value in pairs)


def _frontend(asked: BuildOptions) -> tuple[tuple[str, ...], list[str]]:
    """Options that `uv build` takes too, and those that another front end alone would."""
    given = list(asked.build_frontend.args)
    taken: list[str] = []
    foreign: list[str] = []
    while given:
        word = given.pop(0)
        if found := _CONFIG_SETTING.match(word):
            value = word[found.end() :] or (given.pop(0) if given else "")
            taken.append(f"--config-setting={value}")
        elif word not in _IMPLIED:
            (taken if asked.build_frontend.name == "uv" else foreign).append(word)
    return tuple(taken), foreign


def _left_out(options: Options, identifier: str) -> list[str]:
    """A sentence if the source's own selection has no such build."""
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
    return [f"the source's own {' and '.join(names)} in [tool.cibuildwheel] leaves out {identifier}; it is built here"]


def _left_aside(options: Options, identifier: str, foreign: Sequence[str]) -> list[str]:
    """A sentence about what the source sets and the farm decides, if anything."""
    reader = options.reader
    with reader.identifier(identifier):
        tables: list[Mapping[str, Any]] = [reader.config_options, reader.config_platform_options]
        tables += [override.options for override in reader.active_config_overrides]
    machine = identifier.split("_", 1)[1]
    decided = {**_DECIDED, f"manylinux-{machine}-image": "the image"}
    named = {name: decided[name] for table in tables for name in table if name in decided}
    if foreign:
        named[f"build-frontend ({' '.join(foreign)})"] = "the front end"
    if not named:
        return []
    about = list(dict.fromkeys(named.values()))
    return [
        f"the source's own {', '.join(f'`{name}`' for name in named)} in [tool.cibuildwheel]"
        f" {'is' if len(named) == 1 else 'are'} left aside: the farm decides {', '.join(about)}"
    ]


def _unreadable(said: str) -> BuildError:
    return BuildError(
        f"cibuildwheel cannot read the source's [tool.cibuildwheel]: {said}",
        stage="environment",
        where="pyproject.toml",
        hints=["`cibuildwheel_skip: [all]` in the recipe leaves it aside", "a patch of the recipe can mend it"],
    )
