"""The file that meets Docker: `docker buildx` makes images, the docker SDK does everything else."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from builder.errors import BuildError, MissingToolError
from builder.process import run

#: Oldest engine API that cibuildwheel takes (Docker 20.10).
OLDEST_API = (1, 41)

#: A socket that answers slower than this is no working engine, seconds.
PATIENCE = 20

#: A base image may be gigabytes; seconds.
PULL_PATIENCE = 1800

_FAULTS = (DockerException, requests.exceptions.RequestException)

_OTHER_WAY = "`--executor local` builds without containers"


class Engine:
    """The Docker engine that the `docker` program on PATH talks to."""

    def problem(self) -> MissingToolError | None:
        """Why nothing can be built in containers here, or None."""
        if shutil.which("docker") is None:
            return MissingToolError(
                "there is no docker program on PATH",
                hints=[
                    "install Docker Engine 20.10 or newer (Debian: `apt-get install docker.io`)",
                    _OTHER_WAY,
                ],
            )
        try:
            version, api = self.version()
        except _FAULTS as fault:
            return MissingToolError(
                f"the Docker engine does not answer: {_reason(fault)}",
                where=self._context[1] or "docker",
                hints=["`systemctl start docker`, or set DOCKER_HOST to one that runs", _OTHER_WAY],
            )
        if api < OLDEST_API:
            return MissingToolError(
                f"Docker engine {version} is too old; cibuildwheel needs 20.10 or newer",
                hints=["install a newer Docker Engine", _OTHER_WAY],
            )
        if _ask("docker", "buildx", "version") is None:
            return MissingToolError(
                "the docker program has no buildx plugin",
                where="docker buildx version",
                hints=[
                    "install docker-buildx-plugin (Docker's packages) or docker-buildx (Debian 13, Ubuntu)",
                    "on Debian 12 `tests/images/make-base` of buildfarm's source tree unpacks Debian 13's",
                    _OTHER_WAY,
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
                "`tests/images/make-base` of buildfarm's source tree makes buildfarm-base:bookworm",
                _OTHER_WAY,
            ],
        )

    def read_file(self, image: str, path: str) -> str | None:
        """The text of a file in an image (not a link), or None when it is not there. Nothing in it is run."""
        with self._client() as client:
            container = client.containers.create(image, ["true"], labels={"buildfarm.probe": "yes"})
            try:
                chunks, _ = container.get_archive(path)
                archive = io.BytesIO(b"".join(chunks))
            except NotFound:
                return None
            finally:
                container.remove(force=True, v=True)
        with tarfile.open(fileobj=archive) as tar:
            member = tar.extractfile(tar.getmembers()[0])
            return None if member is None else member.read().decode()

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
        hints = [f"the whole output is in {log}"]
        raise BuildError(_why(log, start), stage="environment", log=log, where=tag, hints=hints)

    def reap(self, label: str) -> list[str]:
        """End and remove the containers that carry a label, with their own volumes; returns their ids."""
        removed = []
        with self._client() as client:
            for container in client.containers.list(all=True, filters={"label": label}):
                try:
                    container.remove(force=True, v=True)
                except NotFound:
                    continue  # it ended by itself in between
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
        try:
            with self._untranslated() as client:
                yield client
        except _FAULTS as fault:
            raise MissingToolError(
                f"the Docker engine refused: {_reason(fault)}", where="docker", hints=[_OTHER_WAY]
            ) from fault

    @contextmanager
    def _untranslated(self) -> Iterator[docker.DockerClient]:
        name, address = self._context
        # A TLS address (DOCKER_CERT_PATH) is the default context's, and from_env knows how to read it.
        with closing(
            docker.from_env(timeout=PATIENCE)
            if name == "default" or not address
            else docker.DockerClient(base_url=address, timeout=PATIENCE)
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


def _reason(fault: Exception) -> str:
    """The end of an SDK error: the engine's own words, or those that three wrappers of the connection hide."""
    if isinstance(fault, APIError) and fault.explanation:
        return str(fault.explanation)
    said = str(fault)
    nested = [single or double for single, double in re.findall(r"'([^']+)'\)|\"([^\"]+)\"\)", said)]
    words = nested[-1] if nested else said
    return re.sub(r".*(?:\w+Connection\w*\([^)]*\)|<[^>]*>): |\[Errno -?\d+\] ", "", words)


def _why(log: Path, start: int) -> str:
    """BuildKit's last complaint, without its step number and clock."""
    with log.open("rb") as stream:
        stream.seek(start)
        said = stream.read().decode(errors="replace").splitlines()
    complaints = [m[1] for line in said if (m := re.match(r"(?:#\d+ [\d.]+ )?(?:ERROR|E|error): (.+)", line))]
    return f"the image could not be made: {complaints[-1][:300] if complaints else 'buildx gave no reason'}"
