"""Undefined symbols of libraries that a compiler made."""

from __future__ import annotations

from pathlib import Path

from builder.proofs.static.linkage import check_linkage
from builder.wheelfile.facts import read_facts
from tests.fixtures.compiled import compiled
from tests.unit.proofs.make import CELL, make_wheel, table

SOURCE = """
namespace at { struct Tensor; }
using T = at::Tensor const&;
void ms_deform_attn_cuda_forward(T, T, T, T, T, int);
extern "C" void PyInit_ops(at::Tensor& t) { ms_deform_attn_cuda_forward(t, t, t, t, t, 1); }
"""


def test_binding_without_its_cuda_source(tmp_path: Path) -> None:
    """A binding without the CUDA source that it calls, as a build on a machine without a GPU produces it."""
    wheel = make_wheel(tmp_path, {"ops.so": compiled(tmp_path, SOURCE, name="ops.so")})
    proof = check_linkage(read_facts(wheel), CELL, table())
    assert proof.verdict == "failed"
    assert "undefined symbol ms_deform_attn_cuda_forward(at::Tensor const&" in proof.reason
    assert "FORCE_CUDA=1" in proof.reason


def test_binding_with_its_cuda_source(tmp_path: Path) -> None:
    cuda = "void ms_deform_attn_cuda_forward(T, T, T, T, T, int) {}"
    wheel = make_wheel(tmp_path, {"ops.so": compiled(tmp_path, SOURCE + cuda, name="ops.so")})
    assert check_linkage(read_facts(wheel), CELL, table()).verdict == "passed"


def test_weak_symbol_may_be_missing(tmp_path: Path) -> None:
    source = 'extern "C" { __attribute__((weak)) int maybe(); int f() { return maybe ? maybe() : 0; } }'
    wheel = make_wheel(tmp_path, {"ops.so": compiled(tmp_path, source)})
    assert check_linkage(read_facts(wheel), CELL, table()).verdict == "passed"


def test_real_library_with_a_missing_dependency(tmp_path: Path) -> None:
    other = compiled(
        tmp_path, 'extern "C" int other() { return 1; }', "-Wl,-soname,libother.so.7", name="libother.so.7"
    )
    source = 'extern "C" { int other(); int f() { return other(); } }'
    wheel = make_wheel(tmp_path, {"ops.so": compiled(tmp_path, source, str(other), name="ops.so")})
    proof = check_linkage(read_facts(wheel), CELL, table())
    assert proof.evidence["absent"] == {"ops.so": ["libother.so.7"]}
