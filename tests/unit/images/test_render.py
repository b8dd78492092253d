from __future__ import annotations

import re
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from builder.images.base import DISTRIBUTIONS
from builder.images.render import TOOLS, ImageSpec, digest, render, tag, templates
from builder.matrix.axes import Python

GOLDEN = Path(__file__).parent / "golden"

SPECS = {
    "bookworm": ImageSpec("buildfarm-base:bookworm", (Python(3, 11),), "sha256:" + "ab" * 32),
    "noble-by-digest": ImageSpec("ubuntu@sha256:" + "cd" * 32, (Python(3, 12),)),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_text_is_the_golden_one(name: str) -> None:
    assert render(SPECS[name]) == (GOLDEN / f"{name}.Dockerfile").read_text()


@pytest.mark.parametrize("name", SPECS)
def test_hadolint_has_no_complaint(name: str) -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    answer = subprocess.run(
        [hadolint, "--failure-threshold", "style", "-"],
        input=render(SPECS[name]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize(
    "newer", [r"^# *syntax=", r"<<", r"--link", r"--checksum", r"--network", r"--parents", r"--exclude"]
)
def test_an_engine_of_2020_can_read_it(newer: str) -> None:
    instructions = "\n".join(line for line in render(SPECS["bookworm"]).splitlines() if not line.startswith("# "))
    assert not re.search(newer, instructions, re.MULTILINE)


@pytest.mark.parametrize(
    "change",
    [
        {"base": "debian:bookworm"},
        {"base_id": "sha256:" + "00" * 32},
        {"pythons": (Python(3, 12),)},
        {"tools": TOOLS[1:]},
        {"packages": ("g++-12",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_image_is_in_its_digest(change: dict[str, object]) -> None:
    spec = SPECS["bookworm"]
    assert digest(render(replace(spec, **change))) != digest(render(spec))  # type: ignore[arg-type]


def test_the_digest_is_twelve_digits_of_the_text() -> None:
    # printf 'FROM scratch\\n' | sha256sum
    assert digest("FROM scratch\n") == "bb57c7da220a"
    assert tag(SPECS["bookworm"]) == f"buildfarm/buildfarm-base-bookworm:{digest(render(SPECS['bookworm']))}"
    assert re.fullmatch(r"buildfarm/ubuntu:[0-9a-f]{12}", tag(SPECS["noble-by-digest"]))


@pytest.mark.parametrize(
    ("text", "prefix"), [("3.11", "/opt/python/cp311-cp311"), ("3.14t", "/opt/python/cp314-cp314t")]
)
def test_pythons_are_where_cibuildwheel_looks(text: str, prefix: str) -> None:
    assert ImageSpec.prefix(Python.parse(text)) == prefix


def test_every_python_gets_its_place() -> None:
    text = render(replace(SPECS["bookworm"], pythons=(Python(3, 11), Python(3, 13))))
    assert "--python python3.11 /opt/python/cp311-cp311" in text
    assert "--python python3.13 /opt/python/cp313-cp313" in text


def test_every_tool_has_one_version() -> None:
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", tool) for tool in TOOLS)


def test_the_container_scripts_are_beside_the_templates() -> None:
    for name in ("prepare.sh", "graft.sh"):
        subprocess.run(["sh", "-n", templates() / name], check=True)


def test_each_known_distribution_has_a_python_cibuildwheel_builds_for() -> None:
    assert {str(shipped.python) for shipped in DISTRIBUTIONS.values()} <= {
        "3.10",
        "3.11",
        "3.12",
        "3.13",
        "3.14",
    }
