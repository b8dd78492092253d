"""`buildfarm publish --to URL`: a real server, real installers, kills and cuts at random moments."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import requests

from builder.commands.index.publish import PublishOutcome, publish_wheels
from builder.publish.index.levels import Level
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server import client as server
from builder.publish.server.client import IndexServer
from builder.publish.server.tokens import Tokens
from builder.store import Store
from tests.conftest import Ran, run, wait_until
from tests.fixtures.index_server import Server, clean_environment, running
from tests.fixtures.killed import begin, context_of, enough, seeded
from tests.real.publish.remote.make import CELL, ON_GPU, proven_wheel
from tests.real.test_serve import _certificate as certificate
from tests.real.test_serve import pip, uv_pip
from tests.unit.publish.index.make import checked

#: Kills of `publish`; BUILDFARM_KILLS=50 makes a longer test.
KILLS = int(os.environ.get("BUILDFARM_KILLS", "20"))


def buildfarm(*words: str | Path, env: Mapping[str, str]) -> Ran:
    return run(sys.executable, "-m", "builder", *words, env=env)


def secret(root: Path, scope: str = "prove") -> str:
    return Tokens(root).add(scope.replace(":", "-"), (scope,), None)[0]


def publish(url: str, wheels: Sequence[Path], tmp_path: Path, token: str, *options: str) -> Ran:
    env = {**clean_environment(tmp_path), "BUILDFARM_TOKEN": token}
    return buildfarm("publish", *wheels, "--to", url, "--store", tmp_path / "store", *options, env=env)


def test_published_through_a_server_and_installed(tmp_path: Path) -> None:
    root = tmp_path / "index"
    wheels = [proven_wheel(tmp_path / "dist", checks=ON_GPU), proven_wheel(tmp_path / "dist", "other")]
    with running(root) as index:
        token = secret(root)
        done = publish(index.url, wheels, tmp_path, token)
        assert done.code == 0, done.all
        assert done.out.count("published  ") == 2
        assert f"pip install --extra-index-url {index.url}/cu130/torch2.11/ my-ext==1.0+cu130.torch2.11" in done.out
        again = publish(index.url, wheels, tmp_path, token)
        assert (again.code, again.out.count("already published")) == (0, 2), again.all
        assert index.log.read_text().count('POST /legacy/ HTTP/1.1" 200') == 2
        assert token not in index.log.read_text() + done.all + again.all
        env = clean_environment(tmp_path)
        for number, install in enumerate((pip, uv_pip)):
            found = install(f"{index.url}/cu130/", tmp_path / str(number), env, "--no-deps", "my-ext")
            assert found.code == 0, found.all
            assert (tmp_path / str(number) / "my_ext" / "_C.so").is_file()
    repository = Repository(Folder(root))
    levels = {
        name: entry.farm and entry.farm.cells for name in repository.projects() for entry in repository.entries(name)
    }
    assert levels == {"my-ext": {CELL: "gpu"}, "other": {CELL: "cpu"}}
    check = checked(repository)
    assert (check.wheels, check.faults, check.finished) == (2, (), ())


def test_over_tls_with_a_token_in_netrc(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    root, wheel = tmp_path / "index", proven_wheel(tmp_path / "dist")
    with running(root, "--tls-cert", str(cert), "--tls-key", str(key), "--read-token-required") as index:
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine 127.0.0.1 login __token__ password {secret(root)}\n")
        netrc.chmod(0o600)
        env = {**clean_environment(tmp_path), "NETRC": str(netrc)}
        words = ("publish", wheel, "--to", index.url, "--store", tmp_path / "store")
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
            env.pop(name, None)
        refused = buildfarm(*words, env=env)
        assert refused.code == 4, refused.all
        assert "set SSL_CERT_FILE to a CA bundle" in " ".join(refused.all.split())
        done = buildfarm(*words, env={**env, "SSL_CERT_FILE": str(cert)})
        assert done.code == 0, done.all


def slowly(self: server.UploadBody) -> Iterator[bytes]:
    """The parts of a form, as a slow network takes them, so that kills hit the upload."""
    for chunk in plain_parts(self):
        yield chunk
        time.sleep(0.01)


plain_parts = server.UploadBody.__iter__


def send(url: str, token: str, wheels: Sequence[Path], store: Path, begun: Connection) -> None:
    """`buildfarm publish --to URL`, which starts faster without the command line."""
    os.environ["BUILDFARM_TOKEN"] = token
    server.UploadBody.__iter__ = slowly  # type: ignore[method-assign]
    begun.send(None)
    results = publish_wheels(IndexServer(url), wheels, Store(store), [Level.CPU])
    assert all(result.outcome is not PublishOutcome.REFUSED for result in results), results


def test_a_killed_publish_leaves_nothing_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, context = seeded(), context_of(__name__)
    root, store, temporary = tmp_path / "index", tmp_path / "store", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    repository = Repository(Folder(root))
    known: set[str] = set()
    kills = during = continued = 0
    with running(root) as index:
        token = secret(root)

        def start(wheels: Sequence[Path]) -> BaseProcess:
            return begin(context, send, index.url, token, wheels, store)[0]

        def made(kill: int) -> list[Path]:
            files: dict[str, str | bytes] = {"my_ext/data.bin": seed.randbytes(4_000_000)}
            return [proven_wheel(tmp_path / f"{kill}", "my_ext", f"{kill}.{one}", files=files) for one in range(2)]

        for number in (10_001, 10_002):  # the first run also waits for imports
            process, began = start(made(number)), time.monotonic()
            process.join()
            assert process.exitcode == 0
            duration = time.monotonic() - began
        while not enough(kills, during, wanted=KILLS, of=KILLS // 4 + 1):
            kills += 1
            wheels = made(kills)
            process = start(wheels)
            time.sleep(seed.random() * duration)
            process.kill()
            process.join()
            there = {entry.filename for entry in repository.entries("my-ext")}
            during += not {wheel.name for wheel in wheels} <= there
            assert known <= there
            if kills % 4 == 0:
                again = start(wheels)
                again.join()
                assert again.exitcode == 0
                known |= {wheel.name for wheel in wheels}
                continued += 1
        wait_until(lambda: not any(temporary.glob("buildfarm-upload-*")), "a server without what killed clients sent")
        assert index.stop() == 0
        assert '" 500' not in index.log.read_text()
    check = checked(repository)
    assert (check.faults, check.finished) == ((), ())
    assert known <= {entry.filename for entry in repository.listed("my-ext")}
    assert all(entry.farm and entry.farm.cells == {CELL: "cpu"} for entry in repository.entries("my-ext"))
    print(f"{kills} kills, {during} during an upload, {continued} continued, {check.wheels} wheels")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of an empty index, for clients in this process."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(server, "_RETRIES", server._RETRIES.new(backoff_factor=0.1))
    with running(tmp_path / "index") as started:
        monkeypatch.setenv("BUILDFARM_TOKEN", secret(started.root))
        yield started


def test_a_cut_network(index: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, str | bytes] = {"my_ext/data.bin": os.urandom(3_000_000)}
    wheel, cuts = proven_wheel(tmp_path / "dist", files=files), [1, 2_000_000, 2_900_000]

    def cut(self: server.UploadBody) -> Iterator[bytes]:
        left = cuts.pop(0) if cuts else 2**62
        for chunk in plain_parts(self):
            yield chunk
            left -= len(chunk)
            if left < 0:  # the connection is closed in the middle of the form
                raise requests.ConnectionError("cut")

    monkeypatch.setattr(server.UploadBody, "__iter__", cut)
    (result,) = publish_wheels(IndexServer(index.url), [wheel], Store(tmp_path / "store"), [Level.CPU])
    assert result.outcome is PublishOutcome.PUBLISHED
    assert index.log.read_text().count('POST /legacy/ HTTP/1.1" 200') == 1
    assert not cuts
    check = checked(Repository(Folder(index.root)))
    assert (check.wheels, check.faults) == (1, ())
