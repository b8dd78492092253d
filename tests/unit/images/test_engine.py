from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from docker.errors import DockerException

from builder.errors import Exit, MissingToolError
from builder.images.engine import Engine, image_build_error
from tests.unit.images.fake_engine import FakeEngine


def test_no_docker_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = Engine().problem()
    assert problem
    assert "no docker program" in problem.sentence
    assert problem.exit_code is Exit.TOOL_MISSING
    assert any("--executor local" in hint for hint in problem.hints)


# The SDK does not close a socket that could not connect; gc.collect triggers the warning here, not in a later test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_does_not_answer(fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    problem = Engine().problem()
    assert problem
    assert "does not answer: No such file or directory" in problem.sentence
    assert problem.where == f"unix://{tmp_path}/nobody.sock"
    gc.collect()


def test_an_old_engine(fake: FakeEngine) -> None:
    fake.api = "1.40"
    assert "too old" in str(Engine().problem())


def test_no_buildx(fake: FakeEngine) -> None:
    (fake.root / "buildx").unlink()
    problem = Engine().problem()
    assert problem
    assert "buildx" in problem.sentence
    assert any("make-base" in hint for hint in problem.hints)


@pytest.mark.parametrize(
    ("ask", "path"),
    [
        pytest.param(lambda engine: engine.image_id("BAD"), "/images/BAD/json", id="image_id"),
        pytest.param(lambda engine: engine.base_id("BAD"), "/images/BAD/json", id="base_id"),
        pytest.param(lambda engine: engine.run_script("BAD", "true"), "/containers/create", id="run_script"),
        pytest.param(lambda engine: engine.remove_containers("owner"), "/containers/json", id="remove_containers"),
    ],
)
@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("invalid reference format", "--executor local"),
        # The engine mounts folders of its own machine, and buildfarm may run in a container.
        ("invalid mount config: bind source path does not exist: /root/store", "mount the folders of the store"),
    ],
)
def test_a_refusal_of_the_engine_is_a_missing_tool_error(
    fake: FakeEngine, ask: Callable[[Engine], object], path: str, message: str, hint: str
) -> None:
    fake.refuses[path] = (400, message)
    with pytest.raises(MissingToolError) as caught:
        ask(Engine())
    assert caught.value.sentence == f"the Docker engine refused the request: {message}"
    assert (caught.value.where, caught.value.exit_code) == ("docker", Exit.TOOL_MISSING)
    assert hint in caught.value.hints[0]


REFUSED = "Failed to establish a new connection: [Errno 111] Connection refused"
POOL = "HTTPConnectionPool(host='10.0.0.1', port=1): Max retries exceeded with url: /version (Caused by {})"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            DockerException(
                "Error while fetching server API version: "
                "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))"
            ),
            "No such file or directory",
            id="no socket",
        ),
        pytest.param(
            requests.exceptions.ConnectionError(
                POOL.format(f"NewConnectionError(\"HTTPConnection(host='x'): {REFUSED}\")")
            ),
            "Failed to establish a new connection: Connection refused",
            id="refused",
        ),
        pytest.param(
            requests.exceptions.ReadTimeout(
                "UnixHTTPConnectionPool(host='localhost', port=None): Read timed out. (read timeout=20)"
            ),
            "Read timed out. (read timeout=20)",
            id="timeout",
        ),
    ],
)
def test_the_useful_part_of_an_sdk_error(
    fake: FakeEngine, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake

    def broken(**_: object) -> None:
        raise error

    monkeypatch.setattr("builder.images.engine.docker.from_env", broken)
    with pytest.raises(MissingToolError) as caught:
        Engine().image_id("base:1")
    assert caught.value.sentence == f"the Docker engine refused the request: {message}"
    problem = Engine().problem()
    assert problem
    assert problem.sentence == f"the Docker engine does not answer: {message}"


MIRRORS = {"docker.io": "mirror.example/hub"}


def test_a_local_image_is_not_pulled(fake: FakeEngine) -> None:
    fake.add_image("base:1", "sha256:one")
    assert Engine().image_id("base:1") == "sha256:one"
    assert Engine().image_id("base:2") is None
    assert Engine(MIRRORS).base_id("base:1") == "sha256:one"
    assert fake.pulled == []


def test_a_missing_base_is_pulled_from_the_mirror_and_keeps_the_name_of_the_mirror(fake: FakeEngine) -> None:
    name = "mirror.example/hub/library/base:2"
    fake.pulls[name] = [{"status": "Pulling from hub/library/base", "id": "2"}]
    engine = Engine(MIRRORS)
    assert engine.local_name("base:2") is None
    assert engine.base_id("base:2") == f"sha256:of {name}"
    assert engine.local_name("base:2") == name
    assert engine.base_id("base:2") == f"sha256:of {name}"
    assert len(fake.pulled) == 1


def test_a_build_gets_the_text_and_the_secrets(fake: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("certificates")
    (tmp_path / "network").write_text("export X=hush")
    secrets = {"network": tmp_path / "network", "ca": tmp_path / "ca"}
    made = Engine().build("FROM base:1\n", "buildfarm/x:1", log=tmp_path / "log", owner="t", secrets=secrets)
    assert made == "sha256:made"
    assert (fake.root / "Dockerfile").read_text() == "FROM base:1\n"
    assert (fake.root / "secret-network").read_text() == "export X=hush"
    assert (fake.root / "secret-ca").read_text() == "certificates"
    call = next(call for call in fake.calls() if call[:2] == ["buildx", "build"])
    assert call[2:6] == ["--builder", "default", "--load", "--progress=plain"]
    assert call[6:10] == ["--secret", f"id=ca,src={tmp_path}/ca", "--secret", f"id=network,src={tmp_path}/network"]
    assert call[10:12] == ["--tag", "buildfarm/x:1"]
    assert "hush" not in (tmp_path / "log").read_text()


#: Output of buildx.
RETRY = (
    "#5 13.7 WARNING: Retrying (Retry(total={left}, connect=None, read=None, redirect=None, status=None)) after"
    " connection broken by 'NewConnectionError('<pip object at 0x7f>: Failed to establish a new connection:"
    " [Errno 111] Connection refused')': /simple/uv/"
)
PIP = "#5 21.38 ERROR: No matching distribution found for uv==9"
BUILDKIT = "#5 ERROR: executor failed running [/bin/sh -c pip install uv==9]: exit code: 1"
SUMMARY = "ERROR: failed to solve: executor failed running [/bin/sh -c pip install uv==9]: exit code: 1"


@pytest.mark.parametrize(
    ("lines", "code", "sentence"),
    [
        (
            [PIP, BUILDKIT, SUMMARY],
            Exit.FAILED,
            "the image could not be built: No matching distribution found for uv==",
        ),
        ([BUILDKIT, SUMMARY], Exit.FAILED, "the image could not be built: failed to solve: executor failed running"),
        (
            ["#5 0.3 error: the base has gcc 14, and this build takes 9 to 12", BUILDKIT],
            Exit.FAILED,
            "the base has gcc",
        ),
        ([RETRY.format(left=4), PIP, SUMMARY], Exit.FAILED, "No matching distribution"),
        (
            [RETRY.format(left=1), RETRY.format(left=0), PIP, SUMMARY],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: Failed to establish a new connection (/simple/uv/)",
        ),
        (
            ["#7 2.1 W: Failed to fetch http://deb/x  Temporary failure resolving 'deb'", "#7 2.2 E: Unable to locate"],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: Failed to fetch http://deb/x  Temporary failure resolving 'deb'",
        ),
        (
            ["#7 9.1  - Curl error (6): Couldn't resolve host name for https://rocky/repodata"],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: Curl error (6)",
        ),
        (
            [
                "#7 1.9  - Curl error (60): SSL peer certificate or SSH remote key was not OK for https://rocky/x",
                "#7 1.9 Error: Failed to download metadata for repo 'appstream': All mirrors were tried",
            ],
            Exit.TOOL_MISSING,
            "because a server's certificate is not trusted: Curl error (60): SSL peer certificate",
        ),
        (
            [
                "#9 1.0 error: Failed to fetch: `http://i/uv/`",
                "#9 1.0   cause: error sending request for url (http://i)",
            ],
            Exit.TOOL_MISSING,
            "because the network cannot be reached: cause: error sending request",
        ),
        (["#8 1.1 cp: error writing '/x': No space left on device"], Exit.FAILED, "the disk of the Docker engine is"),
    ],
)
def test_the_error_for_an_output_of_buildx(lines: list[str], code: Exit, sentence: str) -> None:
    error = image_build_error(lines, tag="buildfarm/build:abc", log=Path("/logs/build"))
    assert error.exit_code == code
    assert sentence in error.sentence
    assert error.where == "buildfarm/build:abc"
    assert "the full output is in /logs/build" in error.hints
