"""Bytecode of a build's packages is kept for the next build, and bytecode of anything else is not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.wheels.build_scripts.bytecode import keep, take
from builder.wheels.build_scripts.environment import BUILD_USER, BuildPaths


@dataclass(frozen=True)
class Volume:
    """The volume of packages: uv's cache with one package, and environments that are linked from it."""

    root: Path

    def environment(self, name: str) -> Path:
        site = self.root / name
        (site / "torch").mkdir(parents=True)
        (site / "torch" / "mod.py").hardlink_to(self.root / "cached.py")
        (site / "torch-2.6.0.dist-info").mkdir()
        self._open(site)
        return site

    def call(self, act: Callable[[BuildPaths], None], site: Path, *requirements: str) -> None:
        """Call `take` or `keep` as the build's user."""
        job = site.with_name(f"{site.name}-job")
        job.mkdir(exist_ok=True)
        (job / "requirements.txt").write_text("\n".join(requirements))
        self._open(job)
        paths = BuildPaths(
            job_dir=job,
            packages=self.root,
            environment=site,
            prefix=Path("/opt/python/cp312-cp312"),
            site=site,
            toolkit=site,
        )
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(BUILD_USER)
            act(paths)
        finally:
            os.seteuid(user)

    def _open(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            if os.geteuid() == 0:
                os.chown(path, BUILD_USER, BUILD_USER)


@pytest.fixture
def volume() -> Iterator[Volume]:
    root = Path(tempfile.mkdtemp(prefix="buildfarm-bytecode-"))  # the build's user cannot read pytest's folder
    root.chmod(0o777)
    (root / "cached.py").write_text("x = 1\n")
    yield Volume(root)
    shutil.rmtree(root)


def compiled(volume: Volume, site: Path, package: str = "torch") -> Path:
    """As Python leaves it beside a module."""
    path = site / package / "__pycache__" / "mod.cpython-312.pyc"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"compiled")
    volume._open(site)
    return path


def test_the_next_environment_of_the_same_packages_gets_the_bytecode(volume: Volume) -> None:
    first, second, other = (volume.environment(name) for name in ("first", "second", "other"))
    volume.call(take, first, "torch==2.6.0")
    made = compiled(volume, first)
    volume.call(keep, first, "torch==2.6.0")
    shutil.rmtree(first)
    volume.call(take, second, "torch==2.6.0")
    taken = second / "torch" / "__pycache__" / made.name
    assert taken.read_bytes() == b"compiled"
    volume.call(take, other, "torch==2.5.0")
    assert not (other / "torch" / "__pycache__").exists()
    # A file that Python compiled again replaces the link, and is kept.
    taken.unlink()
    taken.write_bytes(b"compiled again")
    volume._open(second)
    volume.call(keep, second, "torch==2.6.0")
    third = volume.environment("third")
    volume.call(take, third, "torch==2.6.0")
    assert (third / "torch" / "__pycache__" / made.name).read_bytes() == b"compiled again"
    kept = list((volume.root / "bytecode").iterdir())
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o755], "one folder, with the mode of site-packages"


@pytest.mark.parametrize(
    ("package", "information"),
    [
        pytest.param("added", "added-1.0.dist-info", id="a package more"),
        pytest.param("torch/added", "torch_added-1.0.dist-info", id="inside a package"),
        pytest.param("torch", "", id="a release replaced"),
    ],
)
def test_nothing_is_kept_of_a_build_that_installs_packages_itself(
    volume: Volume, package: str, information: str
) -> None:
    first, second = (volume.environment(name) for name in ("first", "second"))
    volume.call(take, first, "torch==2.6.0")
    compiled(volume, first)
    compiled(volume, first, package)
    if information:
        (first / information).mkdir()
    else:
        (first / "torch-2.6.0.dist-info").rename(first / "torch-2.7.0.dist-info")
    volume.call(keep, first, "torch==2.6.0")
    volume.call(take, second, "torch==2.6.0")
    assert sorted(path.name for path in second.rglob("*")) == ["mod.py", "torch", "torch-2.6.0.dist-info"]
    assert not (volume.root / "bytecode").exists()
