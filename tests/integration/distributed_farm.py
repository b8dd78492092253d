"""A Dask scheduler, workers with stores of their own and clients, each in a process that a test can kill and restart.

They build the small project of the unit tests. Its torch is a stub that runs no ops, so the workers' op gate gives a
fixed answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from builder.process import OWNER_VARIABLE
from builder.store import Store
from tests.conftest import BUILDFARM
from tests.unit.canned_gate import answer
from tests.unit.small_project import SmallProject, small_project

#: Seconds until a state must be there, also on a machine that is busy with other work.
PATIENCE = 180.0
#: The module of the process in which a worker runs a task.
CHILD = "builder.commands.distributed.worker.child"
#: Environment variable of every process of a farm; its value is the farm's folder.
MARK = "BUILDFARM_TEST_FARM"
#: The signals of `Program.end`.
KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT

#: Put before the compile: tell the package index about its start, wait while the file of the extension's name exists,
#: and tell it about the end. A build may write no file outside its own folders.
SLOW = """\
import http.client as _client
INDEX, HOLDS = {index!r}, {holds!r}
def note(word):
    connection = _client.HTTPConnection(INDEX)
    connection.request("GET", f"/{{word}}/{{NAME}}")
    connection.getresponse().read()
    connection.close()
def hold():
    note("begin")
    wait = 'while [ -e "$1" ]; do sleep 0.1; done'
    subprocess.run(["sh", "-c", wait, "compiler", f"{{HOLDS}}/{{NAME}}"], check=True)
"""

#: Replaces the run of the op gate in the process of a task, and in a build without a scheduler.
CANNED = """\
import os, sys
_words = [os.path.basename(word) for word in sys.orig_argv]
if {child!r} in _words or {{"buildfarm", "build"}} <= set(_words):
    import json
    from builder.gate.outcome import Answer
    from builder.proofs.cells import local
    with open({answer!r}) as _stream:
        _answer = Answer.from_json(json.load(_stream))
    local.run_gate = lambda *_, **__: _answer
"""


def until(done: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for a state; the test fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            pytest.fail(f"after {seconds:.0f} s: not {what}")
        time.sleep(0.05)


@dataclass
class Program:
    """A running program with its output in a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace")

    def says(self, words: str, times: int = 1) -> None:
        """Wait until it has written these words so many times."""

        def said() -> bool:
            if (count := self.text.count(words)) < times and self.process.poll() is not None:
                pytest.fail(f"{self.name} ended with {self.process.poll()} and did not write {words!r}:\n{self.text}")
            return count >= times

        try:
            until(said, f"in the output of {self.name}: {words!r}")
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\n{self.text}")

    def code(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; return the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} did not end within {seconds:.0f} s:\n{self.text}")

    def end(self, number: signal.Signals = TERM, seconds: float = PATIENCE) -> int:
        """Send a signal and wait for the end; return the exit status."""
        self.process.send_signal(number)
        return self.code(seconds)

    def dask_workers(self) -> list[psutil.Process]:
        """The Dask workers below `buildfarm worker`, for builds and for proofs: it starts them again when they end."""
        found = [
            child
            for child in psutil.Process(self.process.pid).children()
            if any("multiprocessing.spawn" in word or "--multiprocessing-fork" in word for word in _words(child))
        ]
        assert len(found) == 2, found
        return found

    def dask_worker(self) -> int:
        """The process id of the Dask worker that runs the only build."""
        found = [worker.pid for worker in self.dask_workers() if any(map(_compiles, worker.children(recursive=True)))]
        assert len(found) == 1, found
        return found[0]


@dataclass
class DistributedFarm:
    """The parts of a farm.

    Attributes:
        project: what is built.
        folder: of everything that is not the project: stores, wheels, output of the programs.
        scheduler: the Dask scheduler that runs now.
        workers: those that were started, by name; each has the store `store(name)`.

    """

    project: SmallProject
    folder: Path
    scheduler: Program = field(init=False)
    workers: dict[str, Program] = field(default_factory=dict)
    address: str = ""
    _programs: list[Program] = field(default_factory=list)
    _stores: set[Path] = field(default_factory=set)

    def start_scheduler(self, *more: str | Path, allowed_failures: int | None = None) -> Program:
        """Start the scheduler with further options; from the second time on, with the address it had."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        port = urlsplit(self.address).port or 0
        env = (
            {} if allowed_failures is None else {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(allowed_failures)}
        )
        words = ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        dask = Path(sys.executable).with_name("dask")
        self.scheduler = self._start("scheduler", dask, *words, "--scheduler-file", file, *more, env=env)
        until(lambda: file.is_file() and file.read_text().rstrip().endswith("}"), "a scheduler that listens")
        self.address = json.loads(file.read_text())["address"]
        return self.scheduler

    def start_worker(self, name: str, *words: str | Path, builds: int = 1, wait: bool = True) -> Program:
        """Start a worker; it has the store of its name, also when it is started again."""
        argv = ["worker", self.address, "--store", str(self.store(name)), "--name", name]
        env = {"PYTHONPATH": str(self.folder / "canned")}
        self.workers[name] = program = self._start(name, BUILDFARM, *argv, "--builds", str(builds), *words, env=env)
        if wait:
            program.says("connected to")
        return program

    def start_client(self, *words: str | Path, store: str = "client", dist: str = "dist") -> Program:
        """Start `buildfarm build --scheduler` with a store and a folder for wheels of these names."""
        argv: list[str | Path] = [
            "build",
            "--scheduler",
            self.address,
            "--store",
            self.store(store),
            "--dist",
            self.folder / dist,
        ]
        return self._start(f"client-{store}", BUILDFARM, *argv, "--executor", "local", *words)

    def build(self, *words: str | Path, store: str = "client", dist: str = "dist") -> str:
        """Run `buildfarm build --scheduler` to its end, which must be without an error; return its output."""
        client = self.start_client(*words, store=store, dist=dist)
        assert client.code() == 0, client.text
        return client.text

    def build_here(self, *words: str | Path, store: str = "here", dist: str = "dist-here") -> str:
        """The same without a scheduler."""
        here = self.start_here(*words, store=store, dist=dist)
        assert here.code() == 0, here.text
        return here.text

    def start_here(self, *words: str | Path, store: str = "here", dist: str = "dist-here") -> Program:
        """Start `buildfarm build` without a scheduler."""
        argv: list[str | Path] = ["build", "--store", self.store(store), "--dist", self.folder / dist]
        argv += ["--executor", "local", *words]
        return self._start(store, BUILDFARM, *argv, env={"PYTHONPATH": str(self.folder / "canned")})

    def recipes(self, *names: str) -> None:
        """Write these extensions and a matrix of them; a test can hold the compile of each."""
        slow = SLOW.format(index=urlsplit(self.project.index.url).netloc, holds=str(self.folder / "holds"))
        for name in names:
            package = self.project.recipe(name)
            backend = package.parent / "backend.py"
            text = backend.read_text()
            before, line, after = text.partition("    if subprocess.run([*argv")
            assert line, text
            text = before.replace("def build_wheel", f"{slow}\ndef build_wheel") + "    hold()\n" + line + after
            text = text.replace("    info = f", '    note("end")\n    info = f', 1)
            lines = [line for line in text.splitlines(keepends=True) if "env.txt" not in line]  # it names the store
            backend.write_text("".join(lines))
        self.project.matrix(*names)

    def hold(self, *names: str) -> None:
        """Let compiles of these extensions wait."""
        for name in names:
            (self.folder / "holds" / name).touch()

    def release(self, *names: str) -> None:
        """Let them go on."""
        for name in names:
            (self.folder / "holds" / name).unlink()

    def compiles(self, name: str, word: str = "begin") -> int:
        """How many compiles of an extension began; with the word "end", how many ended without an error."""
        return self.project.index.requested.count(f"/{word}/{name}")

    def compiling(self, name: str, times: int = 1) -> None:
        """Wait until that many compiles of an extension began."""
        until(lambda: self.compiles(name) >= times, f"compile {times} of {name}")

    def store(self, name: str) -> Path:
        """The folder of a store."""
        path = self.folder / "stores" / name
        self._stores.add(path)
        return path

    def wheels(self, dist: str = "dist") -> dict[str, bytes]:
        """The wheels of a run, by file name."""
        return {path.name: path.read_bytes() for path in (self.folder / dist).glob("*.whl")}

    def processes(self, store: str | None = None) -> list[psutil.Process]:
        """The processes that run for the builds of a store; without a name, every process of this farm."""
        known = Store.__new__(Store)  # only for the name of its owner: it makes no folder
        stores = [self.store(store)] if store else list(self._stores)
        marks = []
        for path in stores:
            known.root = path
            marks.append(f"{OWNER_VARIABLE}={known.owner('')}".encode())
        own = f"{MARK}={self.folder}".encode()
        found = []
        for process in psutil.process_iter():
            try:
                variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                words = process.cmdline()
            except (OSError, psutil.Error):
                continue
            owned = any(variable.startswith(tuple(marks)) for variable in variables)
            if owned or (store is None and own in variables and words):
                found.append(process)
        return found

    def children(self) -> list[psutil.Process]:
        """The processes in which workers of this farm run a task."""
        return [process for process in self.processes() if CHILD in _words(process)]

    def end(self) -> None:
        """End every part in the order clients, workers, scheduler; then nothing may be left running."""
        for file in (self.folder / "holds").iterdir():
            file.unlink()
        workers = [program for program in self._programs if program in self.workers.values()]
        others = [program for program in self._programs if program not in workers and program is not self.scheduler]
        stuck = []
        for group in (others, workers, [self.scheduler]):
            for program in group:
                if program.process.poll() is None:
                    program.process.terminate()
            for program in group:
                try:
                    program.process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    stuck.append(f"{program.name} does not end:\n{program.text}")
                    program.process.kill()
                    program.process.wait()
        self.nothing_left(stuck)

    def show(self) -> None:
        """Print what every part wrote; pytest shows it when the test fails."""
        for program in self._programs:
            print(f"--- {program.name}\n{program.text}")

    def nothing_left(self, stuck: list[str] | None = None) -> None:
        """Wait until no process of the farm runs except the parts that were not ended; otherwise the test fails."""
        live = {program.process.pid for program in self._programs if program.process.poll() is None}
        live |= {child.pid for pid in live for child in psutil.Process(pid).children()}

        def left() -> list[psutil.Process]:
            return [process for process in self.processes() if process.pid not in live]

        deadline = time.monotonic() + PATIENCE
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)
        rest = left()
        found = [f"still runs: {process.pid} {' '.join(_words(process))}" for process in rest]
        for process in rest:
            with contextlib.suppress(psutil.Error):
                process.kill()
        assert not found + (stuck or []), "\n".join(found + (stuck or []))

    def _start(self, name: str, *argv: str | Path, env: dict[str, str] | None = None) -> Program:
        log = self.folder / f"{len(self._programs)}-{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [str(word) for word in argv],
                cwd=self.project.root,
                env={**os.environ, MARK: str(self.folder), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        program = Program(name, process, log)
        self._programs.append(program)
        return program


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _compiles(process: psutil.Process) -> bool:
    """Whether it is `uv build --wheel`."""
    return {"build", "--wheel"} <= set(_words(process))


@contextlib.contextmanager
def distributed_farm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *workers: str, allowed_failures: int | None = None, builds: int = 1
) -> Iterator[DistributedFarm]:
    """A scheduler and workers of these names, below an empty folder; `recipes` of the farm says what is built.

    After the body everything is ended. A process that still runs then is an error of the test.
    """
    for name in [name for name in os.environ if name.startswith(("DASK_", "BUILDFARM_SCHEDULER"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    parts = folder / "farm"
    for name in ("canned", "holds", "stores", "dask"):
        (parts / name).mkdir(parents=True)
    monkeypatch.setenv("DASK_CONFIG", str(parts / "dask"))  # no settings of this machine
    file = parts / "canned" / "answer.json"
    file.write_text(json.dumps(answer().to_json()))
    (parts / "canned" / "sitecustomize.py").write_text(CANNED.format(child=CHILD, answer=str(file)))
    (folder / "project").mkdir()
    with small_project(folder / "project", monkeypatch) as project:
        farm = DistributedFarm(project, parts)
        try:
            farm.start_scheduler(allowed_failures=allowed_failures)
            for name in workers:
                farm.start_worker(name, builds=builds, wait=False)
            for program in list(farm.workers.values()):
                program.says("connected to")
            yield farm
        finally:
            try:
                farm.end()
            finally:
                farm.show()
