"""Incident 4: two packages that crash the process in one import order."""

from pathlib import Path

import pytest

from tests.conftest import Farm, run
from tests.fixtures.gate_env import make_environment
from tests.real.incidents.conftest import HERE, PAGES, PYTHON, TORCH, one_line, project, says, smoked
from tests.unit.loopback import pure_wheel

pytestmark = [pytest.mark.network, pytest.mark.slow]

PAGE = "import-order.md"
SOURCE = HERE / "toy_reader"


def wheel(folder: Path, package: str, library: str, source: str, *flags: str, requires: tuple[str, ...] = ()) -> Path:
    """A package with one library, compiled now."""
    made = folder / library
    folder.mkdir(exist_ok=True)
    run("cc", "-g", "-O1", "-shared", "-fPIC", *flags, SOURCE / source, "-o", made).ok()
    files: dict[str, str | bytes] = {
        f"{package}/__init__.py": (SOURCE / package / "__init__.py").read_bytes(),
        f"{package}/{library}": made.read_bytes(),
    }
    return pure_wheel(folder, package, "1.0", files, requires=requires, tag="py3-none-linux_x86_64")


def reader(folder: Path, *flags: str) -> Path:
    """The extension; `flags` go to the linker."""
    return wheel(folder, "toy_reader", "libreader.so", "reader.c", *flags, requires=("torch",))


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of the companion, from which uv installs."""
    folder = tmp_path_factory.mktemp("links")
    wheel(folder, "toy_codec", "libcodec.so", "codec_1.c")
    return folder


def test_the_shell_shows_only_a_segmentation_fault(links: Path, store: Path, tmp_path: Path) -> None:
    wheels = [reader(tmp_path / "reader"), *links.glob("*.whl")]
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, wheels)
    for order, crashes in (("toy_codec, toy_reader", True), ("toy_reader, toy_codec", False)):
        done = run("bash", "-c", f"'{python}' -c 'import {order}'; echo ended with $?")
        assert ("ended with 139" in done.out) is crashes, done.all
    page = (PAGES / PAGE).read_text(encoding="utf-8")
    assert "Segmentation fault" in page


def test_smoke_names_the_signal_and_both_orders(links: Path, tmp_path: Path, farm: Farm, store: Path) -> None:
    matrix = project(tmp_path, "toy_reader")
    done = smoked(farm, store, reader(tmp_path / "crashes"), matrix, links=links)
    assert done.code == 1, done.all
    says(
        done.out,
        "import-order toy_codec 1.0, then toy_reader 1.0: import toy_reader dies with SIGSEGV (a segmentation fault) "
        "in reader_open of libreader.so, at <module> (__init__.py:9). The failure occurs only if toy_codec 1.0 is "
        "imported before toy_reader: import toy_reader first; the order torch, toy_reader, toy_codec works",
        PAGE,
    )


def test_smoke_passes_the_library_that_keeps_its_symbols(links: Path, tmp_path: Path, farm: Farm, store: Path) -> None:
    """The sound twin, after the crash: the machine survived it."""
    matrix = project(tmp_path, "toy_reader")
    done = smoked(farm, store, reader(tmp_path / "sound", "-Wl,-Bsymbolic"), matrix, links=links).ok()
    assert "toy_codec is not installed" not in one_line(done.out)
