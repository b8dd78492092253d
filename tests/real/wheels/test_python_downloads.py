"""Pythons that this machine lacks: real uv, a mirror on this machine, and an archive of a Python that runs."""

import hashlib
import json
import os
import platform
import shlex
import shutil
import sys
import sysconfig
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder import SAVED
from builder.commands.saving import Saver
from builder.errors import Exit, MissingToolError
from builder.images.saved import Saved
from builder.store import Store
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain import machine
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.machine import Pythons
from builder.wheels.toolchain.uv import find_uv
from tests.unit import loopback
from tests.unit.loopback import PYTHON

pytestmark = pytest.mark.usefixtures("fresh_eyes")

NAME = f"cpython-{platform.python_version()}+20260101-install_only.tar.gz"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This Python, laid out as python-build-standalone does."""
    path = tmp_path_factory.mktemp("release") / NAME
    series = f"python{sys.version_info.major}.{sys.version_info.minor}"

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        unused = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "ensurepip"}
        return None if unused & set(Path(member.name).parts) or Path(member.name).suffix == ".a" else member

    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        executable = os.path.realpath(sys.executable)
        tar.add(executable, f"python/bin/{series}")
        tar.add(sysconfig.get_path("stdlib"), f"python/lib/{series}", filter=kept)
        tar.add(sysconfig.get_path("include"), f"python/include/{series}")
        for library in Path(executable).parents[1].glob(f"lib/lib{series}*.so*"):
            tar.add(library, f"python/lib/{library.name}")
    return path


@pytest.fixture
def bare_machine(tmp_path: Path, uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no Python is found; uv keeps its Pythons in a folder of the test."""
    monkeypatch.setattr(machine, "sys", SimpleNamespace(version_info=(0, 0), executable=sys.executable))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_CACHE_DIR", str(uv_cache))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for name in ("UV_PYTHON_DOWNLOADS", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # uv also finds a .venv in the working directory


@pytest.fixture
def offered(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv offers this version for download, under the address that it has on the internet."""
    major, minor, patch = platform.python_version_tuple()
    download = {
        "name": "cpython",
        "arch": {"family": platform.machine(), "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": int(major),
        "minor": int(minor),
        "patch": int(patch),
        "prerelease": "",
        "url": f"https://github.com/astral-sh/python-build-standalone/releases/download/20260101/{NAME}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "variant": None,
        "build": "20260101",
    }
    listing = tmp_path / "downloads.json"
    listing.write_text(json.dumps({f"cpython-{platform.python_version()}-linux-{platform.machine()}-gnu": download}))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", listing.as_uri())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.usefixtures("bare_machine", "offered")
def test_a_missing_python_comes_from_the_mirror(
    archive: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with loopback.served(tmp_path / "mirror") as mirror:
        target = tmp_path / "mirror" / "20260101" / NAME
        target.parent.mkdir(parents=True)
        target.hardlink_to(archive)
        monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", mirror.url)
        found = Pythons(store).obtain(PYTHON, headers=True)
        assert len(mirror.requested) == 1
        assert (found.version, found.headers) == (platform.python_version(), True)
        assert found.path.is_relative_to(tmp_path / "pythons")
        assert f"no Python {PYTHON} on this machine: uv downloads a Python with headers" in capsys.readouterr().err
        monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
        assert Pythons(store).obtain(PYTHON) == found, "it is on this machine now"
    assert not (Path.home() / ".local" / "bin" / f"python{PYTHON}").is_relative_to(tmp_path)


@pytest.mark.usefixtures("bare_machine", "offered")
def test_a_missing_python_comes_from_a_saved_folder(
    archive: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirror, folder = tmp_path / "mirror" / "20260101", tmp_path / "saved"
    mirror.mkdir(parents=True)
    (mirror / NAME).hardlink_to(archive)
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", mirror.parent.as_uri())
    environments = Environments(store, "")
    saver = Saver(folder, Saved(), environments, LocalExecutor(environments))
    saver.python(PYTHON)
    saver.write(None)
    shutil.rmtree(mirror)
    monkeypatch.setenv(SAVED, str(folder))
    assert Pythons(store).obtain(PYTHON).path.is_relative_to(tmp_path / "pythons")
    assert list(Saved.read(folder).files) == [f"pythons/20260101/{NAME}"]


@pytest.mark.usefixtures("bare_machine", "offered")
@pytest.mark.parametrize("how", ["never", "manual"])
def test_nothing_is_downloaded_where_it_is_forbidden(
    how: str, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", how)
    with loopback.served(tmp_path) as mirror:
        monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", mirror.url)
        with pytest.raises(MissingToolError, match=f"no Python {PYTHON} on this machine, and downloads") as caught:
            Pythons(store).obtain(PYTHON)
        assert mirror.requested == []
    assert f"(UV_PYTHON_DOWNLOADS={how})" in str(caught.value)
    assert f"UV_PYTHON_DOWNLOADS=manual {shlex.quote(str(find_uv()))} python install {PYTHON}" in caught.value.hints[1]


@pytest.mark.usefixtures("bare_machine", "offered")
def test_a_mirror_that_does_not_answer_is_asked_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "http://user:secret@127.0.0.1:9")
    here = Pythons(store)
    with pytest.raises(MissingToolError) as caught:
        here.obtain(PYTHON)
    assert caught.value.exit_code == Exit.TOOL_MISSING
    assert "uv cannot download a Python with headers from http://***@127.0.0.1:9/20260101: " in str(caught.value)
    assert "refused" in str(caught.value)
    assert "UV_PYTHON_INSTALL_MIRROR" in caught.value.hints[0]
    said = store.log("pythons").read_bytes()
    with pytest.raises(MissingToolError, match=f"no Python {PYTHON} on this machine"):
        here.obtain(PYTHON)
    assert store.log("pythons").read_bytes() == said


@pytest.mark.usefixtures("bare_machine", "offered")
def test_a_python_with_headers_takes_the_place_of_one_without(
    archive: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "pyenv" / "versions" / platform.python_version() / "bin" / "python"
    bare.parent.mkdir(parents=True)
    bare.write_text(f"#!/bin/sh\necho '{platform.python_version()} False False'\n")
    bare.chmod(0o755)
    target = tmp_path / "mirror" / "20260101" / NAME
    target.parent.mkdir(parents=True)
    target.hardlink_to(archive)
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", (tmp_path / "mirror").as_uri())
    assert Pythons(store).obtain(PYTHON).path == bare, "a cell needs no headers"
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    with pytest.raises(MissingToolError, match=r"has no headers \(Python.h\), which the build needs, and") as caught:
        Pythons(store).obtain(PYTHON, headers=True)
    monkeypatch.delenv("UV_PYTHON_DOWNLOADS")
    assert f"python{PYTHON}-dev" in caught.value.hints[0]
    assert Pythons(store).obtain(PYTHON, headers=True).path.is_relative_to(tmp_path / "pythons")
