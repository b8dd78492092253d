"""Errors of the Docker engine, of its SDK and of `docker buildx build`, as buildfarm's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests
from docker.errors import APIError, DockerException

from builder.diagnosis.known_errors import reports
from builder.errors import BuildError, BuildfarmError, Code, MissingToolError

#: Errors that the SDK raises, and those of the HTTP library below it that it lets through.
SDK_ERRORS = (DockerException, requests.exceptions.RequestException)

LOCAL_EXECUTOR_HINT = "use `--executor local`, which needs no container engine"

OTHER_PATHS_HINT = (
    "if buildfarm itself runs in a container, mount the folders of the store and of the project there,"
    " under the same paths as on the engine's machine"
)

#: Error lines of a build step, which begin with the step's number and time: those of pip, apt, dnf and of the checks
#: in the Dockerfile. Second, BuildKit's own error lines, which repeat the complete command of the step.
_ERROR_LINES = re.compile(r"#\d+ [\d.]+ (?:ERROR|E|[Ee]rror): (.+)"), re.compile(r"(?:#\d+ )?(?:ERROR|error): (.+)")

#: A retry of pip; only a line with `total=0` means that pip gave up.
_RETRY = re.compile(r"Retrying \(Retry\(total=(\d+),")


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


def image_build_error(lines: Sequence[str], *, tag: str, log: Path) -> BuildfarmError:
    """The error for a failed `docker buildx build` that printed these lines; `log` holds them.

    MissingToolError when the network is missing, otherwise BuildError.
    """
    full = f"the full output is in {log}"

    def failed(why: str, code: Code, *hints: str) -> BuildError:
        sentence = f"the image could not be built: {why}"
        return BuildError(sentence, code, stage="environment", log=log, where=tag, hints=[*hints, full])

    def lacking(why: str, code: Code, hint: str) -> MissingToolError:
        return MissingToolError(f"the image could not be built because {why}", code, where=tag, hints=[hint, full])

    errors = [[found[1] for line in lines if (found := pattern.match(line))] for pattern in _ERROR_LINES]
    last = next((found[-1][:300] for found in errors if found), "buildx gave no reason")
    if any(reports("disk-full", line) for line in lines):
        hint = "`docker system df` shows what uses the disk"
        return failed("the disk of the Docker engine is full", Code.DISK_FULL, hint)
    if untrusted := next((line for line in lines if reports("untrusted", line)), ""):
        why = f"a server's certificate is not trusted: {_without_step(untrusted)}"
        hint = "set SSL_CERT_FILE to a CA bundle that contains your proxy's or your server's CA"
        return lacking(why, Code.CERTIFICATE_NOT_USABLE, hint)
    gave_up = [line for line in lines if (retry := _RETRY.search(line)) is None or retry[1] == "0"]
    if (line := next((line for line in gave_up if reports("unreachable", line)), "")) and (
        found := reports("unreachable", line)
    ):
        message = f"{found[0]} ({line.rpartition(': ')[2].strip()})" if _RETRY.search(line) else _without_step(line)
        hint = "set UV_DEFAULT_INDEX (or PIP_INDEX_URL) and the proxy variables to hosts that a container can reach"
        return lacking(f"the network cannot be reached: {message}", Code.NETWORK_UNREACHABLE, hint)
    return failed(last, Code.ENVIRONMENT_FAILED)


def _without_step(line: str) -> str:
    """A line of buildx without the number and time of its step, and without the mark of an error."""
    return re.sub(r"^#\d+ (?:[\d.]+ )?(?:W: |E: |ERROR: |Err:\S+ |\s*- )?", "", line).strip()[:300]
