from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code
from builder.gate.system.crash import demangle
from builder.proofs.static.symbol_table import collect_symbols
from builder.proofs.static.system_symbols import is_python, is_standard, is_torch_cxx, system_library
from builder.wheelfile.compatibility import DRIVER_LIBRARIES, is_driver_library
from tests.refused import refused
from tests.unit.proofs.make import FORWARD


def test_environment_without_torch(tmp_path: Path) -> None:
    with refused(Code.NO_ENVIRONMENT):
        collect_symbols(tmp_path)


@pytest.mark.parametrize(
    ("symbol", "readable"),
    [
        (FORWARD, "ms_deform_attn_cuda_forward(" + "at::Tensor const&, " * 5 + "int)"),
        ("torch_call_dispatcher", "torch_call_dispatcher"),
        ("_Znonsense", "_Znonsense"),
        ("f", "f"),
    ],
)
def test_demangle(symbol: str, readable: str) -> None:
    assert demangle(symbol) == readable


@pytest.mark.parametrize(
    ("symbol", "torch"),
    [
        ("_ZN2at6TensorC1Ev", True),
        ("_ZNK3c106Device3strEv", True),
        ("_ZNKR5torch8autograd4Node4nameEv", True),
        ("_ZTVN5torch8autograd4NodeE", True),
        ("_ZN6caffe28TypeMetaC1Ev", True),
        ("_ZN2atlsERSoRKNS_6TensorE", True),
        ("_ZNSt6vectorIN2at6TensorESaIS1_EED1Ev", False),
        (FORWARD, False),
        ("_ZN7torchvi3fooEv", False),
        ("_ZN3atx3fooEv", False),
        ("torch_call_dispatcher", False),
    ],
)
def test_names_of_torch_cxx(symbol: str, torch: bool) -> None:
    assert is_torch_cxx(symbol) is torch


def test_names_of_python_and_of_the_libraries_of_the_driver() -> None:
    assert all(map(is_python, ("PyList_New", "_Py_NoneStruct", "_PyThreadState_UncheckedGet")))
    assert not any(map(is_python, ("Pyramid", "pyre")))
    assert all(map(is_driver_library, ("libcuda.so.1", *DRIVER_LIBRARIES)))
    assert not any(map(is_driver_library, ("libcudart.so.13", "libcudadevrt.so")))


def test_libraries_of_this_machine() -> None:
    assert is_standard("getenv")
    assert is_standard("_ZSt4cout")
    assert not is_standard("torch_call_dispatcher")
    assert system_library("libno-such-library.so.1") is None
