"""The engine: its answers and errors, containers and their programs, networks, pulls, registries, buildfarm.lock."""

import gc
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker.errors import DockerException

from builder import process
from builder.errors import Code, Exit, MissingToolError, UsageError
from builder.images import container as container_module
from builder.images import engine as engine_module
from builder.images import network, registry
from builder.images.container import GPU_REQUESTS, OWNER_LABEL, PROCESSES, ContainerSpec, NoGpuError, RunResult
from builder.images.engine import Engine, image_build_error, pull_missing, refresh_lock
from builder.images.network import ca_bundle, ca_variables, index_variables, package_settings, shell_settings
from builder.images.registry import located, lock_path, pull_error, read_lock, read_mirrors, write_lock
from builder.log import console
from builder.process import Interrupted, Limits
from tests.conftest import coded
from tests.refused import refused
from tests.unit.images.fake_engine import FakeEngine, FakeRun


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
        pytest.param(
            lambda engine: engine.run_script("BAD", "true", owner="job"), "/containers/create", id="run_script"
        ),
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
    fake.offer(name)
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


#: Lines of buildx, and the error: "because" the network is missing, or the build failed.
BUILDX = [
    ([PIP, BUILDKIT, SUMMARY], "the image could not be built: No matching distribution found for uv=="),
    ([BUILDKIT, SUMMARY], "the image could not be built: failed to solve: executor failed running"),
    (["#5 0.3 error: the base has gcc 14, and this build takes 9 to 12", BUILDKIT], "the base has gcc"),
    ([RETRY.format(left=4), PIP, SUMMARY], "No matching distribution"),
    (
        [RETRY.format(left=1), RETRY.format(left=0), PIP, SUMMARY],
        "because the network cannot be reached: Failed to establish a new connection (/simple/uv/)",
    ),
    (
        ["#7 2.1 W: Failed to fetch http://deb/x  Temporary failure resolving 'deb'", "#7 2.2 E: Unable to locate"],
        "because the network cannot be reached: Failed to fetch http://deb/x  Temporary failure resolving 'deb'",
    ),
    (
        ["#5 1.0 E: Could not connect to deb:80 (1.2.3.4)", "ERROR: failed to solve: exit 1"],
        "because the network cannot be reached: Could not connect to deb:80",
    ),
    (
        ["#7 9.1  - Curl error (6): Couldn't resolve host name for https://rocky/repodata"],
        "because the network cannot be reached: Curl error (6)",
    ),
    (
        [
            "#7 1.9  - Curl error (60): SSL peer certificate or SSH remote key was not OK for https://rocky/x",
            "#7 1.9 Error: Failed to download metadata for repo 'appstream': All mirrors were tried",
        ],
        "because a server's certificate is not trusted: Curl error (60): SSL peer certificate",
    ),
    (
        ["#9 1.0 error: Failed to fetch: `http://i/uv/`", "#9 1.0   cause: error sending request for url (http://i)"],
        "because the network cannot be reached: cause: error sending request",
    ),
    (["#8 1.1 cp: error writing '/x': No space left on device"], "the disk of the Docker engine is"),
]


@pytest.mark.parametrize(("lines", "sentence"), BUILDX)
def test_the_error_for_an_output_of_buildx(lines: list[str], sentence: str) -> None:
    error = image_build_error(lines, tag="buildfarm/build:abc", log=Path("/logs/build"))
    assert error.exit_code == (Exit.TOOL_MISSING if sentence.startswith("because") else Exit.FAILED)
    assert sentence in error.sentence
    assert error.where == "buildfarm/build:abc"
    assert "the full output is in /logs/build" in error.hints


@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        ({}, {}),
        ({"PATH": "/bin", "UV_CACHE_DIR": "/c", "UV_FIND_LINKS": "/wheels", "PIP_CERT": "/ca"}, {}),
        ({"UV_DEFAULT_INDEX": ""}, {}),
        ({"UV_DEFAULT_INDEX": "u"}, {"UV_DEFAULT_INDEX": "u", "PIP_INDEX_URL": "u"}),
        ({"UV_INDEX_URL": "u"}, {"UV_INDEX_URL": "u", "PIP_INDEX_URL": "u"}),
        ({"PIP_INDEX_URL": "p"}, {"UV_DEFAULT_INDEX": "p", "PIP_INDEX_URL": "p"}),
        ({"PIP_INDEX_URL": "p", "UV_DEFAULT_INDEX": "u"}, {"PIP_INDEX_URL": "p", "UV_DEFAULT_INDEX": "u"}),
        ({"UV_DEFAULT_INDEX": "own=https://u"}, {"UV_DEFAULT_INDEX": "own=https://u", "PIP_INDEX_URL": "https://u"}),
        ({"UV_INDEX_FARM_PASSWORD": "x", "https_proxy": "h"}, {"UV_INDEX_FARM_PASSWORD": "x", "https_proxy": "h"}),
    ],
    ids=["nothing", "not ours", "empty", "uv", "old uv", "pip", "both", "named", "credentials and proxy"],
)
def test_network_variables_of_a_container(environ: dict[str, str], variables: dict[str, str]) -> None:
    assert index_variables(environ) == variables


def test_a_bundle_in_the_environment_precedes_the_systems(tmp_path: Path) -> None:
    (tmp_path / "own.pem").touch()
    assert ca_bundle({"SSL_CERT_FILE": str(tmp_path / "own.pem")}) == tmp_path / "own.pem"
    assert ca_bundle({"SSL_CERT_FILE": "/nowhere", "PIP_CERT": str(tmp_path / "own.pem")}) == tmp_path / "own.pem"


def test_a_missing_bundle_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_CA_FILES", (str(tmp_path / "none.pem"),))
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: SimpleNamespace(cafile=None))
    with refused(Code.CERTIFICATE_NOT_USABLE) as caught:
        ca_bundle({})
    assert "SSL_CERT_FILE" in caught.value.hints[0]


def test_settings_are_quoted_for_the_shell() -> None:
    awkward = {"A": 'it\'s $HOME; `x` "y"', **ca_variables("/ca.pem")}
    sh = shutil.which("sh")
    assert sh
    script = shell_settings(awkward) + 'printf "%s\\n%s" "$A" "$SSL_CERT_FILE"'
    answer = subprocess.run([sh, "-eu"], input=script, capture_output=True, text=True, check=True, env={})
    assert answer.stdout == f"{awkward['A']}\n/ca.pem"


def test_only_places_of_packages_are_taken_from_the_settings_of_uv(tmp_path: Path) -> None:
    own, shared = tmp_path / "config" / "uv" / "uv.toml", tmp_path / "shared" / "uv" / "uv.toml"
    for path in (own, shared):
        path.parent.mkdir(parents=True)
    own.write_text(
        'prerelease = "allow"\noverride-dependencies = ["torch==1"]\noffline = true\nfind-links = ["/one", "/two"]\n'
        '[pip]\ntorch-backend = "cpu"\nindex-strategy = "unsafe-best-match"\n'
        '[[index]]\nname = "own"\nurl = "https://own"\n[[index]]\nurl = "https://main"\ndefault = true\n'
        '[[index]]\nurl = "https://flat"\nformat = "flat"\n'
        '[[index]]\nname = "rare"\nurl = "https://rare"\nexplicit = true\n'
    )
    shared.write_text('index-url = "https://shared"\nextra-index-url = ["https://more"]\ncache-dir = "/cache"\n')
    shell = {"XDG_CONFIG_HOME": str(own.parents[1]), "XDG_CONFIG_DIRS": str(shared.parents[1])}
    assert package_settings({**shell, "UV_TORCH_BACKEND": "auto", "UV_INDEX": "https://first"}) == {
        **shell,
        "UV_INDEX": "https://first own=https://own",
        "UV_DEFAULT_INDEX": "https://main",
        "UV_EXTRA_INDEX_URL": "https://more",
        "UV_FIND_LINKS": "/one,/two,https://flat",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_OFFLINE": "True",
        "UV_CACHE_DIR": "/cache",
    }
    given = {**shell, "PIP_INDEX_URL": "https://pip", "UV_NO_CONFIG": "1", "PIP_CONSTRAINT": "/x", "PIP_CERT": "/ca"}
    assert package_settings(given) == {**shell, "PIP_INDEX_URL": "https://pip", "PIP_CERT": "/ca"}
    for wrong in ("[", "[[index]]\nname = 'own'\n", "pip = 1\n"):
        own.write_text(wrong)
        with refused(Code.VALUE_INVALID, str(own)):
            package_settings(shell)


def test_missing_images_are_named_before_the_pull(fake: FakeEngine) -> None:
    for name in ("nvidia/cuda:12", "pypa/many:1"):
        fake.offer(f"mirror.example/{name}")
    fake.add_image("here:1", "sha256:here")
    engine = Engine({"docker.io": "mirror.example", "quay.io": "mirror.example"})
    with console.capture() as output:
        for _ in range(2):
            assert pull_missing(engine, ["nvidia/cuda:12", "here:1", "quay.io/pypa/many:1"]) == []
    first, *others = output.get().splitlines()
    assert first == "pulling 2 base images: mirror.example/nvidia/cuda:12, mirror.example/pypa/many:1"
    assert [line.split(" (")[0] for line in others] == ["pulled nvidia/cuda:12", "pulled quay.io/pypa/many:1"]


def test_when_a_registry_cannot_be_reached_no_other_image_is_pulled(fake: FakeEngine) -> None:
    for name in ("a", "b"):
        fake.offer(f"r.example/{name}:1", "dial tcp: lookup x: no such host")
    problems = pull_missing(Engine(), ["r.example/a:1", "r.example/b:1"])
    assert [problem.where for problem in problems] == ["r.example/a:1"]
    assert len(fake.pulled) == 1


#: Messages of Docker Engine 20.10.24.
MESSAGES = [
    ("manifest for r.example/a:1 not found: manifest unknown: manifest unknown", "has no such image (", "images:"),
    (
        "pull access denied for a, repository does not exist or may require 'docker login': denied: requested access"
        " to the resource is denied",
        "has no such image, or requires a login for it (",
        "`docker login`",
    ),
    ("toomanyrequests: You have reached your pull rate limit.", "refuses more pulls for now (", "BUILDFARM_REGISTRIES"),
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


def test_a_pull_that_takes_too_long_is_ended(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.offer("a:1", "hangs")
    monkeypatch.setattr(registry, "LIMITS", Limits(seconds=0.5))
    with refused(Code.NETWORK_UNREACHABLE, "timeout: docker did not finish within 0.5 s"):
        Engine().base_id("a:1")


def test_an_interrupt_ends_a_pull(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.offer("a:1", "hangs")
    monkeypatch.setattr(process, "_stopping", threading.Event())
    threading.Timer(0.5, process.kill_all).start()
    with pytest.raises(Interrupted):
        Engine().base_id("a:1")


ONE, TWO = "sha256:" + "11" * 32, "sha256:" + "22" * 32


def test_a_written_lock_is_sorted_and_readable(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "matrix.yaml")
    assert read_lock(path) == {}
    write_lock(path, {"b/x:1": TWO, "a": ONE})
    assert read_lock(path) == {"a": ONE, "b/x:1": TWO}
    assert path.read_text().splitlines()[-2:] == [f'"a" = "{ONE}"', f'"b/x:1" = "{TWO}"']


def test_a_refresh_updates_these_images_and_keeps_the_others(tmp_path: Path, fake: FakeEngine) -> None:
    path = tmp_path / "buildfarm.lock"
    moved, fresh, gone = "r.example/a:1", "r.example/b:1", "r.example/gone:1"
    write_lock(path, {moved: ONE, gone: TWO, "not/refreshed": ONE})
    fake.digests = {moved: TWO, fresh: ONE}
    problems = refresh_lock(path, [moved, fresh, gone], Engine())
    assert [(problem.where, problem.code) for problem in problems] == [(gone, Code.IMAGE_NOT_FOUND)]
    assert read_lock(path) == {**fake.digests, gone: TWO, "not/refreshed": ONE}
    first = path.read_bytes()
    refresh_lock(path, [fresh, moved], Engine())
    assert path.read_bytes() == first


def test_without_an_engine_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = refresh_lock(tmp_path / "buildfarm.lock", ["a:1"], Engine())
    assert problem.code is Code.ENGINE_MISSING
    assert not (tmp_path / "buildfarm.lock").exists()


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("nvidia/cuda:12.1.1-x", "r.example/hub/nvidia/cuda:12.1.1-x"),
        ("docker.io/nvidia/cuda:1", "r.example/hub/nvidia/cuda:1"),
        (f"nvidia/cuda:1@{ONE}", f"r.example/hub/nvidia/cuda:1@{ONE}"),
        (f"nvidia/cuda@{ONE}", f"r.example/hub/nvidia/cuda@{ONE}"),
        ("ubuntu", "r.example/hub/library/ubuntu:latest"),
        ("registry-1.docker.io/nvidia/cuda:1", "r.example/hub/nvidia/cuda:1"),
        ("own.example:5000/a/b", "r.example/own/a/b:latest"),
        ("localhost/a:1", "localhost/a:1"),
        ("quay.io/pypa/many:1", "quay.io/pypa/many:1"),
    ],
)
def test_a_mirror_has_the_image_under_the_same_path(image: str, wanted: str) -> None:
    """An image name is read as Docker does."""
    assert located(image, {"docker.io": "r.example/hub", "own.example:5000": "r.example/own"}) == wanted


@pytest.mark.parametrize("value", ["docker.io", "docker.io=https://a.example", "=a.example", "docker.io=a.example/X Y"])
def test_an_invalid_variable_is_a_usage_error(value: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)) as caught:
        read_mirrors({"BUILDFARM_REGISTRIES": value})
    assert caught.value.where == "BUILDFARM_REGISTRIES"


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

        def gone(*_: object, **__: object) -> None:
            raise requests.exceptions.ConnectionError("('Connection aborted.', ConnectionRefusedError(111, 'refused'))")

        monkeypatch.setattr(container._handle, "put_archive", gone)
        with pytest.raises(MissingToolError, match="the Docker engine stopped answering while files were copied"):
            container.put(Path(__file__), "x")
    assert fake.removed == ["probe"]
