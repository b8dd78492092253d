"""Sources behind a password, official wheels, and wheels that are renamed."""

import base64
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import Code, MissingToolError, UsageError
from builder.hashing import sha256_of
from builder.matrix.axes import Python
from builder.matrix.config import GitSource
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.facts import read_facts
from builder.wheels.sources.git import checkout, resolve_revision
from builder.wheels.sources.index import download_wheel, fetch_wheel
from builder.wheels.sources.prepare import locate_sdist
from tests.conftest import coded
from tests.unit import loopback
from tests.unit.loopback import Quiet, serving, w0

SECRET = "s3cr:t/x"


class Protected(Quiet, SimpleHTTPRequestHandler):
    """Serves files to the user `robot` with SECRET."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(f"robot:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") == wanted:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic realm=x")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a repository, without a scheme, and its commit."""
    work, bare = tmp_path / "work", tmp_path / "served/ops.git"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (
        ["init", "-q", str(work)],
        ["-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "1"],
        ["clone", "-q", "--bare", str(work), str(bare)],
        ["-C", str(bare), "update-server-info"],
    ):
        subprocess.run(["git", *words], check=True)
    commit = subprocess.run(["git", "-C", str(bare), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    handler = partial(Protected, directory=str(tmp_path / "served"))
    with serving(handler) as address:
        yield f"{address}/ops.git", commit.stdout.strip()


def test_git_gets_the_password_and_keeps_it_nowhere(
    server: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, commit = server
    wrapper = tmp_path / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/arguments\n'
        f'PATH={shlex.quote(os.environ["PATH"])} exec git "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    source = GitSource(f"http://robot:s3cr%3At%2Fx@{address}", commit)
    tree = checkout(source, cache=tmp_path / "cache")
    assert resolve_revision(source.url, "") == commit
    assert SECRET not in (tmp_path / "arguments").read_text()
    assert "s3cr" not in (tmp_path / "arguments").read_text()
    for file in (path for path in (tree / ".git").rglob("*") if path.is_file()):
        assert b"s3cr" not in file.read_bytes(), file


@pytest.mark.parametrize("user", ["", "robot:wr0ng@"])
def test_a_private_repository(server: tuple[str, str], tmp_path: Path, user: str) -> None:
    with pytest.raises(MissingToolError) as caught:
        checkout(GitSource(f"http://{user}{server[0]}", server[1]), cache=tmp_path)
    assert "an access token and `@` before the host" in "".join(caught.value.hints)
    assert "wr0ng" not in f"{caught.value} {caught.value.hints}"
    assert ("***" in caught.value.where) is bool(user)


PYTHON = Python(sys.version_info.major, sys.version_info.minor)


def test_it_is_fetched_once_and_kept_by_its_digest(index: loopback.PackageIndex, tmp_path: Path) -> None:
    index.add("ops", "1.0")
    first = fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path).path
    assert first.name == "ops-1.0-py3-none-any.whl"
    assert first.parent.parent == tmp_path / "wheels"
    index.requested.clear()
    assert fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path).path == first
    assert download_wheel(f"{index.url}/default/{first.name}", cache=tmp_path).path == first


def test_the_hash_in_a_url_is_compared(index: loopback.PackageIndex, tmp_path: Path) -> None:
    wheel = loopback.pure_wheel(index.root / "default", "ops", "1.0")
    url = f"{index.url}/default/{wheel.name}"
    fetched = download_wheel(f"{url}#sha256={sha256_of(wheel)}", cache=tmp_path)
    assert (fetched.path.read_bytes(), fetched.url) == (wheel.read_bytes(), url)
    with pytest.raises(MissingToolError, match=f"but the URL names {'0' * 64}"):
        download_wheel(f"{url}#sha256={'0' * 64}", cache=tmp_path)


def test_a_project_with_wheels_only_names_the_commands_for_wheels(index: loopback.PackageIndex) -> None:
    loopback.pure_wheel(index.root / "default", "ops", "1.0")
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        locate_sdist("ops", "")
    assert "`buildfarm verify ops==VERSION` judges a wheel" in caught.value.hints[0]
    assert "write a recipe with `source: {wheel: ops, version: VERSION}`" in caught.value.hints[0]


def test_a_project_without_a_wheel_names_the_command_that_builds_one(
    index: loopback.PackageIndex, tmp_path: Path
) -> None:
    (index.root / "default").mkdir(parents=True)
    (index.root / "default" / "ops-1.0.tar.gz").touch()
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)
    assert "`buildfarm build ops==1.0` builds a wheel" in caught.value.hints[0]


TAG = "cp312-cp312-linux_x86_64"
LOCAL = "1.0+cu12torch2.11cxx11abiTRUE"


def relabel(wheel: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["relabel", str(wheel), "--out", str(wheel.parent / "out"), *options])


def made(done: Result) -> Path:
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    with WheelFile(path) as archive:
        assert record_fault(archive) == ""
    return path


@pytest.mark.parametrize(
    ("options", "name", "version", "tag"),
    [
        ((), "t0", LOCAL.lower(), TAG),
        (("--version", "2.0+CU130"), "t0", "2.0+cu130", TAG),
        (("--name", "Other.Name"), "Other.Name", LOCAL.lower(), TAG),
        (("--tag", "cp312-cp312-manylinux_2_34_x86_64"), "t0", LOCAL.lower(), "cp312-cp312-manylinux_2_34_x86_64"),
    ],
)
def test_the_label(tmp_path: Path, options: tuple[str, ...], name: str, version: str, tag: str) -> None:
    files = {"t0/__init__.py": b"", "t0-1.0.data/scripts/run": b"#!/bin/sh\n"}
    wheel = w0(tmp_path, "t0", LOCAL, TAG, files, meta_version="1.0")
    before = sha256_of(wheel)
    facts = read_facts(made(relabel(wheel, *options)))
    assert (facts.name, facts.version, facts.tags) == (name, version, (tag,))
    stem = f"{name.lower().replace('.', '_')}-{version}"
    assert facts.filename == f"{stem}-{tag}.whl"
    assert {f"{stem}.data/scripts/run", f"{stem}.dist-info/RECORD"} <= set(facts.files)
    assert sha256_of(wheel) == before


def test_a_tag_of_the_file_name_alone(tmp_path: Path) -> None:
    wheel = w0(tmp_path, "t0", "1.0", "cp312-cp312-linux_x86_64", {"t0/__init__.py": b""})
    renamed = wheel.rename(tmp_path / "t0-1.0-2-cp312-cp312-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl")
    path = made(relabel(renamed))
    assert path.name == renamed.name
    assert read_facts(path).tags == tuple(f"cp312-cp312-manylinux_2_{minor}_x86_64" for minor in (28, 34))


def test_same_input_same_bytes_and_no_change_in_place(tmp_path: Path) -> None:
    wheel = w0(tmp_path, "t0", LOCAL, TAG, {"t0/__init__.py": b""}, meta_version="1.0", requires=("torch",))
    path = made(relabel(wheel))
    first = path.read_bytes()
    assert made(relabel(wheel)).read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert "Requires-Dist: torch\n" in archive.read(f"t0-{LOCAL.lower()}.dist-info/METADATA").decode()
    right = w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b""})
    done = CliRunner().invoke(app, ["relabel", str(right), "--out", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "the folder has a different file of this name" in str(done.exception)


def test_a_changed_wheel_gets_no_new_record(tmp_path: Path) -> None:
    wheel = w0(tmp_path, "t0", "1.0", TAG, {"t0/__init__.py": b""})
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("t0/more.py", "")
    done = relabel(wheel)
    assert isinstance(done.exception, UsageError)
    assert "RECORD does not list t0/more.py" in str(done.exception)
