"""`resolve --write` with real uv and pip: a public index has a newer package of the same name and other torches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.commands.index.resolve import ResolveOptions, run_resolve
from builder.hashing import sha256_of
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import Ran, run
from tests.fixtures.index_server import clean_environment, running
from tests.unit.loopback import PackageIndex, pure_wheel, served
from tests.unit.publish.index.make import proofs_of

PIP = (sys.executable, "-m", "pip")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CELL = f"torch2.11.0-cu126-cp{PYTHON.replace('.', '')}"


@dataclass
class Place:
    """A folder, a served index with `my_ext`, and a public index with decoys."""

    folder: Path
    index: str
    public: PackageIndex
    wheel: Path
    published: Path
    env: Mapping[str, str]

    def write(self, name: str) -> Path:
        """Run `resolve --write`."""
        file = self.folder / name
        options = ResolveOptions(
            "my_ext", self.index, "2.11", "12.6", PYTHON, torch_index=self.public.torch_index, write=file
        )
        assert run_resolve(options).commands
        return file

    def uv(self, *words: str | Path) -> Ran:
        return run(find_uv(), *words, cwd=self.folder, env=self.env, timeout=300)

    def pip(self, *words: str | Path) -> Ran:
        argv = (*PIP, "install", "--no-cache-dir", "--target", self.folder / "target", *words)
        return run(*argv, cwd=self.folder, env=self.env, timeout=300)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("resolve")
    repository = Repository(Folder(root / "index"))
    for local in ("cu126", "cu126.z", "cu99"):  # as text, the others are newer
        wheel = pure_wheel(root / "wheels", "my_ext", f"1.0+{local}", requires=["torch==2.11.*"])
        repository.add(new_wheel(wheel, proofs_of(wheel, cells=[CELL]) if local == "cu126" else []))
    wheel = root / "wheels" / "my_ext-1.0+cu126-py3-none-any.whl"
    published = root / "index" / repository.find(wheel.name).path
    with served(root / "public") as public, running(root / "index") as server:
        for version in ("1.0", "9.0"):
            public.add("my_ext", version)
        for version in ("2.11.0", "2.12.0"):
            public.add("torch", version)
        public.add("torch", "2.11.0+cu126", channel="whl/cu126", requires=["filelock"])
        public.add("filelock", "3.0")
        settings = {"UV_DEFAULT_INDEX": public.default, "PIP_INDEX_URL": public.default}
        env = clean_environment(root, UV_PYTHON=sys.executable, **settings)
        yield Place(root, server.url, public, wheel, published, env)


@pytest.fixture
def place(places: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The indexes, and an empty folder for a project."""
    for name in ("UV_DEFAULT_INDEX", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, places.env[name])
    return replace(places, folder=tmp_path)


def test_uv_installs_the_wheel_and_its_torch_from_a_project(place: Place) -> None:
    text = f'[project]\nname = "model"\nversion = "1"\nrequires-python = ">={PYTHON}"\ndependencies = ["torch"]\n'
    (place.folder / "pyproject.toml").write_text(text)
    place.write("pyproject.toml")
    done = place.uv("sync")
    assert done.code == 0, done.all
    installed = place.uv("pip", "list", "--python", ".venv", "--format", "json")
    assert {package["name"]: package["version"] for package in json.loads(installed.out)} == {
        "my-ext": "1.0+cu126",
        "torch": "2.11.0+cu126",
        "filelock": "3.0",
    }
    assert sha256_of(place.wheel) in (place.folder / "uv.lock").read_text()
    place.write("pyproject.toml")
    assert place.uv("lock", "--check").code == 0


def test_pip_installs_the_wheel_and_its_torch_with_constraints(place: Place) -> None:
    file = place.write("constraints.txt")
    done = place.pip("--dry-run", "--quiet", "--report", "-", "-c", file, "my-ext")
    assert done.code == 0, done.all
    items = json.loads(done.out)["install"]
    assert {item["metadata"]["name"]: item["metadata"]["version"] for item in items} == {
        "my_ext": "1.0+cu126",
        "torch": "2.11.0+cu126",
        "filelock": "3.0",
    }
    hashes = {item["metadata"]["name"]: item["download_info"]["archive_info"]["hashes"]["sha256"] for item in items}
    assert hashes["my_ext"] == sha256_of(place.wheel)


@pytest.mark.parametrize(("name", "options"), [("requirements.txt", ["--require-hashes"]), ("pylock.toml", [])])
def test_a_lock_refuses_a_wheel_with_one_different_byte(place: Place, name: str, options: list[str]) -> None:
    file = place.write(name)
    before = file.read_bytes()
    place.write(name)
    assert file.read_bytes() == before
    for done in (
        place.pip(*options, "-r", file),
        place.uv("pip", "install", "--target", place.folder / "by-uv", *options, "-r", file),
    ):
        assert done.code == 0, done.all
    for target in ("target", "by-uv"):
        found = {path.name for path in (place.folder / target).glob("*.dist-info")}
        assert {"my_ext-1.0+cu126.dist-info", "torch-2.11.0+cu126.dist-info", "filelock-3.0.dist-info"} == found
    content = place.published.read_bytes()
    changed = bytearray(content)
    changed[content.index(b"my_ext.py") - 20] ^= 1  # the time of a file in the archive: the wheel stays readable
    try:
        place.published.write_bytes(changed)
        done = place.pip("--upgrade", *options, "-r", file)
        assert done.code == 1
        assert "DO NOT MATCH THE HASHES" in done.all
        done = place.uv("pip", "install", "--no-cache", "--target", place.folder / "again", *options, "-r", file)
        assert done.code != 0
        assert "Hash mismatch" in done.all
    finally:
        place.published.write_bytes(content)
