"""The steps that install the compiler on Rocky Linux 8, run in the substitute that tests/images/make-base makes.

Its packages come from an HTTPS server in a container, whose certificate only the CA bundle of this test knows.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from builder.errors import MissingToolError
from builder.images.dockerfiles import render_template
from builder.images.engine import Engine
from builder.images.network import ca_bundle, ca_variables, shell_settings
from builder.images.specs import ImageChooser
from builder.matrix.axes import Cuda
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from tests.conftest import needs_images, run, wait_until
from tests.unit.matrix import make
from tests.unit.wheels.make_record import build_for

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

ROCKY = "buildfarm-cuda:12.1-rockylinux8"
#: The key of the dnf repository, which names a folder of dnf's cache: one for each run of the test.
KEY = f"test-{uuid4().hex[:12]}"

#: Serves the packages of the image over HTTPS.
SERVER = """
set -e
cd /srv/rpms
address=$(hostname -i)
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext "subjectAltName=IP:$address" \
    -keyout /key -out /certificate 2>/dev/null
exec python3 -c '
import http.server, ssl
server = http.server.ThreadingHTTPServer(("", 443), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/certificate", "/key")
server.socket = context.wrap_socket(server.socket, server_side=True)
open("/ready", "w").close()
server.serve_forever()'
"""


class Repository:
    """An HTTPS server with RPM packages, in a container."""

    def __init__(self) -> None:
        started = run("docker", "run", "--detach", ROCKY, "bash", "-c", SERVER).ok()
        self._id = started.out.strip()
        wait_until(
            lambda: run("docker", "exec", self._id, "test", "-e", "/ready").code == 0,
            lambda: f"ready: {run('docker', 'logs', self._id).all}",
            300,
        )
        self.address = self("hostname -i")
        self.certificate = self("cat /certificate")

    def __call__(self, command: str) -> str:
        """Output of a command in the container."""
        done = run("docker", "exec", "--workdir=/srv/rpms", self._id, "bash", "-c", command).ok()
        return done.out.strip()

    def served(self) -> list[str]:
        """The paths that were sent."""
        return [
            line.split('"')[1].split()[1]
            for line in run("docker", "logs", self._id).err.splitlines()
            if '" 200 ' in line
        ]

    def remove(self) -> None:
        """End the server."""
        run("docker", "rm", "--force", self._id)


@pytest.fixture(scope="module")
def repository() -> Iterator[Repository]:
    needs_images(ROCKY)
    server = Repository()
    yield server
    server.remove()


@pytest.fixture
def tags() -> Iterator[list[str]]:
    """Tags of images, which are removed after the test."""
    made: list[str] = []
    yield made
    run("docker", "image", "rm", *made)


def base(repository: Repository, tags: list[str], log: Path) -> str:
    """The substitute with packages from the server instead of a folder."""
    tag = f"buildfarm-test:rockylinux8-{uuid4().hex[:12]}"
    text = (
        f"FROM {ROCKY}\nRUN rm -r /srv/rpms && sed -i 's#^baseurl=file:.*#baseurl=https://{repository.address}/#;"
        f" s#^.buildfarm.#[{KEY}]#' /etc/yum.repos.d/buildfarm.repo"
        f" && touch -d 2020-01-01 /etc/yum.repos.d/* && touch /{tag}\n"  # dnf updates its cache after a change
    )
    Engine().build(text, tag, log=log, owner="test", secrets={})
    tags.append(tag)
    return tag


def install(name: str, bundle: Path, tags: list[str], log: Path) -> None:
    """Build the rendered steps up to the compiler on a base image, with this CA bundle."""
    matrix = make.matrix(["2.2"], ["12.1"], ["3.11"])
    matrix = replace(matrix, images=(ImageRule("*", name, toolkit=Cuda(12, 4)),))
    image = ImageChooser(matrix, Compat.load(), {}).build_image(build_for("torch2.2.2-cu121-cp311"))
    text = render_template(image.template, image)
    steps = text[text.index(f"FROM {name} AS build") : text.index("ENV CUDA_HOME")]
    network = log.with_name("network")
    network.write_text(shell_settings(ca_variables("/run/secrets/ca")))
    tag = f"{name}-built"
    Engine().build(steps, tag, log=log, owner="test", secrets={"ca": bundle, "network": network})
    tags.insert(0, tag)


def test_dnf_installs_the_compiler(repository: Repository, tags: list[str], tmp_path: Path) -> None:
    log, bundle = tmp_path / "log", tmp_path / "bundle.pem"
    bundle.write_text(ca_bundle().read_text() + repository.certificate)
    first = base(repository, tags, log)
    with pytest.raises(MissingToolError, match="certificate is not trusted"):
        install(first, ca_bundle(), tags, log)
    install(first, bundle, tags, log)
    assert any("/gcc-toolset-12-gcc-" in path for path in repository.served())
    programs = Engine().run_script(tags[0], "readlink -f $(which g++ git make find)", owner="probe").split()
    assert programs[0].startswith("/opt/rh/gcc-toolset-12/root/usr/bin/")
    assert len(programs) == 4

    # A day later, the server has a newer package in place of the old one. dnf's cache still names the old one.
    repository("mv x86_64/which-*.rpm x86_64/which-new.rpm && rm -r repodata && createrepo_c --quiet .")
    install(base(repository, tags, log), bundle, tags, log)
    assert any(path.endswith("/which-new.rpm") for path in repository.served())
