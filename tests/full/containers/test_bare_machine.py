"""The headline command on a bare Debian machine, here a container: a fresh clone, and each supported cibuildwheel."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.images.network import ca_bundle
from builder.images.registry.reference import VARIABLE
from builder.tested_versions import TESTED
from tests.conftest import ROOT, Ran, needs_images, run
from tests.fixtures.built_cells import assert_proven
from tests.fixtures.headline_images import headline_registry
from tests.images.registry import LocalRegistry

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

BASE = "buildfarm-base:bookworm"
SOCKET = "/var/run/docker.sock"
HEADLINE = "build --torch 2.2 --cuda 12.1"
#: One extension, Python and GPU architecture; the packages of the substitute have no CUDA 12.1.
SMALL = "--python 3.11 --ext ms_deform_attn --arch 9.0 --stand-in"


class BareMachine:
    """A running container of the base image, with the engine's socket.

    The engine resolves the paths of bind mounts on the host. So the home folder has the same path in both.
    """

    def __init__(self, home: Path, mirror: str) -> None:
        self.home = home
        certificates = "/etc/ssl/certs/ca-certificates.crt"
        variables = {"HOME": home, "TMPDIR": home / "tmp", "SSL_CERT_FILE": certificates, "PIP_CERT": certificates}
        variables |= {VARIABLE: f"docker.io={mirror} quay.io={mirror}"}
        (home / "tmp").mkdir()
        bundle = home / "ca-certificates.crt"
        shutil.copyfile(ca_bundle(), bundle)
        argv = ["docker", "run", "--detach", "--init", "--network", "host"]
        for source, target in ((SOCKET, SOCKET), (home, home), (bundle, certificates)):
            argv += ["--volume", f"{source}:{target}"]
        for name, value in variables.items():
            argv += ["--env", f"{name}={value}"]
        started = run(*argv, BASE, "sleep", "infinity")
        assert started.code == 0, started.all
        self._id = started.out.strip()

    def sh(self, script: str) -> Ran:
        """Run a shell script in the home folder."""
        return run("docker", "exec", "--workdir", self.home, self._id, "sh", "-ec", script)

    def succeed(self, script: str) -> None:
        """Run a shell script that must not fail."""
        done = self.sh(script)
        assert done.code == 0, done.all

    def remove(self) -> None:
        """Delete the container and its files, which belong to root."""
        run("docker", "exec", self._id, "find", self.home, "-mindepth", "1", "-delete")
        run("docker", "rm", "--force", "--volumes", self._id)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with headline_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module")
def machine(registry: LocalRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareMachine]:
    """A machine with a clone of the repository, and no Docker program."""
    needs_images(BASE)
    made = BareMachine(tmp_path_factory.mktemp("home"), registry.address)
    try:
        # What the host committed; a bundle, because the container does not see the host's folders.
        bundled = run("git", "-C", ROOT, "bundle", "create", "--quiet", made.home / "repository", "HEAD")
        assert bundled.code == 0, bundled.all
        made.succeed("apt-get -q update; apt-get -q -y install --no-install-recommends git")
        made.succeed("git clone -q repository buildfarm")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def with_docker(machine: BareMachine) -> BareMachine:
    """The machine after what docs/how-to/containers.md says about Debian 12."""
    installed = "python3 -m venv plain; plain/bin/pip install -q ./buildfarm; cd buildfarm;"
    refused = machine.sh(f"{installed} ../plain/bin/buildfarm {HEADLINE} {SMALL}")
    assert refused.code == 4, refused.all
    assert "there is no docker program on PATH" in refused.err
    assert "Debian: `apt-get install docker.io`" in " ".join(refused.err.split())

    machine.succeed("apt-get -q -y install --no-install-recommends docker.io")
    refused = machine.sh(f"cd buildfarm; ../plain/bin/buildfarm {HEADLINE} {SMALL}")
    assert refused.code == 4, refused.all
    assert "the docker program has no buildx plugin" in refused.err

    machine.succeed("buildfarm/tests/images/make-base")
    silent = machine.sh(f"cd buildfarm; DOCKER_HOST=unix:///absent.sock ../plain/bin/buildfarm {HEADLINE} {SMALL}")
    assert silent.code == 4, silent.all
    assert "the Docker engine does not answer" in silent.err
    return machine


@pytest.mark.parametrize("version", [TESTED["cibuildwheel"].oldest, "4.3.3", TESTED["cibuildwheel"].newest, "newest"])
def test_the_headline_command(with_docker: BareMachine, version: str) -> None:
    """Each version has an environment, a store and a `dist/` of its own; pip's and uv's caches are those of a user."""
    folder = with_docker.home / version
    pin = "" if version == "newest" else f"cibuildwheel=={version}"
    with_docker.succeed(f"python3 -m venv {version}; {version}/bin/pip install -q ./buildfarm {pin}")
    own = shlex.join(["--store", str(folder / "store"), "--dist", str(folder / "dist")])
    done = with_docker.sh(f"cd buildfarm; {folder}/bin/buildfarm {HEADLINE} {SMALL} {own}")
    assert_proven(done, folder, {"torch2.2.2-cu121-cp311"})
    assert len(list((folder / "dist").glob("ms_deform_attn-*+cu121.torch22-cp311-cp311-*.whl"))) == 1
    assert "executor: docker" in done.err
    shutil.rmtree(folder)
