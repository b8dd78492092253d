"""The bytecode of cells: kept once for each set of packages, and used only with the sources that it was made from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder.matrix.axes import Python
from builder.store import Store
from builder.wheels.toolchain import environments
from builder.wheels.toolchain.environments import Environment, Environments, add_bytecode
from builder.wheels.toolchain.pythons import Interpreter
from tests.unit.loopback import pure_wheel

PYTHON = Python(sys.version_info.major, sys.version_info.minor)
SOURCE = "import my_ext.part\n"


def cell(store: Store, folder: Path, source: str = SOURCE) -> Environment:
    """A new environment with one package, and its bytecode."""
    wheel = pure_wheel(folder, "my_ext", "1.0", {"my_ext/__init__.py": source, "my_ext/part.py": "VALUE = 1\n"})
    interpreter = Interpreter(Path(sys.executable), str(PYTHON), headers=False)
    log = folder / "log"
    Environments.create(folder / "env", interpreter, [str(wheel)], index=[], log=log, owner=f"t/{folder.name}")
    environment = Environment(folder / "env", PYTHON, ())
    python, site = environment.interpreter, environment.site_packages
    add_bytecode(store, python, site, ("my_ext", "absent"), log=log, owner=f"t/{folder.name}")
    return environment


def uses(environment: Environment) -> set[str]:
    """The modules whose bytecode Python accepts."""
    words = [str(environment.interpreter), "-v", "-B", "-I", "-c", "import my_ext"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    rows = (line.split() for line in said.splitlines() if " matches " in line and "my_ext" in line)
    return {Path(row[-1]).name for row in rows}


def test_a_second_cell_takes_the_bytecode_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "a").mkdir()
    assert uses(cell(store, tmp_path / "a")) == {"__init__.py", "part.py"}
    (kept,) = (store.root / "envs").glob("bytecode-*")
    assert {path.name.partition(".")[0] for path in kept.rglob("*.pyc")} == {"__init__", "part"}

    monkeypatch.setattr(environments, "import_once", lambda *_, **__: pytest.fail("imported again"))
    (tmp_path / "b").mkdir()
    second = cell(store, tmp_path / "b")
    assert uses(second) == {"__init__.py", "part.py"}
    copies = {path.stat().st_ino for path in second.site_packages.rglob("*.pyc")}
    assert not copies & {path.stat().st_ino for path in kept.rglob("*.pyc")}, "a cell could change the store's files"


def test_other_sources_have_bytecode_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for name, source in (("a", SOURCE), ("b", f"{SOURCE}OTHER = 1\n")):
        (tmp_path / name).mkdir()
        cell(store, tmp_path / name, source)
    assert len(list((store.root / "envs").glob("bytecode-*"))) == 2


def test_bytecode_of_a_source_that_changed_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    environment = cell(Store(tmp_path / "store"), tmp_path / "a")
    part = environment.site_packages / "my_ext/part.py"
    part.unlink()  # it can be a hard link to a file of uv's cache
    part.write_text("VALUE = 2\n")
    assert uses(environment) == {"__init__.py"}
