"""The file that meets Docker: `docker buildx` makes images, the docker SDK does everything else."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from http.client import CONFLICT
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import LogConfig, Mount

from builder.errors import MissingToolError
from builder.images.build_faults import image_fault
from builder.images.container import LABEL, Container, ContainerSpec, ease, hang_up
from builder.images.faults import FAULTS, OTHER_WAY, reason, told
from builder.process import run

#: Oldest engine API that cibuildwheel takes (Docker 20.10).
OLDEST_API = (1, 41)

#: A socket that answers slower than this is no working engine, seconds.
PATIENCE = 20

#: A base image may be gigabytes; seconds.
PULL_PATIENCE = 1800

#: Making a container of a large image, or deleting one, may keep a busy engine that long; seconds.
CONTAINER_PATIENCE = 300


class Engine:
    """The Docker engine that the `docker` program on PATH talks to."""

    def problem(self) -> MissingToolError | None:
        """Why nothing can be built in containers here, or None."""
        if shutil.which("docker") is None:
            return MissingToolError(
                "there is no docker program on PATH",
                hints=[
                    "install Docker Engine 20.10 or newer (Debian: `apt-get install docker.io`)",
                    OTHER_WAY,
                ],
            )
        try:
            version, api = self.version()
        except FAULTS as fault:
            return MissingToolError(
                f"the Docker engine does not answer: {reason(fault)}",
                where=self._context[1] or "docker",
                hints=["`systemctl start docker`, or set DOCKER_HOST to one that runs", OTHER_WAY],
            )
        if api < OLDEST_API:
            return MissingToolError(
                f"Docker engine {version} is too old; cibuildwheel needs 20.10 or newer",
                hints=["install a newer Docker Engine", OTHER_WAY],
            )
        if _ask("docker", "buildx", "version") is None:
            return MissingToolError(
                "the docker program has no buildx plugin",
                where="docker buildx version",
                hints=[
                    "install docker-buildx-plugin (Docker's packages) or docker-buildx (Debian 13, Ubuntu)",
                    "on Debian 12 `tests/images/make-base` of buildfarm's source tree unpacks Debian 13's",
                    OTHER_WAY,
                ],
            )
        return None

    def version(self) -> tuple[str, tuple[int, int]]:
        """The engine's version and its API's: ("20.10.24", (1, 41)); raises the SDK's own errors."""
        with self._untranslated() as client:
            said = client.version()
        major, minor = said["ApiVersion"].split(".")[:2]
        return str(said["Version"]), (int(major), int(minor))

    def image_id(self, tag: str) -> str | None:
        """The id (`sha256:…`) of a local image, or None when it is not there."""
        with self._client() as client:
            try:
                found = client.images.get(tag).id
            except ImageNotFound:
                return None
        return str(found)

    def base_id(self, base: str) -> str:
        """The id of a base image, pulled when it is not there; raises MissingToolError if that fails."""
        if found := self.image_id(base):
            return found
        status, said = _pull(base)
        if status == 0 and (found := self.image_id(base)):
            return found
        raise MissingToolError(
            f"the base image {base} is not on this machine and cannot be pulled: {said}",
            where="images",
            hints=[
                "name an image that is there, or that this machine can pull, under `images:` in matrix.yaml",
                "`tests/images/make-base all` of buildfarm's source tree makes stand-ins: three CUDAs, and Pythons",
                OTHER_WAY,
            ],
        )

    def ask(self, image: str, script: str, *, mark: str = "", volumes: Mapping[str, str] | None = None) -> str:
        """What a shell script prints in an image's container, without network; raises MissingToolError if it fails.

        `mark` is the label of a job whose next run ends a container that is left; `volumes` are the engine's, by name,
        to places in the container, which is root then.
        """
        with told(), self._untranslated(CONTAINER_PATIENCE) as client:
            said = client.containers.run(
                image,
                ["/bin/sh", "-c", script],
                remove=True,
                network_disabled=True,
                environment={"NVIDIA_VISIBLE_DEVICES": "void"},  # a GPU's driver has no say in this
                # The SDK reads what a container printed from its log, which the engine's own driver may not keep.
                log_config=LogConfig(type=LogConfig.types.JSON, config={}),
                labels={LABEL: mark} if mark else {"buildfarm.probe": "yes"},
                user="0:0" if volumes else None,
                mounts=[Mount(place, name, type="volume") for name, place in (volumes or {}).items()],
            )
        return bytes(said).decode()

    def features(self) -> frozenset[str]:
        """Newer parts of the Dockerfile language that its builder reads: `link`. Tried, for no version tells of it."""
        with tempfile.TemporaryDirectory(prefix="buildfarm-probe-") as folder:
            Path(folder, "Dockerfile").write_text("FROM scratch\nCOPY --link Dockerfile /\n")
            argv = ["docker", "buildx", "build", "--builder", self._context[0]]
            said = _ask(*argv, "--output", f"type=local,dest={folder}/out", folder)
        return frozenset() if said is None else frozenset({"link"})

    def build(self, text: str, tag: str, *, log: Path, job: str, secrets: Mapping[str, Path]) -> str:
        """Make an image from a Dockerfile's text with an empty context; returns its id.

        `secrets` are files that RUN steps may mount by their id; they reach no layer. Raises BuildError with
        the engine's own line; the whole output is in `log`.
        """
        start = log.stat().st_size if log.exists() else 0
        with tempfile.TemporaryDirectory(prefix="buildfarm-image-") as folder:
            Path(folder, "Dockerfile").write_text(text)
            # The context's own builder: a docker-container builder would not see the local base image.
            argv = ["docker", "buildx", "build", "--builder", self._context[0], "--load", "--progress=plain"]
            for name, path in sorted(secrets.items()):
                argv += ["--secret", f"id={name},src={path}"]
            status = run([*argv, "--tag", tag, folder], log=log, job=job)
        if status == 0 and (made := self.image_id(tag)):
            return made
        if problem := self.problem():
            raise MissingToolError(
                f"the Docker engine went away while an image was made: {problem.sentence}",
                where=tag,
                hints=[*problem.hints, f"the whole output is in {log}"],
            )
        with log.open("rb") as stream:
            stream.seek(start)
            lines = stream.read().decode(errors="replace").splitlines()
        raise image_fault(lines, tag=tag, log=log)

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[Container]:
        """A container for steps, not started yet; ended and removed afterwards, however the body ends.

        Raises MissingToolError when the engine makes none.
        """
        with self._untranslated(CONTAINER_PATIENCE) as client:
            with told():
                made = client.containers.create(**spec.options())
            try:
                yield Container(client, made, gpus=spec.gpus is not None)
            finally:
                # Gone with its engine, say: how the body ended counts more, and the next run reaps by label.
                with suppress(*FAULTS):
                    made.remove(force=True, v=True)

    @contextmanager
    def eased(self, label: str) -> Iterator[None]:
        """`ease` each container with a label that somebody else starts while the body runs; what fails costs time."""
        with ExitStack() as stack:
            events: Any = ()
            with suppress(*FAULTS):
                client = stack.enter_context(self._untranslated(CONTAINER_PATIENCE))
                events = client.events(filters={"type": "container", "event": "start", "label": label}, decode=True)

            def follow() -> None:
                # The engine went away, or the stream was closed, which the libraries below the SDK tell in many ways.
                with suppress(*FAULTS, OSError, ValueError, AttributeError):
                    for event in events:
                        ease(client.containers.get(event["id"]))

            follower = threading.Thread(target=follow, name="eased containers", daemon=True)
            follower.start()
            try:
                yield
            finally:
                if events:
                    hang_up(events)
                follower.join(1)  # a stream over SSH cannot be ended from here; it ends with this program

    def marks(self, label: str) -> set[str]:
        """The values of a label, over all containers that carry it, running or not."""
        with self._client() as client:
            found = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
            return {str(container.labels[label]) for container in found}

    def reap(self, label: str) -> list[str]:
        """End and remove the containers that carry a label, with their own volumes; returns their ids."""
        removed = []
        with told(), self._untranslated(CONTAINER_PATIENCE) as client:
            for container in client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
                with suppress(NotFound):  # it ended by itself in between
                    try:
                        container.remove(force=True, v=True)
                    except APIError as fault:
                        if fault.status_code != CONFLICT:
                            raise
                        container.wait(condition="removed")  # somebody else's removal is under way
                    removed.append(str(container.id))
        return removed

    @cached_property
    def _context(self) -> tuple[str, str]:
        """Name and address of the context the docker program uses, so that the SDK asks the same engine."""
        answer = _ask("docker", "context", "inspect")
        if answer is None:
            return "default", ""
        context = json.loads(answer)[0]
        return str(context["Name"]), str(context["Endpoints"]["docker"]["Host"])

    @contextmanager
    def _client(self) -> Iterator[docker.DockerClient]:
        """The SDK's client; what goes wrong with it, unless the caller expects it, is raised as MissingToolError."""
        with told(), self._untranslated() as client:
            yield client

    @contextmanager
    def _untranslated(self, patience: int = PATIENCE) -> Iterator[docker.DockerClient]:
        name, address = self._context
        # A TLS address (DOCKER_CERT_PATH) is the default context's, and from_env knows how to read it.
        with closing(
            docker.from_env(timeout=patience)
            if name == "default" or not address
            else docker.DockerClient(base_url=address, timeout=patience)
        ) as client:
            yield client


def _ask(*argv: str) -> str | None:
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _pull(base: str) -> tuple[int, str]:
    argv = ["docker", "pull", "--quiet", base]
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PULL_PATIENCE)
    except subprocess.TimeoutExpired:
        return 1, f"docker pull took more than {PULL_PATIENCE // 60} minutes"
    said = answer.stderr.strip().splitlines()
    return answer.returncode, said[-1] if said else "docker pull said nothing"
