"""pip and uv read the index, from a folder and from a local web server."""

from __future__ import annotations

import ensurepip
import importlib.util
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import uv

from builder.matrix.axes import Cell
from builder.publish.index.install import install_commands
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from tests.unit import loopback
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.test_pages_of_index import index_of

MODULE = {"my_ext.py": "VERSION = '1.0+cu13'\n"}
PIP_OPTIONS = ["--isolated", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]


INSTALLERS = ("pip", "uv")


Install = Callable[[str, str, str, Path], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The pip of this environment, or the pip that comes with every Python (ensurepip)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    folder = tmp_path_factory.mktemp("pip")
    with zipfile.ZipFile(bundled) as zipped:  # it starts faster when unpacked
        zipped.extractall(folder)
    return [sys.executable, str(folder / "pip")]


@pytest.fixture
def install(pip: list[str]) -> Install:
    """Run an installer, given its name, the index, the requirement and the target folder."""
    programs = {
        "pip": [*pip, *PIP_OPTIONS, "install"],
        "uv": [uv.find_uv_bin(), "--no-config", "--no-cache", "pip", "install", "--python", sys.executable],
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}

    def run(installer: str, index: str, wanted: str, target: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*programs[installer], "--index-url", index, "--target", str(target), wanted],
            env=clean | {"PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


class Handler(SimpleHTTPRequestHandler):
    """Serves one folder, and collects the requested paths instead of printing them."""

    def __init__(self, *args: Any, paths: list[str], **kwargs: Any) -> None:
        self.paths = paths
        super().__init__(*args, **kwargs)

    def log_message(self, *_: object) -> None:
        self.paths.append(self.path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, its URL, and the list of requested paths."""
    dist = tmp_path / "dist"
    dist.mkdir()
    paths: list[str] = []
    with loopback.serving(partial(Handler, paths=paths, directory=str(dist))) as address:
        yield dist, f"http://{address}/simple", paths


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installs_from_the_folder(tmp_path: Path, install: Install, installer: str) -> None:
    dist = tmp_path / "a folder & more"
    wheels = (pure_wheel(tmp_path, "my_ext", "1.0+cu13", MODULE), pure_wheel(tmp_path, "my_ext", "1.0+cu14"))
    simple = index_of(dist, *wheels)
    done = install(installer, simple.as_uri(), "my-ext==1.0+cu13", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").read_text() == "VERSION = '1.0+cu13'\n"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installs_from_a_web_server_and_reads_metadata_beside_the_wheel(
    served: tuple[Path, str, list[str]], tmp_path: Path, install: Install, installer: str
) -> None:
    dist, address, paths = served
    index_of(dist, pure_wheel(tmp_path, "my_ext", "1.0+cu13"))
    done = install(installer, address, "My.Ext", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").exists()
    requested = [unquote(path).rpartition("/")[2] for path in paths if "/files/" in path]
    assert list(dict.fromkeys(requested)) == [f"my_ext-1.0+cu13-py3-none-any.whl{end}" for end in (".metadata", "")]


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_refuse_a_wheel_that_changed_since(tmp_path: Path, install: Install, installer: str) -> None:
    simple = index_of(tmp_path / "dist", pure_wheel(tmp_path, "my_ext", "1.0"))
    (wheel,) = (tmp_path / "dist").rglob("*.whl")
    with wheel.open("ab") as stream:
        stream.write(b"\0")
    done = install(installer, simple.as_uri(), "my-ext", tmp_path / "site")
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not (tmp_path / "site" / "my_ext.py").exists()


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_heed_requires_python(tmp_path: Path, install: Install, installer: str) -> None:
    wheels = (pure_wheel(tmp_path, "my_ext", "1.0"), pure_wheel(tmp_path, "my_ext", "2.0", requires_python=">=3.99"))
    simple = index_of(tmp_path / "dist", *wheels)
    done = install(installer, simple.as_uri(), "my-ext", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext-1.0.dist-info").is_dir()


@pytest.mark.parametrize("bound", ["<3.4", "==3.4.*", "~=3.4.0", "===3.4.1", "!=3.11.*,!=3.12.*,!=3.13.*"])
def test_uv_ignores_the_upper_bounds_of_requires_python(tmp_path: Path, install: Install, bound: str) -> None:
    """The check `modules` relies on it; pip refuses such a wheel."""
    simple = index_of(tmp_path / "dist", pure_wheel(tmp_path, "my_ext", "1.0", requires_python=bound))
    done = {each: install(each, simple.as_uri(), "my-ext", tmp_path / each).returncode for each in INSTALLERS}
    assert (done["pip"] != 0, done["uv"]) == (True, 0)


@pytest.mark.parametrize("installer", INSTALLERS)
@pytest.mark.parametrize(("torch", "in_index"), [("2.11.0", False), ("2.4.1+cu124", False), ("2.11.0", True)])
def test_the_install_command_works_in_an_empty_environment(
    tmp_path: Path, pip: list[str], installer: str, torch: str, in_index: bool
) -> None:
    dist: Path | str = tmp_path / "it's a dist"
    wheel = pure_wheel(tmp_path / "it's a dist", "my_ext", "1.0+cu13", requires=["torch>=2.4"])
    if in_index:
        Repository(Folder(tmp_path / "it's an index")).add(new_wheel(wheel, []))
        dist = (tmp_path / "it's an index").as_uri() + "/simple/"
    with loopback.served(tmp_path / "index") as index:
        for version, channel in {"2.11.0": "default", "2.4.1": "default", "2.4.1+cu124": "whl/cu124"}.items():
            index.add("torch", version, channel=channel)
        for version in ("1.0", "9.0"):  # a foreign package of the same name
            index.add("my_ext", version)
        cell = Cell.parse("torch2.4.1-cu124-cp311" if "+" in torch else "torch2.11.0-cu130-cp311")
        commands = install_commands(dist, "my-ext", "1.0+cu13", [cell], index.torch_index)
        (command,) = (each for each in commands if each.startswith(f"{installer} "))
        programs = {"pip": [*pip, "--disable-pip-version-check"], "uv": [uv.find_uv_bin(), "--no-cache"]}
        function = f'{installer}() {{ {shlex.join(programs[installer])} "$@" --target "$SITE"; }}'
        done = subprocess.run(
            ["bash", "-c", f"{function}; {command}"],
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "SITE": str(tmp_path / "site"),
                "PIP_INDEX_URL": index.default,
                "UV_DEFAULT_INDEX": index.default,
                "UV_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, "pip warns of each project that a folder lacks, given as --extra-index-url"
    assert [path.name for path in (tmp_path / "site").glob("my_ext-*")] == ["my_ext-1.0+cu13.dist-info"]
    assert (tmp_path / "site" / "my_ext.py").exists()
    assert (tmp_path / "site" / f"torch-{torch}.dist-info").is_dir()
