"""What goes wrong between machines: a full disk, a deadly build, certificates, other versions."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import BUILDFARM, ROOT, lacking, wait_until
from tests.fixtures.container_farm import small_disk
from tests.fixtures.distributed_farm import Program, distributed_farm

pytestmark = pytest.mark.slow

TLS = "DASK_DISTRIBUTED__COMM__TLS__"


def failed(client: Program, code: int) -> str:
    """The output of a client that ends with this code and one error, without a traceback and lines of Dask."""
    assert client.code() == code, client.text
    for words in ("Traceback", "- distributed", "Warning:", "asyncio"):
        assert words not in client.text, client.text
    assert client.text.count("error[") == 1, client.text
    return " ".join(client.text.split())


@contextlib.contextmanager
def stalling_proxy(port: int, answered: int) -> Iterator[tuple[int, list[socket.socket]]]:
    """A proxy of a port that forwards so many connections, and leaves each later one without an answer."""
    listener, made = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                made.append(near := stack.enter_context(listener.accept()[0]))
                if len(made) <= answered:
                    far = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

    with listener, contextlib.ExitStack() as stack:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], made
        listener.shutdown(socket.SHUT_RDWR)


def test_a_signal_ends_a_worker_that_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler answers the two connections that ask whether it is there, and no other."""
    with (
        distributed_farm(tmp_path, monkeypatch) as farm,
        stalling_proxy(urlsplit(farm.address).port or 0, 2) as (port, made),
    ):
        direct, farm.address = farm.address, f"tcp://127.0.0.1:{port}"
        worker = farm.start_worker("alpha", wait=False)
        wait_until(lambda: len(made) > 2, "the connection of Dask's worker")
        farm.address = direct
        assert worker.end() == 0, worker.text
        assert "connected to" not in worker.text


def test_a_full_disk_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with distributed_farm(tmp_path, monkeypatch) as farm, small_disk(farm.store("full")):
        worker = farm.start_worker("full")
        fill(farm.store("full") / "filler")
        farm.recipes("one_ext")
        said = failed(farm.start_client(), 1)
        assert "disk" in said, said
        assert "is full" in said, said
        farm.start_worker("beta")
        said = farm.build("--worker-timeout", "300")
        assert said.count("another worker gets it") <= 1, said
        assert len(farm.wheels()) == 1
        worker.end()


def fill(file: Path) -> None:
    """Write a file until the disk is full."""
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1 << 12))


def test_a_build_that_kills_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confined build cannot do it itself, but the kernel does it for a build that uses up the memory."""
    with distributed_farm(tmp_path, monkeypatch, "alpha", allowed_failures=1) as farm:
        farm.recipes("one_ext")
        farm.hold("one_ext")
        client = farm.start_client()
        for times in (1, 2):
            farm.compiling("one_ext", times)
            os.kill(farm.workers["alpha"].dask_worker(), signal.SIGKILL)
        assert "2 workers ended while they had this task" in failed(client, 1)


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = certificates(tmp_path / "ours"), certificates(tmp_path / "others")
    with distributed_farm(tmp_path, monkeypatch) as farm:
        farm.scheduler.end()
        words = ("--tls-ca-file", ours / "ca.pem", "--tls-cert", ours / "cert.pem", "--tls-key", ours / "key.pem")
        farm.start_scheduler("--protocol", "tls", *words)
        assert farm.address.startswith("tls://")
        farm.recipes("one_ext")
        plain = farm.address.replace("tls:", "tcp:")

        said = failed(farm.start_client(), 4)
        assert "needs a certificate" in said, said
        said = failed(farm.start_client("--scheduler", plain), 4)
        assert "it wants TLS" in said, said
        said = failed(farm.start_worker("plain", "--wait", "0", wait=False), 4)
        assert "needs a certificate" in said, said
        use(monkeypatch, others)
        said = failed(farm.start_client(), 4)
        assert "the certificate of the scheduler is not trusted" in said, said
        said = failed(farm.start_worker("other", "--wait", "0", wait=False), 4)
        assert "the certificate of the scheduler is not trusted" in said, said
        monkeypatch.setenv(f"{TLS}CA_FILE", str(ours / "ca.pem"))
        said = failed(farm.start_client(), 4)
        assert "does not accept the certificate" in said, said

        use(monkeypatch, ours)
        farm.start_worker("alpha")
        farm.build()
        assert len(farm.wheels()) == 1


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Tell Dask in new processes to use these certificates."""
    monkeypatch.setenv(f"{TLS}CA_FILE", str(folder / "ca.pem"))
    for role in ("WORKER", "CLIENT"):
        monkeypatch.setenv(f"{TLS}{role}__CERT", str(folder / "cert.pem"))
        monkeypatch.setenv(f"{TLS}{role}__KEY", str(folder / "key.pem"))


def certificates(folder: Path) -> Path:
    """Make a certificate authority, and a certificate of it."""
    if shutil.which("openssl") is None:
        lacking("no openssl on this machine")
    folder.mkdir()
    new = ("-newkey", "rsa:2048", "-nodes", "-subj")
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    for words in (
        ("req", "-x509", *new, f"/CN=authority {folder.name}", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem"),
        ("req", *new, "/CN=machine", "-keyout", "key.pem", "-out", "request.pem"),
        ("x509", "-req", "-in", "request.pem", *sign, "-out", "cert.pem"),
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    return folder


def test_workers_of_another_version_and_without_buildfarm_get_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_farm(tmp_path, monkeypatch) as farm:
        copy = tmp_path / "copy"
        shutil.copytree(ROOT / "builder", copy / "builder", ignore=shutil.ignore_patterns("__pycache__"))
        with (copy / "builder/formats.py").open("a") as stream:
            stream.write("PROTOCOL = 0\n")
        argv = ("worker", farm.address, "--store", farm.store("other"), "--name", "other", "--builds", "1")
        env = {"PYTHONPATH": f"{copy}{os.pathsep}{farm.folder / 'canned'}"}
        farm.workers["other"] = farm._start("other", BUILDFARM, *argv, env=env)
        dask = Path(sys.executable).with_name("dask")
        words = ("--host", "127.0.0.1", "--no-dashboard", "--local-directory", tmp_path / "dask-scratch")
        farm.workers["bare"] = farm._start("bare", dask, "worker", farm.address, "--name", "bare", *words)
        farm.workers["other"].says("connected to")
        farm.workers["bare"].says("Starting established connection")
        farm.recipes("one_ext")
        # The time of one day would be too long for this test: it must not be waited for.
        said = failed(farm.start_client("--worker-timeout", "86400"), 4)
        assert "the worker other has" in said, said
        assert "the worker bare has no buildfarm" in said, said

        farm.start_worker("alpha")
        said = " ".join(farm.build("--worker-timeout", "300").split())
        assert said.count("the worker other has") == 1, said
        assert said.count("the worker bare has no buildfarm") == 1, said
        assert len(farm.wheels()) == 1
        assert not list((farm.store("other") / "builds").glob("*"))


def test_no_worker_can_run_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    with distributed_farm(tmp_path, monkeypatch, "alpha") as farm:
        farm.recipes("one_ext", "two_ext")
        said = failed(farm.start_client("--executor", "docker", "--worker-timeout", "3"), 4)
        assert "no worker can run this build: alpha has no Docker" in said, said
        for name in ("one_ext", "two_ext"):
            recipe = farm.project.root / name / "extension.yaml"
            recipe.write_text(recipe.read_text().replace("memory_per_job: 16MiB", "memory_per_job: 90000GiB"))
        said = failed(farm.start_client("--worker-timeout", "3"), 4)
        assert "alpha has less than" in said, said
        farm.workers["alpha"].end()
        said = failed(farm.start_client("--worker-timeout", "3"), 4)
        assert "is connected to the scheduler" in said, said
