"""A container that is started anew for each program it runs, and the files copied into and out of it."""

import io
import re
import shlex
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import requests
from docker import DockerClient
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container as Handle
from docker.types import DeviceRequest, Mount

from builder.errors import Code, MissingToolError, mask_credentials, mask_log
from builder.images.network import shell_settings
from builder.process import raise_if_interrupted

#: Errors that the SDK raises, and those of the HTTP library below it that it lets through.
SDK_ERRORS = (DockerException, requests.exceptions.RequestException)

LOCAL_EXECUTOR_HINT = "use `--executor local`, which needs no container engine"

OTHER_PATHS_HINT = (
    "if buildfarm itself runs in a container, mount the folders of the store and of the project there,"
    " under the same paths as on the engine's machine"
)

#: Label of every container that buildfarm starts for a job. Its value is the job's owner (`Store.owner`), so a later
#: run can remove the containers of a killed run and leave those of other stores alone.
OWNER_LABEL = "buildfarm.build"

#: buildfarm's own directory in every container. Its files belong to USER, the user of rendered images.
CONTAINER_DIR = "/buildfarm"
USER = 1000

#: The script that a container runs when it starts, below CONTAINER_DIR.
_SCRIPT = "run.sh"

#: Interval between checks for an interrupt or a timeout, seconds.
_POLL_INTERVAL = 0.25

#: Interval between two questions to the engine whether a program's container still runs, seconds.
_LOOK_INTERVAL = 10.0

#: More than the headers of a tar archive with one file, in bytes.
_TAR_HEADERS = 1 << 16

#: Device requests to try in order: `docker run --gpus all`, and the form for engines that know GPUs only through CDI
#: specifications.
GPU_REQUESTS: tuple[DeviceRequest, ...] = (
    DeviceRequest(count=-1, capabilities=[["gpu"]]),
    DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"]),
)

#: Processes and threads at the same time: compilers and tests on a large machine need fewer.
PROCESSES = 16384

_NONE: Mapping[str, str] = MappingProxyType({})

#: How much of a program's output goes to the log, in bytes.
_LOGGED_OUTPUT = 1 << 30
#: How much of the end of a program's output is kept in memory, in bytes.
_KEPT_OUTPUT = 1 << 20


@contextmanager
def translate_sdk_errors(activity: str = "") -> Iterator[None]:
    """Raise SDK errors of the body as MissingToolError: the engine refused the request or stopped answering.

    `activity` completes the sentence about an engine that stopped answering: `while a container was started`.
    """
    try:
        yield
    except SDK_ERRORS as error:
        stopped = activity and isinstance(error, requests.exceptions.ConnectionError)
        what = f"stopped answering {activity}" if stopped else "refused the request"
        sentence = f"the Docker engine {what}: {reason(error)}"
        hints = [LOCAL_EXECUTOR_HINT]
        if "bind source path does not exist" in sentence:
            hints.insert(0, OTHER_PATHS_HINT)
        raise MissingToolError(sentence, Code.ENGINE_NOT_ANSWERING, where="docker", hints=hints) from error


def reason(error: Exception) -> str:
    """The useful part of an SDK error: the engine's message, or the innermost of the nested connection errors."""
    if isinstance(error, APIError) and error.explanation:
        return str(error.explanation)
    message = str(error)
    nested = [single or double for single, double in re.findall(r"'([^']+)'\)|\"([^\"]+)\"\)", message)]
    innermost = nested[-1] if nested else message
    return re.sub(r".*(?:\w+Connection\w*\([^)]*\)|<[^>]*>): |\[Errno -?\d+\] ", "", innermost)


class NoGpuError(MissingToolError):
    """The engine cannot start a container that requests GPUs."""


@dataclass(frozen=True)
class ContainerSpec:
    """A container to create."""

    image: str  # tag or id; the image is not pulled
    labels: Mapping[str, str]  # labels by which a later run finds the container if this run is killed
    #: Variables added to those of the image. They are sent in the API request, not as program arguments.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Files of this machine and their paths in the container, mounted read-only.
    bind_mounts: Mapping[Path, str] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)  # names of engine volumes and their paths in the container
    memory: int = 0  # memory limit in bytes; 0 means no limit
    user: int = USER  # id of the user and the group
    capabilities: tuple[str, ...] = ()  # Linux capabilities; a container has no others
    gpus: DeviceRequest | None = None  # the device request, or None for a container without a GPU

    def options(self) -> dict[str, Any]:
        """Arguments for the SDK's `containers.create`."""
        binds = [Mount(path, str(file), type="bind", read_only=True) for file, path in self.bind_mounts.items()]
        volumes = [Mount(path, name, type="volume") for name, path in self.volumes.items()]
        return {
            "image": self.image,
            # The kernel does not deliver unhandled signals to process 1, so abort() would not end a program that is
            # process 1. The program therefore runs under a shell, which reports a signal as 128 plus its number.
            "command": ["/bin/sh", f"{CONTAINER_DIR}/{_SCRIPT}"],
            "entrypoint": [],
            "user": f"{self.user}:{self.user}",
            "labels": dict(self.labels),
            "environment": dict(self.environment),
            "mounts": [*binds, *volumes],
            "cap_drop": ["ALL"],
            **({"cap_add": list(self.capabilities)} if self.capabilities else {}),
            "security_opt": ["no-new-privileges"],
            "pids_limit": PROCESSES,
            **({"mem_limit": self.memory} if self.memory else {}),
            **({"device_requests": [self.gpus]} if self.gpus else {}),
        }


@dataclass(frozen=True)
class RunResult:
    """How one program in a container ended."""

    status: int  # exit status, or the negative number of the signal that ended the program
    stdout: str  # stdout, stderr: the last part of the program's output
    stderr: str
    out_of_memory: bool = False  # the kernel killed a process in the container because of the memory limit
    timed_out: bool = False  # the program exceeded its timeout and was killed


class Container:
    """A container that exists between programs and runs only while a program runs.

    Each program is a separate start of the container. No process of an earlier program is still running, the exit
    status and the out-of-memory flag belong to this program alone, and files on disk stay for the next program. Every
    method raises MissingToolError when the engine refuses the request or stops answering.
    """

    def __init__(self, client: DockerClient, handle: Handle, *, gpus: bool) -> None:
        """`gpus` says whether the container requests GPUs."""
        self._client = client
        self._handle = handle
        self._gpus = gpus

    def put(self, source: Path, target: str) -> None:
        """Copy a file or a directory to `CONTAINER_DIR/target`; the copy belongs to the container's user."""

        def owned_by_user(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = USER
            member.uname = member.gname = ""
            member.mode |= 0o500 if member.isdir() else 0o400
            return member

        with tempfile.TemporaryFile() as stream:
            with tarfile.open(fileobj=stream, mode="w") as tar:
                tar.add(source, arcname=f"{CONTAINER_DIR[1:]}/{target}", filter=owned_by_user)
            stream.seek(0)
            with translate_sdk_errors("while files were copied into a container"):
                self._handle.put_archive("/", stream)

    def get(self, name: str, most: int) -> bytes | None:
        """The contents of the file `CONTAINER_DIR/name`, or None when there is no such file.

        Of a file with more than `most` bytes, `most` bytes and one more.
        """
        archive = bytearray()
        with translate_sdk_errors("while a file was copied out of a container"):
            try:
                chunks, _ = self._handle.get_archive(f"{CONTAINER_DIR}/{name}")
                for chunk in chunks:
                    archive += chunk
                    if len(archive) > most + _TAR_HEADERS:
                        break
            except NotFound:
                return None
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|") as tar:
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.isreg() else None
            return None if file is None else file.read(most + 1)

    def go_offline(self) -> None:
        """Disconnect the container from every network; later programs see only the loopback interface."""
        with translate_sdk_errors("while a container was disconnected from its network"):
            self._handle.reload()
            for network in self._handle.attrs["NetworkSettings"]["Networks"].values():
                self._client.networks.get(network["NetworkID"]).disconnect(self._handle, force=True)

    def run(
        self, argv: Sequence[str], *, log: Path, timeout: float | None = None, variables: Mapping[str, str] = _NONE
    ) -> RunResult:
        """Run a program until it ends and append its output to `log` as it arrives; `timeout` is in seconds.

        `variables` are set for this program only: unlike those of the container, later programs cannot read them.

        Raises NoGpuError when the container requests a GPU that the engine cannot provide, and Interrupted when this
        run of buildfarm is interrupted.
        """
        command = shlex.join(argv)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, _SCRIPT).write_text(f"{shell_settings(variables)}{command}\nexit $?\n")
            self.put(Path(folder), "")
        with log.open("ab") as stream:
            stream.write(f"+ in a container: {mask_credentials(command)}\n".encode())
            stream.flush()
            start = stream.tell()
            with translate_sdk_errors("before a program was started in a container"):
                # Attach before the start: logging drivers such as `none` and `syslog` keep nothing to read afterwards.
                output = self._handle.attach(stdout=True, stderr=True, stream=True, logs=False, demux=True)
            ends = (bytearray(), bytearray())
            reader = threading.Thread(target=_copy_output, args=(output, stream, ends), daemon=True)
            try:
                self._start()
                reader.start()
                timed_out = not self._wait(reader, timeout)
            finally:
                close_stream(output)
                mask_log(log, start)
        with translate_sdk_errors("while a program ran in a container"):
            self._handle.wait()  # the output ends a moment before the container does
            self._handle.reload()
        state: Mapping[str, Any] = self._handle.attrs["State"]
        code = int(state["ExitCode"])
        if 128 < code <= 128 + 64:  # a shell's status for a signal, which `subprocess` says as a negative number
            code = 128 - code
        stdout, stderr = (end.decode(errors="replace") for end in ends)
        return RunResult(code, stdout, stderr, bool(state.get("OOMKilled")), timed_out)

    def _start(self) -> None:
        try:
            with translate_sdk_errors("while a container was started"):
                self._handle.start()
        except MissingToolError as error:
            if not self._gpus or not isinstance(error.__cause__, APIError):
                raise
            message = reason(error.__cause__)
            if "could not select device driver" in message:
                message = (
                    "install NVIDIA's container toolkit (nvidia-container-toolkit), run"
                    " `nvidia-ctk runtime configure --runtime=docker`, restart the engine"
                )
            sentence = f"the Docker engine cannot give this machine's GPU to a container: {message}"
            raise NoGpuError(sentence, Code.NO_GPU) from error

    def _wait(self, reader: threading.Thread, timeout: float | None) -> bool:
        """Wait until the program ends; False when the timeout passed and the program was killed.

        The end of its output is not enough: an engine that stopped can leave the stream open.
        """
        now = time.monotonic()
        end, look = None if timeout is None else now + timeout, now + _LOOK_INTERVAL
        while reader.is_alive():
            reader.join(_POLL_INTERVAL)
            raise_if_interrupted()
            if end is not None and time.monotonic() > end and reader.is_alive():
                with translate_sdk_errors("while a program in a container was killed"), suppress(NotFound):
                    self._handle.kill()
                reader.join(_LOOK_INTERVAL)
                return False
            if time.monotonic() > look:
                look = time.monotonic() + _LOOK_INTERVAL
                with translate_sdk_errors("while a program ran in a container"):
                    self._handle.reload()
                if self._handle.status in ("exited", "removing", "dead"):
                    reader.join(_LOOK_INTERVAL)  # for what it printed last
                    break
        return True


def _copy_output(
    output: Iterable[tuple[bytes | None, bytes | None]], log: IO[bytes], ends: tuple[bytearray, bytearray]
) -> None:
    """Copy a program's standard output and standard error to the log until it ends, and keep the end of both."""
    left = _LOGGED_OUTPUT
    # When the engine stops, the stream ends or raises; the question for the exit status finds out which.
    with suppress(*SDK_ERRORS, OSError, ValueError):
        for parts in output:
            for end, part in zip(ends, parts, strict=True):
                if part:
                    log.write(part[:left])
                    left -= min(left, len(part))
                    end.extend(part)
                    del end[:-_KEPT_OUTPUT]
            log.flush()


def close_stream(output: Any) -> None:  # noqa: ANN401 (the SDK's stream, untyped)
    """Close an attached connection. The SDK's own `close` leaves its file open until garbage collection."""
    with suppress(*SDK_ERRORS, OSError):
        output.close()
    with suppress(*SDK_ERRORS, OSError, AttributeError):
        output._response.close()
