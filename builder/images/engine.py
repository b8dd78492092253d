"""The Docker engine: `docker buildx` builds images, the Docker SDK does everything else."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from http.client import CONFLICT
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import LogConfig

from builder.diagnosis.known_errors import reports
from builder.errors import BuildError, BuildfarmError, Code, MissingToolError
from builder.gate.amounts import counted
from builder.images.container import (
    LOCAL_EXECUTOR_HINT,
    OWNER_LABEL,
    SDK_ERRORS,
    Container,
    ContainerSpec,
    reason,
    translate_sdk_errors,
)
from builder.images.registry import located, pull_error, pull_image, read_lock, write_lock
from builder.images.saved import load_image
from builder.log import print_line
from builder.process import ENDED, Limits, log_size, run, text_since
from builder.store import Store

#: Oldest engine API that cibuildwheel supports (Docker 20.10).
OLDEST_API = (1, 41)

#: Timeout of one request to the engine, seconds.
REQUEST_TIMEOUT = 20

#: Timeout for creating or removing a container, which a busy engine may take long for. Seconds.
CONTAINER_TIMEOUT = 300

#: Timeout of one build of an image, seconds. A build takes a few minutes; that of a stuck engine would never end.
BUILD_TIMEOUT = 3600

#: Error lines of a build step, which begin with the step's number and time: those of pip, apt, dnf and of the checks
#: in the Dockerfile. Second, BuildKit's own error lines, which repeat the complete command of the step.
_ERROR_LINES = re.compile(r"#\d+ [\d.]+ (?:ERROR|E|[Ee]rror): (.+)"), re.compile(r"(?:#\d+ )?(?:ERROR|error): (.+)")

#: A retry of pip; only a line with `total=0` means that pip gave up.
_RETRY = re.compile(r"Retrying \(Retry\(total=(\d+),")


class Engine:
    """The Docker engine of the `docker` program on PATH.

    Attributes:
        mirrors: the mirrors from which base images are pulled.

    """

    def __init__(self, mirrors: Mapping[str, str] | None = None) -> None:
        """Connects to nothing."""
        self.mirrors = mirrors or {}

    def problem(self) -> MissingToolError | None:
        """The error that explains why containers cannot be used on this machine, or None."""

        def error(sentence: str, code: Code, *hints: str, where: str = "") -> MissingToolError:
            return MissingToolError(sentence, code, where=where, hints=[*hints, LOCAL_EXECUTOR_HINT])

        if shutil.which("docker") is None:
            hint = "install Docker Engine 20.10 or newer (Debian: `apt-get install docker.io`)"
            return error("there is no docker program on PATH", Code.ENGINE_MISSING, hint)
        try:
            version, api = self.version()
        except SDK_ERRORS as failure:
            sentence = f"the Docker engine does not answer: {reason(failure)}"
            hint = "run `systemctl start docker`, or set DOCKER_HOST to a running engine"
            return error(sentence, Code.ENGINE_NOT_ANSWERING, hint, where=self._context[1] or "docker")
        if api < OLDEST_API:
            sentence = f"Docker engine {version} is too old; cibuildwheel needs 20.10 or newer"
            return error(sentence, Code.ENGINE_MISSING, "install a newer Docker Engine")
        if _output_of("docker", "buildx", "version") is None:
            return error(
                "the docker program has no buildx plugin",
                Code.ENGINE_MISSING,
                "install docker-buildx-plugin (Docker's packages) or docker-buildx (Debian 13, Ubuntu)",
                "on Debian 12, `tests/images/make-base` in buildfarm's sources installs buildx on this machine",
                where="docker buildx version",
            )
        return None

    def version(self) -> tuple[str, tuple[int, int]]:
        """The versions of the engine and of its API: ("20.10.24", (1, 41)). Raises the SDK's own errors."""
        with self._client() as client:
            versions = client.version()
        major, minor = versions["ApiVersion"].split(".")[:2]
        return str(versions["Version"]), (int(major), int(minor))

    def image_id(self, tag: str) -> str | None:
        """The id (`sha256:…`) of an image on this machine or in the saved folder; None when there is no such image."""
        with translate_sdk_errors(), self._client() as client:
            try:
                return str(client.images.get(tag).id)
            except ImageNotFound:
                return load_image(tag, self.image_id)

    def local_name(self, base: str) -> str | None:
        """The name that a base image has on this machine: its own or the one in its mirror; None if it is not here."""
        return next((name for name in dict.fromkeys((base, located(base, self.mirrors))) if self.image_id(name)), None)

    def base_id(self, base: str) -> str:
        """The id of a base image, pulled if necessary. Raises MissingToolError when the pull fails."""
        if self.local_name(base) is None:
            pull_image(base, located(base, self.mirrors))
        if found := self.image_id(self.local_name(base) or base):
            return found
        raise MissingToolError(
            "the image disappeared after its pull", Code.IMAGE_NOT_FOUND, where=base, hints=["run the command again"]
        )

    def digest(self, base: str) -> str:
        """The current digest (`sha256:…`) of a tag, as its registry or the mirror reports it.

        Raises MissingToolError when the registry does not answer, refuses the request, or does not have the tag.
        """
        source = located(base, self.mirrors)
        with translate_sdk_errors(), self._client(CONTAINER_TIMEOUT) as client:
            try:
                return str(client.images.get_registry_data(source).id)
            except APIError as error:
                raise pull_error(base, source, reason(error)) from None

    def run_script(self, image: str, script: str, *, owner: str) -> str:
        """The output of a shell script that runs in a container of an image without network.

        `owner` is the owner of the container, by which a later run removes the container if this run is killed.
        Raises MissingToolError when the script or the engine fails.
        """
        with translate_sdk_errors(), self._client(CONTAINER_TIMEOUT) as client:
            output = client.containers.run(
                image,
                ["/bin/sh", "-c", script],
                remove=True,
                network_disabled=True,
                environment={"NVIDIA_VISIBLE_DEVICES": "void"},  # the driver must not refuse the image
                # The SDK reads the output from the container's log, which the default logging driver may not keep.
                log_config=LogConfig(type=LogConfig.types.JSON, config={}),
                labels={OWNER_LABEL: owner},
            )
        return bytes(output).decode()

    def build(self, text: str, tag: str, *, log: Path, owner: str, secrets: Mapping[str, Path]) -> str:
        """Build an image from a Dockerfile's text with an empty context; returns the image's id.

        `secrets` are files that RUN steps may mount by their id; no layer holds them. Raises BuildError with the last
        error line of buildx, and MissingToolError when the engine stopped or the network is missing. The complete
        output is in `log`.
        """
        start = log_size(log)
        with tempfile.TemporaryDirectory(prefix="buildfarm-image-") as folder:
            Path(folder, "Dockerfile").write_text(text)
            # The builder of the context: a docker-container builder cannot use local base images.
            argv = ["docker", "buildx", "build", "--builder", self._context[0], "--load", "--progress=plain"]
            for name, path in sorted(secrets.items()):
                argv += ["--secret", f"id={name},src={path}"]
            status = run([*argv, "--tag", tag, folder], log=log, owner=owner, limits=Limits(seconds=BUILD_TIMEOUT))
        if status == 0 and (image_id := self.image_id(tag)):
            return image_id
        if problem := self.problem():
            sentence = f"the Docker engine stopped answering while an image was built: {problem.sentence}"
            hints = [*problem.hints, f"the full output is in {log}"]
            raise MissingToolError(sentence, Code.ENGINE_NOT_ANSWERING, where=tag, hints=hints)
        raise image_build_error(text_since(log, start).splitlines(), tag=tag, log=log)

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[Container]:
        """A container that is created but not started, and that is removed afterwards in every case.

        Raises MissingToolError when the engine cannot create the container.
        """
        with self._client(CONTAINER_TIMEOUT) as client:
            with translate_sdk_errors():
                handle = client.containers.create(**spec.options())
            try:
                yield Container(client, handle, gpus=spec.gpus is not None)
            finally:
                # An error of the body must not be replaced by an error of the removal; the next run removes orphans.
                with suppress(*SDK_ERRORS):
                    handle.remove(force=True, v=True)

    def owners(self) -> set[str]:
        """The owners that containers of compiles and checks carry as a label, running or not."""
        with translate_sdk_errors(), self._client() as client:
            found = client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True)
            return {str(container.labels[OWNER_LABEL]) for container in found}

    def make_root_directory_writable(self, owner: str) -> bool:
        """Let every user create files in `/` of the owner's running containers; False if none of them runs yet.

        Raises MissingToolError when the engine does not answer.
        """
        with translate_sdk_errors(), self._client() as client:
            running = client.containers.list(filters={"label": f"{OWNER_LABEL}={owner}"}, ignore_removed=True)
        argv = ("docker", "exec", "--user=0:0")  # the SDK would wait for the end of the output without a limit
        return None not in [_output_of(*argv, str(one.id), "chmod", "1777", "/") for one in running] and bool(running)

    def remove_containers(self, owner: str) -> list[str]:
        """Kill and remove the containers of an owner, with their anonymous volumes; returns their ids."""
        removed = []
        label = f"{OWNER_LABEL}={owner}"
        with translate_sdk_errors(), self._client(CONTAINER_TIMEOUT) as client:
            for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
                with suppress(NotFound):  # the container exited in the meantime
                    try:
                        container.remove(force=True, v=True)
                    except APIError as error:
                        if error.status_code != CONFLICT:
                            raise
                        container.wait(condition="removed")  # another process is already removing the container
                    removed.append(str(container.id))
        return removed

    def remove_orphans(self, store: Store) -> list[str]:
        """Remove the containers that killed runs with this store left behind; returns their ids.

        A container is an orphan when no process holds the lock of its owner. Containers of other stores are not
        touched. Raises MissingToolError when the engine does not answer.
        """
        own = store.owner("")
        removed: list[str] = []
        for owner in sorted(owner for owner in self.owners() if owner.startswith(own)):
            with store.lock(owner.removeprefix(own), wait=False) as locked:
                if locked:
                    removed += self.remove_containers(owner)
        return removed

    @cached_property
    def _context(self) -> tuple[str, str]:
        """Name and address of the docker program's context, so that the SDK uses the same engine."""
        output = _output_of("docker", "context", "inspect")
        if output is None:
            return "default", ""
        context = json.loads(output)[0]
        return str(context["Name"]), str(context["Endpoints"]["docker"]["Host"])

    @contextmanager
    def _client(self, timeout: int = REQUEST_TIMEOUT) -> Iterator[docker.DockerClient]:
        """The SDK's client, which raises the SDK's own errors; `timeout` is in seconds."""
        name, address = self._context
        # Only the default context can have a TLS address (DOCKER_CERT_PATH), which from_env reads.
        with closing(
            docker.from_env(timeout=timeout)
            if name == "default" or not address
            else docker.DockerClient(base_url=address, timeout=timeout)
        ) as client:
            yield client


def pull_missing(engine: Engine, bases: Iterable[str]) -> list[BuildfarmError]:
    """Pull the base images that are not on this machine; return the errors, one for each image.

    Prints their names before the first pull. When a registry cannot be reached, the pulls end.
    """
    names = dict.fromkeys(bases)
    sources = {base: located(base, engine.mirrors) for base in names if engine.local_name(base) is None}
    if sources:
        print_line(f"pulling {counted(len(sources), 'base image')}: {', '.join(sources.values())}")
    problems: list[BuildfarmError] = []
    for base, source in sources.items():
        try:
            pull_image(base, source)
        except MissingToolError as error:
            problems.append(error)
            if error.code is Code.NETWORK_UNREACHABLE:
                break
    return problems


def refresh_lock(path: Path, images: Iterable[str], engine: Engine) -> list[MissingToolError]:
    """Write the current digests of these tags, as registries or mirrors report them; returns an error for each failure.

    Other images in the file, and images whose registry could not be reached, keep their recorded digest.
    """
    if problem := engine.problem():
        return [problem]
    known, problems = read_lock(path), []
    for image in images:
        try:
            known[image] = engine.digest(image)
        except MissingToolError as failure:
            problems.append(failure)
    write_lock(path, known)
    return problems


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
    if ended := next((line for line in lines if line.startswith(ENDED)), ""):
        hint = "restart the Docker engine, and run the command again"
        return lacking(f"buildx was ended: {ended.removeprefix(ENDED)}", Code.ENGINE_NOT_ANSWERING, hint)
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


def _output_of(*argv: str) -> str | None:
    """What a docker command prints, or None when it fails or does not answer in time."""
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=REQUEST_TIMEOUT)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return ran.stdout if ran.returncode == 0 else None
