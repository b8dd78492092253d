"""Symbols that a container reads, and what auditwheel and abi3audit say of the same libraries."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from builder.matrix.axes import Python
from builder.proofs.cells.container import READ_SYMBOLS, write_reader
from builder.proofs.static.stable_abi import check_abi3
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.proofs.static.tags import best_platform
from builder.wheelfile.facts import read_facts
from builder.wheels.toolchain.pythons import find_python
from tests.fixtures.compiled import compiled
from tests.unit.proofs.make import claim, make_wheel


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
    assert not collect_symbols(environment(tmp_path / "old", "const char*")).cxx11


@pytest.mark.parametrize(
    "source",
    [
        '#include <stdlib.h>\nchar* f() { return getenv("X"); }',
        "#include <iostream>\nvoid f() { std::cout << 1.5 << std::endl; }",
    ],
)
def test_platform_equals_that_of_auditwheel(tmp_path: Path, source: str) -> None:
    extension = compiled(tmp_path, source + '\nextern "C" void* PyInit__C() { return 0; }', name="_C.so")
    wheel = make_wheel(tmp_path, {"ops/_C.so": extension})
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)], capture_output=True, text=True, check=True
    )
    assert best_platform(read_facts(wheel), frozenset()) == json.loads(shown.stdout)["overall_tag"]


@pytest.mark.parametrize("call", ["PyModule_Create2", "PyBuffer_Release", "_PyThreadState_UncheckedGet"])
def test_verdict_equals_that_of_abi3audit(tmp_path: Path, call: str) -> None:
    source = f'extern "C" {{ int {call}(); int PyInit__C() {{ return {call}(); }} }}'
    extension = compiled(tmp_path, source, name="_C.abi3.so")
    wheel = make_wheel(tmp_path, {"ops/_C.abi3.so": extension}, tag="cp310-abi3-linux_x86_64")
    report = tmp_path / "report.json"
    subprocess.run(
        [sys.executable, "-m", "abi3audit", "--report", "--output", str(report), str(wheel)],
        capture_output=True,
        check=False,
    )
    (specs,) = json.loads(report.read_text())["specs"].values()
    theirs = specs["wheel"][0]["result"]
    proof = check_abi3(read_facts(wheel), claim())
    assert proof is not None
    assert (proof.verdict == "passed") is (theirs["is_abi3"] and theirs["is_abi3_baseline_compatible"])
