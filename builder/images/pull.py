"""Pulls an image through the Docker engine, with progress, and turns what went wrong into one sentence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any

import requests
from docker import DockerClient, auth
from rich.filesize import decimal

from builder.diagnosis.known_errors import known_error, reports
from builder.errors import Code, MissingToolError
from builder.images.container import SDK_ERRORS, reason
from builder.images.registry import VARIABLE, Reference
from builder.log import print_line
from builder.process import raise_if_interrupted
from builder.progress.display import clock

#: Time without an event of the engine after which a pull has failed, seconds. The engine itself waits forever for a
#: connection that is still open but sends nothing.
SILENCE_TIMEOUT = 180

#: Seconds between two looks for an interrupt while the engine sends nothing.
_POLL_INTERVAL = 0.2

_AGAIN = "run the command again: images that are complete are not pulled again"
#: Why a pull can fail, by the ids of known_errors.yaml.
_REFUSALS = {
    "disk-full": Code.DISK_FULL,
    "registry-limit": Code.IMAGE_NOT_FOUND,
    "registry-missing": Code.IMAGE_NOT_FOUND,
    "registry-denied": Code.IMAGE_NOT_FOUND,
    "registry-unreachable": Code.NETWORK_UNREACHABLE,
}
#: A line about a pull is printed at this interval, seconds.
LINE_SECONDS = 10.0


def pull_image(client: DockerClient, image: str, source: str) -> None:
    """Pull an image from `source`, its own name or its name in a mirror; prints a line about it now and then.

    The engine stops the download when an interrupt ends this process. Raises MissingToolError, and Interrupted at once:
    an engine with much to do can send nothing for minutes.
    """
    progress, started = PullProgress(), time.monotonic()
    printed = started
    try:
        for event in _events(client, image, source):
            if "error" in event:
                raise pull_error(image, source, str(event["error"]))
            progress.add(event)
            if time.monotonic() - printed >= LINE_SECONDS:
                printed = time.monotonic()
                print_line(f"{image}: {progress} ({clock(printed - started)})")
    except SDK_ERRORS as error:
        if "timed out" in str(error):
            raise pull_error(image, source, f"timeout: nothing arrived for {SILENCE_TIMEOUT} seconds") from None
        sentence = f"the Docker engine stopped answering while it pulled an image: {reason(error)}"
        hints = ["restart the Docker engine", _AGAIN]
        raise MissingToolError(sentence, Code.ENGINE_NOT_ANSWERING, where=image, hints=hints) from None
    print_line(f"pulled {image} ({decimal(progress.total)}, {clock(time.monotonic() - started)})")


def _events(client: DockerClient, image: str, source: str) -> Iterator[dict[str, Any]]:
    """What the engine reports of a pull, often nothing; a thread reads it, because a read cannot be interrupted."""
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
                yield {}
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
    registry, _, name = Reference.parse(source).name.partition("/")
    message = " ".join(message.split())
    known = next((each for each in _REFUSALS if reports(each, message)), "")
    cause = known_error(known).cause if known else "the Docker engine refuses"
    hints = [known_error(known).hint] if known else []
    mirror = f"name a mirror of {Reference.parse(image).registry} under `registries:` in matrix.yaml or in {VARIABLE}"
    return MissingToolError(
        f"{name} cannot be pulled from {registry}: {cause} ({message})",
        _REFUSALS.get(known, Code.ENGINE_NOT_ANSWERING),
        where=image,
        hints=[*hints, mirror, _AGAIN],
    )


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
    def total(self) -> int:
        """Bytes of the layers that have begun."""
        return sum(total for _, total in self._bytes.values())

    def __str__(self) -> str:
        """`5.0 MB of 10.0 MB, downloading`."""
        downloaded = sum(current for current, _ in self._bytes.values())
        return f"{decimal(downloaded)} of {decimal(self.total)}, {self.phase}"
