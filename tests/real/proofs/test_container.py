"""The symbols of the libraries in an environment, and the program that reads them in a container."""

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
from tests.fixtures.compiled import compiled


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


C10 = """
#include <string>
namespace c10 {{ struct Error {{ {constructor} }}; Error::Error({type} text) {{}} }}
"""


def environment(folder: Path, string: str = "std::string") -> Path:
    """A site-packages folder with one function in torch and one in the CUDA runtime."""
    site = folder / "site-packages"
    lib, nvidia = site / "torch" / "lib", site / "nvidia" / "cu13" / "lib"
    for one in (lib, nvidia):
        one.mkdir(parents=True)
    compiled(lib, C10.format(constructor=f"Error({string} text);", type=string), name="libc10.so")
    compiled(
        lib,
        "namespace at { int foo() { return 1; } }",
        "-Wl,--no-as-needed",
        str(lib / "libc10.so"),
        name="libtorch_cpu.so",
    )
    compiled(nvidia, 'extern "C" int cudaMalloc() { return 1; }', name="libcudart.so.13")
    return site


def test_libraries_of_an_environment(tmp_path: Path) -> None:
    symbols = collect_symbols(environment(tmp_path))
    assert set(symbols.libraries) == {"libc10.so", "libtorch_cpu.so", "libcudart.so.13"}
    assert "_ZN2at3fooEv" in symbols.libraries["libtorch_cpu.so"].defined
    assert "cudaMalloc" in symbols.libraries["libcudart.so.13"].defined
    assert any("libc10.so" in name for name in symbols.libraries["libtorch_cpu.so"].needed)
    assert symbols.cxx11


def test_old_string_abi_is_detected(tmp_path: Path) -> None:
    assert not collect_symbols(environment(tmp_path, "const char*")).cxx11
