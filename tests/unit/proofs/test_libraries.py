"""Libraries of a wheel: symbols of torch and the system, GPU code and the GPUs that run it, and both stable ABIs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.commands.verify import verify_text
from builder.errors import Code
from builder.gate.report import line
from builder.matrix.axes import AbiClass, Arch, Cuda, Gpu, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proof import Check, Proof
from builder.proofs.inventory import Release, Shelf
from builder.proofs.static.gpu_code import How, answer, check_device_code, check_gpus
from builder.proofs.static.linkage import (
    check_linkage,
    check_linkage_in,
    is_python,
    is_standard,
    is_torch_cxx,
    system_library,
)
from builder.proofs.static.stable_abi import check_abi3, check_stable
from builder.proofs.static.symbol_table import SymbolTable, collect_symbols
from builder.proofs.static.variants import loaded
from builder.proofs.verify.judge import Judge
from builder.proofs.verify.torch_window import Linker
from builder.records import CudaSources
from builder.wheelfile.compatibility import DRIVER_LIBRARIES, is_driver_library
from builder.wheelfile.facts import Library, open_wheel
from tests.refused import refused
from tests.unit.loopback import pure_wheel
from tests.unit.proofs.make import CELL, FORWARD, claim, expect, gpu_library, library, table, wheel_facts
from tools.make_shims import tabulate

CXX11 = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def uses(*undefined: str, **facts: Any) -> Library:
    return library(undefined=undefined, **facts)


LIBC, LOADER = ("libc.so.6", "GLIBC_2.99"), ("ld-linux-x86-64.so.2", "GLIBC_2.3")
FOUND: dict[str, tuple[Library, ...]] = {
    "in a library it needs": (uses("_ZN2at6Tensor3fooEv"),),
    "in a library needed in turn": (uses("_ZN3c105ErrorC1Ev"),),
    "through libtorch": (uses("aoti_torch_get_current_cuda_stream", needed=("libtorch.so",)),),
    "CUDA runtime, which torch opens for all": (uses("cudaMalloc", needed=()),),
    "Python": (uses("PyModule_Create2", "_Py_NoneStruct", needed=()),),
    "C library, without a version": (uses("getenv", "cosf", needed=()),),
    "C++ library, which torch needs": (uses("_ZSt4cout", needed=()),),
    "a later version is the tags' matter": (uses("fancy", needed=("libc.so.6",), bound={"fancy": LIBC}),),
    "the loader itself": (uses("__tls_get_addr", needed=(), bound={"__tls_get_addr": LOADER}),),
    "the driver": (uses("cuLaunchKernel", needed=("libcuda.so.1",)),),
    "itself": (uses("own", defined=("own",)),),
    "by file name": (uses("helper", needed=("libh.so",)), library("ops/libh.so", defined=("helper",))),
    "by soname": (uses("f", needed=("libh.so.1",)), library("ops/h", soname="libh.so.1", defined=("f",))),
    "no library": (),
}


@pytest.mark.parametrize("libraries", FOUND.values(), ids=FOUND)
def test_found(libraries: tuple[Library, ...]) -> None:
    proof = check_linkage(wheel_facts(*libraries), CELL, table())
    assert (proof.check, proof.cell, proof.verdict) == (Check.LINKAGE, CELL, "passed"), proof.reason
    assert proof.evidence["missing"] == {}


@pytest.mark.parametrize(
    ("libraries", "symbols", "says"),
    [
        (
            (uses("f", needed=("libjpeg.so.8",)), uses("f", needed=("libjpeg.so.8",), path="ops/_D.so")),
            {},
            r"^ops/_C\.so, ops/_D\.so need libjpeg\.so\.8, .*; ops/_C\.so, ops/_D\.so: undefined symbol f: [^/]*$",
        ),
        ((uses("_ZTIN5torch8autograd4NodeE"),), {}, r"typeinfo for torch::autograd::Node: .*different torch"),
        ((uses(CXX11),), {"cxx11": False}, "different C.. ABI of std::string.*USE_CXX11_ABI=0"),
        ((uses(CXX11),), {}, "built against a different torch"),  # not the string
        ((uses("aoti_torch_get_current_cuda_stream"),), {}, r"not linked against libtorch_cuda\.so"),
        ((uses("helper"), library("ops/h.so", defined=("helper",))), {}, r"ops/h\.so defines the symbol, but"),
        ((uses("torch_has_storage"),), {}, r"torch 2\.14 added this function, but this cell has torch 2\.11"),
        ((uses("_Znonsense"),), {}, "undefined symbol _Znonsense: no library of torch"),
        ((uses("torch_sorted"),), {}, "no torch release in buildfarm's table shims.yaml has this function"),
        ((uses("cublasSgemm_v2", needed=()),), {}, r"link libcublas for CUDA 13\.0"),
        ((uses("cublasLtMatmul", needed=()),), {}, "link libcublasLt for CUDA"),
        ((uses("__cudaFancy", needed=()),), {}, "link libcudart for CUDA"),
        ((uses("_ZSt21something_from_gcc_99v"),), {}, "newer libstdc"),
        ((uses("cuLaunchKernel"),), {}, "cuLaunchKernel"),  # the driver is not linked
    ],
)
def test_missing(libraries: tuple[Library, ...], symbols: dict[str, Any], says: str) -> None:
    expect(check_linkage(wheel_facts(*libraries), CELL, table(**symbols)), says)


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        ("libc10.so.2", r"this cell provides libc10\.so: build the wheel with this cell's torch"),
        ("libtorch_cuda_cpp.so", r"which torch 2\.11\.0 does not provide: the wheel was built against a different"),
        ("libcurand.so.10", r"does not bring: .*`nvidia-curand`.* path `\$ORIGIN/\.\./nvidia/cu13/lib`"),
        ("libnppig.so.13", "add `nvidia-npp` to `requires`"),
        ("libjpeg.so.8", "which this cell does not provide: link it statically"),
        ("libcudart.so.12", r"CUDA 12; torch 2\.11\.0 in this cell provides libcudart\.so\.13: .* CUDA 13 toolkit"),
        ("libcudart.so.13.9", r"provides libcudart\.so\.13: link it statically \(`nvcc -cudart static`\)"),
    ],
)
def test_needed_library_does_not_exist(needed: str, says: str) -> None:
    proof = expect(check_linkage(wheel_facts(uses(needed=(needed,))), CELL, table()), says)
    assert proof.evidence["absent"] == {"ops/_C.so": [needed]}


@pytest.mark.parametrize(("runtime", "named"), [("libcudart.so.12", False), ("libcudart.so.13", True)])
def test_a_library_that_is_missing_is_one_error_and_not_one_for_each_symbol(runtime: str, named: bool) -> None:
    """A symbol with a version of a library that exists must be defined there."""
    wheel = wheel_facts(uses("cudaFancy", needed=(runtime,), bound={"cudaFancy": (runtime, runtime)}))
    proof = check_linkage(wheel, CELL, table())
    assert ("cudaFancy" in proof.reason) is bool(proof.evidence["missing"]) is named


@pytest.mark.parametrize("machine", ["EM_NONE", "EM_HEXAGON", "4711", "riscv64"])
def test_a_library_for_any_processor_is_judged(machine: str) -> None:
    facts = wheel_facts(library(machine=machine))
    assert check_linkage(facts, CELL, table()).verdict in ("passed", "failed")


def test_two_variants_of_torch_2_6_have_two_abis_of_strings() -> None:
    """lietorch 0.8.2 of the index requires torch 2.6, and works with its variant for CUDA 12.6 only."""
    cell = replace(CELL, torch=Torch(2, 6, 0), cuda=Cuda(12, 4))
    expect(check_linkage(wheel_facts(uses(CXX11)), cell, table(cxx11=False)), "ABI=0, or use torch 2.6 for CUDA 12.6")


def test_missing_dependencies_of_torch_itself_do_not_matter() -> None:
    symbols = table({"libtorch_cpu.so": (("libmpi.so.40",), ("_ZN2at6Tensor3fooEv",))})
    assert check_linkage(wheel_facts(uses("_ZN2at6Tensor3fooEv")), CELL, symbols).verdict == "passed"


def test_evidence_has_mangled_and_readable_names() -> None:
    proof = check_linkage(wheel_facts(uses(FORWARD)), CELL, table())
    readable = "ms_deform_attn_cuda_forward(" + "at::Tensor const&, " * 5 + "int)"
    assert proof.evidence["missing"] == {"ops/_C.so": {FORWARD: readable}}


def test_a_forgotten_cuda_file_is_named() -> None:
    libraries = (uses(FORWARD), gpu_library("sm_90"))
    few, many = (CudaSources(count + 1, tuple(f"{n}.cu" for n in range(count))) for count in (1, 400))
    assert "0.cu was never compiled" in check_linkage(wheel_facts(*libraries), CELL, table(), few).reason
    assert "check `sources`" in check_linkage(wheel_facts(*libraries), CELL, table(), many).reason


PER_CUDA = tuple(
    library(f"ops/libx_cuda{name}.so", needed=(f"libcudart.so.{major}",), soname="")
    for name, major in (("118", "11.0"), ("121", "12"), ("130", "13"))
)


@pytest.mark.parametrize(
    ("count", "foreign", "reason"),
    [(3, False, "the runtime of CUDA 12"), (3, True, ""), (2, True, "the runtime of CUDA")],
)
def test_libraries_for_one_cuda_each(count: int, foreign: bool, reason: str) -> None:
    expect(check_linkage_in(wheel_facts(*PER_CUDA[:count]), claim(foreign=foreign), CELL, table()), reason)


def test_a_library_for_another_torch_by_its_name_need_not_link() -> None:
    """dgl 2.1.0 of the index has one for each torch from 2.0.0 to 2.2.1, and loads that of its torch."""
    old = uses("_ZN2at4goneEv", path="dgl/libdgl_sparse_pytorch_2.0.0.so")
    wheel = wheel_facts(old, library("dgl/libdgl_sparse_pytorch_2.2.1.so"))
    expect(check_linkage_in(wheel, claim(foreign=True), CELL, table()))
    expect(check_linkage_in(wheel_facts(old), claim(foreign=True), CELL, table()), "at::gone")


@pytest.mark.parametrize(
    ("libraries", "archs", "missing"),
    [
        ((gpu_library("sm_90"),), "9.0", ""),  # the same
        ((gpu_library("sm_80", "sm_90"),), "9.0", ""),  # more than claimed
        ((gpu_library("sm_90a"),), "9.0", ""),  # sm_90a runs on every 9.0
        ((gpu_library("sm_90"),), "9.0a", "sm_90a"),  # 9.0a is not 9.0
        ((gpu_library("sm_80"),), "8.6", "sm_86"),  # older code does not satisfy the claim
        ((gpu_library("sm_80", ptx=("compute_80",)),), "8.0 9.0", "sm_90"),  # PTX is not machine code
        ((gpu_library("sm_80"),), "8.0 9.0 12.0", "sm_90, sm_120"),  # all that are missing
        ((gpu_library("sm_90", ptx=("compute_90",)),), "9.0+PTX", ""),  # PTX
        ((gpu_library("sm_90"),), "9.0+PTX", "compute_90"),  # no PTX
        ((gpu_library("sm_90a", ptx=("compute_90a",)),), "9.0+PTX", "compute_90"),  # PTX tied to one GPU
        ((gpu_library("sm_90"), library()), "9.0", ""),  # library without GPU code does not matter
        ((gpu_library("sm_90"), gpu_library("sm_80", path="ops/b.so")), "9.0", "ops/b.so"),  # one of two
        ((gpu_library("sm_90"), gpu_library("sm_50", path="ops.libs/b.so")), "9.0", ""),  # a copied one
        ((gpu_library(),), "9.0", "sm_90"),  # a section with nothing in it
        ((library(),), "9.0", "no library contains GPU code"),  # none at all
    ],
)
def test_device_code(libraries: tuple[Library, ...], archs: str, missing: str) -> None:
    claimed = tuple(Arch.parse(arch) for arch in archs.split())
    proof = expect(check_device_code(wheel_facts(*libraries), claim(archs=claimed)), missing)
    assert proof.evidence["claimed"] == archs.split()


@pytest.mark.parametrize(
    ("archs", "beyond"),
    [
        ("8.0 9.0+PTX", {}),
        ("9.0+PTX", {"sm_80": 100}),
        ("8.0 9.0", {"compute_90": 5}),
        ("8.0 9.0a+PTX", {}),
        ("12.0", {"sm_80": 100, "sm_90": 40, "compute_90": 5}),
    ],
)
def test_code_beyond_the_claim_is_measured(archs: str, beyond: dict[str, int]) -> None:
    code = {"sm_80": 70, "sm_90": 40, "compute_90": 5}
    libraries = (gpu_library(*code, gpu_code=code), gpu_library("sm_80", path="ops/b.so", gpu_code={"sm_80": 30}))
    proof = check_device_code(wheel_facts(*libraries), claim(archs=tuple(map(Arch.parse, archs.split()))))
    assert proof.evidence.get("beyond", {}) == beyond


def test_no_gpu_code_where_none_is_required() -> None:
    proof = check_device_code(wheel_facts(library()), claim(cuda_required=False))
    assert (proof.verdict, proof.reason) == ("passed", "no GPU code, which the recipe allows (`cuda: optional`)")
    foreign = check_device_code(wheel_facts(library()), replace(claim(cuda_required=False), foreign=True))
    assert (foreign.verdict, foreign.reason) == ("passed", "no GPU code"), "a wheel of others has no recipe"


@pytest.mark.parametrize(("has", "dropped"), [(("sm_75",), True), (("sm_52",), True), (("sm_75", "sm_80"), False)])
def test_the_default_of_nvcc_has_a_cause_of_its_own(has: tuple[str, ...], dropped: bool) -> None:
    reason = check_device_code(wheel_facts(gpu_library(*has)), claim(archs=(Arch(9, 0),))).reason
    assert ("nvcc's default: torch names no architecture if the letters `arch` are in an option" in reason) is dropped


def test_affected_gpus_and_the_architectures_are_named() -> None:
    archs = (Arch(8, 0), Arch(12, 0))
    reason = check_device_code(wheel_facts(gpu_library("sm_80")), claim(archs=archs)).reason
    assert "sm_120 (RTX PRO 6000 Blackwell, RTX 50 series (5090))" in reason
    assert "A100" not in reason
    assert "`override_architectures: true`" in reason
    assert "if the library is for one architecture only, add the check to `accepts`" in reason
    wheel = wheel_facts(gpu_library("sm_80", "sm_100"), gpu_library("sm_80", path="ops/b.so", ptx=("compute_80",)))
    assert check_device_code(wheel, claim(archs=archs[:1])).reason == "compute_80 sm_80 sm_100"


def test_code_of_an_unknown_kind_is_said() -> None:
    wheel = wheel_facts(gpu_library("sm_80", gpu_code={"sm_80": 1, "lto_90": 1, "kind77_120f": 1}))
    proof = check_device_code(wheel, claim(archs=(Arch(8, 0),)))
    assert (proof.verdict, proof.reason) == ("passed", "sm_80 lto_90 kind77_120f")
    assert "ops/_C_cuda.so has GPU code that buildfarm does not know (kind 77 for 120f)" in proof.evidence["remarks"][0]


def test_the_device_link_drops_ptx() -> None:
    archs = (Arch(9, 0, ptx=True),)
    for linked in (False, True):
        reason = check_device_code(wheel_facts(gpu_library("sm_90", device_link=linked)), claim(archs=archs)).reason
        assert ("the device link of relocatable code drops PTX, so leave out +PTX" in reason) == linked


def test_environment_without_torch(tmp_path: Path) -> None:
    with refused(Code.NO_ENVIRONMENT):
        collect_symbols(tmp_path)


def test_names_of_torch_of_python_and_of_the_libraries_of_the_driver() -> None:
    torch = ("_ZNK3c106Device3strEv", "_ZNKR5torch8autograd4Node4nameEv", "_ZN6caffe28TypeMetaC1Ev")
    assert all(map(is_torch_cxx, (*torch, "_ZN2atlsERSoRKNS_6TensorE")))
    others = ("_ZNSt6vectorIN2at6TensorESaIS1_EED1Ev", FORWARD, "_ZN7torchvi3fooEv", "_ZN3atx3fooEv")
    assert not any(map(is_torch_cxx, others))
    assert all(map(is_python, ("PyList_New", "_Py_NoneStruct", "_PyThreadState_UncheckedGet")))
    assert not any(map(is_python, ("Pyramid", "pyre")))
    assert all(map(is_driver_library, ("libcuda.so.1", *DRIVER_LIBRARIES)))
    assert not any(map(is_driver_library, ("libcudart.so.13", "libcudadevrt.so")))


def test_libraries_of_this_machine() -> None:
    assert is_standard("getenv")
    assert is_standard("_ZSt4cout")
    assert not is_standard("torch_call_dispatcher")
    assert system_library("libno-such-library.so.1") is None


CXX = "_ZNK2at6Tensor8data_ptrIfEEPT_v"
REPLACE = "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE10_M_replaceEmmPKcm"
#: Libraries, the oldest torch with their functions, and the error.
STABLE: list[tuple[tuple[Library, ...], str, str]] = [
    ((uses("torch_call_dispatcher", "aoti_torch_get_dim"),), "2.10", ""),
    ((uses("aoti_torch_get_dim"),), "2.9", ""),  # the oldest measured
    ((uses("torch_c10_cuda_check_msg"),), "2.10", ""),
    ((uses("torch_from_blob"),), "2.11", r"needs torch 2\.11 for torch_from_blob, but .* must work with torch 2\.10"),
    ((uses("aoti_torch_aten_subtract_Tensor"),), "2.10", ""),
    ((uses("torch_call_dispatcher", "aoti_torch_cpu_Unknown"),), "2.10", "which no torch release"),
    ((uses("torch_call_dispatcher", "torch_sorted"),), "2.10", "torch_sorted, which no torch release"),
    ((uses(CXX),), "", r"C\+\+ ABI \(float\* at::Tensor::data_ptr<float>\(\) const\)"),
    ((uses("_ZTVN3c105ErrorE"),), "", r"vtable for c10::Error"),
    ((uses("PyModule_Create2", "_Py_NoneStruct"),), "", ""),
    ((uses("getenv", "_Znwm", REPLACE, "cosf"),), "", ""),  # C and C++ runtimes, without a version
    ((uses("cudaMalloc", bound={"cudaMalloc": ("libcudart.so.13", "libcudart.so.13")}),), "", ""),
    ((uses("cuLaunchKernel", needed=("libcuda.so.1",)),), "", ""),
    ((uses("inflate", needed=("libz.so.1", "libtorch.so")),), "", ""),  # a library without versions
    ((uses("inflate", FORWARD, needed=("libz.so.1",)),), "", r"leaves ms_deform_attn_cuda_forward\(at::Tensor const&"),
    ((uses("inflate", needed=("libc.so.6", "libcudart.so.13", "libc10.so")),), "", "leaves inflate undefined"),
    ((uses("cuLaunchKernel"),), "", "leaves cuLaunchKernel undefined"),
    ((uses(FORWARD),), "", r"leaves ms_deform_attn_cuda_forward\(at::Tensor const&"),
    ((uses("helper"), library("ops/h.so", defined=("helper",))), "", ""),
    ((uses("sgemm_"),), "", "leaves sgemm_ undefined"),  # torch exports it, and it is no C function of torch
]


@pytest.mark.parametrize(("libraries", "floor", "error"), STABLE)
def test_stable(libraries: tuple[Library, ...], floor: str, error: str) -> None:
    proof = check_stable(wheel_facts(*libraries), claim(abi=AbiClass.STABLE, torch=Torch(2, 10, 0)))
    assert expect(proof, error).evidence["floor"] == floor


def test_table_lists_first_and_last_appearances() -> None:
    measured = {
        Torch(2, 11, 0): {"cpu": {"torch_a", "torch_b"}, "cuda": {"torch_x"}},
        Torch(2, 9, 1): {"cpu": {"torch_a"}, "cuda": {"torch_old"}},
        Torch(2, 10, 0): {"cpu": {"torch_a"}, "cuda": {"torch_x"}},
    }
    assert tabulate(measured) == {
        "since": {
            "2.9": {"cpu": ["torch_a"], "cuda": ["torch_old"]},
            "2.10": {"cuda": ["torch_x"]},
            "2.11": {"cpu": ["torch_b"]},
        },
        "gone": {"2.10": {"cuda": ["torch_old"]}},
    }


def test_functions_of_cuda_are_a_matter_of_the_linkage() -> None:
    """vLLM 0.33.0 calls cuBLAS, and links libtorch_cuda alone."""
    calls = uses("aoti_torch_get_current_device_index", "cublasLtCreate", "cudnnCreate", needed=("libtorch_cuda.so",))
    for needed, remarks in (((), 1), (("libcublasLt.so.13",), 0)):
        one = replace(calls, needed=(*calls.needed, *needed))
        proof = expect(check_stable(wheel_facts(one), claim(abi=AbiClass.STABLE)))
        assert len(proof.evidence.get("remarks", ())) == remarks


def manylinux(python: str) -> str:
    return f"{python}-manylinux_2_28_x86_64"


UNCHECKED = "_PyThreadState_UncheckedGet"
ABI3: list[tuple[str, str, AbiClass, str]] = [
    ("cp310-abi3", "PyModule_Create2", AbiClass.ABI3, ""),
    ("cp310-abi3", "PyExc_ValueError", AbiClass.ABI3, ""),
    ("cp310-abi3", "PyBuffer_Release", AbiClass.ABI3, "PyBuffer_Release (3.11), which Python 3.10"),
    ("cp311-abi3", "PyBuffer_Release", AbiClass.ABI3, ""),
    ("cp310-abi3", UNCHECKED, AbiClass.ABI3, UNCHECKED),
    ("cp310-abi3", "PyBuffer_Release", AbiClass.CPYTHON, "which Python 3.10"),  # the tag alone is a claim
    ("cp312-cp312", "PyModule_Create2", AbiClass.STABLE, "tagged cp312-cp312"),
    ("py3-none", "", AbiClass.STABLE, ""),
    ("cp315-abi3.abi3t", "PyModule_Exec", AbiClass.ABI3, ""),
    ("cp310-abi3t", "PyModule_Exec", AbiClass.CPYTHON, ""),  # abi3t begins with 3.15
    ("cp316-abi3t", UNCHECKED, AbiClass.CPYTHON, "stable ABI does"),
    ("cp310-abi3.abi3t", "PyModule_Exec", AbiClass.ABI3, "which Python 3.10 of"),
]


@pytest.mark.parametrize(("tag", "used", "abi", "error"), ABI3)
def test_abi3(tag: str, used: str, abi: AbiClass, error: str) -> None:
    python, tagged = tag.split("-")
    tags = tuple(manylinux(f"{python}-{each}") for each in tagged.split("."))
    proof = check_abi3(wheel_facts(library(undefined=(used,) if used else ()), tags=tags), claim(abi=abi))
    expect(proof, error)


def test_oldest_of_two_tags_decides() -> None:
    tags = (manylinux("cp310-abi3"), manylinux("cp311-abi3"))
    facts = wheel_facts(library(undefined=("PyBuffer_Release",)), tags=tags)
    expect(check_abi3(facts, claim()), "PyBuffer_Release")
    proof = check_abi3(facts, replace(claim(), foreign=True))  # protobuf: each CPython exports it
    expect(proof, "")
    assert proof is not None
    assert "exported, but not as stable" in proof.evidence["remarks"][0]


def test_other_abi_classes_have_no_proof_of_a_stable_abi() -> None:
    assert check_stable(wheel_facts(uses(CXX)), claim(abi=AbiClass.ABI3)) is None
    assert check_abi3(wheel_facts(uses("PyBuffer_Release")), claim()) is None


@pytest.mark.parametrize(
    ("name", "used", "error"),
    [
        ("_C.abi3t.so", "PyModule_Exec", ""),
        ("_C.abi3-x86_64-linux-gnu.so", "PyModule_Exec", ""),
        ("_C.abi3.so", "PyModule_Exec", "PyModule_Exec (3.15), which Python 3.10"),
        ("_C.abi3t.so", "PyModuleDef_Init", "define Py_TARGET_ABI3T=0x030f0000, and export PyModExport__C"),
        ("_C.abi3.so", "PyModuleDef_Init", ""),
    ],
)
def test_a_file_that_only_new_pythons_find(name: str, used: str, error: str) -> None:
    facts = wheel_facts(library(f"ops/{name}", undefined=(used,)), tag=manylinux("cp310-abi3"))
    proof = check_abi3(facts, claim(abi=AbiClass.ABI3))
    expect(proof, error)


@pytest.mark.parametrize(
    ("gpu", "sass", "ptx", "how", "code"),
    [
        ("A100", ("sm_80",), (), How.NATIVE, "sm_80"),
        ("RTX 4090", ("sm_80", "sm_86"), (), How.NATIVE, "sm_86"),
        ("A100", ("sm_86",), (), How.NOT, ""),
        ("H100", ("sm_80",), (), How.NOT, ""),
        ("H100", ("sm_80",), ("compute_80",), How.PTX, "compute_80"),
        ("H100", ("sm_90a",), (), How.NATIVE, "sm_90a"),
        ("B200", ("sm_90a",), ("compute_90a",), How.NOT, ""),
        ("B300", ("sm_100",), (), How.NATIVE, "sm_100"),
        ("B300", ("sm_100a",), (), How.NOT, ""),
        ("B300", ("sm_100f",), (), How.NATIVE, "sm_100f"),
        ("GB10", ("sm_120",), (), How.NATIVE, "sm_120"),
        ("RTX 5090", ("sm_100",), ("compute_100f",), How.NOT, ""),
        ("RTX 5090", ("sm_90",), ("compute_90",), How.PTX, "compute_90"),
        ("T4", ("sm_80",), ("compute_80",), How.NOT, ""),
        ("Jetson AGX Orin", ("sm_86",), (), How.NOT, ""),
        ("Jetson AGX Orin", ("sm_87",), (), How.NATIVE, "sm_87"),
        ("Jetson AGX Orin", ("sm_80",), ("compute_80",), How.PTX, "compute_80"),
        ("L4", ("sm_87",), (), How.NOT, ""),
    ],
)
def test_how_a_gpu_runs_code(gpu: str, sass: tuple[str, ...], ptx: tuple[str, ...], how: How, code: str) -> None:
    compat = Compat.load()
    facts = wheel_facts(gpu_library(*sass, ptx=ptx))
    found = answer(facts, Gpu(gpu, compat.gpu_named(gpu)), compat, "")
    assert found
    assert (found.how, found.code) == (how, code)


@pytest.mark.parametrize(
    ("isa", "driver"), [("7.8", "520.61.05"), ("8.5", "555.42.02"), ("9.0", "580.65.06"), ("", ""), ("99.0", "")]
)
def test_driver_that_compiles_a_version_of_ptx(isa: str, driver: str) -> None:
    compat = Compat.load()
    facts = wheel_facts(gpu_library("sm_80", ptx=("compute_80",), ptx_isa={"compute_80": isa} if isa else {}))
    found = answer(facts, Gpu("H100", compat.gpu_named("H100")), compat, "525.60.13")
    assert found
    assert found.driver == driver


@pytest.mark.parametrize(
    ("names", "arch"),
    [
        ("T4, RTX 2080, RTX2080 Ti, NVIDIA TITAN RTX, Quadro RTX 5000, GeForce GTX 1660 SUPER", "7.5"),
        ("A100, NVIDIA A100-SXM4-80GB", "8.0"),
        ("RTX 3090, NVIDIA RTX A2000 12GB, RTX A6000, A2", "8.6"),
        ("L4, RTX 4070, RTX 2000 Ada, NVIDIA RTX 4000 SFF Ada Generation, RTX 5000 Ada, RTX 6000 Ada", "8.9"),
        ("H200, NVIDIA H100 80GB HBM3", "9.0"),
        ("RTX 5080, RTX PRO 6000, NVIDIA RTX PRO 4000 Blackwell", "12.0"),
        ("GTX 1080 Ti, GeForce GTX 1060 6GB", "6.1"),
        ("B200", "10.0"),
        ("B300", "10.3"),
    ],
)
def test_every_gpu_that_people_own_has_a_name(names: str, arch: str) -> None:
    assert {Compat.load().gpu_named(name) for name in names.split(", ")} == {Arch.parse(arch)}


@pytest.mark.parametrize("name", ["10.0", "sm_100", "sm_100a", "sm_100f"])
def test_a_gpu_is_named_by_its_compute_capability_too(name: str) -> None:
    assert Compat.load().gpu_named(name) == Arch(10, 0)


EVERY = gpu_library("sm_80", "sm_90", ptx=("compute_90",))
BLACKWELL = gpu_library("sm_100f", path="ops/_B.so")
ONLY = "only B200 (10.0), B300 (10.3) and Rubin (10.7) can run it"


def checked(*libraries: Library, gpus: tuple[str, ...] = ()) -> Proof:
    compat = Compat.load()
    asked = [Gpu(name, compat.gpu_named(name)) for name in gpus]
    return check_gpus(wheel_facts(*libraries), asked, "", compat, "")


@pytest.mark.parametrize(
    ("libraries", "gpu", "verdict", "remark"),
    [
        ((EVERY, BLACKWELL), "H100", "passed", f"ops/_B.so with sm_100f: {ONLY}"),
        ((EVERY, BLACKWELL), "B200", "passed", ""),
        ((EVERY, BLACKWELL), "T4", "failed", ""),
        ((BLACKWELL,), "H100", "failed", ""),
        ((EVERY, gpu_library("sm_50", path="ops/_O.so")), "H100", "passed", "ops/_O.so with sm_50: no GPU"),
        ((library(),), "H100", "passed", ""),
        ((gpu_library("sm_80", gpu_code={"sm_80": 1, "kind77_90": 1}),), "H100", "passed", ""),
    ],
)
def test_a_library_may_be_for_some_gpus(libraries: tuple[Library, ...], gpu: str, verdict: str, remark: str) -> None:
    """vLLM has a library for Blackwell beside one for every GPU."""
    proof = checked(*libraries, gpus=(gpu,))
    assert proof.verdict == verdict, proof.reason
    (said,) = proof.evidence.get("remarks", [""])
    assert said.startswith(remark)
    assert bool(said) == bool(remark)


def test_the_summary_is_of_the_libraries_that_run() -> None:
    proof = checked(EVERY, BLACKWELL)
    assert "native on A100 (8.0)" in proof.reason
    assert "from PTX on B200 (10.0)" in proof.reason
    assert ONLY in proof.evidence["remarks"][0]
    assert checked(gpu_library("kind", gpu_code={"kind77_90": 1})).reason.startswith("unknown on V100 (7.0)")


@pytest.mark.parametrize(
    ("torch", "cuda", "driver", "verdict", "says"),
    [
        ("2.11", "12.6", "550", "passed", "ops/libx_cuda126.so: native on V100 (7.0) with driver 525.60.13 or newer"),
        ("", "12.8", "", "passed", "ops/libx_cuda126.so: "),  # the nearest of CUDA 12
        ("", "12.4", "", "passed", "ops/libx_cuda126.so: "),
        ("2.6", "", "", "passed", "ops/libx_cuda126.so: "),  # torch 2.6 has no CUDA 13
        ("2.11", "13.0", "", "failed", "V100 (7.0) cannot run ops/libx_cuda130.so"),
        ("2.11", "12.6 13.0", "", "failed", "V100 (7.0) cannot run ops/libx_cuda130.so"),
        ("", "", "", "failed", "V100 (7.0) cannot run ops/libx_cuda130.so"),
        ("2.11", "13.0", "550", "failed", "driver 550 is too old"),
    ],
)
def test_the_build_that_the_asked_torch_loads_is_judged(
    tmp_path: Path, torch: str, cuda: str, driver: str, verdict: str, says: str
) -> None:
    """bitsandbytes 0.48.0 has a library for each CUDA, and the one for CUDA 13 has no code for the V100."""
    of_12 = gpu_library("sm_70", path="ops/libx_cuda126.so", needed=("libcudart.so.12",), gpu_code={"sm_70": 7})
    of_13 = gpu_library("sm_75", path="ops/libx_cuda130.so", needed=("libcudart.so.13",), gpu_code={"sm_75": 8})
    plain = library("ops/libx_cpu.so", needed=())
    facts = wheel_facts(of_13, of_12, plain, version="1.0", requires_dist=("torch",))
    select = Selection(torch=tuple(torch.split()), cuda=tuple(cuda.split()))
    judge = Judge(Shelf(tmp_path), select, (Gpu("V100", Arch(7, 0)),), driver)
    with open_wheel(pure_wheel(tmp_path, "ops", "1.0")) as wheel:
        proofs = [one for one in judge.judge(wheel, facts).proofs if one.check is Check.GPUS]
    assert len(proofs) == len(cuda.split() or [""])
    assert proofs[-1].verdict == verdict
    assert says in proofs[-1].reason
    assert proofs[-1].evidence["sizes"] == ({"sm_70": 7} if verdict == "passed" else {"sm_75": 8})


def test_every_line_fits_and_breaks_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    codes = {f"sm_{number}": 2**21 for number in (60, 70, 75, 80, 86, 89, 90, 100, 120)}
    symbol = "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
    late = {"libstdc++.so.6": ("GLIBCXX_3.4.29",)}
    plain = gpu_library(*codes, gpu_code=codes)
    new = library("ops/_N.so", needed=(), versions=late, bound={symbol: ("libstdc++.so.6", "GLIBCXX_3.4.29")})
    facts = wheel_facts(plain, new, tag="py3-none-manylinux_2_24_x86_64", version="1.0")
    assert line("passed", "x", "y" * 100, 60, most=2)[-1].endswith(" " + "y" * 100)
    with open_wheel(pure_wheel(tmp_path, "ops", "1.0")) as wheel:
        lines = verify_text([Judge(Shelf(tmp_path), Selection()).judge(wheel, facts)]).splitlines()
    assert [len(one) for one in lines[1:] if len(one) > 80] == []
    assert "sm_120 2.0 MiB" in " ".join(" ".join(lines).split())
    assert "needs std::__cxx11::basic_stringbuf<char," in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("paths", "torch", "cuda", "judged"),
    [
        ("torch-2.9/lib/x.so torch-2.10/lib/x.so", "2.9.1", "13.0", "torch-2.9/lib/x.so"),
        ("torch-2.9/lib/x.so torch-2.10/lib/x.so", "2.11.0", "13.0", "torch-2.10/lib/x.so"),
        ("torch-2.9/lib/x.so torch-2.10/lib/x.so", "", "", "torch-2.10/lib/x.so"),
        ("cu12/x.so cu13/x.so y.so", "2.9.1", "12.8", "cu12/x.so y.so"),
        ("sm90/x.so sm100/x.so", "2.9.1", "12.8", "sm90/x.so sm100/x.so"),  # the package chooses one by the GPU
        ("sm90/x.so sm100/x.so", "", "", "sm90/x.so sm100/x.so"),
    ],
)
def test_the_paths_of_libraries_name_their_torch_and_cuda(paths: str, torch: str, cuda: str, judged: str) -> None:
    facts = wheel_facts(*(gpu_library("sm_90", path=path, needed=()) for path in paths.split()))
    build = loaded(facts, Torch.parse(torch) if torch else None, Cuda.parse(cuda) if cuda else None)
    assert [one.path for one in build.libraries] == judged.split()


@pytest.mark.parametrize(
    ("requires", "runtimes", "local", "select", "releases"),
    [
        ("torch==2.10.*", 13, "", Selection(), "2.10.0 cu130"),  # whose wheel on the package index is for CUDA 12.8
        ("torch==2.11.*", 13, "", Selection(), "2.11.0 cu130"),
        ("torch==2.10.*", 12, "", Selection(), "2.10.0 cu128"),
        ("torch==2.10.*", 12, "+cu126", Selection(), "2.10.0 cu126"),
        ("torch", 13, "+cu130.torch2.11", Selection(), "2.11.0 cu130"),
        ("torch==2.11.*", 13, "", Selection(cuda=("12.6",)), "2.11.0 cu126"),
        ("torch>=2.10,<2.12", 13, "", Selection(), "2.10.0 cu130, 2.11.0 cu130"),
        ("torch>=2.10,<2.13", 13, "", Selection(), ""),
        ("torch>=2.10", 13, "", Selection(torch=("2.12",)), "2.12.1 cu130"),
        ("torch==2.11.*", 13, "", Selection(torch=("2.12", "2.11")), "2.12.1 cu130, 2.11.0 cu130"),
        ("torch==2.9.*", 11, "", Selection(), ""),
        ("numpy", 13, "", Selection(), ""),
    ],
)
def test_the_symbols_of_the_torch_of_the_wheel_are_read(
    tmp_path: Path, requires: str, runtimes: int, local: str, select: Selection, releases: str
) -> None:
    needed = (f"libcudart.so.{runtimes}", *(["libtorch_cpu.so"] if requires != "numpy" else []))
    facts = wheel_facts(library(needed=needed), version=f"1.0{local}", requires_dist=(requires,))
    unread = Linker(facts, Shelf(tmp_path), select).unread
    assert ", ".join(f"{one.torch} {one.cuda.variant}" for one in unread) == releases
    shelf = Shelf(tmp_path)
    for release in unread:
        shelf.add(release, SymbolTable({}))
    assert Linker(facts, shelf, select).unread == []


def test_a_claimed_torch_whose_symbols_are_unknown_may_be_the_one_that_links(tmp_path: Path) -> None:
    """torchtext 0.18.0 of the index allows every torch since 2.3, and failed where only those of 2.14 were known."""
    shelf = Shelf(tmp_path)
    shelf.add(Release(Torch(2, 11, 0), Cuda(13, 0), "x86_64"), table())
    for requires, verdict in (("torch>=2.10", "not run"), ("torch==2.11.*", "failed")):
        facts = wheel_facts(uses("_ZN2at4goneEv"), version="1.0", requires_dist=(requires,))
        (proof,) = Linker(facts, shelf, Selection()).linkage()
        assert proof.verdict == verdict, proof.reason
