"""The checks of `verify` for GPUs, and the torch releases whose symbols it reads."""

from pathlib import Path

import pytest

from builder.commands.verify import verify_text
from builder.gate.report import line
from builder.matrix.axes import Arch, Cuda, Gpu, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proof import Check, Proof
from builder.proofs.inventory import Shelf
from builder.proofs.static.gpu_code import How, answer, check_gpus
from builder.proofs.static.symbol_table import SymbolTable
from builder.proofs.static.variants import loaded
from builder.proofs.verify.judge import Judge
from builder.proofs.verify.torch_window import Linker
from builder.wheelfile.facts import Library, open_wheel
from tests.unit.loopback import pure_wheel
from tests.unit.proofs.make import gpu_library, library, wheel_facts


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
