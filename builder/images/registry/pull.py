"""Pulls an image through the Docker engine, with progress, and turns what went wrong into one sentence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import requests
from docker import DockerClient, auth
from rich.filesize import decimal

from builder.diagnosis.known_errors import reports
from builder.errors import Code, MissingToolError
from builder.images.engine_errors import SDK_ERRORS, reason
from builder.images.registry.reference import VARIABLE, Reference
from builder.log import print_line
from builder.process import raise_if_interrupted
from builder.progress.display import clock

#: Time without an event of the engine after which a pull has failed, seconds. The engine itself waits forever for a
#: connection that is still open but sends nothing.
SILENCE_TIMEOUT = 180

#: Seconds between two looks for an interrupt while the engine sends nothing.
_POLL_INTERVAL = 0.2

_AGAIN = "run the command again: images that are complete are not pulled again"
#: A line about a pull is printed at this interval, seconds.
LINE_SECONDS = 10.0


class UnreachableRegistryError(MissingToolError):
    """The connection to a registry failed, so that other pulls from it will fail too."""


def pull_image(client: DockerClient, image: str, source: str) -> None:
    """Pull an image from `source`, its own name or its name in a mirror.

    The engine stops the download when an interrupt ends this process. Raises MissingToolError, and Interrupted at once:
    an engine with much to do can send nothing for minutes.
    """
    progress = PullProgress()
    try:
        with shown(image, progress):
            for event in _events(client, image, source):
                if "error" in event:
                    raise pull_error(image, source, str(event["error"]))
                progress.add(event)
    except SDK_ERRORS as error:
        if "timed out" in str(error):
            raise pull_error(image, source, f"timeout: nothing arrived for {SILENCE_TIMEOUT} seconds") from None
        sentence = f"the Docker engine stopped answering while it pulled an image: {reason(error)}"
        hints = ["restart the Docker engine", _AGAIN]
        raise MissingToolError(sentence, Code.ENGINE_NOT_ANSWERING, where=image, hints=hints) from None


def _events(client: DockerClient, image: str, source: str) -> Iterator[dict[str, Any]]:
    """What the engine reports of a pull; a thread reads it, because a read cannot be interrupted."""
    read: SimpleQueue[bytes | Exception | None] = SimpleQueue()
    unwanted = threading.Event()

    def receive() -> None:
        try:
            with closing(_request(client, source)) as answer:
                if not answer.ok:
                    raise pull_error(image, source, str(answer.json().get("message", answer.text)))
                for line in answer.iter_lines(chunk_size=None):
                    if unwanted.is_set():
                        return
                    read.put(line)
            read.put(None)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            read.put(error)

    threading.Thread(target=receive, daemon=True).start()
    try:
        while True:
            raise_if_interrupted()
            try:
                line = read.get(timeout=_POLL_INTERVAL)
            except Empty:
                continue
            if line is None:
                return
            if isinstance(line, Exception):
                raise line
            if line:
                yield json.loads(line)
    finally:
        unwanted.set()


def _request(client: DockerClient, source: str) -> requests.Response:
    """The answer of the engine, which streams its events. The SDK's own `pull` waits forever and cannot be stopped."""
    reference = Reference.parse(source)
    image = f"{reference.registry}/{reference.repository}"
    registry, _ = auth.resolve_repository_name(image)
    login = auth.get_config_header(client.api, registry)
    answer: requests.Response = client.api.post(
        f"{client.api.base_url}/v{client.api.api_version}/images/create",
        params={"fromImage": image, "tag": reference.digest or reference.tag},
        headers={"X-Registry-Auth": login} if login else {},
        stream=True,
        timeout=SILENCE_TIMEOUT,
    )
    return answer


def pull_error(image: str, source: str, message: str) -> MissingToolError:
    """The error for a pull of an image from `source` that failed with this message of the engine."""
    wanted, own = Reference.parse(source), Reference.parse(image).registry
    registry, name = wanted.registry, wanted.name.partition("/")[2]
    another = "a mirror" if source == image else "a different mirror"
    mirror = f"name {another} of {own} under `registries:` in matrix.yaml or in {VARIABLE}"
    message, code = " ".join(message.split()), Code.IMAGE_NOT_FOUND
    if reports("disk-full", message):
        code = Code.DISK_FULL
        sentence = "the disk of the Docker engine is full"
        hints = ["`docker system df` shows what uses the disk", _AGAIN]
    elif reports("registry-limit", message):
        sentence = f"the registry {registry} refuses more pulls for now"
        hints = [f"log in with `docker login {registry}`, or wait", mirror]
    elif reports("registry-missing", message):
        sentence = f"the registry {registry} has no image {name}"
        hints = ["copy the image to the registry, or name a different image under `images:` in matrix.yaml"]
    elif reports("registry-denied", message):
        sentence = f"the registry {registry} has no image {name}, or requires a login for this image"
        hints = [f"log in with `docker login {registry}`", mirror]
    elif reports("registry-unreachable", message):
        hints = [_AGAIN, "behind a proxy, the Docker engine needs proxy settings of its own", mirror]
        sentence = f"the connection to the registry {registry} failed: {message}"
        return UnreachableRegistryError(sentence, Code.NETWORK_UNREACHABLE, where=image, hints=hints)
    else:
        code = Code.ENGINE_NOT_ANSWERING
        sentence, hints = f"the Docker engine cannot pull this image: {message}", [_AGAIN, mirror]
    return MissingToolError(sentence, code, where=image, hints=hints)


class PullProgress:
    """How much of an image was downloaded, from the events that the engine sends for each layer."""

    def __init__(self) -> None:
        self.phase = "waiting"  # of the layer that the engine named last: `downloading`, `retrying in 5 seconds`
        self._bytes: dict[str, tuple[int, int]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event into account."""
        layer, status = event.get("id"), str(event.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        self.phase = status.lower()
        if status == "Downloading":
            detail = event.get("progressDetail") or {}
            self._bytes[layer] = int(detail.get("current", 0)), int(detail.get("total", 0))
        elif layer in self._bytes and status in ("Verifying Checksum", "Download complete"):
            self._bytes[layer] = (self._bytes[layer][1],) * 2

    @property
    def downloaded(self) -> int:
        """Bytes of the layers that have arrived."""
        return sum(current for current, _ in self._bytes.values())

    @property
    def total(self) -> int:
        """Bytes of the layers that have begun."""
        return sum(total for _, total in self._bytes.values())


@contextmanager
def shown(image: str, progress: PullProgress, now: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Print lines about a pull while the body runs; at the end what was pulled. `now` is the clock, in seconds."""
    started, stop = now(), threading.Event()

    def follow() -> None:
        while not stop.wait(LINE_SECONDS):
            amount = f"{decimal(progress.downloaded)} of {decimal(progress.total)}"
            print_line(f"{image}: {amount}, {progress.phase} ({clock(now() - started)})")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    print_line(f"pulled {image} ({decimal(progress.total)}, {clock(now() - started)})")
