"""What installers pick from the paths of an index: never a wheel for a different CUDA."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.installers import NOTHING, Indexes, Installers, Request, indexes, two_indexes
from tests.benchmarks.installers_and_torch import Task, TorchInstallers
from tests.benchmarks.installers_and_torch import indexes as torch_indexes

pytestmark = pytest.mark.network


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


@pytest.mark.parametrize("version", ["22.3.1", "23.0.1"])
def test_pips_before_the_key_of_pep_714_install(version: str, tmp_path: Path, python_of: Callable[[str], Path]) -> None:
    """They end with an exception at the JSON key `dist-info-metadata` (PEP 714). Python 3.10 brings pip 23.0.1."""
    installers = Installers(tmp_path)
    installers.add_pip(version, python_of("3.11"))  # neither runs in Python 3.12
    with indexes(tmp_path) as (farm, _):
        assert installers.pick(f"pip {version}", Indexes(f"{farm}/cu130/"), Request()) == "1.0+cu130"
    pages = Indexes((tmp_path / "index" / "cu130").as_uri() + "/")
    assert installers.pick(f"pip {version}", pages, Request()) == "1.0+cu130"


def test_poetry_and_pdm_never_leave_the_path_of_a_cuda_variant(tmp_path: Path) -> None:
    installers = Installers(tmp_path)
    installers.add_poetry_and_pdm()
    with indexes(tmp_path) as (farm, _):
        for name in ("Poetry", "PDM"):
            assert installers.pick(name, Indexes(f"{farm}/cu130/"), Request("==1.0")) == "1.0+cu130"
            assert installers.pick(name, Indexes(f"{farm}/cpu/"), Request()) == "1.0"
