"""A wheel that `build` made requires the torch series that it was tested for, and uv resolves it to this series."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import log
from builder.commands.building.build import run_build
from builder.commands.rebuild import RebuildOptions, run_rebuild
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.facts import read_facts
from builder.wheels.toolchain.uv import find_uv
from tests.fixtures.small_project import SmallProject, small_project
from tests.unit.loopback import PYTHON

pytestmark = pytest.mark.usefixtures("headers")

SETTINGS = {
    "plain": ("", "torch"),
    "narrower": ("", "torch>=2.4,!=2.11.1"),
    "own": ("requires_torch: source\n", "torch>=2.4"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SmallProject, dict[str, Path]]]:
    """A project with an extension for each setting, built with torch 2.11 of an index that also has 2.12."""
    root = tmp_path_factory.mktemp("requires")
    with pytest.MonkeyPatch.context() as monkeypatch, small_project(root, monkeypatch) as project:
        monkeypatch.setattr(log.console, "quiet", True)
        project.index.add("torch", "2.12.0")
        for name, (more, torch) in SETTINGS.items():
            backend = project.recipe(name, more=more).parent / "backend.py"
            text = backend.read_text().replace("Requires-Dist: torch", f"Requires-Dist: {torch}")
            backend.write_text(text.replace('f"{NAME}/env.txt"', '# f"{NAME}/env.txt"'))
        project.matrix(*SETTINGS)
        run_build(project.options())
        yield project, {path.name.split("-")[0]: path for path in (root / "dist").glob("*.whl")}


@pytest.mark.parametrize(
    ("name", "required", "resolved"),
    [
        ("plain", "torch==2.11.*", "torch==2.11.0"),
        ("narrower", "torch!=2.11.1,==2.11.*", "torch==2.11.0"),
        ("own", "torch>=2.4", "torch==2.12.0"),
    ],
)
def test_requirement(name: str, required: str, resolved: str, built: tuple[SmallProject, dict[str, Path]]) -> None:
    project, wheels = built
    wheel = wheels[name]
    assert list(read_facts(wheel).requires_dist) == [required]
    with WheelFile(wheel) as archive:
        assert record_fault(archive) == ""
    command = [str(find_uv()), "pip", "compile", "--no-header", "--no-annotate", "--python-version", str(PYTHON), "-"]
    done = subprocess.run(command, input=f"{name} @ {wheel.as_uri()}\n", capture_output=True, text=True, check=False)
    assert resolved in done.stdout.splitlines(), done.stdout + done.stderr
    options = RebuildOptions(wheel, matrix=project.root / "matrix.yaml", store=project.store, jobs=1)
    assert run_rebuild(options).equal
