"""The headline command on a machine without base images: they are pulled from a registry, here one on loopback."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import MissingToolError
from builder.images.base_image_choice import ImageChooser
from builder.images.engine import Engine
from builder.images.image_build import inspect_image
from builder.images.registry import VARIABLE, read_lock
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.store import Store
from builder.wheels.cibuildwheel.config import PACKAGES_VOLUME
from tests.conftest import ROOT, Farm, free_disk, needs_images
from tests.fixtures.built_cells import assert_proven, record
from tests.images.cuda_registry import CUDA_IMAGE, PYTHONS_IMAGE, RUNTIME_IMAGE, a_layer, remove_images
from tests.images.registry import LOGIN, LocalRegistry, running_registry

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]


@pytest.fixture
def own(registry: LocalRegistry, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The mirror, and a store and a uv cache that are deleted after the test: no later test uses this torch."""
    remove_images(registry.address)
    folders = {"BUILDFARM_STORE": str(tmp_path / "store"), "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    yield {**folders, VARIABLE: f"docker.io={registry.address} quay.io={registry.address}"}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    free_disk(PACKAGES_VOLUME)


def test_the_headline_command(farm: Farm, registry: LocalRegistry, own: dict[str, str], tmp_path: Path) -> None:
    """`buildfarm build --torch 2.2 --cuda 12.1` with the repository's matrix.yaml; only the mirror is configured.

    Two options save time: one extension and one GPU architecture. `--allow-cuda-minor-mismatch` accepts CUDA 12.4,
    because the packages of the substitute have no CUDA 12.1.
    """
    command = ("build", "--torch", "2.2", "--cuda", "12.1", "--dist", tmp_path / "dist")
    refused = farm(*command, "--no-pull", env=own)
    assert refused.code == 4
    assert f"{CUDA_IMAGE}: this base image is not on this machine, and `--no-pull` forbids a pull" in refused.err
    assert "This machine: no CUDA 12.1 toolkit on this machine." in refused.err

    ran = farm(*command, "--ext", "ms_deform_attn", "--arch", "9.0", "--allow-cuda-minor-mismatch", env=own)
    assert_proven(ran, tmp_path, {f"torch2.2.2-cu121-cp{minor}" for minor in (310, 311, 312)})
    assert "executor: docker (no CUDA 12.1 toolkit on this machine)" in ran.err
    assert re.search(rf"pulling 2 base images: \S+/{CUDA_IMAGE}, \S+/{PYTHONS_IMAGE}\n", ran.err)
    assert re.search(rf"pulled {CUDA_IMAGE} \(\d+:\d\d\)", ran.err)
    wheels = sorted((tmp_path / "dist").glob("*.whl"))
    assert [wheel.name.split("-")[:4] for wheel in wheels] == [
        ["ms_deform_attn", "0.1.0+cu121.torch2.2", f"cp{minor}", f"cp{minor}"] for minor in (310, 311, 312)
    ]
    assert ran.out.count("compiled with CUDA 12.4.131 instead of CUDA 12.1") == 3
    for wheel in wheels:
        toolchain = record(wheel)["toolchain"]
        assert (toolchain["nvcc"], toolchain["stands in for"]) == ("12.4.131", "CUDA 12.1")
        assert toolchain["c++"].startswith("g++ 12."), "nvcc cannot compile the headers of torch 2.2 with gcc 13"
        assert CUDA_IMAGE in json.dumps(record(wheel))
        assert registry.address not in json.dumps(record(wheel)), "a record names the original image"

    again = farm(*command, "--ext", "ms_deform_attn", "--arch", "9.0", "--allow-cuda-minor-mismatch", env=own)
    assert "pull" not in again.err
    assert again.err.count("already built") == 3


def test_pinned_images_are_found_after_a_pull_from_the_mirror(
    farm: Farm, registry: LocalRegistry, own: dict[str, str], tmp_path: Path
) -> None:
    """`render --lock` asks the mirror; the engine's builder finds the image by the digest, which no tag can name."""
    (tmp_path / "extensions").symlink_to(ROOT / "extensions")
    shutil.copyfile(ROOT / "matrix.yaml", tmp_path / "matrix.yaml")
    select = ("--torch", "2.2", "--cuda", "12.1", "--python", "3.11")
    farm("render", "--lock", *select, cwd=tmp_path, env=own).ok()
    lock = read_lock(tmp_path / "buildfarm.lock")
    assert set(lock) == {CUDA_IMAGE, RUNTIME_IMAGE, f"quay.io/{PYTHONS_IMAGE}"}
    remove_images(registry.address)

    matrix, _, plan = read_plan(tmp_path / "matrix.yaml", Selection(("2.2",), ("12.1",), ("3.11",)))
    image = ImageChooser(matrix, Compat.load(), lock, minor_mismatch=True).build_image(plan.builds[0])
    assert image.base == f"{CUDA_IMAGE}@{lock[CUDA_IMAGE]}"
    engine = Engine({"docker.io": registry.address, "quay.io": registry.address})
    log = tmp_path / "log"
    _, contents = inspect_image(engine, Store(tmp_path / "store"), image, log=log)
    assert contents.nvcc == "12.4.131", log.read_text()


def test_a_registry_with_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `docker login`, a pull is refused; a missing tag is an error of its own."""
    needs_images()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with running_registry(tmp_path, password=True) as registry:
        registry.publish("team/small:1", [a_layer(tmp_path)])
        login = base64.b64encode(":".join(LOGIN).encode()).decode()
        image, absent = f"{registry.address}/team/small:1", f"{registry.address}/team/small:2"
        with pytest.raises(MissingToolError, match=r"team/small:1 cannot be pulled .* requires a login"):
            Engine().pull(image)
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {registry.address: {"auth": login}}}))
        with pytest.raises(MissingToolError, match=r"team/small:2 cannot be pulled .* has no such image"):
            Engine().pull(absent)
        assert Engine().base_id(image).startswith("sha256:")
        remove_images(registry.address)
