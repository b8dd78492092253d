from __future__ import annotations

import json
import os
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.wheelfile.facts import facts_from_json, facts_to_json, read_facts, read_library
from tests.conftest import coded
from tests.fixtures.compiled import compiled, with_gpu_code
from tests.refused import refused
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


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        (NAME, b"no zip at all", Code.WHEEL_DAMAGED),
        (NAME, None, Code.NO_SUCH_FILE),
        ("ops.whl", b"", Code.WHEEL_MISLABELLED),
    ],
)
def test_unreadable_file_is_an_error(tmp_path: Path, name: str, content: bytes | None, code: Code) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refused(code, name):
        read_facts(tmp_path / name)


def test_changed_byte_is_an_error(tmp_path: Path) -> None:
    library = compiled(tmp_path, "int f() { return 1; }")
    wheel = make_wheel(tmp_path, {"ops/_C.so": library})
    data = bytearray(wheel.read_bytes())
    data[data.index(library.read_bytes()[1000:1100]) + 50] ^= 255
    wheel.write_bytes(data)
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_facts(wheel)


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
