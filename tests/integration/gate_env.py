"""What the gate is tried on: planted extensions as real wheels, in environments with torch, and one run of the gate."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import sysconfig
import time
import uuid
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.errors import MissingToolError
from builder.gate.outcome import FAILED, Answer, Outcome, Spec
from builder.gate.pack import pack
from builder.matrix.axes import Python
from builder.store import Store
from builder.wheels.environment import Environments
from builder.wheels.pythons import find_python, find_uv
from tests.conftest import Ran, lacking, run

PLANTED = Path(__file__).with_name("planted")

#: Distribution, also the package's name, to the libraries that are compiled into it and the words for cc.
LIBRARIES: dict[str, dict[str, list[str]]] = {
    "planted_sound": {"libkernels.so": ["kernels.c"], "_bound.abi3.so": ["bound.c"]},
    "planted_faulty": {"libkernels.so": ["kernels.c"], "_bound.abi3.so": ["-DFORGOTTEN", "bound.c"]},
    "planted_companion": {"libcompanion.so": ["companion.c"]},
    "planted_broken": {},
}


def build_wheel(folder: Path, name: str) -> Path:
    """Compile a planted extension's libraries and zip it as a wheel for this machine."""
    files = {f"{name}/{path.name}": path.read_bytes() for path in (PLANTED / name).glob("*.py")}
    for library, words in LIBRARIES[name].items():
        target = folder / name / library
        target.parent.mkdir(exist_ok=True)
        compiled = run("cc", "-O1", "-Wall", "-shared", "-fPIC", f"-I{_headers()}", *words, "-o", target, cwd=PLANTED)
        assert compiled.code == 0, compiled.err
        files[f"{name}/{library}"] = target.read_bytes()
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp310-abi3-{platform}"
    info = f"{name}-1.0.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]).encode()
    wheel = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel


def _headers() -> str:
    """The folder of Python.h of some Python here; what is compiled keeps to the limited API, so any will do."""
    for python in (Python(*sys.version_info[:2]), Python(3, 12), Python(3, 13)):
        found = find_python(python)
        if found is not None and found.headers:
            include = run(found.path, "-c", "import sysconfig; print(sysconfig.get_path('include'))")
            return include.out.strip()
    return lacking("no Python here has its headers")


def make_environment(store: Path, folder: Path, torch: str, python: str, wheels: Sequence[Path]) -> Path:
    """The interpreter of a new environment with that torch and these wheels.

    The torch is the store's, made once and seen through a .pth file: thousands of files need not be linked again.
    """
    version = Python.parse(python)
    try:
        base = Environments(Store(store), torch_index="").ensure(
            version, [f"torch=={torch}"], index=[], log=folder.with_suffix(".log")
        )
    except MissingToolError as error:
        lacking(str(error))
    made = run(find_uv(), "venv", "--no-project", "--python", base.interpreter, folder)
    assert made.code == 0, made.err
    interpreter = folder / "bin" / "python"
    site = folder / base.site_packages.relative_to(base.folder)
    (site / "torch-of-the-store.pth").write_text(f"{base.site_packages}\n")
    installed = run(find_uv(), "pip", "install", "--no-deps", "--no-index", "--python", interpreter, *wheels)
    assert installed.code == 0, installed.err
    return interpreter


@dataclass(frozen=True)
class GateRun:
    """A gate that ended.

    Attributes:
        ran: exit code and output.
        answer: what it wrote.
        answer_bytes: how long that was.
        cpu_seconds: what it used of the processors, all its processes together: the same however busy the machine is.
        processes: command lines of processes that it left running.
        files: what it left in the folder for temporary files.

    """

    ran: Ran
    answer: Answer
    answer_bytes: int
    cpu_seconds: float
    processes: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def failures(self) -> list[Outcome]:
        """What was found wrong."""
        return [outcome for outcome in self.answer.outcomes if outcome.verdict == FAILED]

    def of(self, op: str, check: str = "") -> list[Outcome]:
        """The outcomes of an op, of one check or all."""
        return [o for o in self.answer.outcomes if o.op == op and check in ("", o.check)]

    def told(self) -> str:
        """Every failure as a person would list them."""
        return "\n".join(f"{o.check}: {o.op} ({o.case}): {o.reason}" for o in self.failures)


@dataclass(frozen=True)
class PackedGate:
    """A gate that is ready to be started.

    Attributes:
        words: the command.
        env: its environment, beside this process's own.
        folder: where it runs; its temporary files go to `tmp` there, its answer is `answer.json` there.
        mark: what its processes are known by.

    """

    words: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    mark: str

    def processes(self, patience: float = 2.0) -> dict[int, str]:
        """Its processes that are still there after a moment: number and command line."""
        deadline = time.monotonic() + patience
        while True:
            found = {}
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if self.mark.encode() in (process / "environ").read_bytes():
                        found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if not found or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def kill(self) -> None:
        """End whatever is left of it."""
        for process in self.processes(patience=0):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def pack_gate(interpreter: Path, folder: Path, spec: Spec, cases: Path | None) -> PackedGate:
    """Pack the gate into `folder` as the farm does."""
    (folder / "tmp").mkdir(parents=True)
    packed = pack(folder / "gate", replace(spec, has_cases=cases is not None), cases)
    words = (str(interpreter), "-I", "-X", "faulthandler", str(packed), "--answer", str(folder / "answer.json"))
    mark = uuid.uuid4().hex
    # Without a GPU even where there is one: the faults are planted on the CPU.
    env = {"BUILDFARM_TEST_GATE": mark, "TMPDIR": str(folder / "tmp"), "CUDA_VISIBLE_DEVICES": ""}
    return PackedGate(words, env, folder, mark)


def run_gate(gate: PackedGate, *, timeout: float = 300) -> GateRun:
    """Run it to its end, and look at what it leaves."""
    before = _cpu_seconds()
    try:
        ran = run(*gate.words, cwd=gate.folder, env=gate.env, timeout=timeout)
        used = _cpu_seconds() - before
        left = tuple(gate.processes().values())
    finally:
        gate.kill()
    answer, scratch = gate.folder / "answer.json", gate.folder / "tmp"
    assert answer.is_file(), ran.all
    told = answer.read_bytes()
    files = tuple(str(path.relative_to(scratch)) for path in scratch.rglob("*"))
    return GateRun(ran, Answer.from_json(json.loads(told)), len(told), used, left, files)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cases(name: str) -> Path:
    """The cases.py of a planted extension."""
    path = PLANTED / f"{name}_cases.py"
    if not path.is_file():
        pytest.fail(f"no {path}")
    return path
