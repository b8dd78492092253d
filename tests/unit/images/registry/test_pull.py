"""A pull through the engine: what is requested, what is shown, and the error for each way to fail."""

from __future__ import annotations

import base64
import json
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from builder import process
from builder.errors import Code, Exit
from builder.images.engine import Engine, pull_missing
from builder.images.registry import pull
from builder.images.registry.pull import PullProgress, pull_error, pull_image
from builder.images.registry.reference import Mirrors
from builder.log import console
from builder.matrix.axes import Platform
from builder.process import Interrupted
from tests.conftest import PATIENCE, wait_until
from tests.refused import refused
from tests.unit.fake_clock import FakeClock
from tests.unit.images.fake_engine import FakeEngine
from tests.unit.images.registry.stand_in_registry import Registry

PLATFORM = Platform.LINUX_X86_64
DIGEST = "sha256:" + "11" * 32


def layer(identity: str, status: str, current: int = 0, total: int = 0) -> dict[str, Any]:
    return {"id": identity, "status": status, "progressDetail": {"current": current, "total": total} if total else {}}


def test_a_digest_is_pulled_without_the_tag(fake: FakeEngine) -> None:
    fake.pulls[f"registry.example/team/cuda@{DIGEST}"] = []
    Engine().pull(f"registry.example/team/cuda:12@{DIGEST}")
    assert fake.pulled == [{"fromImage": "registry.example/team/cuda", "tag": DIGEST}]


def test_the_login_of_the_registry_is_passed_on(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    (tmp_path / "docker").mkdir()
    entry = {"auth": base64.b64encode(b"someone:secret").decode()}
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": {"registry.example": entry}}))
    sent: dict[str, Any] = {}

    def post(*_: Any, **arguments: Any) -> Any:
        sent.update(arguments)
        raise docker.errors.DockerException("enough")

    with closing(docker.from_env()) as client:
        monkeypatch.setattr(client.api, "post", post)
        with refused(Code.ENGINE_NOT_ANSWERING):
            pull_image(client, "registry.example/a:1", "registry.example/a:1", None)
    login = json.loads(base64.urlsafe_b64decode(sent["headers"]["X-Registry-Auth"]))
    assert (login["username"], login["password"]) == ("someone", "secret")


def test_missing_images_are_named_with_their_size_before_the_pull(fake: FakeEngine, registry: Registry) -> None:
    for name, sizes in (("nvidia/cuda:12", [3_000_000_000, 900_000_000]), ("pypa/many:1", [500_000_000])):
        manifest = {"schemaVersion": 2, "layers": [{"size": size} for size in sizes]}
        registry.manifests[name] = json.dumps(manifest).encode()
        fake.pulls[f"{registry.address}/{name}"] = []
    fake.add_image("here:1", "sha256:here")
    engine = Engine(Mirrors({"docker.io": registry.address, "quay.io": registry.address}))
    with console.capture() as output:
        assert pull_missing(engine, ["nvidia/cuda:12", "here:1", "quay.io/pypa/many:1"], PLATFORM) == {}
        assert pull_missing(engine, ["nvidia/cuda:12", "here:1", "quay.io/pypa/many:1"], PLATFORM) == {}
    first, *others = output.get().splitlines()
    assert first == (
        "pulling 2 base images (4.4 GB compressed): nvidia/cuda:12 (3.9 GB), quay.io/pypa/many:1 (500.0 MB),"
        f" from {registry.address}"
    )
    assert [line.split(" (")[0] for line in others] == ["pulled nvidia/cuda:12", "pulled quay.io/pypa/many:1"]


def test_the_size_is_that_of_the_platform(registry: Registry) -> None:
    digests = {machine: registry.add(f"a/b:{machine}") for machine in ("amd64", "arm64")}
    for machine, size in (("amd64", 7), ("arm64", 9)):
        digest = "sha256:" + str(size) * 64
        digests[machine] = digest
        registry.manifests[f"a/b:{digest}"] = json.dumps({"layers": [{"size": size}]}).encode()
    rows = [{"digest": digest, "platform": {"architecture": machine}} for machine, digest in digests.items()]
    registry.manifests["a/b:1"] = json.dumps({"manifests": rows}).encode()
    from builder.images.registry.client import find_size

    assert find_size(f"{registry.address}/a/b:1", Platform.LINUX_X86_64) == 7
    assert find_size(f"{registry.address}/a/b:1", Platform.LINUX_AARCH64) == 9


def test_an_unknown_size_does_not_prevent_the_pull(fake: FakeEngine, registry: Registry) -> None:
    fake.pulls[f"{registry.address}/a:1"] = []
    with console.capture() as output:
        assert pull_missing(Engine(), [f"{registry.address}/a:1"], PLATFORM) == {}
    assert output.get().splitlines()[0] == f"pulling 1 base image: {registry.address}/a:1"


def test_when_a_registry_cannot_be_reached_no_other_image_is_pulled(fake: FakeEngine, registry: Registry) -> None:
    for name in ("a", "b"):
        fake.pulls[f"{registry.address}/{name}:1"] = [{"error": "dial tcp: lookup x: no such host"}]
    problems = pull_missing(Engine(), [f"{registry.address}/a:1", f"{registry.address}/b:1"], PLATFORM)
    assert list(problems) == [f"{registry.address}/a:1"]
    assert len(fake.pulled) == 1


def test_no_pull_names_each_missing_image_and_asks_no_registry(fake: FakeEngine) -> None:
    with console.capture() as output:
        problems = pull_missing(Engine(may_pull=False), ["a:1", "b:1"], PLATFORM)
    assert [str(problem) for problem in problems.values()] == [
        f"{name}: this base image is not on this machine, and `--no-pull` forbids a pull" for name in ("a:1", "b:1")
    ]
    assert (output.get(), fake.pulled) == ("", [])


#: Messages of Docker Engine 20.10.24.
MESSAGES = [
    ("manifest for r.example/a:1 not found: manifest unknown: manifest unknown", "has no image team/a:1", "images:"),
    (
        'Head "https://r.example/v2/a/manifests/1": no basic auth credentials',
        "has no image team/a:1, or requires a login",
        "`docker login r.example`",
    ),
    (
        "pull access denied for a, repository does not exist or may require 'docker login': denied: requested access"
        " to the resource is denied",
        "has no image team/a:1, or requires a login for this image",
        "`docker login r.example`",
    ),
    ("toomanyrequests: You have reached your pull rate limit.", "refuses more pulls for now", "registries:"),
    (
        "write /var/lib/docker/tmp/GetImageBlob1: no space left on device",
        "the disk of the Docker engine is full",
        "`docker system df`",
    ),
    (
        "failed to register layer: Error processing tar file(exit status 1): write /x: no space left on device",
        "the disk of the Docker engine is full",
        "`docker system df`",
    ),
    (
        'Get "https://r.example/v2/": dial tcp: lookup r.example: no such host',
        "the connection to the registry r.example failed: Get",
        "BUILDFARM_REGISTRIES",
    ),
    ("unexpected EOF", "the connection to the registry r.example failed: unexpected EOF", "run the command again"),
    ("something new", "the Docker engine cannot pull this image: something new", "run the command again"),
]


@pytest.mark.parametrize(("message", "sentence", "hint"), MESSAGES)
def test_the_error_for_a_message_of_the_engine(message: str, sentence: str, hint: str) -> None:
    error = pull_error("a:1", "r.example/team/a:1", message)
    assert sentence in error.sentence
    assert (error.where, error.exit_code) == ("a:1", Exit.TOOL_MISSING)
    assert any(hint in each for each in error.hints), error.hints


@pytest.mark.parametrize("event", [{"error": "unexpected EOF"}, {"errorDetail": {}, "error": "unexpected EOF"}])
def test_an_error_among_the_events_is_raised(fake: FakeEngine, event: dict[str, Any]) -> None:
    fake.pulls["docker.io/library/a:1"] = [layer("one", "Downloading", 5, 10), event]
    with refused(Code.NETWORK_UNREACHABLE, "unexpected EOF"):
        Engine().pull("a:1")


def test_an_engine_that_is_silent_for_too_long(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    monkeypatch.setattr(pull, "SILENCE_TIMEOUT", 0.5)
    address = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
            connection.recv(1)  # until the client closes the connection
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        client = docker.DockerClient(base_url=f"unix://{address}", version="1.41")
        with refused(Code.NETWORK_UNREACHABLE, "0.5 seconds"):
            pull_image(client, "a:1", "a:1", None)
        thread.join(PATIENCE)
        client.close()
        assert not thread.is_alive(), "the connection is closed, so the engine stops the download"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"], ids=["none", "begun"]
)
def test_an_interrupt_does_not_wait_for_a_silent_engine(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    del fake
    monkeypatch.setattr(pull, "SILENCE_TIMEOUT", 600)
    monkeypatch.setattr(process, "_stopping", threading.Event())
    address = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        client = docker.DockerClient(base_url=f"unix://{address}", version="1.41")

        def interrupt() -> None:
            connection, _ = server.accept()
            connection.recv(1 << 16)
            connection.sendall(answer)
            process.kill_all()
            ended.wait(PATIENCE)
            connection.close()

        ended, thread = threading.Event(), threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(Interrupted):
            pull_image(client, "a:1", "a:1", None)
        ended.set()
        thread.join()
        client.close()


def test_the_progress_counts_the_bytes_of_all_layers() -> None:
    progress = PullProgress(100)
    assert (progress.phase, progress.total) == ("asking the registry", 100)
    progress.add({"id": "1", "status": "Pulling from a"})
    for identity in ("one", "two"):
        progress.add(layer(identity, "Pulling fs layer"))
    progress.add(layer("one", "Downloading", 30, 60))
    assert (progress.downloaded, progress.total, progress.phase) == (30, 100, "downloading")
    progress.add(layer("one", "Download complete"))
    progress.add(layer("two", "Retrying in 5 seconds"))
    assert (progress.downloaded, progress.phase) == (60, "retrying in 5 seconds")
    progress.add(layer("two", "Downloading", 40, 40))
    progress.add(layer("two", "Extracting", 10, 40))
    assert (progress.downloaded, progress.phase) == (100, "unpacking")


def test_without_a_terminal_the_progress_is_printed_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    printed = threading.Event()

    def take(line: str) -> None:
        lines.append(line)
        printed.set()

    clock = FakeClock()
    monkeypatch.setattr(pull, "LINE_SECONDS", 0.05)
    monkeypatch.setattr(pull, "print_line", take)
    progress = PullProgress(None)
    progress.add(layer("one", "Downloading", 5_000_000, 10_000_000))
    with pull.shown("a:1", progress, clock):
        assert printed.wait(PATIENCE)
        clock.step(70)
        wait_until(lambda: "a:1: 5.0 MB of 10.0 MB, downloading (1:10)" in lines, "a line with the new time")
    assert lines[0] == "a:1: 5.0 MB of 10.0 MB, downloading (0:00)"
    assert lines[-1] == "pulled a:1 (10.0 MB, 1:10)"
