"""Builds in containers with the oldest tested cibuildwheel, the last one before 4.3.4, and made-up newer ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.tested_versions import TESTED
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT, run
from tests.fixtures.container_farm import ContainerFarm, container_farm, error_text

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

OLDEST, NEWEST = TESTED["cibuildwheel"].oldest, TESTED["cibuildwheel"].newest
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
        done = run(find_uv(), "pip", "install", "--python", python, "--no-deps", ROOT, f"cibuildwheel=={version}")
        assert done.code == 0, done.all
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
