"""The program that reads symbols in a container."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from builder.matrix.axes import Python
from builder.proofs.cells.container import READ_SYMBOLS, write_reader
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.wheels.toolchain.pythons import find_python
from tests.real.proofs.test_system_symbols import environment


def test_a_python_without_a_working_pyelftools_is_named(tmp_path: Path) -> None:
    folder = write_reader(tmp_path / "reader")
    (folder / "elftools" / "elf" / "elffile.py").write_text("match = (")  # as `match` is for Python 3.9
    program = READ_SYMBOLS.replace("/buildfarm/reader", str(folder))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (done.returncode, done.stderr) == (
        1,
        f"pyelftools {version('pyelftools')} does not run under Python {here}\n",
    )


def test_symbol_reader_needs_only_the_copied_modules_and_an_old_python(tmp_path: Path) -> None:
    folder = write_reader(tmp_path / "reader")
    program = READ_SYMBOLS.replace("/buildfarm/reader", str(folder))
    program = program.replace("/buildfarm", str(tmp_path))
    site = environment(tmp_path)
    program = program.replace('sysconfig.get_path("purelib")', repr(str(site)))
    old = find_python(Python(3, 10))  # the oldest Python of cells that pyelftools supports
    # -S: without site-packages, so buildfarm and pyelftools are only found in the folder.
    argv = [old.path if old else sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = SymbolTable.from_json(json.loads((tmp_path / "symbols.json").read_bytes()))
    assert table == collect_symbols(site)
