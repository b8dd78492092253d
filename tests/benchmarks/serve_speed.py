"""How fast `buildfarm serve` answers, beside pypiserver and devpi. Run: python -m tests.benchmarks.serve_speed.

All servers get the same wheels. The same clients ask each server for the pages of the projects, one page after the
other, as fast as they can, for a few seconds. A client keeps its connection if the server allows it. The figures are
answers in one second, the processor time of an answer, and the memory of the server (RSS of its processes). The
processor time does not depend on what else the machine does.

Then `buildfarm serve` gets an index of 100,000 wheels, which exist as records and pages only. The clients ask for the
page of each project, and the memory is measured again.

pypiserver and devpi-server are installed from the package index, each into an environment of its own. pypiserver runs
twice: as it is installed, and with its cache and gunicorn, whose threads keep connections open.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import uv

from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from tests.benchmarks.index_speed import write_records
from tests.fixtures.servers import free_port
from tests.unit.loopback import pure_wheel

CLIENTS, ROUNDS = 4, 3
_ENVIRONMENT = {**os.environ, "GUNICORN_CMD_ARGS": "--threads 8"}
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"


def client(port: int, paths: Sequence[str], seconds: float, done: multiprocessing.Queue[int]) -> None:
    """Ask for the paths again and again; put the number of answers with status 200 into a queue."""
    requests = [
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: {_ACCEPT}\r\nUser-Agent: pip/26.3\r\n\r\n".encode()
        for path in paths
    ]
    answers, connection, end = 0, None, time.monotonic() + seconds
    while time.monotonic() < end:
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        connection.sendall(requests[answers % len(requests)])
        if not _read_answer(connection):
            connection.close()
            connection = None
        answers += 1
    done.put(answers)


def _read_answer(connection: socket.socket) -> bool:
    """Read an answer; return whether the connection stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        assert more, data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b" 200 " in lines[0] + b" ", head
    headers = dict(line.split(b": ", 1) for line in lines[1:])
    size = int(headers[b"content-length"]) if b"content-length" in headers else None
    while size is None or len(body) < size:
        more = connection.recv(65536)
        if not more:
            return False
        body += more
    return not (lines[0].startswith(b"http/1.0") or headers.get(b"connection") == b"close")


def rate(port: int, paths: Sequence[str], seconds: float) -> float:
    """Answers in one second to all clients together."""
    done: multiprocessing.Queue[int] = multiprocessing.Queue()
    step = len(paths) // CLIENTS
    clients = [
        multiprocessing.Process(
            target=client, args=(port, [*paths[step * number :], *paths[: step * number]], seconds, done)
        )
        for number in range(CLIENTS)
    ]
    started = time.monotonic()
    for process in clients:
        process.start()
    for process in clients:
        process.join()
    assert [process.exitcode for process in clients] == [0] * CLIENTS
    return sum(done.get() for _ in clients) / (time.monotonic() - started)


def processes(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def memory(pid: int) -> float:
    """The memory of a process and of its children, MiB."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in processes(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu(pid: int) -> float:
    """The processor time of a process and of its children, seconds."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in processes(pid)]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(argv: Sequence[str | Path], port: int) -> Iterator[int]:
    """Run a server; give its process id."""
    process = subprocess.Popen(
        [str(word) for word in argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=_ENVIRONMENT,
    )
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, f"{argv[0]} has ended"
                time.sleep(0.1)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


def environment(folder: Path, *packages: str, python: str | Path = sys.executable) -> Path:
    """Install packages into an environment; return the folder of its programs."""
    tool = uv.find_uv_bin()
    subprocess.run([tool, "venv", "-q", "-p", str(python), str(folder)], check=True)
    subprocess.run([tool, "pip", "install", "-q", "-p", str(folder), *packages], check=True)
    return folder / "bin"


def serve_argv(root: Path, port: int) -> list[str | Path]:
    """The command line of `buildfarm serve`."""
    return [sys.executable, "-m", "builder", "serve", root, "--port", str(port)]


def fill_devpi(programs: Path, folder: Path, port: int, wheels: Path) -> None:
    """Upload the wheels into an index of devpi."""
    devpi = [str(programs / "devpi"), "--clientdir", str(folder / "devpi-client")]
    for words in (
        ["use", f"http://127.0.0.1:{port}"],
        ["login", "root", "--password="],
        ["index", "-c", "bench", "bases="],
        ["use", "root/bench"],
        ["upload", "--from-dir", str(wheels)],
    ):
        argv = [devpi[0], words[0], *devpi[1:], *words[1:]]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=600)


@dataclass
class Rival:
    """A server of the comparison: its process, its port, the paths of its pages, and what was measured."""

    name: str
    pid: int
    port: int
    paths: Sequence[str]
    rates: list[float] = field(default_factory=list)
    spent: float = 0.0
    answers: float = 0.0

    def measure(self, seconds: float) -> None:
        """Let the clients ask once more."""
        before, started = cpu(self.pid), time.monotonic()
        self.rates.append(rate(self.port, self.paths, seconds))
        self.spent += cpu(self.pid) - before
        self.answers += self.rates[-1] * (time.monotonic() - started)

    @property
    def cost(self) -> float:
        """Processor time of an answer, milliseconds."""
        return self.spent / self.answers * 1000


def compare(folder: Path, projects: int, seconds: float, *, devpi: bool) -> None:
    """Measure the servers with the same wheels, in turns."""
    wheels, root = folder / "wheels", folder / "index"
    made = [pure_wheel(wheels, f"project_{n}", f"{m}.0+cu130") for n in range(projects) for m in range(1, 6)]
    repository = Repository(Folder(root))
    for wheel in made:
        repository.add(new_wheel(wheel, []))
    print(f"{len(made)} wheels of {projects} projects, {CLIENTS} clients, {ROUNDS} rounds of {seconds:g} s", flush=True)
    paths = [f"/simple/project-{number}/" for number in range(projects)]
    with ExitStack() as stack:
        port = free_port()
        rivals = [Rival("buildfarm serve", stack.enter_context(server(serve_argv(root, port), port)), port, paths)]
        programs, port = environment(folder / "pypiserver", "pypiserver", "watchdog", "gunicorn"), free_port()
        argv: list[str | Path] = [programs / "pypi-server", "run", "-i", "127.0.0.1", "-p", str(port)]
        rivals.append(Rival("pypiserver", stack.enter_context(server([*argv, wheels], port)), port, paths))
        argv, port = argv[:-1], free_port()
        argv += [str(port), "--server", "gunicorn", "--backend", "cached-dir", wheels]
        rivals.append(Rival("with gunicorn", stack.enter_context(server(argv, port)), port, paths))
        if devpi:
            programs, port = environment(folder / "devpi", "devpi-server", "devpi-client"), free_port()
            data = folder / "devpi-data"
            init = [str(programs / "devpi-init"), "--serverdir", str(data), "--no-root-pypi"]
            subprocess.run(init, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            pid = stack.enter_context(
                server([programs / "devpi-server", "--serverdir", data, "--port", str(port)], port)
            )
            fill_devpi(programs, folder, port, wheels)
            pages = [f"/root/bench/+simple/project-{number}/" for number in range(projects)]
            rivals.append(Rival("devpi-server", pid, port, pages))
        for _ in range(ROUNDS):
            for rival in rivals:
                rival.measure(seconds)
        ours = rivals[0]
        for rival in rivals:
            times = f"{median(ours.rates) / median(rival.rates):.1f} and {rival.cost / ours.cost:.1f}"
            print(
                f"{rival.name:<15} {median(rival.rates):6.0f} answers/s  {rival.cost:6.3f} ms of processor time"
                f"  {memory(rival.pid):4.0f} MiB  (buildfarm is {times} times as fast)",
                flush=True,
            )


def large(folder: Path, count: int, seconds: float) -> None:
    """Measure the memory of the server with many wheels."""
    root = folder / "large"
    write_records(root, count)
    repository = Repository(Folder(root))
    repository.write_all_pages()
    port = free_port()
    started = time.monotonic()
    with server(serve_argv(root, port), port) as pid:
        ready = time.monotonic() - started
        idle = memory(pid)
        speed = rate(port, [f"/simple/{project}/" for project in repository.projects()], seconds)
        print(
            f"{count} wheels: ready after {ready:.1f} s, {idle:.0f} MiB; {speed:.0f} answers/s, {memory(pid):.0f} MiB"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--projects", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--large", type=int, default=100_000, help="wheels of the large index; 0: leave it out")
    parser.add_argument("--without-devpi", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="buildfarm-serve-"))
    try:
        compare(folder, args.projects, args.seconds, devpi=not args.without_devpi)
        if args.large:
            large(folder, args.large, args.seconds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
