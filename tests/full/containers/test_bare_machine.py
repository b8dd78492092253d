"""The headline command on a new Debian 12, and builds with the oldest, each tested and made-up newer cibuildwheels."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from builder.images.network import ca_bundle, ca_variables, index_variables
from builder.images.registry import VARIABLE
from builder.tested_versions import TESTED
from builder.wheels.cibuildwheel.config import PACKAGES_VOLUME
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT, Ran, free_disk, lacking, needs_images, run
from tests.fixtures.built_cells import assert_proven, record
from tests.fixtures.container_farm import BASE, ContainerFarm, container_farm, error_text
from tests.images.registry import LocalRegistry

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

SOCKET = Path("/var/run/docker.sock")
#: Where the machine has a CA bundle that the engine does not have there.
BUNDLE = "/root/ca.pem"
#: Repeats downloads of packages, which .ci/run does too.
RETRIES = {"PIP_RETRIES": "8", "UV_HTTP_RETRIES": "8", "UV_HTTP_TIMEOUT": "300"}

#: The lower bound of pyproject.toml, and the newest tested version.
OLDEST, NEWEST = "4.0.0", TESTED["cibuildwheel"]
#: The newest version that pip finds; the others are pinned.
ANY = ""
VERSIONS = list(dict.fromkeys((ANY, OLDEST, "4.3.3", "4.3.5", NEWEST)))

#: The only Python of Debian 12, one extension and one GPU architecture save time. The substitute has CUDA 12.4.
HEADLINE = (
    "buildfarm build --torch 2.2 --cuda 12.1 --python 3.11 --ext ms_deform_attn --arch 9.0 --allow-cuda-minor-mismatch"
)


class Machine:
    """A container with programs of its own, but with this machine's engine and network."""

    def __init__(self, folder: Path, registry: LocalRegistry) -> None:
        self.folder = folder
        self._name = f"buildfarm-test-bare-{uuid4().hex[:8]}"
        volumes = [f"{SOCKET}:/var/run/docker.sock", f"{folder}:{folder}", f"{ROOT}:/source:ro"]
        variables = {
            **index_variables(),
            **RETRIES,
            **ca_variables(BUNDLE),
            VARIABLE: f"docker.io={registry.address} quay.io={registry.address}",
            "DEBIAN_FRONTEND": "noninteractive",
            "UV_CACHE_DIR": str(folder / "uv-cache"),
        }
        words = [word for volume in volumes for word in ("--volume", volume)]
        words += [word for name in variables for word in ("--env", name)]
        options = ["--detach", "--init", "--network=host", f"--name={self._name}"]
        run("docker", "run", *options, *words, BASE, "sleep", "infinity", env=variables).ok()
        self.must(f"cat >{BUNDLE} <<'END'\n{ca_bundle().read_text()}\nEND\n")

    def __call__(self, script: str) -> Ran:
        """Run a shell script on the machine."""
        path = self.folder / "script"
        path.write_text(script)
        return run("docker", "exec", self._name, "sh", "-e", path)

    def must(self, script: str) -> None:
        """Run a shell script that succeeds."""
        self(script).ok()

    def clone(self, version: str) -> Path:
        """A new clone with buildfarm in its environment `.venv`, by the README's command."""
        clone = self.folder / (version or "newest") / "buildfarm"
        pinned = f" cibuildwheel=={version}" if version else ""
        self.must(
            f"git clone --quiet /source {clone}\ncd {clone}\n"
            f"python3 -m venv .venv && .venv/bin/pip install -q .{pinned}\n"
        )
        return clone

    def headline(self, clone: Path, **variables: str | Path) -> Ran:
        """Run the headline command in a clone; each clone has a store of its own."""
        variables = {"BUILDFARM_STORE": clone.parent / "store", **variables}
        exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in variables.items())
        return self(f"{exports}cd {clone}\nexec .venv/bin/{HEADLINE}\n")

    def remove(self) -> None:
        """End the machine, and delete what it wrote."""
        self(f"rm -rf {self.folder}/*")
        run("docker", "rm", "--force", "--volumes", self._name)


@pytest.fixture(scope="module")
def refused() -> dict[str, Ran]:
    """The headline command while one thing is missing, by name of this thing; `machine` adds them."""
    return {}


@pytest.fixture(scope="module")
def machine(
    registry: LocalRegistry, refused: dict[str, Ran], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    needs_images(BASE)
    if not SOCKET.is_socket():
        lacking(f"the engine has no socket {SOCKET}")
    made = Machine(tmp_path_factory.mktemp("bare"), registry)
    try:
        made.must("apt-get -q update\napt-get -q -y install --no-install-recommends git")
        made.must("git config --global --add safe.directory '*'")  # /source belongs to the user of the tests
        clone = made.clone(ANY)
        refused["program"] = made.headline(clone)
        made.must("apt-get -q -y install --no-install-recommends docker.io")
        refused["buildx"] = made.headline(clone)
        made.must(f"{clone}/tests/images/make-base {BASE}")
        refused["engine"] = made.headline(clone, DOCKER_HOST="unix:///run/absent.sock")
        yield made
    finally:
        made.remove()
        shutil.rmtree(made.folder, ignore_errors=True)
        free_disk(PACKAGES_VOLUME)


@pytest.mark.parametrize(
    ("what", "sentence", "hint"),
    [
        ("program", "there is no docker program on PATH", "install Docker Engine 20.10 or newer (Debian: `apt-get"),
        ("buildx", "the docker program has no buildx plugin", "on Debian 12, `tests/images/make-base`"),
        ("engine", "the Docker engine does not answer: No such file or directory", "or set DOCKER_HOST to a running"),
    ],
    ids=["program", "buildx", "engine"],
)
@pytest.mark.usefixtures("machine")
def test_a_missing_thing_is_named(refused: dict[str, Ran], what: str, sentence: str, hint: str) -> None:
    errors = error_text(refused[what], 4)
    assert "neither this machine nor a container can compile these builds. This machine: no CUDA 12.1" in errors
    assert sentence in errors
    assert hint in errors


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version or "newest")
def test_the_headline_command(machine: Machine, version: str) -> None:
    clone = machine.clone(version) if version else machine.folder / "newest" / "buildfarm"
    ran = machine.headline(clone)
    assert_proven(ran, clone, {"torch2.2.2-cu121-cp311"})
    assert "executor: docker (no CUDA 12.1 toolkit on this machine)" in ran.err
    (wheel,) = (clone / "dist").glob("*.whl")
    assert wheel.name.startswith("ms_deform_attn-0.1.0+cu121.torch2.2-cp311-cp311-manylinux")
    (installed,) = clone.glob(".venv/lib/python3.11/site-packages/cibuildwheel-*.dist-info")
    used = record(wheel)["toolchain"]["cibuildwheel"]
    assert installed.name == f"cibuildwheel-{used}.dist-info"
    assert version in {used, ANY}


def test_a_store_that_the_engine_does_not_have(machine: Machine) -> None:
    """The engine mounts folders of its own machine: the store must have the same path there."""
    errors = error_text(machine.headline(machine.folder / "newest" / "buildfarm", BUILDFARM_STORE="/root/store"), 4)
    assert "bind source path does not exist: /root/store/" in errors
    assert "hint: if buildfarm itself runs in a container, mount the folders of the store and of the project" in errors


#: Where cibuildwheel copies the project into the container; a later release may copy more there.
STEP = '    log.step("Copying project into container...")\n'
MORE = '    container.copy_into(Path(__file__), PurePosixPath("{}"))\n'


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


@pytest.fixture
def installed(venv: Callable[..., Path], python_of: Callable[[str], Path]) -> Callable[[str], Path]:
    """The Python of an environment with the locked versions, buildfarm, and this cibuildwheel."""

    def make(version: str) -> Path:
        python = venv(python_of("3.12"), "--requirement", str(ROOT / "requirements.lock"))
        run(find_uv(), "pip", "install", "--python", python, "--no-deps", ROOT, f"cibuildwheel=={version}").ok()
        return python

    return make


def replace(file: Path, old: str, new: str) -> None:
    """Replace a text in a file of an environment, but not in uv's cache, which shares the file."""
    text = file.read_text(encoding="utf-8")
    assert old in text, file
    file.unlink()
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "name"), [("/a-file-of-a-later-release", "later"), ("/usr/a-file", "elsewhere")], ids=["root", "usr"]
)
def test_a_later_release_copies_one_more_file(
    farm: ContainerFarm, installed: Callable[[str], Path], path: str, name: str
) -> None:
    """A file in `/` does no harm. For a file elsewhere, the error names the tested versions and how to install one."""
    python = installed(NEWEST)
    (package,) = python.parents[1].glob("lib/python*/site-packages/cibuildwheel")
    (metadata,) = package.parent.glob("cibuildwheel-*.dist-info/METADATA")
    replace(package / "platforms/linux.py", STEP, STEP + MORE.format(path))
    replace(metadata, f"\nVersion: {NEWEST}\n", "\nVersion: 4.99.0\n")
    farm.recipe(name)
    farm.python = str(python)
    done = farm.build(store=f"store-{name}")
    warning = f"cibuildwheel 4.99.0 is newer than the versions that buildfarm was tested with ({OLDEST} to {NEWEST})"
    assert f"warning: {warning}" in " ".join(done.err.split())
    if name == "later":
        assert done.code == 0, done.all
        return
    errors = error_text(done, 1)
    assert f"cannot create {path}: Permission denied" in errors
    assert f"hint: {warning}; install a tested version:" in errors
    assert f"uv pip install --python {python} cibuildwheel=={NEWEST}" in errors
