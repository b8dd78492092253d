"""What installers pick: never a wheel for a different CUDA, and the torch series that a wheel of `build` requires."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder import log
from builder.commands.building.build import run_build
from builder.commands.rebuild import RebuildOptions, run_rebuild
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.facts import read_facts
from builder.wheels.toolchain.uv import find_uv
from tests.benchmarks.installers import NOTHING, Indexes, Installers, Request, indexes, two_indexes
from tests.benchmarks.installers_and_torch import Task, TorchInstallers
from tests.benchmarks.installers_and_torch import indexes as torch_indexes
from tests.fixtures.small_project import SmallProject, small_project
from tests.unit.loopback import PYTHON


@pytest.mark.network
def test_pip_and_uv_never_leave_the_path_of_a_cuda_variant(tmp_path: Path) -> None:
    installers = Installers(tmp_path)
    with indexes(tmp_path) as (farm, public):
        for name in ("pip", "uv"):
            picks = [installers.pick(name, Indexes(f"{farm}/cu130/"), one) for one in (Request(), Request(pre=True))]
            assert picks == ["1.0+cu130", "2.0rc1+cu130"]  # not: another Python, a newer one, yanked
            assert installers.pick(name, Indexes(f"{farm}/cu130/"), Request("==1.0+cu124")) == NOTHING
            assert installers.pick(name, Indexes(f"{farm}/cpu/"), Request()) == "1.0"
            assert installers.pick(name, Indexes(f"{farm}/simple/"), Request("==1.0")) == "1.0+cu92"  # sorted as text
        (explicit,) = [way for tool, _, way in two_indexes(f"{farm}/cu130/", public) if tool == "uv" and way.explicit]
        assert installers.pick("uv", explicit, Request()) == "1.0+cu130"


@pytest.mark.network
@pytest.mark.parametrize("name", ["pip", "uv"])
def test_pip_and_uv_never_leave_the_path_of_a_torch(name: str, tmp_path: Path) -> None:
    installers = TorchInstallers(tmp_path)
    path = ("cu130/torch2.11", Request(name="my_op"))
    printed = [("", Request(name=project)) for project in ("my_op", "my_old", "my_tag")]
    with torch_indexes(tmp_path) as (farm, public):
        picks = [installers.outcome(Task(name, *asked, "2.9.0"), farm, public) for asked in (path, *printed)]
    assert picks == [
        ("`1.0+cu130.torch2.11-2-py3-none-any`", "2.11.0"),
        ("`1.0+cu130.torch2.11-2-py3-none-any`", "2.11.0"),
        ("`1.0+cu130.torch2.11-py3-none-any`", "2.11.0"),
        ("`1.0+cu130-py3-none-manylinux_2_28_x86_64`", "2.11.0"),
    ]


@pytest.mark.network
@pytest.mark.parametrize("version", ["22.3.1", "23.0.1"])
def test_pips_before_the_key_of_pep_714_install(version: str, tmp_path: Path, python_of: Callable[[str], Path]) -> None:
    """They end with an exception at the JSON key `dist-info-metadata` (PEP 714). Python 3.10 brings pip 23.0.1."""
    installers = Installers(tmp_path)
    installers.add_pip(version, python_of("3.11"))  # neither runs in Python 3.12
    with indexes(tmp_path) as (farm, _):
        assert installers.pick(f"pip {version}", Indexes(f"{farm}/cu130/"), Request()) == "1.0+cu130"
    pages = Indexes((tmp_path / "index" / "cu130").as_uri() + "/")
    assert installers.pick(f"pip {version}", pages, Request()) == "1.0+cu130"


@pytest.mark.network
def test_poetry_and_pdm_never_leave_the_path_of_a_cuda_variant(tmp_path: Path) -> None:
    installers = Installers(tmp_path)
    installers.add_poetry_and_pdm()
    with indexes(tmp_path) as (farm, _):
        for name in ("Poetry", "PDM"):
            assert installers.pick(name, Indexes(f"{farm}/cu130/"), Request("==1.0")) == "1.0+cu130"
            assert installers.pick(name, Indexes(f"{farm}/cpu/"), Request()) == "1.0"


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


@pytest.mark.usefixtures("headers")
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
