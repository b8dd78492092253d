"""The symbols of the libraries in an environment."""

from __future__ import annotations

from pathlib import Path

from builder.proofs.static.symbol_table import collect_symbols
from tests.fixtures.compiled import compiled

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
