"""Which libraries of a wheel the loader finds: what glibc loads, and what the reader says of the same files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder.wheelfile.facts import read_facts
from tests.fixtures.compiled import compiled
from tests.fixtures.handmade_wheels import w0

TAG = "cp312-cp312-manylinux_2_34_x86_64"
RPATH, RUNPATH = "-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"
#: Linker options of the module and of libmid.so, whether the module needs libinner.so too, and whether it loads.
CASES = {
    "no run path": ((), ("-Wl,-rpath,$ORIGIN",), False, False),
    "RUNPATH of both": ((RUNPATH, "-Wl,-rpath,$ORIGIN/libs"), (RUNPATH, "-Wl,-rpath,$ORIGIN"), False, True),
    "RUNPATH is not passed on": ((RUNPATH, "-Wl,-rpath,$ORIGIN/libs"), (), False, False),
    "RPATH is passed on": ((RPATH, "-Wl,-rpath,${ORIGIN}/libs"), (), False, True),
    "RPATH ends at a RUNPATH": ((RPATH, "-Wl,-rpath,$ORIGIN/libs"), (RUNPATH, "-Wl,-rpath,$ORIGIN/x"), False, False),
    "loaded already": ((RUNPATH, "-Wl,-rpath,$ORIGIN/libs"), (), True, True),
    "a folder of the build machine": ((RUNPATH, "-Wl,-rpath,/build/libs"), (), False, False),
    "through another folder": ((RPATH, "-Wl,-rpath,$ORIGIN/../t0/./libs"), (), False, True),
    "the second folder": ((RPATH, "-Wl,-rpath,$ORIGIN/x:$ORIGIN/libs"), (), False, True),
    "a longer name": ((RPATH, "-Wl,-rpath,$ORIGINS/libs"), (), False, False),
}


def libraries(folder: Path, of_module: tuple[str, ...], of_mid: tuple[str, ...], *, both: bool) -> dict[str, bytes]:
    """The files of a wheel: a module that needs libmid.so, which needs libinner.so."""
    link = ("-Wl,--no-as-needed", f"-L{folder}", f"-Wl,-rpath-link,{folder}")
    compiled(folder, "int inner;", "-Wl,-soname,libinner.so", name="libinner.so", language="c")
    mid = ("-Wl,-soname,libmid.so", *link, *of_mid, "-l:libinner.so")
    compiled(folder, "int mid;", *mid, name="libmid.so", language="c")
    needs = ("-l:libmid.so", "-l:libinner.so") if both else ("-l:libmid.so",)
    compiled(folder, "void *PyInit__C(void) { return 0; }", *link, *of_module, *needs, name="_C.so", language="c")
    places = {"t0/_C.so": "_C.so", "t0/libs/libmid.so": "libmid.so", "t0/libs/libinner.so": "libinner.so"}
    return {place: (folder / name).read_bytes() for place, name in places.items()}


def loads(folder: Path, files: dict[str, bytes]) -> bool:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    call = f"import ctypes; ctypes.CDLL({str(folder / 't0/_C.so')!r})"
    return subprocess.run([sys.executable, "-c", call], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("case", CASES)
def test_the_reader_agrees_with_the_loader(tmp_path: Path, case: str) -> None:
    of_module, of_mid, both, found = CASES[case]
    (tmp_path / "made").mkdir()
    files = libraries(tmp_path / "made", of_module, of_mid, both=both)
    facts = read_facts(w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b"", **files}))
    assert loads(tmp_path / "files", files) == found
    assert (not facts.unreached) == found
    assert not any(one.maybe for one in facts.unreached)


@pytest.mark.parametrize(
    ("python", "maybe"),
    [
        (b"import ctypes, pathlib\nctypes.CDLL(pathlib.Path(__file__).with_name('libs') / 'libmid.so')\n", True),
        (b"for file in glob('libs/*.so'):\n    torch.ops.load_library(file)\n", True),
        (b"torchaudio._extension._load_lib('libmid')\n", True),  # torchaudio 2.10
        (b"import ctypes\nctypes.CDLL('libother.so')\n", False),
        (b"# libmid.so is beside this file\n", False),
    ],
)
def test_python_code_may_load_a_library_before(tmp_path: Path, python: bytes, maybe: bool) -> None:
    files = libraries(tmp_path, (), ("-Wl,-rpath,$ORIGIN",), both=False)
    (one,) = read_facts(w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": python, **files})).unreached
    assert (one.user, one.name, one.path, one.maybe) == ("t0/_C.so", "libmid.so", "t0/libs/libmid.so", maybe)
    assert "leads to t0/libs/libmid.so: link it with -Wl,-rpath,'$ORIGIN/libs'" in one.why


def test_the_number_of_a_library_may_be_filled_in(tmp_path: Path) -> None:
    """torchaudio 2.3 loads the library for the FFmpeg of the machine."""
    compiled(tmp_path, "int x;", "-Wl,-soname,libmid4.so", name="libmid4.so", language="c")
    needs = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-l:libmid4.so")
    compiled(tmp_path, "void *PyInit__C(void) { return 0; }", *needs, name="_C.so", language="c")
    files = {f"t0/{name}": (tmp_path / name).read_bytes() for name in ("_C.so", "libmid4.so")}
    python = b"def _load_lib(version):\n    torch.ops.load_library(f'{__path__[0]}/libmid{version}.so')\n"
    (one,) = read_facts(w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": python, **files})).unreached
    assert one.maybe


def test_another_module_may_load_it_before(tmp_path: Path) -> None:
    files = libraries(tmp_path, (), ("-Wl,-rpath,$ORIGIN",), both=False)
    link = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-l:libmid.so", "-Wl,-rpath,$ORIGIN/libs")
    other = compiled(tmp_path, "void *PyInit__D(void) { return 0; }", *link, name="_D.so", language="c")
    facts = read_facts(w0(tmp_path, "t0", "1.0", TAG, files | {"t0/_D.so": other.read_bytes()}))
    assert [one.maybe for one in facts.unreached] == [True]


def test_a_wheel_holds_no_links(tmp_path: Path) -> None:
    """The file has the short name, and its DT_SONAME has a version."""
    compiled(tmp_path, "int x;", "-Wl,-soname,libx.so.1", name="libx.so", language="c")
    link = ("-Wl,--no-as-needed", f"-L{tmp_path}", "-l:libx.so", "-Wl,-rpath,$ORIGIN")
    module = compiled(tmp_path, "void *PyInit__C(void) { return 0; }", *link, name="_C.so", language="c")
    files = {"t0/_C.so": module.read_bytes(), "t0/libx.so": (tmp_path / "libx.so").read_bytes()}
    (one,) = read_facts(w0(tmp_path, "t0", "1.0", TAG, files)).unreached
    assert (one.name, one.path, one.maybe) == ("libx.so.1", "t0/libx.so", False)
    assert "the wheel has it as t0/libx.so only: a wheel holds no links, so name the file libx.so.1" in one.why
    assert not loads(tmp_path / "files", files)
