"""Compile time by GPU architecture: lines of real logs of sccache 0.16 and nvcc 13.0, shortened."""

from __future__ import annotations

from pathlib import Path

from builder.wheels.sccache.gpu_seconds import read_gpu_seconds

SCCACHE = """\
[2026-11-22T17:24:03Z DEBUG sccache::compiler::compiler] [k.module_id]: get_cached_or_compile: ["--c++17"]
[2026-11-22T17:24:09Z DEBUG sccache::compiler::compiler] [k.module_id]: Compiled in 6.034 s, storing in cache
[2026-11-22T17:24:11Z DEBUG sccache::compiler::compiler] [k.compute_90.ptx]: get_cached_or_compile: ["--c++17", \
"-arch", "compute_90", "-m64"]
[2026-11-22T17:24:11Z DEBUG sccache::compiler::compiler] [k.compute_80.ptx]: get_cached_or_compile: ["--c++17", \
"-arch", "compute_80", "-m64"]
[2026-11-22T17:24:17Z DEBUG sccache::compiler::compiler] [k.compute_90.ptx]: Compiled in 5.552 s, storing in cache
[2026-11-22T17:24:17Z DEBUG sccache::compiler::compiler] [k.compute_90.cubin]: get_cached_or_compile: \
["-arch=sm_90", "-m64", "k.compute_90.ptx"]
[2026-11-22T17:24:17Z DEBUG sccache::compiler::compiler] [k.compute_90.cubin]: Compiled in 0.085 s, storing in cache
[2026-11-22T17:24:17Z DEBUG sccache::compiler::compiler] [k.compute_80.ptx]: Cache hit in 0.001 s
[2026-11-22T17:24:21Z DEBUG sccache::compiler::compiler] [k.o]: Compiled in 19.186 s, but not cacheable
"""

NVCC = """\
source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
k.cu , gcc (preprocessing 4) , k.cu  , /tmp/5_k.cpp4.ii ,  , nvcc , 3514.3521 , ms
k.cu , cudafe++ , /tmp/5_k.cpp4.ii  , /tmp/6_k.cudafe1.cpp , compute_90 , nvcc , 6200.4961 , ms
k.cu , gcc (preprocessing 1) , k.cu  , /tmp/8_k.cpp1.ii , compute_100a , nvcc , 1474.2070 , ms
k.cu , cicc ,  /tmp/8_k.cpp1.ii  , /tmp/7_k.ptx , compute_100a , nvcc , 4334.6758 , ms
k.cu , ptxas , /tmp/7_k.ptx  , /tmp/9_k.cubin , sm_100a , nvcc , 1175.8420 , ms
k.cu , ptxas , /tmp/7_k.ptx  , /tmp/9_k.cu
k.cu , gcc (compiling) ,   , k.o , compute_90 , nvcc , 3168.2710 , ms
"""


def test_the_steps_for_an_architecture_are_added(tmp_path: Path) -> None:
    assert read_gpu_seconds(tmp_path) == {}
    (tmp_path / "server.log").write_text(SCCACHE)
    assert read_gpu_seconds(tmp_path) == {"9.0": 5.6}, "what came from the cache took no time"
    (tmp_path / "nvcc.csv").write_text(NVCC)
    assert list(read_gpu_seconds(tmp_path).items()) == [("9.0", 5.6), ("10.0a", 7.0)]
