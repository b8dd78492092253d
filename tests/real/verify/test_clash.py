"""`verify --beside`: what clashes with another package in one process, and what looks like a clash and is none."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Exit
from tests.real.verify.corpus import TORCH, Lib, Wheel, op

MODULE = "_C.cpython-312-x86_64-linux-gnu.so"
#: A library that an extension module needs by its name.
ENGINE = 'extern "C" int engine_{name}() {{ return {value}; }}'
#: A static member of a template: g++ gives it the binding STB_GNU_UNIQUE.
STATIC = (
    "namespace {space} {{ template <class T> struct Registry {{ static int table[{count}]; }};\n"
    "template <class T> int Registry<T>::table[{count}] = {{}}; }}\n"
    "__attribute__((used)) static int* use() {{ return {space}::Registry<int>::table; }}\n"
)
#: What TORCH_LIBRARY expands to, as far as the symbol table shows it.
REGISTER = (
    "namespace torch {{ struct Library; }}\n"
    'static void TORCH_LIBRARY_{kind}init_{name}(torch::Library& m) {{ asm volatile("" :: "r"(&m)); }}\n'
    "static __attribute__((used)) void* registered = (void*)&TORCH_LIBRARY_{kind}init_{name};\n"
)
TEMPLATE = "template <class T> T twice(T x) { return x + x; }\ntemplate int twice<int>(int);\n"


@dataclass(frozen=True)
class Pair:
    """Two packages, what the check says, and whether it fails."""

    ops: dict[str, Lib]
    other: dict[str, Lib]
    says: str = ""
    fails: bool = False


def _module(more: str = "", *links: str, flags: tuple[str, ...] = ()) -> Lib:
    return Lib(more + op(), links=(*TORCH, "libcudart.so.13", *links), flags=flags)


def _engine(name: str, value: int, soname: str = "libengine.so.1") -> Lib:
    return Lib(ENGINE.format(name=name, value=value), links=(), gpu=None, flags=(f"-Wl,-soname,{soname}",))


def _needing(name: str, soname: str = "libengine.so.1") -> Lib:
    call = f'extern "C" int engine_{name}();\nint call_engine() {{ return engine_{name}(); }}\n'
    return _module(call, flags=(f"-l:{soname}", "-fvisibility=hidden"))


def _pair(mine: Lib, theirs: Lib, says: str = "", *, fails: bool = False) -> Pair:
    return Pair({f"ops/{MODULE}": mine}, {f"other/{MODULE}": theirs}, says, fails)


def _static(count: int, space: str = "shared") -> Lib:
    return _module(STATIC.format(space=space, count=count), flags=("-fvisibility=default",))


def _registers(name: str, kind: str = "") -> Lib:
    return _module(REGISTER.format(name=name, kind=kind))


PAIRS = {
    "one soname, different libraries": Pair(
        {f"ops/{MODULE}": _needing("one"), "ops.libs/libengine.so.1": _engine("one", 1)},
        {f"other/{MODULE}": _needing("two"), "other.libs/libengine.so.1": _engine("two", 2)},
        "so after the import of other 1.0+cu130, this wheel lacks engine_one",
        fails=True,
    ),
    "one soname, a different build of the library": Pair(
        {f"ops/{MODULE}": _needing("one"), "ops.libs/libengine.so.1": _engine("one", 1)},
        {f"other/{MODULE}": _needing("one"), "other.libs/libengine.so.1": _engine("one", 2)},
        "define the same symbols, but differ: the loader takes the first for both",
    ),
    "one soname, the same library": Pair(
        {f"ops/{MODULE}": _needing("one"), "ops.libs/libengine.so.1": _engine("one", 1)},
        {f"other/{MODULE}": _needing("one"), "other.libs/libengine.so.1": _engine("one", 1)},
    ),
    "different sonames": Pair(
        {f"ops/{MODULE}": _needing("one"), "ops.libs/libengine.so.1": _engine("one", 1)},
        {
            f"other/{MODULE}": _needing("two", "libengine-1234abcd.so.1"),
            "other.libs/libengine-1234abcd.so.1": _engine("two", 2, "libengine-1234abcd.so.1"),
        },
    ),
    "one soname of modules, which nobody needs by name": _pair(
        _module("int one;\n", flags=("-Wl,-soname,_C.so", "-fvisibility=hidden")),
        _module("int two;\n", flags=("-Wl,-soname,_C.so", "-fvisibility=hidden")),
    ),
    "one unique object of two sizes": _pair(
        _static(4),
        _static(8),
        "shared::Registry<int>::table (16 and 32 bytes), of which a process has one (STB_GNU_UNIQUE)",
        fails=True,
    ),
    "one unique object": _pair(_static(4), _module("int more;\n" + STATIC.format(space="shared", count=4)), "shares"),
    "one unique object of torch's headers": _pair(
        _static(4, "c10"), _module("int more;\n" + STATIC.format(space="c10", count=4))
    ),
    "one op library": _pair(
        _registers("my_ops"),
        _module("int more;\n" + REGISTER.format(name="my_ops", kind="")),
        "other 1.0+cu130 also registers the op library my_ops with TORCH_LIBRARY: the import of the second fails",
        fails=True,
    ),
    "fragments of one op library": _pair(
        _registers("my_ops_1", "FRAGMENT_"), _module("int more;\n" + REGISTER.format(name="my_ops_1", kind="FRAGMENT_"))
    ),
    "one op library, in C++ namespaces": _pair(
        _module("namespace a { namespace {\n" + REGISTER.format(name="my_ops", kind="") + "} }\n"),
        _module("namespace b {\n" + REGISTER.format(name="my_ops", kind="") + "}\n"),
        "registers the op library",
        fails=True,
    ),
    "two op libraries": _pair(_registers("my_ops"), _registers("their_ops")),
    "one function": _pair(
        _module("int forward() { return 1; }\n"),
        _module("int forward() { return 2; }\n"),
        "other 1.0+cu130 exports forward() too: harmless as Python loads modules",
    ),
    "one template, and the entry point of a module": _pair(
        _module(TEMPLATE + "static int one;\n"), _module(TEMPLATE + "static int two = 2;\nint* where = &two;\n")
    ),
    "one path": Pair(
        {f"kernels/{MODULE}": _module("static int a = 1; int* x = &a;\n")},
        {f"kernels/{MODULE}": _module("static int a = 2; int* y = &a;\n")},
        f"other 1.0+cu130 also installs kernels/{MODULE}, with a different content",
        fails=True,
    ),
}


def _written(name: str, libs: dict[str, Lib], folder: Path, stubs: Path) -> Path:
    """Write the wheel of one package; libraries that it needs by name are made first."""
    for path, lib in libs.items():
        if ".libs/" in path:
            (stubs / Path(path).name).write_bytes(lib.compiled(stubs))
    linked = {path: replace(lib, flags=(f"-L{stubs}", *lib.flags)) for path, lib in libs.items()}
    return Wheel(libs=linked, name=name, project=name).write(folder, stubs)


@pytest.fixture
def written(stubs: Path, tmp_path: Path) -> Any:
    """Writes both wheels of a pair, and returns their paths."""

    def write(pair: Pair) -> tuple[Path, Path]:
        return _written("ops", pair.ops, tmp_path, stubs), _written("other", pair.other, tmp_path, stubs)

    return write


def clash(wheel: Path, beside: Path, store: Path) -> tuple[int, dict[str, Any]]:
    """The exit code of `verify --beside`, and the proof `clash`."""
    done = CliRunner().invoke(app, ["verify", str(wheel), "--beside", str(beside), "--store", str(store), "--json"])
    assert done.stdout, done.exception
    (one,) = json.loads(done.stdout)
    (proof,) = [proof for proof in one["proofs"] if proof["check"] == "clash"]
    return done.exit_code, proof


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str, written: Any, store: Path) -> None:
    pair = PAIRS[name]
    mine, other = written(pair)
    code, proof = clash(mine, other, store)
    remarks = proof["evidence"].get("remarks", [])
    assert (proof["verdict"], code) == (("failed", Exit.FAILED) if pair.fails else ("passed", Exit.OK)), proof
    assert pair.says in (proof["reason"] if pair.fails else " ".join(remarks))
    if not pair.says:
        assert remarks == []


def test_environment_beside_the_wheel(written: Any, store: Path, tmp_path: Path) -> None:
    mine, other = written(PAIRS["one op library"])
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    with zipfile.ZipFile(other) as archive:
        archive.extractall(site)
    broken = site / "broken-1.0.dist-info"
    broken.mkdir()
    for folder in (tmp_path / "env", site):
        code, proof = clash(mine, folder, store)
        assert code == Exit.FAILED
        assert "other 1.0+cu130 also registers the op library my_ops" in proof["reason"]


def test_earlier_version_of_the_wheel_is_no_neighbour(written: Any, store: Path, tmp_path: Path) -> None:
    mine, other = written(PAIRS["one op library"])
    site = tmp_path / "site"
    with zipfile.ZipFile(mine) as archive:
        archive.extractall(site)
    assert clash(mine, site, store)[1]["reason"] == "no package beside the wheel has libraries"
    assert clash(other, site, store)[0] == Exit.FAILED


LOADED = """\
import ctypes, sys
first, second = (ctypes.CDLL(path) for path in sys.argv[1:3])
for library in (first, second):
    call = getattr(library, sys.argv[3])
    call.restype = ctypes.c_long
    print(call())
"""


def _loaded(folder: Path, function: str) -> list[str]:
    """What a function of each of two libraries returns, in one process."""
    argv = [sys.executable, "-c", LOADED, str(folder / "one" / "m.so"), str(folder / "two" / "m.so"), function]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def test_rules_of_the_loader_on_this_machine(tmp_path: Path) -> None:
    """The check follows these rules: libraries of one soname and unique objects are shared, other functions not."""
    for value, name in enumerate(("one", "two"), 1):
        folder = tmp_path / name
        folder.mkdir()
        gcc = ["g++", "-shared", "-fPIC", "-x", "c++", "-"]
        engine = f'extern "C" long engine() {{ return {value}; }}'
        argv = [*gcc, "-Wl,-soname,libengine.so.1", "-o", str(folder / "libengine.so.1")]
        subprocess.run(argv, input=engine, text=True, check=True)
        module = STATIC.format(space="shared", count=4) + (
            'extern "C" long engine(), own(); long own() { return ' + str(value) + "; }\n"
            'extern "C" long by_name() { return engine(); }\nextern "C" long by_own() { return own(); }\n'
            'extern "C" long unique() { return (long)use(); }\n'
        )
        argv = [*gcc, f"-L{folder}", "-l:libengine.so.1", "-Wl,-rpath,$ORIGIN", "-o", str(folder / "m.so")]
        subprocess.run(argv, input=module, text=True, check=True)
    assert _loaded(tmp_path, "by_name") == ["1", "1"]
    assert _loaded(tmp_path, "by_own") == ["1", "2"]
    first, second = _loaded(tmp_path, "unique")
    assert first == second
