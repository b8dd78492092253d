"""Three made-up torch releases: libraries to link with, and their symbol inventories."""

import subprocess
from pathlib import Path

from builder.matrix.axes import Cuda, Torch
from builder.proofs.inventory import Release, Shelf
from builder.proofs.static.symbol_table import ProvidedLibrary, SymbolTable

#: Symbols of libtorch_cpu in every release; those that only some have.
COMMON = [
    "_ZN2at3fooEv",
    "torch_get_const_data_ptr",
    "torch_list_size",
    "aoti_torch_clone",
    "aoti_torch_aten_subtract_Tensor",
]
ONLY = {"2.10": ["_ZN2at7removedEv"], "2.11": [], "2.12": ["_ZN2at5addedEv", "aoti_torch_cpu_rand_like"]}
STRING = "_ZN3c105printERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
CUDA_CALLS = ["cudaMalloc", "cudaFree", "cudaLaunchKernel"]

_STUBS = {
    "libc10.so": [STRING],
    "libtorch_cpu.so": [*COMMON, *ONLY["2.10"], *ONLY["2.12"]],
    "libtorch_cuda.so": ["_ZN2at4cuda4blasEv"],
    "libtorch_python.so": ["THPVariable_Wrap"],
    "libtorch.so": [],
    "libcudart.so.13": CUDA_CALLS,
    "libcudart.so.12": CUDA_CALLS,
    "libcuda.so.1": ["cuInit"],
    "libgomp.so.1": ["GOMP_parallel"],
    "libpng16.so.16": ["png_read"],
}


def stub_libraries(folder: Path) -> Path:
    """Libraries that define these symbols, to link extensions with."""
    for name, symbols in _STUBS.items():
        source = "".join(
            f'int f{at}(void) __asm__("{one}"); int f{at}(void) {{ return {at}; }}\n' for at, one in enumerate(symbols)
        )
        argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run(argv, input=source, text=True, check=True)
    return folder


def inventory(torch: str, cuda: str = "13.0") -> tuple[Release, SymbolTable]:
    """The symbols of one release, as they are read from a wheel: those of libcudart are unknown."""
    release = Torch.parse(torch)
    runtime = f"libcudart.so.{cuda.partition('.')[0]}"
    parts: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
        "libc10.so": ((), frozenset([STRING])),
        "libtorch_cpu.so": (("libc10.so",), frozenset([*COMMON, *ONLY[release.series]])),
        "libtorch_cuda.so": (("libtorch_cpu.so", runtime), frozenset(["_ZN2at4cuda4blasEv"])),
        "libtorch_python.so": (("libtorch.so",), frozenset(["THPVariable_Wrap"])),
        "libtorch.so": (("libtorch_cpu.so", "libtorch_cuda.so"), frozenset()),
        "libtorch_global_deps.so": ((runtime,), frozenset()),
        "libgomp.so.1": ((), frozenset(["GOMP_parallel"])),
    }
    libraries = {name: ProvidedLibrary(needed, defined) for name, (needed, defined) in parts.items()}
    libraries[runtime] = ProvidedLibrary((), frozenset(), read=False)
    return Release(release, Cuda.parse(cuda), "x86_64"), SymbolTable(libraries)


def fill(shelf: Shelf) -> Shelf:
    """Put torch 2.10 to 2.12 for CUDA 13.0, and 2.11 for CUDA 12.8, on a shelf."""
    for torch, cuda in (("2.10.0", "13.0"), ("2.11.0", "13.0"), ("2.12.1", "13.0"), ("2.11.0", "12.8")):
        shelf.add(*inventory(torch, cuda))
    return shelf
