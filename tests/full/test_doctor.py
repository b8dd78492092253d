"""`doctor` on the real torch and torchvision: its verdict agrees with what `import` does, before and after the cure."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder.wheels.toolchain.uv import find_uv
from tests.conftest import BUILDFARM, Ran, run


def doctor(python: Path, **variables: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the faults of `buildfarm doctor` for an environment."""
    done = run(BUILDFARM, "doctor", "--json", "--python", python, env={**os.environ, **variables})
    findings: list[dict[str, Any]] = json.loads(done.out)["findings"]
    return done.code, [finding for finding in findings if finding["level"] == "fault"]


def imports(python: Path) -> Ran:
    """Import torchvision, and call an op of its library."""
    program = "import torch, torchvision; print(torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5))"
    return run(python, "-c", program)


def test_torchvision_of_another_torch(
    venv: Callable[..., Path], python_of: Callable[[str], Path], tmp_path: Path
) -> None:
    python = venv(python_of("3.12"), "torch==2.11.0", "torchvision==0.26.0")
    assert doctor(python) == (0, [])
    assert imports(python).code == 0

    # torch's libraries find this one by DT_RPATH, so a second one on LD_LIBRARY_PATH is no fault.
    (tmp_path / "libcudart.so.13").write_bytes(b"not a library")
    assert doctor(python, LD_LIBRARY_PATH=str(tmp_path)) == (0, [])
    assert run(python, "-c", "import torch", env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}).code == 0

    wrong = run(find_uv(), "pip", "install", "--python", python, "--no-deps", "torchvision==0.25.0")
    assert wrong.code == 0, wrong.err
    broken = imports(python)
    assert broken.code != 0
    assert "torchvision::nms" in broken.all
    code, (fault,) = doctor(python)
    assert (code, fault["code"]) == (1, "companion-of-another-torch")

    for command in fault["cure"]:
        cured = run(*shlex.split(command))
        assert cured.code == 0, cured.err
    assert doctor(python) == (0, [])
    assert imports(python).code == 0
