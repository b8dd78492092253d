"""tests/images/check-real without an engine: which images it checks, and its usage errors."""

from __future__ import annotations

import sys

import pytest

from builder.images.dockerfiles import dockerfiles, unpinned
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from tests.conftest import ROOT, Ran, run


def check_real(*arguments: str) -> Ran:
    return run(sys.executable, ROOT / "tests/images/check-real", *arguments)


def test_it_lists_the_base_images_that_render_names() -> None:
    matrix, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    listed = check_real("--list")
    assert listed.code == 0, listed.all
    assert sorted(listed.out.split()) == list(unpinned(dockerfiles(plan, matrix, {})))


def test_names_select_images() -> None:
    listed = check_real("--list", "*12.1.1-devel*")
    assert listed.out.split()[0] == "nvidia/cuda:12.1.1-devel-rockylinux8"


@pytest.mark.parametrize("arguments", [("no-such-image",), ("--matrix", "no-such-file.yaml")])
def test_usage_errors(arguments: tuple[str, ...]) -> None:
    refused = check_real(*arguments)
    assert refused.code == 2
    assert refused.err.startswith("check-real: ")
