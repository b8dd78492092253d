"""Containers that are started once for each step: what the SDK is asked for, and how steps end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import process
from builder.errors import Exit, MissingToolError
from builder.images.abandoned import end_abandoned
from builder.images.container import ALL_GPUS, LABEL, ContainerSpec, Ended, NoGpuError
from builder.images.engine import Engine
from builder.store import Store
from tests.unit.images.fake_engine import FakeEngine, FakeStep, running_engine

SPEC = ContainerSpec("run:1", {LABEL: "store/job"})


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    (tmp_path / "engine").mkdir()
    with running_engine(tmp_path / "engine", monkeypatch) as engine:
        yield engine


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def made(fake: FakeEngine, spec: ContainerSpec) -> dict[str, Any]:
    with Engine().container(spec):
        (body,) = fake.created
    return body


def test_what_a_container_is_made_with(fake: FakeEngine) -> None:
    spec = ContainerSpec(
        "run:1",
        {LABEL: "store/job"},
        environment={"UV_DEFAULT_INDEX": "https://index.invalid/simple"},
        lent={Path("/usr/bin/uv"): "/run/uv"},
        volumes={"packages": "/buildfarm/uv"},
        memory=2**30,
    )
    body = made(fake, spec)
    host = body["HostConfig"]
    assert (body["Image"], body["User"], body["Labels"]) == ("run:1", "1000:1000", {LABEL: "store/job"})
    assert body["Env"] == ["UV_DEFAULT_INDEX=https://index.invalid/simple"]
    assert [(m["Type"], m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("bind", "/usr/bin/uv", "/run/uv", True),
        ("volume", "packages", "/buildfarm/uv", False),
    ]
    assert (host["Memory"], host["CapDrop"], host["SecurityOpt"]) == (2**30, ["ALL"], ["no-new-privileges"])
    assert "DeviceRequests" not in host or not host["DeviceRequests"]
    assert fake.removed == ["probe"]


def test_a_gpu_is_asked_for_as_docker_run_does_and_by_cdi(fake: FakeEngine) -> None:
    for request in ALL_GPUS:
        with Engine().container(ContainerSpec("run:1", {}, gpus=request)):
            pass
    plain, cdi = (body["HostConfig"]["DeviceRequests"] for body in fake.created)
    assert plain == [{"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}]
    assert [(one["Driver"], one["DeviceIDs"]) for one in cdi] == [("cdi", ["nvidia.com/gpu=all"])]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "install NVIDIA's container toolkit"),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0", "hand over this machine's GPU"),
    ],
    ids=["no toolkit", "the toolkit refuses"],
)
def test_an_engine_that_gives_no_gpu(fake: FakeEngine, log: Path, said: str, sentence: str) -> None:
    fake.refuses["/containers/probe/start"] = (500, said)
    with (
        Engine().container(ContainerSpec("run:1", {}, gpus=ALL_GPUS[0])) as container,
        pytest.raises(NoGpuError, match=sentence),
    ):
        container.step(["true"], log=log)
    assert fake.removed == ["probe"]


def test_a_start_that_fails_without_a_gpu_is_no_matter_of_gpus(fake: FakeEngine, log: Path) -> None:
    fake.refuses["/containers/probe/start"] = (500, "no space left on device")
    with Engine().container(SPEC) as container, pytest.raises(MissingToolError, match="no space left") as caught:
        container.step(["true"], log=log)
    assert not isinstance(caught.value, NoGpuError)
    assert caught.value.exit_code is Exit.TOOL_MISSING


@pytest.mark.parametrize(
    ("step", "ended"),
    [
        (FakeStep(b"out\n", b"err\n", 3), Ended(3, "out\n", "err\n")),
        (FakeStep(status=139), Ended(-11, "", "")),
        (FakeStep(status=137, out_of_memory=True), Ended(-9, "", "", out_of_memory=True)),
        (FakeStep(status=255), Ended(255, "", "")),
    ],
    ids=["exit", "signal", "no memory", "a status that is no signal"],
)
def test_how_a_step_ends(fake: FakeEngine, log: Path, step: FakeStep, ended: Ended) -> None:
    fake.steps = [step]
    with Engine().container(SPEC) as container:
        assert container.step(["program", "a b"], log=log) == ended
    assert log.read_bytes() == b"+ in a container: program 'a b'\n" + step.stdout + step.stderr
    (files,) = fake.put
    assert (files["buildfarm/step"].uid, files["buildfarm/step"].gid) == (1000, 1000)


def test_steps_do_not_mix(fake: FakeEngine, log: Path) -> None:
    fake.steps = [FakeStep(b"one", status=1), FakeStep(b"two")]
    with Engine().container(SPEC) as container:
        assert container.step(["a"], log=log) == Ended(1, "one", "")
        assert container.step(["b"], log=log) == Ended(0, "two", "")


def test_a_step_that_takes_too_long_is_killed(fake: FakeEngine, log: Path) -> None:
    fake.steps = [FakeStep(b"begun", endless=True)]
    with Engine().container(SPEC) as container:
        ended = container.step(["a"], log=log, seconds=0.1)
    assert fake.killed.is_set()
    assert (ended.timed_out, ended.status, ended.stdout) == (True, -9, "begun")


def test_a_farm_that_is_ending_leaves_no_container(
    fake: FakeEngine, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Event()
    monkeypatch.setattr(process, "_ending", ending)
    fake.steps = [FakeStep(endless=True)]
    with Engine().container(SPEC) as container:
        ending.set()
        with pytest.raises(process.Interrupted):
            container.step(["a"], log=log)
    assert fake.removed == ["probe"]
    fake.killed.set()


def test_it_is_taken_off_its_network(fake: FakeEngine) -> None:
    with Engine().container(SPEC) as container:
        container.go_offline()
    assert fake.disconnected == ["net1"]


def test_a_folder_goes_in_as_the_users_own(fake: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir(mode=0o700)
    (tmp_path / "gate" / "spec.json").write_text("{}")
    with Engine().container(SPEC) as container:
        container.put(tmp_path / "gate", "gate")
    (files,) = fake.put
    assert sorted(files) == ["buildfarm/gate", "buildfarm/gate/spec.json"]
    assert {member.uid for member in files.values()} == {1000}


def test_a_file_comes_out(fake: FakeEngine) -> None:
    fake.files["/buildfarm/answer"] = "42"
    with Engine().container(SPEC) as container:
        assert container.get("answer") == b"42"
        assert container.get("nothing") is None


def test_an_engine_that_goes_away_is_said_as_that(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine().container(SPEC) as container:
        import requests

        def gone(*_: object, **__: object) -> None:
            raise requests.exceptions.ConnectionError("('Connection aborted.', ConnectionRefusedError(111, 'refused'))")

        monkeypatch.setattr(container._handle, "put_archive", gone)
        with pytest.raises(MissingToolError, match="the Docker engine went away while files were copied"):
            container.put(Path(__file__), "x")
    assert fake.removed == ["probe"]


def test_containers_of_killed_runs_are_ended_and_no_others(fake: FakeEngine, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    fake.containers |= {
        "left": {LABEL: store.mark("prove-1")},
        "busy": {LABEL: store.mark("prove-2")},
        "foreign": {LABEL: Store(tmp_path / "other").mark("prove-1")},
    }
    with store.lock("prove-2"):
        assert end_abandoned(Engine(), store, LABEL) == ["left"]
    assert sorted(fake.containers) == ["busy", "foreign"]
