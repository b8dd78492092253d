"""The commands that install wheels."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from builder.matrix.axes import Cell
from builder.publish.index import install
from builder.publish.index.install import install_lines
from builder.wheels.toolchain.pythons import Interpreter

CELLS = [Cell.parse(f"torch2.11.0-cu130-cp{python}") for python in ("311", "312")]


def test_the_new_environment_has_the_python_that_buildfarm_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed line works where uv finds no Python by its version: on PATH there is no program but a shell."""
    monkeypatch.setattr(install, "find_python", lambda _: Interpreter(Path(sys.executable), "3.12.1", headers=True))
    monkeypatch.setenv("PATH", "/bin")
    head, environment, command = install_lines(CELLS, ["pip install x"])
    assert "Python 3.11, 3.12," in head
    assert command == "  pip install x"
    assert shlex.split(environment)[1:5] == ["venv", "--seed", "--python", sys.executable]
    argv = ["bash", "-c", environment.replace("--seed ", "") + " && echo $VIRTUAL_ENV"]  # pip needs a network
    ran = subprocess.run(
        argv,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/bin", "UV_PYTHON_DOWNLOADS": "never"},
    )
    assert ran.stdout.split() == [str(tmp_path / "env")]


def test_a_python_that_this_machine_lacks_is_named_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find_python", lambda _: None)
    assert " venv --seed --python 3.12 env &&" in install_lines(CELLS, [])[1]


def test_the_new_environment_has_the_newest_python_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    older = Interpreter(Path("/py/3.11"), "3.11.2", headers=True)
    monkeypatch.setattr(install, "find_python", lambda python: older if str(python) == "3.11" else None)
    assert " venv --seed --python /py/3.11 env &&" in install_lines(CELLS, [])[1]


@pytest.mark.parametrize("version", ["1.0", "1.0+cu130"])
def test_only_a_local_version_is_installed_by_its_version(version: str) -> None:
    """pip takes the file of any index for `==1.0`; no public index has `1.0+cu130`."""
    url = f"https://wheels.example/files/ab/cd/my_ext-{version}-py3-none-any.whl#sha256=0"
    cells = [Cell.parse("torch2.11.0-cu128-cp312")]
    place, theirs = "https://wheels.example/simple/", "https://torch.example/cu128"
    pip, uv = install.install_commands(place, "my_ext", version, cells, "https://torch.example/{variant}", url)
    torch = "torch==2.11.0+cu128"
    assert shlex.split(uv) == [
        "uv", "pip", "install", "--index", place, "--index", theirs, f"my_ext=={version}", torch,
    ]  # fmt: skip
    index = "--extra-index-url"
    both = [index, place, index, theirs, f"my_ext=={version}", torch]
    direct = [index, theirs, f"my_ext @ {url}", torch]
    assert shlex.split(pip) == ["pip", "install", *(both if "+" in version else direct)]
