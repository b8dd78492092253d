"""Containers that are started once for each program: requests to the engine, and results of programs."""

import threading
from pathlib import Path
from typing import Any

import pytest

from builder import process
from builder.errors import MissingToolError
from builder.images import container as container_module
from builder.images import engine as engine_module
from builder.images.container import GPU_REQUESTS, OWNER_LABEL, PROCESSES, ContainerSpec, NoGpuError, RunResult
from builder.images.engine import Engine
from tests.unit.images.fake_engine import FakeEngine, FakeRun

SPEC = ContainerSpec("run:1", {OWNER_LABEL: "store/job"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def made(fake: FakeEngine, spec: ContainerSpec) -> dict[str, Any]:
    with Engine().container(spec):
        (body,) = fake.created
    return body


def test_the_request_that_creates_a_container(fake: FakeEngine) -> None:
    spec = ContainerSpec(
        "run:1",
        {OWNER_LABEL: "store/job"},
        environment={"UV_DEFAULT_INDEX": "https://index.invalid/simple"},
        bind_mounts={Path("/usr/bin/uv"): "/run/uv"},
        volumes={"packages": "/buildfarm/uv"},
        memory=2**30,
    )
    body = made(fake, spec)
    host = body["HostConfig"]
    assert (body["Image"], body["User"], body["Labels"]) == ("run:1", "1000:1000", {OWNER_LABEL: "store/job"})
    assert body["Env"] == ["UV_DEFAULT_INDEX=https://index.invalid/simple"]
    assert [(m["Type"], m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("bind", "/usr/bin/uv", "/run/uv", True),
        ("volume", "packages", "/buildfarm/uv", False),
    ]
    assert (host["Memory"], host["CapDrop"], host["SecurityOpt"]) == (2**30, ["ALL"], ["no-new-privileges"])
    assert host["PidsLimit"] == PROCESSES
    assert "DeviceRequests" not in host or not host["DeviceRequests"]
    assert fake.removed == ["probe"]


def test_a_gpu_is_requested_like_docker_run_and_through_cdi(fake: FakeEngine) -> None:
    for request in GPU_REQUESTS:
        with Engine().container(ContainerSpec("run:1", {}, gpus=request)):
            pass
    plain, cdi = (body["HostConfig"]["DeviceRequests"] for body in fake.created)
    assert plain == [{"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}]
    assert [(one["Driver"], one["DeviceIDs"]) for one in cdi] == [("cdi", ["nvidia.com/gpu=all"])]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "install NVIDIA's container toolkit"),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0",
            "cannot give this machine's GPU to a container: nvidia",
        ),
    ],
    ids=["no toolkit", "the toolkit refuses"],
)
def test_an_engine_without_gpus_raises_no_gpu_error(fake: FakeEngine, log: Path, message: str, sentence: str) -> None:
    fake.refuses["/containers/probe/start"] = (500, message)
    with (
        Engine().container(ContainerSpec("run:1", {}, gpus=GPU_REQUESTS[0])) as container,
        pytest.raises(NoGpuError, match=sentence),
    ):
        container.run(["true"], log=log)
    assert fake.removed == ["probe"]


@pytest.mark.parametrize(
    ("fake_run", "result"),
    [
        (FakeRun(b"out\n", b"err\n", 3), RunResult(3, "out\n", "err\n")),
        (FakeRun(status=139), RunResult(-11, "", "")),
        (FakeRun(status=137, out_of_memory=True), RunResult(-9, "", "", out_of_memory=True)),
        (FakeRun(status=255), RunResult(255, "", "")),
    ],
    ids=["exit", "signal", "out of memory", "a status that is not a signal"],
)
def test_the_result_of_a_program(fake: FakeEngine, log: Path, fake_run: FakeRun, result: RunResult) -> None:
    fake.runs = [fake_run]
    with Engine().container(SPEC) as container:
        assert container.run(["program", "a b"], log=log) == result
    assert log.read_bytes() == b"+ in a container: program 'a b'\n" + fake_run.stdout + fake_run.stderr
    (files,) = fake.put
    assert (files["buildfarm/run.sh"].uid, files["buildfarm/run.sh"].gid) == (1000, 1000)


def test_a_program_is_killed_after_its_timeout(fake: FakeEngine, log: Path) -> None:
    fake.runs = [FakeRun(b"begun", endless=True)]
    with Engine().container(SPEC) as container:
        result = container.run(["a"], log=log, timeout=0.1)
    assert fake.killed.is_set()
    assert (result.timed_out, result.status, result.stdout) == (True, -9, "begun")


def test_the_engine_leaves_the_output_of_an_ended_program_open(
    fake: FakeEngine, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_module, "_LOOK_INTERVAL", 0.1)
    fake.runs = [FakeRun(b"begun", endless=True)]
    fake.state = {"Status": "exited", "ExitCode": 3}
    with Engine().container(SPEC) as container:
        result = container.run(["a"], log=log)
    fake.killed.set()
    assert (result.timed_out, result.status, result.stdout) == (False, 3, "begun")


@pytest.mark.parametrize("how", ["", "fails", "hangs"])
def test_a_program_in_a_running_container(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(engine_module, "REQUEST_TIMEOUT", 2)
    assert not Engine().make_root_directory_writable("store/job"), "no container runs"
    fake.containers["other"] = {OWNER_LABEL: "store/job"}
    if how:
        (fake.root / how).touch()
    assert Engine().make_root_directory_writable("store/job") is not bool(how)
    assert fake.calls()[-1] == ["exec", "--user=0:0", "other", "chmod", "1777", "/"]


def test_an_interrupted_run_removes_its_container(fake: FakeEngine, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = threading.Event()
    monkeypatch.setattr(process, "_stopping", interrupted)
    fake.runs = [FakeRun(endless=True)]
    with Engine().container(SPEC) as container:
        interrupted.set()
        with pytest.raises(process.Interrupted):
            container.run(["a"], log=log)
    assert fake.removed == ["probe"]
    fake.killed.set()


def test_go_offline_disconnects_the_network(fake: FakeEngine) -> None:
    with Engine().container(SPEC) as container:
        container.go_offline()
    assert fake.disconnected == ["net1"]


def test_a_copied_directory_belongs_to_the_containers_user(fake: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir(mode=0o700)
    (tmp_path / "gate" / "spec.json").write_text("{}")
    with Engine().container(SPEC) as container:
        container.put(tmp_path / "gate", "gate")
    (files,) = fake.put
    assert sorted(files) == ["buildfarm/gate", "buildfarm/gate/spec.json"]
    assert {member.uid for member in files.values()} == {1000}


def test_a_file_is_copied_out(fake: FakeEngine) -> None:
    fake.files["/buildfarm/answer"] = "42"
    with Engine().container(SPEC) as container:
        assert container.get("answer", 100) == b"42"
        assert container.get("nothing", 100) is None
        fake.files["/buildfarm/answer"] = "4" * (1 << 20)
        assert container.get("answer", 100) == b"4" * 101


def test_a_stopped_engine_is_reported_as_such(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine().container(SPEC) as container:
        import requests

        def gone(*_: object, **__: object) -> None:
            raise requests.exceptions.ConnectionError("('Connection aborted.', ConnectionRefusedError(111, 'refused'))")

        monkeypatch.setattr(container._handle, "put_archive", gone)
        with pytest.raises(MissingToolError, match="the Docker engine stopped answering while files were copied"):
            container.put(Path(__file__), "x")
    assert fake.removed == ["probe"]
