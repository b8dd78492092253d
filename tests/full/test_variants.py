"""Wheel variants: uv chooses a variant wheel by the driver and the GPU; installers without variants see none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.index.variants.publish import publish_variants
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Ran, run
from tests.fixtures.index_server import clean_environment, running
from tests.unit.publish.index.make import add_with_code


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with variants for two CUDA versions."""
    folder = tmp_path_factory.mktemp("variants")
    repository = Repository(Folder(folder / "index"))
    add_with_code(repository, folder, "cu126.torch211", "cu126", ["sm_80", "sm_90"])
    add_with_code(repository, folder, "cu130.torch211", "cu130", ["sm_80", "compute_90"])
    publish_variants(repository)
    return folder / "index"


def install(target: Path, pages: str, *words: str, driver: str = "", gpu: str = "") -> Ran:
    forced = {"NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver, "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": gpu}
    env = clean_environment(target, **{name: value for name, value in forced.items() if value})
    argv = (find_uv(), "pip", "install", "--no-cache", "--python", sys.executable, "--target", target)
    return run(*argv, "--default-index", pages, *words, "my-ext", env=env, timeout=300)


@pytest.mark.parametrize(
    ("driver", "gpu", "built"),
    [
        ("12.8", "8.9", "cu126.torch211"),
        ("13.1", "8.9", "cu130.torch211"),
        ("13.1", "9.0", "cu130.torch211"),  # by its PTX
        ("12.8", "12.0", ""),
        ("12.4", "9.0", ""),
    ],
)
def test_uv_chooses_by_driver_and_gpu(tmp_path: Path, index: Path, driver: str, gpu: str, built: str) -> None:
    options = ("--preview-features", "wheel-variants")
    done = install(tmp_path, (index / "variants").as_uri(), *options, driver=driver, gpu=gpu)
    if built:
        assert done.code == 0, done.all
        assert (tmp_path / "my_ext.py").read_text() == f"built = {built!r}\n"
    else:
        assert done.code != 0
        assert "unsupported wheel variants" in " ".join(done.all.split())


def test_the_server_has_the_variants(tmp_path: Path, index: Path) -> None:
    with running(index) as server:
        options = ("--preview-features", "wheel-variants")
        done = install(tmp_path, f"{server.url}/variants/", *options, driver="12.8", gpu="8.9")
        assert done.code == 0, done.all


def test_installers_without_variants_do_not_see_them(tmp_path: Path, index: Path) -> None:
    assert install(tmp_path, (index / "variants").as_uri()).code != 0
    done = install(tmp_path, (index / "simple").as_uri())
    assert done.code == 0, done.all
    assert "cu130" in (tmp_path / "my_ext.py").read_text()  # the version that sorts last as text
