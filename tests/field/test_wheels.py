"""Finished wheels as people reported them: the check that names the fault, and the command that cures it."""

import json
import os
import re
import sys
import venv
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import BuildError, Exit
from builder.wheelfile.facts import read_facts
from builder.wheels.repair.relabel import Label
from builder.wheels.repair.repair import repair
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Farm, cell_python, run
from tests.fixtures.compiled import compiled
from tests.fixtures.zip_archives import ARCHIVES
from tests.unit.loopback import w0

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
    # `verify` must not read the symbols of a real torch, which has 900 MB: no test here is about them.
    offline = {"UV_OFFLINE": "1"} if words[0] == "verify" else None
    return CliRunner(env=offline).invoke(app, [str(word) for word in words])


def publish(folder: Path, wheel: object, *words: object) -> Result:
    """`buildfarm publish` of a wheel that no cell tested."""
    return buildfarm(
        *("publish", "--to", folder / "index", "--require", "none", "--store", folder / "store"), wheel, *words
    )


def mended(raw: Path, local_version: str = "") -> Path:
    """The wheel that the repair of a build makes of another one."""
    out, log = raw.parent / "out", raw.parent / "log"
    return repair(raw, out, Label(local_version, ""), provided=frozenset(), log=log)


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
    refused = publish(tmp_path, wheel)
    assert refused.exception is not None
    assert "METADATA says t0 1.0, but the file name differs" in str(refused.exception)
    made = buildfarm("relabel", wheel, "--out", tmp_path / "out").stdout.strip()
    assert "metadata" not in verify(Path(made))[0]
    assert publish(tmp_path, made).exit_code == Exit.OK


def test_9_uv_installs_a_relabelled_wheel_once(tmp_path: Path) -> None:
    """cuda-wheels 2: `uv sync` installed the renamed wheel again each time."""
    local = "cu12torch2.11cxx11abiTRUE"
    wheel = w0(tmp_path, "t0", f"1.0+{local}", "py3-none-any", {"t0/__init__.py": b""}, meta_version="1.0")
    made = buildfarm("relabel", wheel, "--out", tmp_path / "out").stdout.strip()
    index, app = tmp_path / "index", tmp_path / "app"
    publish(tmp_path, made)
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
    refused = publish(tmp_path, wheel)
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
        mended(raw)
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
    refused = publish(tmp_path, wheel)
    assert "the wheel needs manylinux_2_43_x86_64" in refused.output + str(refused.exception)
    accepted = publish(tmp_path, wheel, "--matrix", matrix)
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
        ("libcue_ops.so", ["cuequivariance-ops-cu12"], "", "libcue_ops.so must come from cuequivariance_ops_cu12"),
        ("libimage_tools.so", ["imageio"], "", ""),
        ("librmm.so", ["librmm-cu12==26.10.*"], "", "librmm.so must come from librmm_cu12, which METADATA requires"),
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


CURAND = "libcurand.so.10"


@pytest.mark.parametrize(
    ("library", "requires", "says"),
    [
        (CURAND, ["torch>=2.11"], f"needs {CURAND}, which torch 2.15 and newer do not bring: require nvidia-curand"),
        (CURAND, ["torch==2.14.*"], ""),
        (CURAND, ["torch>=2.11", "nvidia-curand"], ""),
        (CURAND, ["torch>=2.11", "cuda-toolkit[curand]==13.*"], ""),
        ("libcaffe2_nvrtc.so", ["torch==2.11.*"], ""),  # torch_tensorrt 2.14.0; it is in torch/lib
    ],
)
def test_libraries_that_torch_brings(tmp_path: Path, library: str, requires: list[str], says: str) -> None:
    """libcurand counted as one of every torch; libcaffe2_nvrtc "can be loaded only where the system has" it."""
    other = compiled(tmp_path, "", f"-Wl,-soname,{library}", name=library, language="c")
    files = {"t0/__init__.py": b"from . import _C\n", "t0/_C.so": module("_C", "-Wl,--no-as-needed", str(other))}
    failed, remarks = verify(w0(tmp_path, "t0", "1.0", TAG, files, requires=requires))
    assert "tags" not in failed
    assert says in remarks["tags"]
    assert (library.partition(".")[0] in remarks["tags"]) is bool(says)


def test_publish_refuses_a_dependency_for_a_newer_glibc(tmp_path: Path) -> None:
    """A library without torch that needs glibc 2.36 (packed relocations) was published with an older tag."""
    source = '#include <stdlib.h>\nstatic int a; int *p[99] = {&a, &a}; char *PyInit__C(void) { return getenv("X"); }'
    files = {"t0/__init__.py": b"", "t0/_C.so": lib(source, "-Wl,-z,pack-relative-relocs")}
    old = publish(tmp_path, w0(tmp_path, "t0", "1.0", "cp312-cp312-manylinux_2_35_x86_64", files))
    assert "needs GLIBC_ABI_DT_RELR, newer than manylinux_2_35_x86_64 guarantees" in old.output + str(old.exception)
    new = publish(tmp_path, w0(tmp_path, "t0", "1.0", "cp312-cp312-manylinux_2_36_x86_64", files))
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
        ("cp312-cp312-any", "t0/_C.so", ""),  # rotary-emb 0.5
        ("py3-none-any", "t0/libx.so", ""),
    ],
)
def test_22_a_library_in_a_pure_wheel(tmp_path: Path, tag: str, path: str, says: str) -> None:
    """auditwheel 333: package data makes no platform wheel; auditwheel said "couldn't detect libc"."""
    source = lib("int f(void) { return 1; }", "-nostdlib") if path.endswith("libx.so") else module("_C", "-nostdlib")
    raw = w0(tmp_path, "t0", "1.0", tag, {"t0/__init__.py": b"", path: source}, pure=True)
    if says:
        with pytest.raises(BuildError, match=re.escape(says)) as raised:
            mended(raw, "cu13")
        assert any("has_ext_modules=lambda: True" in hint for hint in raised.value.hints)
        return
    facts = read_facts(mended(raw, "cu13"))
    assert all("-manylinux" in each for each in facts.tags)
    assert facts.purelib == (not tag.endswith("-any"))


def test_22_a_module_of_python_3_15_in_a_pure_wheel(tmp_path: Path) -> None:
    """PyModExport_X (PEP 793) makes a library a module, as PyInit_X does."""
    source = lib("void *PyModExport__C(void) { return 0; }", "-nostdlib")
    raw = w0(tmp_path, "t0", "1.0", "py3-none-any", {"t0/_C.so": source}, pure=True)
    with pytest.raises(BuildError, match=r"the Python module t0/_C\.so, but its tag py3-none-any says"):
        mended(raw)


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
    """No advice to import libraries for another CUDA, or copies of one library."""
    eight = w0(tmp_path, "t8", "1.0", "py3-none-manylinux_2_34_x86_64", per_cuda(tmp_path), requires=("torch",))
    copy = lib("int x(void) { return 2; }", "-Wl,-soname,libx.so.1")
    copies = {f"t15/libx.so{end}": copy for end in ("", ".1", ".1.2")}
    load = b"import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libx.so.1'))\n"
    files = {"t15/__init__.py": load} | copies
    fifteen = w0(tmp_path, "t15", "1.0", "py3-none-manylinux_2_34_x86_64", files, requires=("torch",))
    matrix = f"torch: [2.11]\ncuda: [13.0]\npython: [{cell_python()}]\nextensions: []\n"
    (tmp_path / "matrix.yaml").write_text(matrix)
    done = farm("smoke", eight, fifteen, "--store", store, "--json", cwd=tmp_path)
    assert done.code == Exit.OK, done.all
    for result in json.loads(done.out):
        loaded = next(proof for proof in result["proofs"] if proof["check"] == "loaded")
        assert loaded["verdict"] == "passed", loaded


@pytest.mark.parametrize(
    ("caller", "fails"),
    [
        ("import torch\nfrom . import _C\n", True),
        ("from t0 import (\n    ops,  # first\n    _C,\n)\n", True),
        ("import t0._C as ext\n", True),
        ("from ._C import one\n", True),
        ("try:\n    from . import _C\nexcept ImportError:\n    _C = None\n", False),
        ("from torch import _C\n", False),
        ("import torch\ntorch.ops.load_library(__file__.replace('__init__.py', '_C.so'))\n", False),
    ],
)
def test_37_the_function_of_a_module_has_an_old_name(tmp_path: Path, caller: str, fails: bool) -> None:
    """PYBIND11_MODULE(t0_ext, m) in a module that setup.py calls t0._C."""
    path = "t0/_C.cpython-312-x86_64-linux-gnu.so"
    wheel = w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": caller.encode(), path: module("t0_ext")})
    failed, remarks = verify(wheel)
    assert list(failed) == (["modules"] if fails else [])
    assert f"{path} exports PyInit_t0_ext, and Python looks for PyInit__C" in (failed or remarks)["modules"]


def test_a_module_under_the_name_of_python_3_15(tmp_path: Path) -> None:
    """setuptools under Python 3.15 makes a wheel cp310-abi3 that only 3.15 can import; auditwheel passes it."""
    path = "t0/_C.abi3-x86_64-linux-gnu.so"
    files = {"t0/__init__.py": b"from . import _C\n", path: module()}
    failed, _ = verify(w0(tmp_path, "t0", "1.0", "cp310-abi3-manylinux_2_34_x86_64", files))
    assert list(failed) == ["modules"]
    assert f"only a Python 3.15 or later with a GIL finds {path}" in failed["modules"]
    assert "rename it to _C.abi3.so" in failed["modules"]


@pytest.mark.parametrize(
    ("tag", "name", "fails"),
    [
        ("cp315-abi3.abi3t", "_C.abi3t-x86_64-linux-gnu.so", False),
        ("cp315-abi3t", "_C.abi3t.so", False),
        ("cp310-abi3.abi3t", "_C.abi3t-x86_64-linux-gnu.so", True),  # setuptools 84 under 3.15t
        ("cp310-abi3", "_C.abi3t.so", True),
        ("cp314-abi3t", "_C.abi3t.so", True),  # packaging accepts this tag for 3.14t
    ],
)
def test_a_module_for_abi3t(tmp_path: Path, tag: str, name: str, fails: bool) -> None:
    """PEP 803, with the function of PEP 793."""
    code = lib("void *PyModExport__C(void) { return 0; }")
    files = {"t0/__init__.py": b"from . import _C\n", f"t0/{name}": code}
    failed, _ = verify(w0(tmp_path, "t0", "1.0", f"{tag}-manylinux_2_34_x86_64", files))
    assert list(failed) == (["modules"] if fails else [])


def test_2_a_library_that_is_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    """The source was cloned without Git LFS; the wheel has another library, or none."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"
    for name, others in (("t0", {}), ("t1", {"t1/_C.so": module()})):
        files = {f"{name}/__init__.py": b"", f"{name}/_D.so": pointer} | others
        failed, _ = verify(w0(tmp_path, name, "1.0", TAG, files))
        assert f"{name}/_D.so is a pointer of Git LFS, and no library: run `git lfs pull`" in failed["contents"]


def test_12_a_zip64_field_that_the_sizes_do_not_need(tmp_path: Path) -> None:
    """The wheel command `wheel tags` wrote it; pip takes the wheel, and uv refuses it."""
    wheel = tmp_path / "t0-1.0-py3-none-any.whl"
    wheel.write_bytes(ARCHIVES["ZIP64 field for nothing"][0])
    assert "t0/__init__.py has a ZIP64 field of 8 bytes" in verify(wheel)[0]["record"]
    assert publish(tmp_path, wheel).exit_code == Exit.FAILED
    made = buildfarm("relabel", wheel, "--out", tmp_path / "out").stdout.strip()
    assert not verify(Path(made))[0]
    assert publish(tmp_path, made).exit_code == Exit.OK


def test_code_at_the_start_of_python_is_named_before_it_is_installed(tmp_path: Path) -> None:
    """`verify` and `publish` remark on it; `smoke` warns before it makes an environment."""
    files = {"t0/__init__.py": b"", "t0.pth": b"import t0\n", "t0/_C.so": module()}
    said = "executes t0.pth when it starts, even without an import: import t0"
    assert said in verify(w0(tmp_path, "t0", "1.0", TAG, files))[1]["contents"]
    other = w0(tmp_path, "t0", "1.0", TAG.replace("x86_64", "s390x"), files)  # fits no cell, so smoke ends there
    select = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--store", tmp_path / "store")
    assert said in " ".join(buildfarm("smoke", other, *select).output.split())


def test_44_a_library_in_the_same_folder_without_run_path(tmp_path: Path) -> None:
    """The symbols are there, and the import fails; code that loads the library first makes it a remark."""
    compiled(tmp_path, "int x;", "-Wl,-soname,libt0x.so.1", name="libt0x.so.1", language="c")
    flags = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-l:libt0x.so.1")
    files = {"t0/_C.so": module("_C", *flags), "t0/libt0x.so.1": (tmp_path / "libt0x.so.1").read_bytes()}
    failed, _ = verify(w0(tmp_path, "t0", "1.0", TAG, files | {"t0/__init__.py": b"from . import _C\n"}))
    assert list(failed) == ["loader"]
    assert "t0/_C.so needs libt0x.so.1, and no search path (RUNPATH) leads to t0/libt0x.so.1" in failed["loader"]
    assert "-Wl,-rpath,'$ORIGIN'" in failed["loader"]
    raw = w0(tmp_path, "t0", "1.0", "cp312-cp312-linux_x86_64", files)
    with pytest.raises(BuildError, match=re.escape("t0/_C.so needs libt0x.so.1, and no search path (RUNPATH) leads")):
        mended(raw, "cu13")
    first = b"import ctypes\nctypes.CDLL(f'{__path__[0]}/libt0x.so.1')\nfrom . import _C\n"
    failed, remarks = verify(w0(tmp_path, "t0", "1.1", TAG, files | {"t0/__init__.py": first}))
    assert not failed
    assert "so Python must load the needed library first" in remarks["loader"]


def test_38_an_elf_header_without_a_processor(tmp_path: Path) -> None:
    """A repair tool left the machine 0; the other wheels of the command are judged."""
    changed = module()[:18] + b"\0\0" + module()[20:]
    bad = w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b"", "t0/_C.so": changed}, requires=("torch",))
    assert "t0/_C.so (EM_NONE) does not run on x86_64" in verify(bad)[0]["tags"]
    cut = w0(tmp_path, "t1", "1.0", TAG, {"t1/__init__.py": b"", "t1/_C.so": module()[:200]})
    good = w0(tmp_path, "t2", "1.0", TAG, {"t2/__init__.py": b"", "t2/_C.so": module()})
    done = buildfarm("verify", cut, bad, good, "--store", tmp_path / "store", "--json")
    assert done.exit_code == Exit.USAGE
    assert [(one["failed"], "error" in one) for one in json.loads(done.stdout)] == [
        (True, False),
        (False, False),
        (True, True),
    ]


def test_31_a_function_that_import_torch_cannot_call(tmp_path: Path) -> None:
    """An entry point of `torch.backends` that does not exist: every `import torch` of the environment fails."""
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for name, version, package in (("torch", "2.11.0", "torch"), ("t0_backend", "1.0", "t0_backend")):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("x = 1\n")
        (info := site / f"{name}-{version}.dist-info").mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0'\ncuda = '13.0'\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nt0 = t0_backend:_autoload\n")
    done = buildfarm("doctor", "--python", tmp_path / "env" / "bin" / "python", "--json")
    (fault,) = (one for one in json.loads(done.stdout)["findings"] if one["code"] == "broken-backend-of-torch")
    assert (done.exit_code, fault["level"]) == (Exit.FAILED, "fault")
    assert "t0_backend/__init__.py has no _autoload" in fault["what"]
