"""What is fuzzed: each target makes one input from a random generator and hands it to the program's own readers."""

import contextlib
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from builder.commands.verify import verify_data, verify_text
from builder.errors import BuildfarmError
from builder.log import json_text
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proof import proofs_json, proofs_path
from builder.proofs.file_checks import any_wheel_proofs, static_proofs
from builder.proofs.inventory import Shelf, inventory_of_wheel
from builder.proofs.static.gpu_code import known_gpus
from builder.proofs.verify.judge import Judge
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.runs.history import save_run
from builder.publish.server.tokens import Tokens
from builder.records import read_record
from builder.store import Store, work_name
from builder.wheelfile.archive import WheelFile, differences
from builder.wheelfile.facts import open_wheel, read_facts
from builder.wheels.sources.prepare import unpack
from docs.scripts.command_page import all_commands
from tests.fixtures.compiled import compiled, with_gpu_code
from tests.fuzz.mutate import TEXTS, garbage, mutated, mutated_tar, mutated_zip
from tests.real.verify.corpus import Wheel, inventory, stub_libraries
from tests.unit.loopback import pure_wheel
from tests.unit.proofs.make import claim, fat_binary, make_wheel
from tests.unit.publish.index.make import proofs_of, ready
from tests.unit.transcripts import call_in_process
from tests.unit.wheels.make_record import TOOLCHAIN, build_record


@dataclass(frozen=True)
class Judged:
    """The files of a sound wheel and of a torch wheel, and a judge with one inventory."""

    wheel: dict[str, bytes]
    torch: dict[str, bytes]
    judge: Judge


def prepare_verify(folder: Path) -> Judged:
    """Compile the libraries, and put an inventory on a shelf."""
    stubs = stub_libraries(folder)
    with zipfile.ZipFile(Wheel().write(folder, stubs)) as archive:
        wheel = {name: archive.read(name) for name in archive.namelist()}
    torch = {f"torch/lib/{name}": (stubs / name).read_bytes() for name in ("libc10.so", "libtorch_cpu.so")}
    torch |= {"torch/version.py": b"__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\n"}
    torch |= {"torch-2.11.0.dist-info/METADATA": b"Name: torch\nVersion: 2.11.0\nRequires-Dist: nvidia-cublas\n"}
    shelf = Shelf(folder / "inventories")
    shelf.add(*inventory("2.11.0"))
    judge = Judge(shelf, Selection(), tuple(known_gpus(Compat.load())[:2]), "580", max_size=1)
    return Judged(wheel, torch, judge)


def read_verify(prepared: Judged, rng: random.Random, folder: Path) -> None:
    """Make one input of one kind and read it."""
    kind = rng.choice([_wheel, _wheel, _torch, _inventory])
    with contextlib.suppress(BuildfarmError):
        kind(prepared, rng, folder)


def _wheel(prepared: Judged, rng: random.Random, folder: Path) -> None:
    path = folder / "ops-1.0+cu130-cp312-cp312-manylinux_2_17_x86_64.whl"
    path.write_bytes(mutated_zip(prepared.wheel, rng))
    with open_wheel(path) as wheel:
        verdicts = [prepared.judge.judge(wheel, read_facts(path), "fuzz")]
    verify_text(verdicts).encode()
    json_text(verify_data(verdicts, {})).encode()


def _torch(prepared: Judged, rng: random.Random, folder: Path) -> None:
    path = folder / "torch-2.11.0-py3-none-any.whl"
    path.write_bytes(mutated_zip(prepared.torch, rng))
    with WheelFile(path) as wheel:
        inventory_of_wheel(wheel)


def _inventory(_: Judged, rng: random.Random, folder: Path) -> None:
    path = (shelf := Shelf(folder)).add(*inventory("2.11.0"))
    path.write_bytes(mutated(path.read_bytes(), rng))
    shelf.read(*shelf.releases)


_REPORT = {
    "builds": [
        {
            "build": "ops-1.0-cpython-torch2.11.0-cu130-cp312",
            "extension": "ops",
            "version": "1.0",
            "serves": ["torch2.11.0-cu130-cp312"],
            "archs": ["9.0"],
            "status": "failed",
            "error": "no nvcc",
            "hints": ["install nvcc"],
            "proofs": [{"check": "import", "cell": None, "verdict": "failed", "reason": "no", "evidence": {}}],
        }
    ],
    "skips": [{"torch": "2.2", "cuda": "12.1", "python": "3.12", "extension": "ops", "code": "x", "reason": "old"}],
}
_VALUES: list[Any] = [
    None, True, 0, -1, 10**30, 1e999, float("nan"), "", "x", "../../x", "\x1b[31m", "\ud800", "\0", "9" * 5000,
    [], [[]], {}, {"x": None}, ["x"], ["\n"],
]  # fmt: skip
_COMMANDS: list[list[str]] = [
    ["index", "check", "index"],
    ["index", "prune", "index", "--keep", "1"],
    ["resolve", "my_ext", "--index", "index", "--torch", "2.11", "--cuda", "13.0", "--python", "3.12"],
    ["publish", "--to", "index", "--require", "none"],
    ["yank", "my_ext-1.0-py3-none-any.whl", "--index", "index", "--reason", "bad"],
    ["token", "list", "index"],
    ["store", "history"],
    ["store", "prune", "--keep-days", "0", "--dry-run"],
    ["report"],
    ["smoke", "--matrix", "matrix.yaml", "--dist", "reports"],
    ["rebuild", "dist/my_ext-1.0-py3-none-any.whl", "--verify"],
]


@dataclass(frozen=True)
class Stored:
    """A folder with an index, a `dist/` and a store, and the paths of its JSON files."""

    folder: Path
    files: Sequence[Path]


def prepare_stored(folder: Path) -> Stored:
    """Make the folder."""
    repository = Repository(Folder(folder / "index"))
    repository.add(ready(folder / "dist"))
    repository.add(ready(folder / "dist", version="2.0"))
    Tokens(folder / "index").add("ci", ("read",), None)
    for wheel in (folder / "dist").glob("*.whl"):
        proofs_path(wheel).write_bytes(proofs_json(proofs_of(wheel)))
    for name in ("dist", "reports"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "report.json").write_text(json.dumps(_REPORT))
    store, digest = Store(folder / "store"), "ab" * 32
    wheel = pure_wheel(folder / "raw", "ops", "1.0")
    with store.work(work_name(digest)):
        stored = store.add(digest, wheel, build_record())
    store.save_proofs(proofs_of(stored.wheel))
    (stored.wheel.parent / "facts-0123456789ab.json").write_text(json.dumps({"sha256": stored.sha256}))
    (folder / "store/envs/0123456789abcdef").mkdir()
    record = {"requirements": ["torch"], "packages": list(TOOLCHAIN.packages)}
    (folder / "store/envs/0123456789abcdef.json").write_text(json.dumps(record))
    save_run(store, datetime(2026, 1, 2, tzinfo=UTC), 1.0, json.dumps(_REPORT))
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if _is_json(path)]
    return Stored(folder, files)


def change_stored(stored: Stored, rng: random.Random, folder: Path) -> list[str]:
    """Copy the folder, change one of its JSON files, and return a command line that may read it."""
    shutil.copytree(stored.folder, folder, dirs_exist_ok=True)
    file = folder / rng.choice(stored.files)
    data = file.read_bytes()
    if rng.random() < 0.4:
        file.write_bytes(mutated(data, rng, most=3))
    elif rng.random() < 0.05:
        file.write_bytes(rng.choice([b"[", b'{"a":', b'{"files":[']) * rng.choice([3000, 200_000]))
    else:
        file.write_text(json.dumps(_replaced(json.loads(data), rng)))
    return rng.choice(_COMMANDS)


def _is_json(path: Path) -> bool:
    try:
        return path.is_file() and isinstance(json.loads(path.read_bytes()), dict | list)
    except ValueError:
        return False


def _replaced(data: Any, rng: random.Random) -> Any:
    """The data with a random value of it replaced by another, or left out."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        if rng.random() < 0.1:
            return {name: value for name, value in data.items() if name != key}
        return {**data, key: _replaced(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.9:
        place = rng.randrange(len(data))
        return [*data[:place], _replaced(data[place], rng), *data[place + 1 :]]
    return rng.choice(_VALUES)


RECIPE = """\
name: ops
version: 1.0.0
source: {path: .}
abi: cpython
cuda: required
env: {FORCE_CUDA: "1"}
build_requires: [setuptools, "ninja>=1"]
imports: [ops]
archs: [8.0, 9.0+PTX]
libraries: {_C: [CPU]}
memory_per_job: 768MiB
accepts:
  - {check: import-order, reason: known}
"""
MATRIX = """\
torch: [2.2, 2.11]
cuda: [12.1, 13.0]
python: [3.11, 3.12]
archs: [8.0, 9.0]
extensions: [ops]
exclude:
  - {torch: 2.2, reason: nobody uses it}
images:
  - {cells: "torch2.2*", image: "debian:12", pythons: "quay.io/pypa/manylinux_2_28_x86_64"}
"""


class EscapeError(Exception):
    """A file appeared outside of the folder of the input, or a message is not plain text."""


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    #: For the command line and the table.
    name: str
    #: Makes what all inputs of a run share, in an empty folder.
    prepare: Callable[[Path], Any]
    #: Makes one input in an empty folder and reads it; an error that it raises is a bug of the program.
    run: Callable[[Any, random.Random, Path], None]


def _wheel_files(folder: Path) -> dict[str, bytes]:
    library = compiled(folder, "#include <string>\nstd::string f() { return std::to_string(1); }\n", "-Wl,-soname,x.so")
    wheel = make_wheel(
        folder,
        {
            "ops/__init__.py": b"x = 1\n",
            "ops/_C.so": library,
            "ops/_C_cuda.so": with_gpu_code(folder, fat_binary((2, 80, 0x11), (1, 90, 0x11))),
            "ops-1.0.dist-info/sboms/x.cdx.json": b'{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": []}',
            "ops-1.0.dist-info/buildfarm.json": b'{"schema": 2, "torch": "2.11.0", "archs": ["9.0"]}',
        },
        requires=["torch==2.11.*"],
        requires_python=">=3.10",
    )
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def _read_wheel(files: dict[str, bytes], rng: random.Random, folder: Path) -> None:
    wheel = folder / "ops-1.0-cp312-cp312-linux_x86_64.whl"
    wheel.write_bytes(garbage(rng) if rng.random() < 0.02 else mutated_zip(files, rng))
    readers: Sequence[Callable[[], object]] = (
        lambda: static_proofs(read_facts(wheel), claim(), frozenset(), {}),
        lambda: any_wheel_proofs(wheel, read_facts(wheel)),
        lambda: new_wheel(wheel, []),
        lambda: read_record(wheel),
        lambda: differences(wheel, wheel),
    )
    for read in readers:
        with contextlib.suppress(BuildfarmError):
            read()


def _read_sdist(_: object, rng: random.Random, folder: Path) -> None:
    archive = folder / "e-1.tar.gz"
    if rng.random() < 0.3:
        files = {"e-1/a": b"a", "e-1/b/c": b"c" * 100, "e-1/../x": b"", "e-1/l": b"/etc"}
        archive.write_bytes(mutated_zip(dict(rng.sample(sorted(files.items()), 3)), rng))
    else:
        archive.write_bytes(mutated_tar(rng))
    target = folder / "outer/inner/target"
    target.mkdir(parents=True)
    try:
        unpack(archive, target)
    except BuildfarmError:  # the caller deletes what was written
        shutil.rmtree(target)
        target.mkdir()
    allowed = {archive, folder / "outer", folder / "outer/inner", target}
    if outside := [path for path in folder.rglob("*") if path not in allowed and target not in path.parents]:
        raise EscapeError(str(outside))
    for link in (path for path in target.rglob("*") if path.is_symlink()):
        if not Path(os.path.realpath(link)).is_relative_to(target.resolve()):  # a loop leads nowhere
            raise EscapeError(f"{link} -> {link.readlink()}")


def _read_yaml(_: object, rng: random.Random, folder: Path) -> None:
    texts = {"matrix.yaml": MATRIX.encode(), "ops/extension.yaml": RECIPE.encode()}
    changed = rng.choice(list(texts))
    texts[changed] = mutated(texts[changed], rng, most=3)
    (folder / "ops").mkdir()
    for name, data in texts.items():
        (folder / name).write_bytes(data)
    words = ["plan", "--json"] if rng.random() < 0.5 else ["render", "--out", str(folder / "out")]
    _command([*words, "--matrix", str(folder / "matrix.yaml")], folder)


def _read_words(project: Path, rng: random.Random, folder: Path) -> None:
    """A command with options of its own, each with any value; no command may start a server, a build or a download."""
    name, options, flags = rng.choice(_commands())
    words = name.split()
    for _ in range(rng.randint(0, 4)):
        if flags and rng.random() < 0.2:
            words.append(rng.choice(flags))
        elif options:
            words += [rng.choice(options), _value(rng)]
        if words[0] not in _WITHOUT_ARGUMENTS and rng.random() < 0.2:
            words.append(_value(rng))
    if words[0] in ("plan", "render", "ci") and rng.random() < 0.5:
        words += ["--matrix", str(project / "matrix.yaml")]
    _command(words, folder)


def _value(rng: random.Random) -> str:
    value = rng.choice([*TEXTS, *_WORDS])
    if rng.random() < 0.3:
        value = mutated(value, rng, most=2)
    return os.fsdecode(value.replace(b"\0", b""))  # no program can get a NUL byte in an argument


@cache
def _commands() -> list[tuple[str, list[str], list[str]]]:
    """Each command, its options with a value, and its flags."""
    found = []
    for words, command in sorted(all_commands()):
        options = [one for one in command.params if one.opts[0].startswith("--")]
        flags = [one.opts[0] for one in options if getattr(one, "is_flag", False)]
        found.append((words, [one.opts[0] for one in options if one.opts[0] not in flags], flags))
    return found


#: An argument of them can be a source, a server, or a wheel of the package index. Without one, `build` and `smoke` look
#: for matrix.yaml, which the folder lacks, and the others end when they have read their options.
_WITHOUT_ARGUMENTS = ("smoke", "serve", "worker", "add", "adopt", "build")


def _read_stored(files: Stored, rng: random.Random, folder: Path) -> None:
    words = change_stored(files, rng, folder)
    if words[0] in ("smoke", "rebuild"):
        (folder / "ops").mkdir()
        (folder / "ops/extension.yaml").write_text(RECIPE)
        (folder / "matrix.yaml").write_text(MATRIX)
    _command(words, folder)


_WORDS = [
    *(b"2.11", b"13.0", b"3.12", b"ops", b"ops==1.0", b"cpu", b"gpu", b"9.0", b"sm_90", b"RTX 4090", b"1GiB", b"full"),
    *(b"9" * 5000, b"3." + b"9" * 5000, b"-1", b"http://[x/a-1.0-py3-none-any.whl"),
]


def _command(words: Sequence[str], folder: Path) -> None:
    """Run a command line in this process, in the folder; raise what is not an expected error."""
    os.environ["BUILDFARM_STORE"] = str(folder / "store")
    with contextlib.chdir(folder):
        _, out, err = call_in_process(list(words))
    if "Traceback" in out + err or "\x1b" in out + err:
        raise EscapeError((out + err)[-2000:])
    out.encode()  # stdout accepts no lone surrogates; stderr writes them as escapes


def _project(folder: Path) -> Path:
    (folder / "ops").mkdir()
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "ops/extension.yaml").write_text(RECIPE)
    return folder


TARGETS = [
    Target("wheels", _wheel_files, _read_wheel),
    Target("verify", prepare_verify, read_verify),
    Target("sdists", lambda _: None, _read_sdist),
    Target("yaml", lambda _: None, _read_yaml),
    Target("stored", prepare_stored, _read_stored),
    Target("commands", _project, _read_words),
]
