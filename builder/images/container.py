"""One container that is started once for each step, and what is put into it and taken out between the steps."""

from __future__ import annotations

import io
import shlex
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container as Handle
from docker.types import DeviceRequest, Mount

from builder.errors import MissingToolError
from builder.images.faults import FAULTS, reason, told
from builder.process import stop_if_ending

#: Containers of a job carry this label with the job's mark, so that what a killed farm left is found, and what a farm
#: with another store is making at the same time is not.
LABEL = "buildfarm.build"

#: The folder in a container that the farm may use; its files belong to the user of rendered images.
ROOM = "/buildfarm"
USER = 1000

#: Between looks at whether the farm is ending or a step has run out of time, seconds.
_TICK = 0.25

#: What is kept of a step's output beside the log, for who reads it; bytes.
_KEPT = 1 << 20

#: `docker run --gpus all`, and the same for an engine that knows GPUs by CDI specifications alone.
ALL_GPUS: tuple[DeviceRequest, ...] = (
    DeviceRequest(count=-1, capabilities=[["gpu"]]),
    DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"]),
)

#: The storage whose programs are asked by the kernel; see `ease`.
_ASKED = "fuse-overlayfs"

_NO_DRIVER = "could not select device driver"


class NoGpuError(MissingToolError):
    """The engine does not start a container that asks for GPUs."""


@dataclass(frozen=True)
class ContainerSpec:
    """A container to make.

    Attributes:
        image: tag or id; nothing is pulled.
        labels: by which it is found again when its farm was killed.
        environment: added to the image's. It reaches the engine in a request, not in arguments of a program.
        lent: files of this machine to places in it, read only.
        volumes: the engine's volumes, by name, to places in it.
        memory: bytes after which the kernel ends what runs in it; 0 for no limit.
        gpus: the device request, or None for a container without.

    """

    image: str
    labels: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    lent: Mapping[Path, str] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    memory: int = 0
    gpus: DeviceRequest | None = None

    def options(self) -> dict[str, Any]:
        """Arguments for the SDK's `containers.create`."""
        lent = [Mount(target, str(source), type="bind", read_only=True) for source, target in self.lent.items()]
        shared = [Mount(target, name, type="volume") for name, target in self.volumes.items()]
        return {
            "image": self.image,
            # A shell that stays: the first process of a container gets no signal it has not asked for, so that
            # an abort() in it would not end it; and this one tells a signal as 128 and its number.
            "command": ["/bin/sh", f"{ROOM}/step"],
            "entrypoint": [],
            "user": f"{USER}:{USER}",
            "labels": dict(self.labels),
            "environment": dict(self.environment),
            "mounts": [*lent, *shared],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            **({"mem_limit": self.memory} if self.memory else {}),
            **({"device_requests": [self.gpus]} if self.gpus else {}),
        }


@dataclass(frozen=True)
class Ended:
    """How a step ended.

    Attributes:
        status: exit status, negative for the signal that ended it.
        stdout, stderr: the end of what it printed.
        out_of_memory: the kernel killed something in the container for going beyond its memory.
        timed_out: it did not end in the time it was given, and was killed.

    """

    status: int
    stdout: str
    stderr: str
    out_of_memory: bool = False
    timed_out: bool = False


class Container:
    """A container that exists and runs only during a step.

    A step is a start of its own: nothing of the one before still runs, its exit status and its death for memory are
    told apart from theirs, and what it wrote to disk stays for the next. Each method raises MissingToolError when the
    engine refuses or is gone.
    """

    def __init__(self, client: DockerClient, handle: Handle, *, gpus: bool) -> None:
        self._client = client
        self._handle = handle
        self._gpus = gpus
        self._eased = False

    def put(self, source: Path, target: str) -> None:
        """Copy a file or a folder into the room, as `ROOM/target`; it belongs to the container's user."""
        with tempfile.TemporaryFile() as stream:
            with tarfile.open(fileobj=stream, mode="w") as tar:
                tar.add(source, arcname=f"{ROOM[1:]}/{target}", filter=_owned)
            stream.seek(0)
            with told("while files were copied into a container"):
                self._handle.put_archive("/", stream)

    def get(self, name: str) -> bytes | None:
        """The contents of a file of the room, or None when there is none of that name."""
        with told("while a file was copied out of a container"):
            try:
                chunks, _ = self._handle.get_archive(f"{ROOM}/{name}")
                archive = io.BytesIO(b"".join(chunks))
            except NotFound:
                return None
        with tarfile.open(fileobj=archive) as tar:
            member = tar.extractfile(tar.getmembers()[0])
            return None if member is None else member.read()

    def go_offline(self) -> None:
        """Take it off every network; the next steps have the loopback interface alone."""
        with told("while a container was taken off its network"):
            self._handle.reload()
            for network in self._handle.attrs["NetworkSettings"]["Networks"].values():
                self._client.networks.get(network["NetworkID"]).disconnect(self._handle, force=True)

    def step(self, argv: Sequence[str], *, log: Path, seconds: float | None = None) -> Ended:
        """Run a program to its end, its output appended to `log` as it comes.

        Raises NoGpuError where the engine has no GPU to give, Interrupted once the farm is ending.
        """
        command = shlex.join(argv)
        self._write_step(f"{command}\nexit $?\n")
        with log.open("ab") as stream:
            stream.write(f"+ in a container: {command}\n".encode())
            stream.flush()
            with told("before a step in a container"):
                # Attached before the start: a driver that keeps no logs (`none`, `syslog`) takes nothing away.
                output = self._handle.attach(stdout=True, stderr=True, stream=True, logs=False, demux=True)
            listener = _Listener(output, stream)
            try:
                self._start()
                listener.start()
                timed_out = not self._await(listener, seconds)
            finally:
                hang_up(output)
        state = self._state()
        return Ended(
            _status(int(state["ExitCode"])),
            listener.text(0),
            listener.text(1),
            bool(state.get("OOMKilled")),
            timed_out,
        )

    def _write_step(self, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(text)
            self.put(Path(folder), "")

    def _start(self) -> None:
        try:
            with told("while a container was started"):
                self._handle.start()
        except MissingToolError as error:
            if self._gpus and isinstance(error.__cause__, APIError):
                raise NoGpuError(_why_no_gpu(error.__cause__)) from error
            raise
        self._eased = self._eased or ease(self._handle)  # a mode, which stays for the next steps

    def _await(self, listener: _Listener, seconds: float | None) -> bool:
        """Wait for the end of a step; False when it was killed because its time was over."""
        end = None if seconds is None else time.monotonic() + seconds
        while listener.is_alive():
            listener.join(_TICK)
            stop_if_ending()
            if end is not None and time.monotonic() > end and listener.is_alive():
                with told("while a step was stopped"), suppress(NotFound):
                    self._handle.kill()
                listener.join()
                return False
        return True

    def _state(self) -> Mapping[str, Any]:
        """Its state once it has stopped: the end of the output comes a moment before."""
        with told("in the middle of a step"):
            self._handle.wait()
            self._handle.reload()
        state: Mapping[str, Any] = self._handle.attrs["State"]
        return state


def ease(container: Handle) -> bool:
    """Spare a running container four fifths of what it asks of its storage, where that is fuse-overlayfs.

    Of a folder that the group may not enter, Linux asks for no access list (acl_permission_check in fs/namei.c). That
    of the root of a FUSE mount it does not remember (seen on 6.18), so that each absolute path of each user but root
    costs a question: 200,000 of the 260,000 of one wheel's build, a fifth to a quarter of its processor time. Rootless
    engines on older kernels have this storage. What fails costs time alone: False, then.
    """
    if container.attrs.get("Driver") != _ASKED:
        return True
    try:
        return container.exec_run(["chmod", "g=", "/"], user="0:0").exit_code == 0
    except FAULTS:  # it has ended already, say
        return False


class _Listener(threading.Thread):
    """Copies what a step prints to its log, and keeps the end of both streams."""

    def __init__(self, output: Iterable[tuple[bytes | None, bytes | None]], log: io.BufferedWriter) -> None:
        super().__init__(name="step output", daemon=True)
        self._output, self._log = output, log
        self._kept = (bytearray(), bytearray())

    def run(self) -> None:
        # An engine that went away ends the stream or breaks it; which, `_state` finds out.
        with suppress(*FAULTS, OSError, ValueError):
            for parts in self._output:
                for kept, part in zip(self._kept, parts, strict=True):
                    if part:
                        self._log.write(part)
                        kept.extend(part)
                        del kept[:-_KEPT]
                self._log.flush()

    def text(self, number: int) -> str:
        """The end of standard output (0) or standard error (1)."""
        return self._kept[number].decode(errors="replace")


def hang_up(output: Any) -> None:  # noqa: ANN401 (the SDK's stream, untyped)
    """End an attached connection. The SDK's own close leaves its file open, to be found by the garbage collector."""
    with suppress(*FAULTS, OSError):
        output.close()
    with suppress(*FAULTS, OSError, AttributeError):
        output._response.close()


def _owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = USER
    member.uname = member.gname = ""
    member.mode |= 0o500 if member.isdir() else 0o400
    return member


def _status(code: int) -> int:
    """A shell's word for how its program ended, as subprocess would say it."""
    return 128 - code if 128 < code <= 128 + 64 else code


def _why_no_gpu(fault: APIError) -> str:
    said = reason(fault)
    if _NO_DRIVER in said:
        return (
            "the Docker engine cannot hand this machine's GPU to a container: install NVIDIA's container toolkit"
            " (nvidia-container-toolkit), run `nvidia-ctk runtime configure --runtime=docker`, restart the engine"
        )
    return f"the Docker engine does not hand over this machine's GPU: {said}"
