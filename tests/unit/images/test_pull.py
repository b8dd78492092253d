"""A pull through the engine: what is requested, what is shown, and the error for each way to fail."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from builder import process
from builder.errors import Code, Exit
from builder.images import pull
from builder.images.engine import Engine, pull_missing
from builder.images.pull import PullProgress, pull_error, pull_image
from builder.log import console
from builder.process import Interrupted
from tests.conftest import PATIENCE
from tests.refused import refused
from tests.unit.images.fake_engine import FakeEngine

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
            pull_image(client, "registry.example/a:1", "registry.example/a:1")
    login = json.loads(base64.urlsafe_b64decode(sent["headers"]["X-Registry-Auth"]))
    assert (login["username"], login["password"]) == ("someone", "secret")


def test_missing_images_are_named_before_the_pull(fake: FakeEngine) -> None:
    for name in ("nvidia/cuda:12", "pypa/many:1"):
        fake.pulls[f"mirror.example/{name}"] = []
    fake.add_image("here:1", "sha256:here")
    engine = Engine({"docker.io": "mirror.example", "quay.io": "mirror.example"})
    with console.capture() as output:
        for _ in range(2):
            assert pull_missing(engine, ["nvidia/cuda:12", "here:1", "quay.io/pypa/many:1"]) == {}
    first, *others = output.get().splitlines()
    assert first == "pulling 2 base images: nvidia/cuda:12, quay.io/pypa/many:1, from mirror.example"
    assert [line.split(" (")[0] for line in others] == ["pulled nvidia/cuda:12", "pulled quay.io/pypa/many:1"]


def test_when_a_registry_cannot_be_reached_no_other_image_is_pulled(fake: FakeEngine) -> None:
    for name in ("a", "b"):
        fake.pulls[f"r.example/{name}:1"] = [{"error": "dial tcp: lookup x: no such host"}]
    problems = pull_missing(Engine(), ["r.example/a:1", "r.example/b:1"])
    assert list(problems) == ["r.example/a:1"]
    assert len(fake.pulled) == 1


def test_no_pull_names_each_missing_image_and_asks_no_registry(fake: FakeEngine) -> None:
    with console.capture() as output:
        problems = pull_missing(Engine(may_pull=False), ["a:1", "b:1"])
    assert [str(problem) for problem in problems.values()] == [
        f"{name}: this base image is not on this machine, and `--no-pull` forbids a pull" for name in ("a:1", "b:1")
    ]
    assert (output.get(), fake.pulled) == ("", [])


#: Messages of Docker Engine 20.10.24.
MESSAGES = [
    ("manifest for r.example/a:1 not found: manifest unknown: manifest unknown", "has no such image (", "images:"),
    (
        "pull access denied for a, repository does not exist or may require 'docker login': denied: requested access"
        " to the resource is denied",
        "has no such image, or requires a login for it (",
        "`docker login`",
    ),
    ("toomanyrequests: You have reached your pull rate limit.", "refuses more pulls for now (", "registries:"),
    ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "the disk is full (", "`docker system df`"),
    (
        'Get "https://r.example/v2/": dial tcp: lookup r.example: no such host',
        "the Docker engine cannot connect to the registry (Get",
        "BUILDFARM_REGISTRIES",
    ),
    ("unexpected EOF", "cannot connect to the registry (unexpected EOF)", "run the command again"),
    ("something new", "the Docker engine refuses (something new)", "run the command again"),
]


@pytest.mark.parametrize(("message", "sentence", "hint"), MESSAGES)
def test_the_error_for_a_message_of_the_engine(message: str, sentence: str, hint: str) -> None:
    error = pull_error("a:1", "r.example/team/a:1", message)
    assert error.sentence.startswith("team/a:1 cannot be pulled from r.example: ")
    assert sentence in error.sentence
    assert (error.where, error.exit_code) == ("a:1", Exit.TOOL_MISSING)
    assert any(hint in each for each in error.hints), error.hints


@pytest.mark.parametrize("event", [{"error": "unexpected EOF"}, {"errorDetail": {}, "error": "unexpected EOF"}])
def test_an_error_among_the_events_is_raised(fake: FakeEngine, event: dict[str, Any]) -> None:
    fake.pulls["docker.io/library/a:1"] = [layer("one", "Downloading", 5, 10), event]
    with refused(Code.NETWORK_UNREACHABLE, "unexpected EOF"):
        Engine().pull("a:1")


@contextmanager
def raw_engine(folder: Path, answer: Callable[[socket.socket], None]) -> Iterator[docker.DockerClient]:
    """The client of an engine that answers the first request by this function."""

    def serve() -> None:
        connection, _ = server.accept()
        connection.recv(1 << 16)
        answer(connection)
        connection.close()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        client = docker.DockerClient(base_url=f"unix://{folder / 's'}", version="1.41")
        yield client
        thread.join(PATIENCE)
        client.close()
        assert not thread.is_alive(), "the connection is closed, so the engine stops the download"


BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_an_engine_that_is_silent_for_too_long(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake
    monkeypatch.setattr(pull, "SILENCE_TIMEOUT", 0.5)

    def answer(connection: socket.socket) -> None:
        connection.sendall(BEGUN + b"2\r\n{}\r\n")
        connection.recv(1)  # until the client closes the connection

    with raw_engine(tmp_path, answer) as client, refused(Code.NETWORK_UNREACHABLE, "0.5 seconds"):
        pull_image(client, "a:1", "a:1")


@pytest.mark.parametrize("sent", [b"", BEGUN], ids=["none", "begun"])
def test_an_interrupt_does_not_wait_for_a_silent_engine(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    del fake
    monkeypatch.setattr(pull, "SILENCE_TIMEOUT", 600)
    monkeypatch.setattr(process, "_stopping", threading.Event())
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(sent)
        process.kill_all()
        ended.wait(PATIENCE)

    with raw_engine(tmp_path, answer) as client:
        with pytest.raises(Interrupted):
            pull_image(client, "a:1", "a:1")
        ended.set()


def test_the_progress_counts_the_bytes_of_all_layers() -> None:
    progress = PullProgress()
    assert (progress.phase, progress.total) == ("waiting", 0)
    progress.add({})
    progress.add({"id": "1", "status": "Pulling from a"})
    for identity in ("one", "two"):
        progress.add(layer(identity, "Pulling fs layer"))
    progress.add(layer("one", "Downloading", 30, 60))
    assert (str(progress), progress.total) == ("30 bytes of 60 bytes, downloading", 60)
    progress.add(layer("one", "Download complete"))
    progress.add(layer("two", "Retrying in 5 seconds"))
    assert str(progress) == "60 bytes of 60 bytes, retrying in 5 seconds"
    progress.add(layer("two", "Downloading", 40, 40))
    progress.add(layer("two", "Extracting", 10, 40))
    assert str(progress) == "100 bytes of 100 bytes, extracting"


def test_the_progress_is_printed_as_lines(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "LINE_SECONDS", 0)
    fake.pulls["docker.io/library/a:1"] = [layer("one", "Downloading", 5_000_000, 10_000_000)]
    with console.capture() as output:
        Engine().pull("a:1")
    assert output.get() == "a:1: 5.0 MB of 10.0 MB, downloading (0:00)\npulled a:1 (10.0 MB, 0:00)\n"
