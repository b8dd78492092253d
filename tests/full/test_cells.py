"""One wheel for several cells: pip installs it and it runs with three releases of torch, each with another Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import BUILDFARM, run, wheel_of
from tests.fixtures.built_cells import CALL

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: A second Python shows that one wheel serves both.
SELECT = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--python", "3.13", "--ext", "ms_deform_attn")


@pytest.fixture(scope="module")
def built(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dist folder of a build for two Pythons."""
    dist = tmp_path_factory.mktemp("out") / "dist"
    done = run(BUILDFARM, "build", *SELECT, "--executor", "local", "--store", store, "--dist", dist)
    assert done.code == 0, done.all
    wheel = wheel_of(dist)
    assert re.fullmatch(r"ms_deform_attn-0\.1\.0\+cu13-cp310-abi3-manylinux_2_\d+_x86_64\.whl", wheel.name)
    return dist


@pytest.mark.parametrize(
    ("torch", "python"), [("2.11.0", "3.12"), ("2.13.0", "3.13"), ("2.15.0", "3.11")], ids=lambda text: text
)
def test_pip_installs_it_and_it_runs(
    built: Path, venv: Callable[..., Path], python_of: Callable[[str], Path], torch: str, python: str
) -> None:
    interpreter = venv(python_of(python), f"torch=={torch}", "numpy", "pip")
    installed = run(
        interpreter,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--find-links",
        built,
        "ms_deform_attn",
        env={"PIP_FIND_LINKS": ""},
    )
    assert installed.code == 0, installed.all
    answer = run(interpreter, "-I", "-c", CALL, cwd=built)
    assert answer.code == 0, answer.all
    assert json.loads(answer.out)["torch"].startswith(torch)
