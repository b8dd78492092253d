"""What the incidents share: two small extensions, wheels of them, and environments with torch."""

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.errors import Exit
from builder.matrix.axes import Cuda, Torch
from builder.proofs.inventory import Release, shelf_of
from builder.proofs.static.symbol_table import collect_symbols
from builder.store import Store
from builder.wheels.toolchain.environments import Environment
from tests.conftest import ROOT, Farm, Ran, lacking, wheel_of
from tests.fixtures.gate_env import make_environment, torch_environment
from tests.real.doctor.conftest import patient
from tests.unit.conftest import index, uv_cache
from tests.unit.loopback import record_of

__all__ = ["index", "patient", "uv_cache"]  # fixtures: an environment with a stand-in of torch, and its index

HERE = Path(__file__).parent
PAGES = ROOT / "docs" / "incidents"

TORCH, CUDA, PYTHON = "2.11.0", "13.0", "3.12"
CELL = ("--torch", TORCH, "--cuda", CUDA, "--python", PYTHON)
#: A machine without a GPU, also where there is one.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}

MATRIX = f"torch: [{TORCH}]\ncuda: [{CUDA}]\npython: [{PYTHON}]\narchs: [8.0]\nextensions: [{{name}}]\n"


def one_line(text: str) -> str:
    """The text with single spaces, so that the width of a terminal does not matter."""
    return " ".join(text.split())


def says(output: str, sentence: str, page: str) -> None:
    """A command printed this sentence, and the page of the incident shows the same sentence."""
    assert one_line(sentence) in one_line(output), output
    text = one_line((PAGES / page).read_text(encoding="utf-8"))
    assert one_line(sentence) in text, f"docs/incidents/{page} does not have: {sentence}"


def project(folder: Path, name: str, edits: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """A project with a copy of one extension; `edits` replaces a text in a file. Returns its matrix.yaml."""
    shutil.copytree(HERE / name, folder / name)
    for file, (old, new) in (edits or {}).items():
        path = folder / name / file
        text = path.read_text(encoding="utf-8")
        assert old in text, path
        path.write_text(text.replace(old, new), encoding="utf-8")
    matrix = folder / "matrix.yaml"
    matrix.write_text(MATRIX.format(name=name), encoding="utf-8")
    return matrix


def derived(wheel: Path, folder: Path, changes: Mapping[str, bytes]) -> Path:
    """A wheel with other files and a correct RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | dict(changes)
    record = next(name for name in members if name.endswith("/RECORD"))
    del members[record]
    members[record] = record_of(members, record).encode()
    folder.mkdir()
    with zipfile.ZipFile(folder / wheel.name, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / wheel.name


@dataclass(frozen=True)
class Built:
    """A `buildfarm build` of toy_attn that ended, and the wheel that it made or refused."""

    ran: Ran
    wheel: Path
    dist: Path


Build = Callable[..., Built]


@pytest.fixture(scope="session")
def build(farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Runs `buildfarm build` for toy_attn with these edits, on a machine without a GPU."""

    def run(edits: Mapping[str, tuple[str, str]] | None = None) -> Built:
        folder = tmp_path_factory.mktemp("incident")
        project(folder, "toy_attn", edits)
        done = farm("build", "--executor", "local", "--store", store, cwd=folder, env=NO_GPU)
        if done.code == Exit.TOOL_MISSING:
            lacking(done.err)
        refused = re.search(r"the refused wheel is (\S+\.whl)", done.all)
        assert refused or done.code == 0, done.all
        return Built(done, Path(refused[1]) if refused else wheel_of(folder / "dist"), folder / "dist")

    return run


@pytest.fixture(scope="session")
def sound(build: Build) -> Built:
    """The sound wheel of toy_attn, with code for sm_80 only."""
    made = build()
    assert made.ran.code == 0, made.ran.all
    return made


@pytest.fixture(scope="session")
def environment(store: Path, sound: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with torch and the sound wheel."""
    folder = tmp_path_factory.mktemp("incident-environment") / "env"
    return make_environment(store, folder, TORCH, PYTHON, [sound.wheel])


@pytest.fixture(scope="session")
def with_torch(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment with torch in the store."""
    return torch_environment(store, TORCH, PYTHON, tmp_path_factory.mktemp("incident-torch") / "log")


@pytest.fixture(scope="session")
def verify(farm: Farm, with_torch: Environment, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """Runs `buildfarm verify` with an inventory of the real torch."""
    own = tmp_path_factory.mktemp("incident-inventory")
    release = Release(Torch.parse(TORCH), Cuda.parse(CUDA), os.uname().machine)
    shelf_of(Store(own)).add(release, collect_symbols(with_torch.site_packages))

    def run(*words: str | Path) -> Ran:
        return farm("verify", *words, "--store", own)

    return run


@pytest.fixture
def doctor(farm: Farm) -> Callable[..., Ran]:
    """Runs `buildfarm doctor` on an environment, for a machine with this GPU and driver."""

    def run(python: Path, gpu: str, driver: str = "590.10") -> Ran:
        return farm("doctor", "--python", python, "--gpu", gpu, "--driver", driver)

    return run


def smoked(farm: Farm, store: Path, wheel: Path, matrix: Path, *words: str | Path, links: Path | None = None) -> Ran:
    """Run `buildfarm smoke` on a wheel with the cases of a project; packages in the folder `links` can be installed."""
    env = {**NO_GPU, **({"UV_FIND_LINKS": str(links)} if links else {})}
    options = ("--matrix", matrix, *CELL, "--store", store, *words)
    done = farm("smoke", wheel, *options, cwd=matrix.parent, env=env)
    if done.code == Exit.TOOL_MISSING:
        lacking(done.err)
    return done
