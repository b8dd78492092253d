"""Builds the sample extensions as wheels, makes environments with torch, and runs the gate there."""

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
from builder.wheels.toolchain.environments import Environment, Environments
from builder.wheels.toolchain.pythons import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Ran, lacking, run

SAMPLES = Path(__file__).with_name("gate_samples")

#: Name of the distribution and package to its libraries and their arguments for cc.
LIBRARIES: dict[str, dict[str, list[str]]] = {
    "sample_correct": {"libkernels.so": ["kernels.c"], "_bound.abi3.so": ["bound.c"]},
    "sample_defective": {"libkernels.so": ["kernels.c"], "_bound.abi3.so": ["-DFORGOTTEN", "bound.c"]},
    "sample_companion": {"libcompanion.so": ["companion.c"]},
    "sample_import_crash": {},
    "sample_lazy": {"_bound.abi3.so": ["bound.c"]},
}


def build_wheel(folder: Path, name: str) -> Path:
    """Compile a sample extension's libraries and zip it as a wheel for this machine."""
    files = {f"{name}/{path.name}": path.read_bytes() for path in (SAMPLES / name).glob("*.py")}
    for library, arguments in LIBRARIES[name].items():
        target = folder / name / library
        target.parent.mkdir(exist_ok=True)
        compiled = run(
            "cc", "-O1", "-Wall", "-shared", "-fPIC", f"-I{_headers()}", *arguments, "-o", target, cwd=SAMPLES
        )
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
    """The folder with Python.h of any Python on this machine; the samples use only the limited API."""
    for python in (Python(*sys.version_info[:2]), Python(3, 12), Python(3, 13)):
        found = find_python(python)
        if found is not None and found.headers:
            include = run(found.path, "-c", "import sysconfig; print(sysconfig.get_path('include'))")
            return include.out.strip()
    return lacking("no Python on this machine has its headers")


def torch_environment(store: Path, torch: str, python: str, log: Path) -> Environment:
    """Return the environment in the store with this torch and nothing else."""
    environments = Environments(Store(store), torch_index="")
    try:
        return environments.ensure(Python.parse(python), [f"torch=={torch}"], index=[], log=log)
    except MissingToolError as error:
        lacking(str(error))


def make_environment(store: Path, folder: Path, torch: str, python: str, wheels: Sequence[Path]) -> Path:
    """Return the interpreter of a new environment with this torch and these wheels.

    torch is in the store, installed once, and is found through a .pth file, which saves linking thousands of files.
    """
    base = torch_environment(store, torch, python, folder.with_suffix(".log"))
    made = run(find_uv(), "venv", "--no-project", "--python", base.interpreter, folder)
    assert made.code == 0, made.err
    interpreter = folder / "bin" / "python"
    site = folder / base.site_packages.relative_to(base.folder)
    (site / "torch.pth").write_text(f"{base.site_packages}\n")
    if wheels:
        installed = run(find_uv(), "pip", "install", "--no-deps", "--no-index", "--python", interpreter, *wheels)
        assert installed.code == 0, installed.err
    return interpreter


@dataclass(frozen=True)
class GateRun:
    """A run of the gate.

    Attributes:
        ran: exit code and output.
        answer: its answer.
        answer_bytes: size of the answer as JSON.
        cpu_seconds: CPU time of all its processes, which does not depend on other load.
        processes: command lines of processes that it left running.
        files: files that it left in the folder for temporary files.

    """

    ran: Ran
    answer: Answer
    answer_bytes: int
    cpu_seconds: float
    processes: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def failures(self) -> list[Outcome]:
        """The failed outcomes."""
        return [outcome for outcome in self.answer.outcomes if outcome.verdict == FAILED]

    def of(self, op: str, check: str = "") -> list[Outcome]:
        """The outcomes of an op, for one check or all."""
        return [o for o in self.answer.outcomes if o.op == op and check in ("", o.check)]

    def failure_text(self) -> str:
        """A line for each failure."""
        return "\n".join(f"{o.check}: {o.op} ({o.case}): {o.reason}" for o in self.failures)


@dataclass(frozen=True)
class PackedGate:
    """A packed gate.

    Attributes:
        command: the command line.
        env: environment variables in addition to those of this process.
        folder: its working directory, with `tmp` for temporary files and the answer in `answer.json`.
        owner: identifier in the environment of its processes.

    """

    command: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    owner: str

    def processes(self, timeout: float = 2.0) -> dict[int, str]:
        """Its processes that still run after `timeout` seconds: pid to command line."""
        deadline = time.monotonic() + timeout
        while True:
            found = {}
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if self.owner.encode() in (process / "environ").read_bytes():
                        found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if not found or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill its remaining processes."""
        for process in self.processes(timeout=0):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def pack_gate(interpreter: Path, folder: Path, spec: Spec, cases: Path | None) -> PackedGate:
    """Pack the gate into `folder` as buildfarm does."""
    (folder / "tmp").mkdir(parents=True)
    packed = pack(folder / "gate", replace(spec, has_cases=cases is not None), cases)
    command = (str(interpreter), "-I", "-X", "faulthandler", str(packed), "--answer", str(folder / "answer.json"))
    owner = uuid.uuid4().hex
    # Hide GPUs: the defects are in the CPU kernels.
    env = {"BUILDFARM_TEST_GATE": owner, "TMPDIR": str(folder / "tmp"), "CUDA_VISIBLE_DEVICES": ""}
    return PackedGate(command, env, folder, owner)


def run_gate(gate: PackedGate, *, timeout: float = 300) -> GateRun:
    """Run it and collect what it leaves."""
    before = _cpu_seconds()
    try:
        ran = run(*gate.command, cwd=gate.folder, env=gate.env, timeout=timeout)
        used = _cpu_seconds() - before
        left = tuple(gate.processes().values())
    finally:
        gate.kill()
    answer, scratch = gate.folder / "answer.json", gate.folder / "tmp"
    assert answer.is_file(), ran.all
    written = answer.read_bytes()
    files = tuple(str(path.relative_to(scratch)) for path in scratch.rglob("*"))
    return GateRun(ran, Answer.from_json(json.loads(written)), len(written), used, left, files)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cases(name: str) -> Path:
    """The cases.py of a sample extension."""
    path = SAMPLES / f"{name}_cases.py"
    if not path.is_file():
        pytest.fail(f"no {path}")
    return path
