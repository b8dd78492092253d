"""What sources expect around them, in a container: options of the backend, the driver's library, and their own version.

tests/field/test_sources.py has these reports for builds on this machine.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.wheelfile.facts import read_facts
from tests.fixtures.container_farm import ContainerFarm, container_farm, error_text
from tests.fixtures.small_project import MODULE
from tests.unit import loopback

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

#: A backend that states its metadata before the build, and the version that it states.
HOOK = """
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = Path(metadata_directory, f"{{NAME}}-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {version}\\n")
    return info.name
"""
CUDA_H = "CUresult CUDAAPI cuInit(unsigned int Flags);\n"
CALLS_THE_DRIVER = MODULE.format(answer=42) + "int cuInit(unsigned);\nint call(void) { return cuInit(0); }\n"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[ContainerFarm]:
    with container_farm(tmp_path) as made:
        yield made


def change(package: Path, *changes: tuple[str, str]) -> None:
    """Change the build backend of an extension."""
    backend = package.parent / "backend.py"
    text = backend.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    backend.write_text(text)


def test_options_reach_the_backend_and_lcuda_links_a_stub(farm: ContainerFarm) -> None:
    """Reports 2 and 6: the same recipe key and the same stub as in a build on this machine."""
    files: dict[str, str | bytes] = {
        "nvidia/cu13/bin/nvcc": "#!/bin/sh\n",
        "nvidia/cu13/lib/libcudart.so.13": "",
        "nvidia/cu13/include/cuda.h": CUDA_H,
    }
    loopback.pure_wheel(farm.index.root / "default", "nvidia_cuda_nvcc", "13.0.88", files)
    more = "config_settings: {--flavour: [one, two]}\n"
    package = farm.recipe("toy", source=CALLS_THE_DRIVER, more=more)
    change(
        package,
        ('f"{NAME}/_C.c", "-o"', 'f"{NAME}/_C.c", "-L", os.environ["CUDA_HOME"] + "/lib64/stubs", "-lcuda", "-o"'),
        ('f"{k}={v}" for k, v in sorted(os.environ.items())', 'config_settings["--flavour"]'),
    )
    ran = farm.build()
    assert ran.code == 0, ran.all
    (wheel,) = (farm.root / "dist-store").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("toy/env.txt").decode().split() == ["one", "two"]
    (library,) = read_facts(wheel).libraries
    assert "libcuda.so.1" in library.needed


def test_a_version_that_is_not_the_recipe_s_ends_the_build_before_the_compile(farm: ContainerFarm) -> None:
    """Report 11: the container asks the backend first."""
    package = farm.recipe("toy")
    backend = package.parent / "backend.py"
    backend.write_text(backend.read_text() + HOOK.format(version="1.1"))
    error = error_text(farm.build(), 1)
    assert "version 1.1 instead of 1.0" in error
    assert farm.compiles.arrivals == 0
    backend.write_text(backend.read_text().replace("1.1", "1.0"))
    ran = farm.build()
    assert ran.code == 0, ran.all
    assert farm.compiles.arrivals == 1
