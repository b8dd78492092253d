"""What the reader says of libraries, GPU code and archives, compared with the compiler, glibc and uv."""

import json
import os
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.wheelfile.facts import facts_from_json, facts_to_json, read_facts, read_library
from builder.wheelfile.fatbin import read_device_code
from tests.conftest import coded
from tests.fixtures.compiled import compiled, with_gpu_code
from tests.unit.loopback import w0
from tests.unit.proofs.make import FORWARD, fat_binary, make_wheel


def test_facts_of_a_wheel_with_a_library(tmp_path: Path) -> None:
    helper = compiled(
        tmp_path, 'extern "C" int helper() { return 1; }', "-Wl,-soname,libhelper.so.1", name="libhelper.so.1"
    )
    extension = compiled(
        tmp_path,
        """
        #include <stdlib.h>
        namespace at { struct Tensor; }
        using T = at::Tensor const&;
        void ms_deform_attn_cuda_forward(T, T, T, T, T, int);
        extern "C" {
        int helper();
        __attribute__((weak)) int maybe();
        __attribute__((visibility("hidden"))) int secret() { return 1; }
        int PyInit__C(at::Tensor& t) {
            ms_deform_attn_cuda_forward(t, t, t, t, t, 1);
            return helper() + (maybe ? maybe() : 0) + (getenv("X") != nullptr) + secret();
        }
        }
        """,
        str(helper),
        name="_C.so",
    )
    wheel = make_wheel(
        tmp_path,
        {"ops/_C.so": extension, "ops/libhelper.so.1": helper, "ops/__init__.py": b"", "ops/model.bin": b"ELF"},
        version="1.0+cu13",
        requires=("torch>=2.10", "numpy"),
        requires_python=">=3.10",
    )
    facts = read_facts(wheel)
    assert (facts.name, facts.version, facts.tags) == ("ops", "1.0+cu13", ("cp312-cp312-linux_x86_64",))
    assert facts.requires_dist == ("torch>=2.10", "numpy")
    assert facts.requires_python == ">=3.10"
    assert facts.size == wheel.stat().st_size
    assert len(facts.sha256) == 64
    assert "ops/__init__.py" in facts.files
    one, two = facts.libraries
    assert (one.path, two.path) == ("ops/_C.so", "ops/libhelper.so.1")
    assert one.machine == os.uname().machine
    assert "libhelper.so.1" in one.needed
    assert two.soname == "libhelper.so.1"
    assert "PyInit__C" in one.defined
    assert "secret" not in one.defined
    assert {FORWARD, "helper", "getenv"} <= set(one.undefined)
    assert "maybe" not in one.undefined
    assert one.bound["getenv"][0] == "libc.so.6"
    assert one.bound["getenv"][1] in one.versions["libc.so.6"]
    assert FORWARD not in one.bound
    assert not one.fatbin


def test_facts_survive_json(tmp_path: Path) -> None:
    library = with_gpu_code(tmp_path, fat_binary((2, 80, 0x11)))
    facts = read_facts(make_wheel(tmp_path, {"ops/_C.so": library, "a.libs/x.py": b""}))
    assert facts_from_json(json.loads(json.dumps(facts_to_json(facts)))) == facts


@pytest.mark.parametrize("headers", [False, True], ids=["cut short", "no section headers"])
def test_damaged_library_is_an_error(tmp_path: Path, headers: bool) -> None:
    data = compiled(tmp_path, "int f() { return 1; }").read_bytes()
    damaged = data[:40] + b"\0" * 8 + data[48:58] + b"\0" * 6 + data[64:] if headers else data[:200]
    wheel = make_wheel(tmp_path, {"ops/_C.so": damaged})
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)) as caught:
        read_facts(wheel)
    assert caught.value.where == f"{wheel.name}: ops/_C.so"


#: The fields of the header of an ELF file, and of a section: where they begin, and their bytes.
ELF_HEADER = (
    *((4, 1), (5, 1), (7, 1), (16, 2), (18, 2), (20, 4), (32, 8), (40, 8)),
    *((48, 4), (52, 2), (54, 2), (56, 2), (58, 2), (60, 2), (62, 2)),
)
SECTION_HEADER = ((0, 4), (4, 4), (24, 8), (32, 8), (40, 4), (56, 8))


def test_a_changed_header_is_one_error_or_a_library(tmp_path: Path) -> None:
    """Wrong values of each field: the reader may refuse the file, and raises nothing else."""
    data = with_gpu_code(tmp_path, fat_binary((2, 90, 0x11))).read_bytes()
    (sections,), (count,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    places = [*ELF_HEADER, *((sections + 64 * n + at, size) for n in range(count) for at, size in SECTION_HEADER)]
    file = tmp_path / "changed.so"
    for at, size in places:
        for value in (0, 1, 9, 2 ** (8 * size - 1), 2 ** (8 * size) - 1):
            file.write_bytes(data[:at] + value.to_bytes(size, "little") + data[at + size :])
            with suppress(UsageError):
                read_library("ops/_C.so", file)


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside.py", "ops/../../outside.py", "ops\\x.py"])
def test_path_outside_of_the_wheel_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_facts(make_wheel(tmp_path, {name: b""}))


NAME = "ops-1.0-cp312-cp312-linux_x86_64.whl"


INFO = "ops-1.0.dist-info"
MEMBERS: list[tuple[dict[str, str], str]] = [
    ({"other-1.0.dist-info/METADATA": "Name: other\n"}, "the metadata is in"),
    ({f"{INFO}/METADATA": "Name: ops\nVersion: 1.0\n"}, "folder has no WHEEL"),
    ({f"{INFO}/WHEEL": "Tag: x\n"}, "folder has no METADATA"),
    ({f"{INFO}/METADATA": "Name: ops\n", f"{INFO}/WHEEL": "Tag: x\n"}, "no Version"),
    ({"ops/x.py": ""}, "this wheel has 0"),
    (dict.fromkeys(("a.dist-info/x", "b.dist-info/x"), ""), "this wheel has 2"),
]


@pytest.mark.parametrize(("members", "says"), MEMBERS)
def test_missing_metadata_is_named(tmp_path: Path, members: dict[str, str], says: str) -> None:
    wheel = tmp_path / NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    with pytest.raises(UsageError, match=says, check=lambda error: NAME in str(error)):
        read_facts(wheel)


def test_a_requirement_with_a_number_of_many_digits_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"ops/__init__.py": b""}, requires=[f"torch=={'9' * 5400}"])
    with pytest.raises(UsageError, match="a Requires-Dist of more than 2048 characters"):
        read_facts(path)


ONE, PTX = fat_binary((2, 90, 0x11)), fat_binary((1, 90, 0x2011))
MANY = fat_binary((2, 120, 0x11), (2, 75, 0x11), (2, 100, 0x11), (2, 90, 0x100011), (2, 90, 0x11))
PADDED = fat_binary((2, 80, 0x11)) + b"\0" * 24 + fat_binary((2, 90, 0x11), (1, 90, 0x11)) + fat_binary((2, 80, 0x11))
SECTIONS: dict[str, tuple[bytes, tuple[str, ...], tuple[str, ...]]] = {
    "machine code": (ONE, ("sm_90",), ()),
    "PTX, compressed": (PTX, (), ("compute_90",)),
    "of one architecture only": (fat_binary((2, 90, 0x108011)), ("sm_90a",), ()),
    "of a family": (fat_binary((2, 103, 0x1208011)), ("sm_103f",), ()),
    "PTX of one architecture only": (fat_binary((1, 90, 0x108011)), (), ("compute_90a",)),
    "sorted by number": (MANY, ("sm_75", "sm_90", "sm_90a", "sm_100", "sm_120"), ()),
    "many sources, padding between": (PADDED, ("sm_80", "sm_90"), ("compute_90",)),
    "empty": (b"\0" * 16, (), ()),
    "much padding": (b"\0" * (3 * 2**20 + 8) + ONE, ("sm_90",), ()),
}


@pytest.mark.parametrize(("section", "sass", "ptx"), SECTIONS.values(), ids=SECTIONS)
def test_architectures_listed(tmp_path: Path, section: bytes, sass: tuple[str, ...], ptx: tuple[str, ...]) -> None:
    found = read_device_code(with_gpu_code(tmp_path, section))[0]
    assert tuple(code for code in found if code.startswith("sm_")) == sass
    assert tuple(code for code in found if code.startswith("compute_")) == ptx


#: Headers of `nvcc --concat` 13.5: PTX for 103a, 120 and 80; machine code for 100f, 103a and 120, with options.
PTX_HEADER = (
    "0001010180010000180100000000000012010000400000000100000000000000000000000000000011800000000000000000000000000000"
    "f803000000000000030000004001000001000101000000005801000000000000000000004800000005000900670000004000000004000000"
    "1100100000000000000000000000000000000000000000006b2e6375000000005000000016000000202d2d67656e65726174652d6c696e65"
    "2d696e666f200000010001015801000058010000000000000000000048000000050009007800000040000000040000001100000000000000"
    "000000000000000000000000000000006b2e6375000000005000000016000000202d2d67656e65726174652d6c696e652d696e666f200000"
    "01000101b0020000480100000000000000000000480000000500090050000000400000000400000011000000000000000000000000000000"
    "00000000000000006b2e6375000000005000000016000000202d2d67656e65726174652d6c696e652d696e666f200000"
)
SASS_HEADER = (
    "00010101c0010000b007000000000000b0070000400000000100000000000000000000000000000011800000000000000000000000000000"
    "b04f00000000000003000000800100000200010100000000901a000000000000000000004800000008000100640000004000000004000000"
    "1100200100000000000000000000000000000000000000006b2e63750000000050000000280000000002090000020c000002020100030d01"
    "010307010102030000040b08000900000000000000030e40040000000000000002000101901a0000901a0000000000000000000048000000"
    "080001006700000040000000040000001100100100000000000000000000000000000000000000006b2e6375000000005000000024000000"
    "0002090100020c000002020100030d010102030000040b08000000000000000000030e40040000000200010120350000901a000000000000"
    "0000000048000000080001007800000040000000040000001100000100000000000000000000000000000000000000006b2e637500000000"
    "50000000280000000002090000020c000002020100030d01010307010102030000040b08005000000000000000030e400400000000000000"
)


def concatenated(header: str) -> bytes:
    """A container with one entry that has this header."""
    entry = bytes.fromhex(header)
    entry += bytes(struct.unpack_from("<Q", entry, 8)[0])
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def test_concatenated_entries_are_read_one_by_one(tmp_path: Path) -> None:
    sizes, ptx = read_device_code(with_gpu_code(tmp_path, concatenated(PTX_HEADER) + concatenated(SASS_HEADER)))
    assert list(sizes) == ["compute_80", "sm_100f", "compute_103a", "sm_103a", "compute_120", "sm_120"]
    assert ptx == {"compute_80": "9.5", "compute_103a": "9.5", "compute_120": "9.5"}
    assert 1960 <= sum(size for code, size in sizes.items() if code.startswith("sm_")) <= 1968


@pytest.mark.parametrize("at", [64, 68, 72 + 76])
def test_concatenated_entries_of_another_layout_are_an_error(tmp_path: Path, at: int) -> None:
    """Number and bytes of the headers, length of the options of one."""
    header = bytearray.fromhex(SASS_HEADER)
    header[at] ^= 0x11
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_device_code(with_gpu_code(tmp_path, concatenated(header.hex())))


def test_the_bytes_of_all_sources_are_added(tmp_path: Path) -> None:
    one = fat_binary((2, 90, 0x11), (2, 80, 0x11))
    single = read_device_code(with_gpu_code(tmp_path, one))[0]
    assert read_device_code(with_gpu_code(tmp_path, one * 3))[0] == {code: 3 * size for code, size in single.items()}
    assert min(single.values()) > 0
    assert read_device_code(compiled(tmp_path, "int f() { return 1; }"))[0] == {}


def test_other_kinds_are_listed_too(tmp_path: Path) -> None:
    section = fat_binary((8, 90, 0x11), (77, 120, 0x200011), (2, 90, 0x11))
    library = read_library("ops/_C.so", with_gpu_code(tmp_path, section))
    assert library is not None
    assert list(library.gpu_code) == ["sm_90", "lto_90", "kind77_120f"]
    assert library.unknown_code == ["kind 77 for 120f"]


UNKNOWN = {
    "different layout": b"\x01" * 64,
    "cut short": ONE[:-8],
    "a later version": ONE.replace(b"\x01\x00\x10\x00", b"\x02\x00\x10\x00", 1),
    "an entry too long": ONE.replace(b"\x40\0\0\0\x08\0", b"\x40\0\0\0\xff\0", 1),
    "a header too short": ONE.replace(b"\x40\0\0\0\x08\0", b"\x08\0\0\0\x08\0", 1),
    "a container of no bytes": b"\x50\xed\x55\xba\x01\x00" + bytes(58),
    "too many containers": struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 200_001,
}


@pytest.mark.parametrize("section", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_layout_is_an_error(tmp_path: Path, section: bytes) -> None:
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_device_code(with_gpu_code(tmp_path, section))


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
