"""What installers pick from the paths of an index: never a wheel for a different CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.installers import NOTHING, Indexes, Installers, Request, indexes, two_indexes

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


def test_poetry_and_pdm_never_leave_the_path_of_a_cuda_variant(tmp_path: Path) -> None:
    installers = Installers(tmp_path)
    installers.add_poetry_and_pdm()
    with indexes(tmp_path) as (farm, _):
        for name in ("Poetry", "PDM"):
            assert installers.pick(name, Indexes(f"{farm}/cu130/"), Request("==1.0")) == "1.0+cu130"
            assert installers.pick(name, Indexes(f"{farm}/cpu/"), Request()) == "1.0"
