"""Finished wheels as people reported them: the check that names the fault, and the command that cures it."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import BuildError, Exit
from builder.wheelfile.facts import read_facts
from builder.wheels.repair.repair import repair
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Farm, run
from tests.fixtures.compiled import compiled
from tests.fixtures.handmade_wheels import w0

TAG = "cp312-cp312-manylinux_2_34_x86_64"


@cache
def lib(source: str = "int f(void) { return 1; }", *flags: str) -> bytes:
    """A library from a line of C."""
    with TemporaryDirectory() as folder:
        return compiled(Path(folder), source, *flags, language="c").read_bytes()


def module(name: str = "_C", *flags: str) -> bytes:
    """A library that is a Python module by its name."""
    return lib(f"void *PyInit_{name}(void) {{ return 0; }}", *flags)


def buildfarm(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def verify(wheel: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The failed checks with their reasons, and the remarks by check."""
    done = buildfarm("verify", wheel, "--store", wheel.parent / "store", "--json")
    assert done.exit_code in (Exit.OK, Exit.FAILED), done.output
    proofs = json.loads(done.stdout)[0]["proofs"]
    failed = {proof["check"]: proof["reason"] for proof in proofs if proof["verdict"] == "failed"}
    return failed, {proof["check"]: " | ".join(proof["evidence"].get("remarks", ())) for proof in proofs}


@pytest.mark.parametrize("local", ["cu130torch2.11", "cu12torch2.11cxx11abiTRUE"])
def test_9_a_local_version_in_the_file_name_only(tmp_path: Path, local: str) -> None:
    """flash-attention 489: CI renames the wheel; uv installs it again each time."""
    files = {"t0/__init__.py": b"", "t0/_C.so": module()}
    wheel = w0(tmp_path, "t0", f"1.0+{local}", TAG, files, meta_version="1.0")
    assert "run `buildfarm relabel WHEEL`" in verify(wheel)[0]["metadata"]
    publish = ("publish", "--to", tmp_path / "index", "--require", "none", "--store", tmp_path / "store")
    refused = buildfarm(*publish, wheel)
    assert refused.exception is not None
    assert "METADATA says t0 1.0, but the file name differs" in str(refused.exception)
    made = buildfarm("relabel", wheel, "--out", tmp_path / "out").stdout.strip()
    assert "metadata" not in verify(Path(made))[0]
    assert buildfarm(*publish, made).exit_code == Exit.OK


def test_9_uv_installs_a_relabelled_wheel_once(tmp_path: Path) -> None:
    """cuda-wheels 2: `uv sync` installed the renamed wheel again each time."""
    local = "cu12torch2.11cxx11abiTRUE"
    wheel = w0(tmp_path, "t0", f"1.0+{local}", "py3-none-any", {"t0/__init__.py": b""}, meta_version="1.0")
    made = buildfarm("relabel", wheel, "--out", tmp_path / "out").stdout.strip()
    index, app = tmp_path / "index", tmp_path / "app"
    buildfarm("publish", made, "--to", index, "--require", "none", "--store", tmp_path / "store")
    app.mkdir()
    (app / "pyproject.toml").write_text(
        f'[project]\nname = "app"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["t0==1.0+{local}"]\n'
        f'[[tool.uv.index]]\nurl = "{(index / "simple").as_uri()}"\ndefault = true\n'
    )
    sync = (find_uv(), "sync", "--python", sys.executable, "--cache-dir", str(tmp_path / "cache"))
    environment = dict.fromkeys({"UV_DEFAULT_INDEX", "UV_INDEX", "VIRTUAL_ENV"} & set(os.environ), "")
    environment["UV_PROJECT_ENVIRONMENT"] = str(app / ".venv")  # nox sets it to its own environment, which sync empties
    first, second = (run(*sync, cwd=app, env=environment) for _ in range(2))
    assert "+ t0==1.0+cu12torch2.11cxx11abitrue" in first.err, first.all
    assert (second.code, "t0" in second.err) == (0, False), second.all


def test_6_torch_by_a_url(tmp_path: Path) -> None:
    """The wheel counted as one for any torch; uv and PyPI refuse it, and pip replaces the installed torch."""
    url = "https://download.example/whl/cu130/torch-2.11.0%2Bcu130-cp312-cp312-manylinux_2_28_x86_64.whl"
    files = {"t0/__init__.py": b"import torch\nfrom . import _C\n", "t0/_C.so": module()}
    wheel = w0(tmp_path, "t0", "1.0", TAG, files, requires=[f"torch @ {url}"])
    failed, _ = verify(wheel)
    assert "METADATA requires torch by a URL (download.example)" in failed["metadata"]
    assert "such as torch==2.11.0+cu130" in failed["metadata"]
    refused = buildfarm("publish", wheel, "--to", tmp_path / "i", "--require", "none", "--store", tmp_path / "store")
    assert refused.exit_code == Exit.FAILED
    assert "requires torch by a URL" in refused.output


def test_13_a_module_for_one_python_in_an_abi3_wheel(tmp_path: Path) -> None:
    """sglang 37640: the tag was set, but not py_limited_api of one Extension."""
    one = "t0/extra.cpython-310-x86_64-linux-gnu.so"
    files = {"t0/__init__.py": b"from . import _C\n", "t0/_C.abi3.so": module(), one: module("extra")}
    failed, _ = verify(w0(tmp_path, "t0", "1.0", "cp310-abi3-manylinux_2_34_x86_64", files))
    assert list(failed) == ["modules"]
    assert f"only Python 3.10 finds {one}" in failed["modules"]


def needs_glibc_2_43(folder: Path) -> bytes:
    """A module that needs a function of glibc 2.43, linked with a stub in place of this machine's C library."""
    versions = folder / "versions"
    versions.write_text("GLIBC_2.43 { global: memset_explicit; };")
    flags = ("-nostdlib", f"-Wl,--version-script={versions}", "-Wl,-soname,libc.so.6")
    stub = compiled(folder, "void memset_explicit(void) {}", *flags, name="stub.so", language="c")
    source = "extern void memset_explicit(void); void PyInit__C(void) { memset_explicit(); }"
    return compiled(folder, source, "-nostdlib", str(stub), name="_C.so", language="c").read_bytes()


def test_a_library_for_a_newer_glibc_than_auditwheel_knows(tmp_path: Path) -> None:
    """The tag linux_x86_64 of a wheel from a current distribution passed, and the right tag failed."""
    files = {"t0/__init__.py": b"", "t0/_C.so": needs_glibc_2_43(tmp_path)}
    found = {
        platform: verify(w0(tmp_path, "t0", "1.0", f"cp312-cp312-{platform}_x86_64", files))[0].get("tags", "")
        for platform in ("linux", "manylinux_2_42", "manylinux_2_43")
    }
    assert "pip installs the tag linux_x86_64 on any Linux, but the wheel needs manylinux_2_43_x86_64" in found["linux"]
    assert "memset_explicit@GLIBC_2.43, newer than manylinux_2_42_x86_64 guarantees" in found["manylinux_2_42"]
    assert found["manylinux_2_43"] == ""


def test_repair_names_a_newer_glibc_than_auditwheel_knows(tmp_path: Path) -> None:
    """The error was the last line of auditwheel, without a cure."""
    files = {"t0/__init__.py": b"", "t0/_C.so": needs_glibc_2_43(tmp_path)}
    raw = w0(tmp_path, "t0", "1.0", "cp312-cp312-linux_x86_64", files)
    with pytest.raises(BuildError) as caught:
        repair(
            raw, tmp_path / "out", provided=frozenset(), local_version="", torch_requirement="", log=tmp_path / "log"
        )
    assert "needs a newer glibc or libstdc++ than manylinux_2_4" in caught.value.sentence
    assert "--executor docker" in " ".join(caught.value.hints)


def test_resolve_heeds_the_glibc_of_a_wheel_whose_tag_names_none(tmp_path: Path) -> None:
    """A published wheel with the tag linux_x86_64 was named for every glibc."""
    files = {"t0/__init__.py": b"", "t0/_C.so": needs_glibc_2_43(tmp_path)}
    wheel = w0(tmp_path, "t0", "1.0", "cp312-cp312-linux_x86_64", files, requires=["torch==2.11.*"])
    index, matrix = tmp_path / "index", tmp_path / "matrix.yaml"
    matrix.write_text("torch: ['2.11']\ncuda: ['13.0']\npython: ['3.12']\nextensions: [ext]\n")
    (tmp_path / "ext").mkdir()
    recipe = "name: t0\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [t0]\n"
    (tmp_path / "ext" / "extension.yaml").write_text(f"{recipe}accepts: [{{check: tags, reason: our machines}}]\n")
    publish = ("publish", "--to", index, "--require", "none", "--store", tmp_path / "store", wheel)
    refused = buildfarm(*publish)
    assert "the wheel needs manylinux_2_43_x86_64" in refused.output + str(refused.exception)
    accepted = buildfarm(*publish, "--matrix", matrix)
    assert accepted.exit_code == Exit.OK, accepted.output + str(accepted.exception)
    resolve = ("resolve", "t0", "--index", index, "--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--glibc")
    assert "it needs glibc 2.43; this target has 2.28" in buildfarm(*resolve, "2.28").stdout
    assert wheel.name in buildfarm(*resolve, "2.43").stdout


@pytest.mark.parametrize(
    ("library", "requires", "run_path", "says"),
    [
        (
            "libtvm_ffi.so",
            ["apache-tvm-ffi"],
            "",
            "libtvm_ffi.so must come from apache_tvm_ffi, which METADATA requires",
        ),
        ("libz3.so.4.15", ["z3-solver"], "", "libz3.so.4.15 must come from z3_solver"),
        ("libiomp5.so", ["intel-openmp"], "$ORIGIN/../intel/lib", "another package, as the run path into intel says"),
        ("libiomp5.so", ["intel-openmp"], "$ORIGIN/libs:$ORIGIN/../torch/lib", ""),
        ("libiomp5.so", [], "$ORIGIN/../intel/lib", ""),
        ("libjpeg.so.8", ["numpy"], "", ""),
    ],
)
def test_a_library_of_a_required_package(
    tmp_path: Path, library: str, requires: list[str], run_path: str, says: str
) -> None:
    """tilelang failed for libtvm_ffi.so, which apache-tvm-ffi brings."""
    other = compiled(tmp_path, "", f"-Wl,-soname,{library}", name=library, language="c")
    flags = ("-Wl,--no-as-needed", str(other), *([f"-Wl,-rpath,{run_path}"] if run_path else []))
    files = {"t0/__init__.py": b"from . import _C\n", "t0/_C.so": module("_C", *flags)}
    failed, remarks = verify(w0(tmp_path, "t0", "1.0", TAG, files, requires=["torch==2.11.*", *requires]))
    assert ("tags" in failed) is not bool(says), failed
    assert says in remarks["tags"]


@pytest.mark.parametrize(
    ("requires", "says"),
    [
        (["torch>=2.11"], "needs libcurand.so.10, which torch 2.15 and newer do not bring: require nvidia-curand"),
        (["torch==2.14.*"], ""),
        (["torch>=2.11", "nvidia-curand"], ""),
        (["torch>=2.11", "cuda-toolkit[curand]==13.*"], ""),
    ],
)
def test_torch_2_15_brings_no_libcurand(tmp_path: Path, requires: list[str], says: str) -> None:
    """The library counted as one of every torch."""
    other = compiled(tmp_path, "", "-Wl,-soname,libcurand.so.10", name="libcurand.so.10", language="c")
    files = {"t0/__init__.py": b"", "t0/_C.so": module("_C", "-Wl,--no-as-needed", str(other))}
    failed, remarks = verify(w0(tmp_path, "t0", "1.0", TAG, files, requires=requires))
    assert "tags" not in failed
    assert says in remarks["tags"]
    assert ("libcurand" in remarks["tags"]) is bool(says)


def test_publish_refuses_a_dependency_for_a_newer_glibc(tmp_path: Path) -> None:
    """A library without torch that needs glibc 2.36 (packed relocations) was published with an older tag."""
    source = '#include <stdlib.h>\nstatic int a; int *p[99] = {&a, &a}; char *PyInit__C(void) { return getenv("X"); }'
    files = {"t0/__init__.py": b"", "t0/_C.so": lib(source, "-Wl,-z,pack-relative-relocs")}
    publish = ("publish", "--to", tmp_path / "index", "--require", "none", "--store", tmp_path / "store")
    old = buildfarm(*publish, w0(tmp_path, "t0", "1.0", "cp312-cp312-manylinux_2_35_x86_64", files))
    assert "needs GLIBC_ABI_DT_RELR, newer than manylinux_2_35_x86_64 guarantees" in old.output + str(old.exception)
    new = buildfarm(*publish, w0(tmp_path, "t0", "1.0", "cp312-cp312-manylinux_2_36_x86_64", files))
    assert new.exit_code == Exit.OK, new.output


def test_14_stray_packages_at_the_top(tmp_path: Path) -> None:
    """torch-spyre 4429: find_packages() without `exclude`."""
    names = ("t0", "tests", "benchmarks", "csrc")
    files = {f"{name}/__init__.py": b"" for name in names} | {"_C.abi3.so": module()}
    failed, remarks = verify(w0(tmp_path, "t0", "1.0", TAG, files))
    assert not failed
    assert "_C.abi3.so, benchmarks, csrc and tests at the top of site-packages" in remarks["contents"]


def test_15_three_copies_of_one_library(tmp_path: Path) -> None:
    """nixl 1567: a wheel cannot hold links."""
    copy = lib("int x(void) { return 2; }", "-Wl,-soname,libx.so.1")
    files = {f"t0/libx.so{end}": copy for end in ("", ".1", ".1.2")}
    failed, remarks = verify(w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b"", "t0/_C.so": module()} | files))
    assert not failed
    assert "t0/libx.so, t0/libx.so.1 and t0/libx.so.1.2 have the same bytes" in remarks["contents"]


def test_25_a_cuda_source_without_its_header(tmp_path: Path) -> None:
    """gsplat 461: package_data misses headers."""
    files = {"t0/__init__.py": b"", "t0/csrc/k.cu": b'#include "k.cuh"\n#include <glm/glm.hpp>\n'}
    failed, remarks = verify(w0(tmp_path, "t0", "1.0", "py3-none-any", files))
    assert not failed
    assert "not the headers k.cuh, glm/glm.hpp that t0/csrc/k.cu include" in remarks["contents"]


def test_bundled_libraries_of_torch_and_a_second_openmp(tmp_path: Path) -> None:
    """Libraries that must stay outside, in a wheel of others."""
    files = {"t0/__init__.py": b"", "t0/_C.so": module()}
    bad = {"t0/libc10.so": lib(), "t0/libcuda.so.1": lib("int cu;")}
    failed, _ = verify(w0(tmp_path, "t0", "1.0", TAG, files | bad, requires=("torch",)))
    assert "t0/libc10.so, t0/libcuda.so.1, which torch, its NVIDIA packages or the driver provide" in failed["grafted"]
    assert "--exclude" in failed["grafted"]
    openmp = {"t0.libs/libgomp-1a2b3c4d.so.1.0.0": lib("int omp;")}
    failed, remarks = verify(w0(tmp_path, "t0", "1.1", TAG, files | openmp, requires=("torch",)))
    assert "grafted" not in failed
    assert "an OpenMP runtime beside that of torch" in remarks["grafted"]


@pytest.mark.parametrize(
    ("tag", "path", "says"),
    [
        ("py3-none-any", "t0/_C.so", "the Python module t0/_C.so, but its tag py3-none-any says"),
        ("py3-none-any", "t0-1.0.data/purelib/t0/_C.so", "in the folder for pure Python packages"),
        ("cp312-cp312-linux_x86_64", "t0-1.0.data/purelib/t0/x.so", "in the folder for pure Python packages"),
        ("cp312-cp312-linux_x86_64", "t0/_C.so", ""),
        ("py3-none-any", "t0/libx.so", ""),
    ],
)
def test_22_a_library_in_a_pure_wheel(tmp_path: Path, tag: str, path: str, says: str) -> None:
    """auditwheel 333: package data makes no platform wheel; auditwheel said "couldn't detect libc"."""
    source = lib("int f(void) { return 1; }", "-nostdlib") if path.endswith("libx.so") else module("_C", "-nostdlib")
    raw = w0(tmp_path, "t0", "1.0", tag, {"t0/__init__.py": b"", path: source}, pure=True)

    def mended() -> Path:
        provided, log = frozenset[str](), tmp_path / "log"
        return repair(raw, tmp_path / "out", provided=provided, local_version="cu13", torch_requirement="", log=log)

    if says:
        with pytest.raises(BuildError, match=re.escape(says)) as raised:
            mended()
        assert any("has_ext_modules=lambda: True" in hint for hint in raised.value.hints)
        return
    facts = read_facts(mended())
    assert all("-manylinux" in each for each in facts.tags)
    assert facts.purelib == (tag != "py3-none-any")


def per_cuda(folder: Path) -> dict[str, bytes]:
    """Libraries for three CUDA versions, of which `__init__` opens that of torch, as bitsandbytes does."""
    load = (
        'ctypes.CDLL(os.path.join(os.path.dirname(__file__), f\'libx_cuda{torch.version.cuda.replace(".", "")}.so\'))'
    )
    files = {"t8/__init__.py": f"import ctypes, os\nimport torch\n{load}\n".encode()}
    for name, runtime in (("118", "libcudart.so.11.0"), ("121", "libcudart.so.12"), ("130", "libcudart.so.13")):
        compiled(folder, "int stub;", f"-Wl,-soname,{runtime}", language="c", name=runtime)
        source, flags = f"int x{name};", ("-Wl,--no-as-needed", f"-L{folder}", f"-l:{runtime}")
        files[f"t8/libx_cuda{name}.so"] = compiled(folder, source, *flags, language="c").read_bytes()
    return files


def test_8_a_library_for_each_cuda(tmp_path: Path) -> None:
    """bitsandbytes 631: the other libraries are named once, and are no failures."""
    failed, remarks = verify(w0(tmp_path, "t8", "1.0", "py3-none-manylinux_2_34_x86_64", per_cuda(tmp_path)))
    assert not failed
    assert "CUDA 11 (t8/libx_cuda118.so), CUDA 12 (t8/libx_cuda121.so) and CUDA 13" in remarks["contents"]


@pytest.mark.network
@pytest.mark.slow
def test_8_and_15_in_a_cell(farm: Farm, store: Path, tmp_path: Path) -> None:
    """No advice to import libraries for another CUDA, or copies of one library. A file of both wheels is named (29)."""
    files = per_cuda(tmp_path) | {"t8_and_t15.py": b"mine = 8\n"}
    eight = w0(tmp_path, "t8", "1.0", "py3-none-manylinux_2_34_x86_64", files, requires=("torch",))
    copy = lib("int x(void) { return 2; }", "-Wl,-soname,libx.so.1")
    copies = {f"t15/libx.so{end}": copy for end in ("", ".1", ".1.2")}
    load = b"import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libx.so.1'))\n"
    fifteen = w0(
        tmp_path,
        "t15",
        "1.0",
        "py3-none-manylinux_2_34_x86_64",
        {"t15/__init__.py": load, "t8_and_t15.py": b"mine = 15\n"} | copies,
        requires=("torch",),
    )
    python = "{}.{}".format(*sys.version_info)
    (tmp_path / "matrix.yaml").write_text(f"torch: [2.11]\ncuda: [13.0]\npython: [{python}]\nextensions: []\n")
    done = farm("smoke", eight, fifteen, "--store", store, "--json", cwd=tmp_path)
    assert done.code == Exit.OK, done.all
    for result in json.loads(done.out):
        loaded = next(proof for proof in result["proofs"] if proof["check"] == "loaded")
        assert loaded["verdict"] == "passed", loaded
    assert f"warning: {fifteen.name}: t8 1.0 also installs t8_and_t15.py, with a different content" in done.err


#: What TORCH_LIBRARY(_C, m) leaves in the symbol table: a local function.
REGISTERS = "struct Library; namespace torch { struct Library; }\nstatic void TORCH_LIBRARY_init__C(torch::Library& m)"
REGISTERS += ' { asm volatile("" :: "r"(&m)); }\n__attribute__((used)) void* r = (void*)&TORCH_LIBRARY_init__C;\n'


@cache
def registering(number: int) -> bytes:
    """A library that registers the op library `_C`."""
    with TemporaryDirectory() as folder:
        return compiled(Path(folder), f"{REGISTERS} int f{number};").read_bytes()


def verify_together(*wheels: Path, more: tuple[object, ...] = ()) -> tuple[int, list[str]]:
    """The exit code, and what the check `clash` says about each wheel; empty without the check."""
    done = buildfarm("verify", *wheels, *more, "--store", wheels[0].parent / "store", "--json")
    said = []
    for one in json.loads(done.stdout):
        remarks = [proof["evidence"].get("remarks", ()) for proof in one["proofs"] if proof["check"] == "clash"]
        said.append(" | ".join(remarks[0]) if remarks else "")
    return done.exit_code, said


def test_29_one_op_namespace_in_two_wheels(tmp_path: Path) -> None:
    """vllm-ascend 1239, metatensor 871: both have TORCH_LIBRARY(_C, m)."""
    one, two = (
        w0(tmp_path, name, "1.0", TAG, {f"{name}/__init__.py": b"", f"{name}/_C.abi3.so": registering(number)})
        for number, name in enumerate(("t0", "t1"))
    )
    code, said = verify_together(one, two)
    assert "t1 1.0 also registers the op library _C with TORCH_LIBRARY" in said[0]
    assert "t0 1.0 also registers the op library _C with TORCH_LIBRARY" in said[1]
    assert "rename one, or use TORCH_LIBRARY_FRAGMENT in both" in said[0]
    assert verify_together(one)[1] == [""]
    assert code == verify_together(one)[0]  # two wheels of a run are not claimed to be used together
    assert "rename one" in verify(one)[1].get("clash", "") + str(buildfarm("verify", one, "--beside", two).stdout)


def test_29_one_top_level_module_in_two_wheels(tmp_path: Path) -> None:
    """Both install `_C` at the top of site-packages, in files of two names; Python imports one."""
    tags = ("cp312-cp312-manylinux_2_34_x86_64", "cp312-abi3-manylinux_2_34_x86_64")
    names = ("_C.cpython-312-x86_64-linux-gnu.so", "_C.abi3.so")
    one, two = (
        w0(tmp_path, f"t{number}", "1.0", tags[number], {f"t{number}/__init__.py": b"", names[number]: module()})
        for number in (0, 1)
    )
    said = verify_together(one, two)[1]
    assert "t1 1.0 also installs a module _C (_C.abi3.so, here _C.cpython-312-x86_64-linux-gnu.so)" in said[0]
    same = w0(tmp_path, "t2", "1.0", tags[1], {"t2/__init__.py": b"", "_C.abi3.so": module("_C", "-DOTHER", "-g")})
    assert "t2 1.0 also installs _C.abi3.so, with a different content" in verify_together(two, same)[1][0]


def test_29_what_is_no_conflict(tmp_path: Path) -> None:
    """Versions of one project, wheels for two Pythons, folders without __init__.py, equal files."""
    files = {"t0/__init__.py": b"", "t0/_C.abi3.so": registering(0)}
    versions = [w0(tmp_path, "t0", version, TAG, files) for version in ("1.0", "1.1")]
    other_python = w0(tmp_path, "t1", "1.0", TAG.replace("312", "313"), {"t1/_C.abi3.so": registering(1)})
    assert verify_together(*versions, other_python)[1] == ["", "", ""]
    shared = {"tests/__init__.py": b"", "space/LICENSE": b"", "space/__init__.py": b"# one text"}
    two = [w0(tmp_path, name, "1.0", TAG, {**shared, f"{name}/_C.so": module()}) for name in ("t2", "t3")]
    assert verify_together(*two)[1] == ["", ""]
