"""bytecode.sh: what a build's Python compiled of its packages serves the next one, and nothing else of it is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.images.files import templates


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

    def run(self, what: str, site: Path, *requirements: str) -> None:
        job = site.with_name(f"{site.name}-job")
        job.mkdir(exist_ok=True)
        (job / "requirements.txt").write_text("\n".join(requirements))
        self._open(job)
        variables = {
            "PATH": os.environ["PATH"],
            "BUILDFARM_PACKAGES": str(self.root),
            "BUILDFARM_PREFIX": "/opt/python/cp312-cp312",
            "BUILDFARM_SITE": str(site),
            "BUILDFARM_JOB_DIR": str(job),
        }
        as_builder = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"] if os.geteuid() == 0 else []
        argv = [*as_builder, "sh", str(self.root / "bytecode.sh"), what]
        done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False, cwd=self.root)
        assert (done.returncode, done.stderr) == (0, "")

    def _open(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            if os.geteuid() == 0:
                os.chown(path, 1000, 1000)


@pytest.fixture
def volume() -> Iterator[Volume]:
    root = Path(tempfile.mkdtemp(prefix="buildfarm-bytecode-"))  # the build's user could not reach pytest's folder
    root.chmod(0o777)
    (root / "cached.py").write_text("x = 1\n")
    shutil.copyfile(templates() / "bytecode.sh", root / "bytecode.sh")
    yield Volume(root)
    shutil.rmtree(root)


def compiled(volume: Volume, site: Path, package: str = "torch") -> Path:
    """As Python leaves it beside a module."""
    path = site / package / "__pycache__" / "mod.cpython-312.pyc"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"compiled")
    volume._open(site)
    return path


def test_the_next_environment_of_the_same_packages_has_it(volume: Volume) -> None:
    first, second, other = (volume.environment(name) for name in ("first", "second", "other"))
    volume.run("take", first, "torch==2.6.0")
    made = compiled(volume, first)
    volume.run("keep", first, "torch==2.6.0")
    shutil.rmtree(first)
    volume.run("take", second, "torch==2.6.0")
    taken = second / "torch" / "__pycache__" / made.name
    assert taken.read_bytes() == b"compiled"
    volume.run("take", other, "torch==2.5.0")
    assert not (other / "torch" / "__pycache__").exists()
    # What Python compiled anew replaces a link, and is kept in its turn.
    taken.unlink()
    taken.write_bytes(b"anew")
    volume._open(second)
    volume.run("keep", second, "torch==2.6.0")
    third = volume.environment("third")
    volume.run("take", third, "torch==2.6.0")
    assert (third / "torch" / "__pycache__" / made.name).read_bytes() == b"anew"
    left_aside = list((volume.root / "bytecode").iterdir())
    assert [path.stat().st_mode & 0o777 for path in left_aside] == [0o755], "no other, and as site-packages are"


@pytest.mark.parametrize(
    ("package", "information"),
    [
        pytest.param("added", "added-1.0.dist-info", id="a package more"),
        pytest.param("torch/added", "torch_added-1.0.dist-info", id="within another"),
        pytest.param("torch", "", id="a release replaced"),
    ],
)
def test_of_a_build_that_installs_by_itself_nothing_is_kept(volume: Volume, package: str, information: str) -> None:
    first, second = (volume.environment(name) for name in ("first", "second"))
    volume.run("take", first, "torch==2.6.0")
    compiled(volume, first)
    compiled(volume, first, package)
    if information:
        (first / information).mkdir()
    else:
        (first / "torch-2.6.0.dist-info").rename(first / "torch-2.7.0.dist-info")
    volume.run("keep", first, "torch==2.6.0")
    volume.run("take", second, "torch==2.6.0")
    assert sorted(path.name for path in second.rglob("*")) == ["mod.py", "torch", "torch-2.6.0.dist-info"]
    assert not (volume.root / "bytecode").exists()
