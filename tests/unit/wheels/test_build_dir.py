"""The folder of a build, its scripts, the Pythons of a machine, the compiler cache, and the shim of a GPU."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import builder.wheels
from builder.matrix.axes import Python
from builder.records import CacheStatistics
from builder.store import Store
from builder.wheels import build_dir
from builder.wheels.build_dir import clear_abandoned, fixed_folder, folder_of
from builder.wheels.build_scripts import FOLDERS, copy_scripts, script_command
from builder.wheels.sccache.configure import read_statistics, unsafe_source
from builder.wheels.toolchain.machine import Interpreter, find_python
from builder.wheels.variables import prefix_map_flags, shell_variables
from tests.conftest import PATIENCE


@pytest.fixture(autouse=True)
def build_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setattr(build_dir, "ROOT", folder)
    return folder


def test_the_name_alone_decides_the_path_and_nothing_is_left(build_root: Path, tmp_path: Path) -> None:
    for otherwise in ("one", "two"):
        with fixed_folder("ops-1.0", tmp_path / otherwise) as folder:
            assert folder == folder_of("ops-1.0")
            assert folder.parent == build_root
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "src").mkdir()
    assert list(build_root.iterdir()) == []


def test_what_a_killed_farm_left_is_cleared(tmp_path: Path) -> None:
    left = folder_of("ops")
    (left / "src").mkdir(parents=True, mode=0o700)
    left.chmod(0o700)
    (left / "src" / "stale.o").touch()
    (left / "link").symlink_to(tmp_path)
    with fixed_folder("ops", tmp_path / "otherwise") as folder:
        assert list(folder.iterdir()) == []
    assert tmp_path.is_dir()


def test_two_farms_take_turns(tmp_path: Path) -> None:
    waits, order, holders = threading.Event(), [], []

    def on_wait(who: str) -> None:
        holders.append(who)
        waits.set()

    def second() -> None:
        with fixed_folder("ops", tmp_path / "b", on_wait) as folder:
            order.append("second")
            assert list(folder.iterdir()) == []

    with fixed_folder("ops", tmp_path / "a") as folder:
        (folder / "src").touch()
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(PATIENCE)
        waits.clear()
        with fixed_folder("another", tmp_path / "c", on_wait):  # who makes something else does not wait
            pass
        assert not waits.is_set()
        order.append("first")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert order == ["first", "second"]
    shown = f"process {os.getpid()} in {Path.cwd()}, which compiles in the same folder, {folder_of('ops')}"
    assert holders == [shown]


@pytest.mark.parametrize("case", ["writable by others", "a link", "no folder", "no room"])
def test_a_folder_that_is_not_ours_alone_is_not_used(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = folder_of("ops")
    if case == "writable by others":
        there.mkdir()
        there.chmod(0o777)
    elif case == "a link":
        (tmp_path / "elsewhere").mkdir()
        there.symlink_to(tmp_path / "elsewhere")
    elif case == "no folder":
        there.touch()
    else:
        monkeypatch.setattr(build_dir, "WORK_BYTES", 2**62)
    with fixed_folder("ops", tmp_path / "otherwise") as folder:
        assert folder == tmp_path / "otherwise"
        assert folder.is_dir()


def test_only_what_nobody_holds_is_abandoned(build_root: Path, tmp_path: Path) -> None:
    left, others = build_root / "buildfarm.build.left", build_root / "of another program"
    store = Store(tmp_path / "store")
    (store.root / "work" / "dead").mkdir()
    left.mkdir(mode=0o700)
    others.mkdir()
    with fixed_folder("held", tmp_path / "otherwise") as held:
        clear_abandoned(store)
        assert held.is_dir()
    assert not left.exists()
    assert others.is_dir()
    assert list((store.root / "work").iterdir()) == []


def test_flags_go_to_nvcc_as_well_and_not_to_what_cannot_read_them() -> None:
    folders = {Path("/a"): ".", Path("/b,c"): "x", Path("/d=e"): "y"}
    flags = prefix_map_flags(folders, stores={Path("/s"): "z", Path("/t,u"): "z"})
    assert flags == {
        "CPPFLAGS": "-ffile-prefix-map=/a=. -Wp,-ffile-prefix-map=/s=z",
        "NVCC_PREPEND_FLAGS": "-Xcompiler -ffile-prefix-map=/a=. -Xcompiler -Xpreprocessor"
        " -Xcompiler -ffile-prefix-map=/s=z",
    }


pytestmark = pytest.mark.usefixtures("fresh_eyes")

OLD = Python(3, 4)  # a version no machine of today has, so that only the faked ones are found


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "pyenv"
    (root / "versions").mkdir(parents=True)
    monkeypatch.setenv("PYENV_ROOT", str(root))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PATH", str(tmp_path))  # uv asks every Python on it
    return root / "versions"


def python(folder: Path, says: str, status: int = 0) -> Path:
    """A program that answers the probe."""
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_the_python_that_runs_the_farm_is_found() -> None:
    found = find_python(Python(*sys.version_info[:2]))
    assert found is not None
    assert found.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_the_newest_patch_of_pyenv_is_taken(pyenv: Path) -> None:
    python(pyenv / "3.4.9", "3.4.9 False True")
    newest = python(pyenv / "3.4.10", "3.4.10 False True")
    python(pyenv / "3.40.11", "3.40.11 False True")
    assert find_python(OLD) == Interpreter(newest, "3.4.10", headers=True)


def test_one_with_headers_goes_before_a_newer_one_without(pyenv: Path) -> None:
    assert find_python(OLD) is None
    find_python.cache_clear()
    only = python(pyenv / "3.4.10", "3.4.10 False False")
    assert find_python(OLD) == Interpreter(only, "3.4.10", headers=False)
    find_python.cache_clear()
    older = python(pyenv / "3.4.9", "3.4.9 False True")
    assert find_python(OLD) == Interpreter(older, "3.4.9", headers=True)


@pytest.mark.parametrize(("wanted", "folder"), [("3.4", "3.4.10"), ("3.4t", "3.4.10t")])
def test_free_threaded_and_plain_are_two_pythons(wanted: str, folder: str, pyenv: Path) -> None:
    paths = {
        "3.4.10": python(pyenv / "3.4.10", "3.4.10 False True"),
        "3.4.10t": python(pyenv / "3.4.10t", "3.4.10 True True"),
    }
    found = find_python(Python.parse(wanted))
    assert found is not None
    assert found.path == paths[folder]


@pytest.mark.parametrize(
    ("says", "status"),
    [
        pytest.param("3.5.1 False True", 0, id="another version"),
        pytest.param("3.4.10 True True", 0, id="free-threaded, though its folder does not say so"),
        pytest.param("3.4.10 False True", 1, id="it fails"),
        pytest.param("welcome to my wrapper of python", 0, id="it talks"),
        pytest.param("", 0, id="it is silent"),
        pytest.param(None, 0o755, id="no program"),
        pytest.param(None, 0o644, id="not executable"),
    ],
)
def test_what_does_not_answer_as_that_python_is_not_taken(says: str | None, status: int, pyenv: Path) -> None:
    path = python(pyenv / "3.4.10", says or "", status)
    if says is None:
        path.write_bytes(b"\0\1")
        path.chmod(status)
    (pyenv / "3.4.9" / "bin").mkdir(parents=True)
    (pyenv / "3.4.9" / "bin" / "python").symlink_to("gone")
    assert find_python(OLD) is None


#: From `sccache --show-stats --stats-format=json` of sccache 0.16.0, shortened: one CUDA file for two architectures,
#: which share some results with an earlier call, two host files, and one call that is not cached.
STATISTICS = {
    "stats": {
        "compile_requests": 6,
        "requests_not_cacheable": 1,
        "requests_executed": 19,
        "cache_hits": {"counts": {"CUBIN": 1, "PTX": 1}, "adv_counts": {"cubin [ptxas]": 1, "ptx [cicc]": 1}},
        "cache_misses": {"counts": {"CUDA (Device code)": 3, "C/C++": 2, "PTX": 3, "CUDA": 3, "CUBIN": 3}},
        "compilations": 17,
        "non_cacheable_compilations": 3,
        "not_cached": {"-save-temps": 1},
    },
    "version": "0.16.0",
}


def test_steps_of_compilers_are_counted(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text(json.dumps(STATISTICS))
    found = read_statistics(tmp_path)
    assert found == CacheStatistics(reused=2, compiled=14, not_cached={"-save-temps": 1})
    assert found.sentence() == "compiler cache: 2 of 16 steps reused; 1 not cached (-save-temps)"
    assert CacheStatistics(**json.loads(json.dumps(found.to_json()))) == found


def test_a_cache_that_was_not_used_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "refused").write_text("it is not used\n")
    (tmp_path / "stats.json").write_text(json.dumps(STATISTICS))
    found = read_statistics(tmp_path)
    assert found == CacheStatistics(refused="it is not used")
    assert found.sentence() == "compiler cache not used: it is not used"
    assert CacheStatistics(**found.to_json()) == found


@pytest.mark.parametrize(
    "content",
    [None, "Compile requests 1\n", '{"stats": {"hits": 1}, "version": "9"}'],
    ids=["no statistics", "no JSON", "a different form"],
)
def test_statistics_that_cannot_be_read_are_no_figures(tmp_path: Path, content: str | None) -> None:
    why = "sccache ended before the build, or its statistics have another form"
    if content is not None:
        (tmp_path / "stats.json").write_text(content)
    found = read_statistics(tmp_path)
    assert found == CacheStatistics(unreadable=why)
    assert found.sentence() == f"compiler cache: cannot tell how many steps were reused: {why}"
    assert CacheStatistics(**found.to_json()) == found


def test_a_source_with_incbin_is_unsafe(tmp_path: Path) -> None:
    (tmp_path / "plain.cpp").write_text("int incbin;\n")
    (tmp_path / "notes.md").write_text('.incbin "x"\n')
    assert unsafe_source(tmp_path) == ""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "blob.S").write_text('.incbin "weights.bin"\n')
    assert "deep/blob.S" in unsafe_source(tmp_path)


def test_a_build_gets_no_variables_of_a_remote_cache() -> None:
    shell = {"SCCACHE_REDIS_PASSWORD": "x", "SCCACHE_BUCKET": "b", "AWS_SECRET_ACCESS_KEY": "s"}
    assert shell_variables({**shell, "SCCACHE_CACHE_SIZE": "1"}) == {"SCCACHE_CACHE_SIZE": "1"}


SHIM = Path(builder.wheels.__file__).parent / "assume_cuda"
#: The oldest Python a recipe may be built with, a newer one and this; a machine has not all of them.
PYTHONS = {
    str(python): found.path
    for python in (Python(3, 8), Python(3, 13), Python(*sys.version_info[:2]))
    if (found := find_python(python))
}


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """A torch that finds no GPU and whose other answers can be told from the shim's."""
    cuda = tmp_path / "torch" / "cuda"
    cuda.mkdir(parents=True)
    (cuda / "__init__.py").write_text(
        "def is_available():\n    return False\n\ndef device_count():\n    return 0\n\nname = __name__\n"
    )
    (tmp_path / "torch" / "__init__.py").write_text("from torch import cuda\n")
    return tmp_path


def say(python: Path, code: str, *path: Path) -> str:
    done = subprocess.run(
        [python, "-W", "error", "-c", code],
        env={"PYTHONPATH": ":".join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
@pytest.mark.parametrize("code", ["import torch", "from torch import cuda; import torch"])
def test_there_is_a_gpu_with_the_shim_and_none_without(python: Path, code: str, torch: Path) -> None:
    code += "; print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.name)"
    assert say(python, code, torch) == "False 0 torch.cuda"
    assert say(python, code, SHIM, torch) == "True 0 torch.cuda"


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_gpus_are_those_of_the_plan(python: Path, torch: Path) -> None:
    """The newest architecture is the first GPU."""
    code = """
import os
os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0;9.0a;12.0+PTX"
import torch
cuda = torch.cuda
found = [cuda.get_device_capability(n) for n in range(cuda.device_count())]
print(found, cuda.get_device_capability(), cuda.get_device_capability("cuda:1"), cuda.current_device())
print(cuda.get_device_properties(2).total_memory >= 16 << 30, "8.0" in cuda.get_device_name(2))
"""
    assert say(python, code, SHIM, torch).splitlines() == ["[(12, 0), (9, 0), (8, 0)] (12, 0) (9, 0) 0", "True True"]


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_what_is_not_torch_is_left_alone(python: Path, tmp_path: Path) -> None:
    code = "import json, sys; print('torch' in sys.modules, json.dumps([1]))"
    assert say(python, code, SHIM) == "False [1]"
    code = "\ntry:\n    import torch.cuda\nexcept ImportError as error:\n    print(type(error).__name__)"
    assert say(python, code, SHIM, tmp_path) == "ModuleNotFoundError"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    copy_scripts(tmp_path)
    return tmp_path


def test_a_container_gets_two_folders_without_bytecode(copied: Path) -> None:
    files = {path.relative_to(copied / "builder") for path in copied.rglob("*") if path.is_file()}
    assert {path.parent.as_posix() for path in files} == set(FOLDERS)
    assert {path.suffix for path in files} == {".py", ".sh"}


def test_the_scripts_need_the_standard_library_only(copied: Path, tmp_path: Path) -> None:
    """-S hides all packages of this Python, buildfarm among them."""
    argv = script_command(sys.executable, copied, copied / "job.json", "no-such-command")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env={})
    assert (done.returncode, done.stderr) == (1, "error: unknown command no-such-command\n")
    assert not list(copied.rglob("__pycache__")), "files of the container's user would stay in the job's folder"


def test_a_build_s_own_python_settings_do_not_reach_the_scripts(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "shim").mkdir()
    for name in ("subprocess", "sitecustomize"):
        (tmp_path / "shim" / f"{name}.py").write_text("raise SystemExit(9)\n")
    argv = script_command(sys.executable, copied, copied / "job.json", "no-such-command")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "shim")}
    assert subprocess.run(argv, capture_output=True, check=False, cwd=tmp_path / "shim", env=env).returncode == 1
