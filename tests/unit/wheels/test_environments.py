"""Environments of uv and sources from an index on this machine: what is installed, remembered, renamed and refused."""

import base64
import json
import os
import shlex
import shutil
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
from builder.errors import BuildError, BuildfarmError, Code, Exit, MissingToolError, UsageError
from builder.formats import sha256_of
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import GitSource
from builder.store import Store
from builder.wheelfile.archive import WheelFile, record_fault
from builder.wheelfile.facts import read_facts
from builder.wheels.build_scripts.new_environment import link_toolkit, torch_cuda
from builder.wheels.sources.git import checkout, resolve_revision
from builder.wheels.sources.index import download_wheel, fetch_wheel
from builder.wheels.sources.prepare import locate_sdist
from builder.wheels.toolchain.environments import (
    Environment,
    Environments,
    add_bytecode,
    locked_version,
    toolkit_requirements,
)
from builder.wheels.toolchain.uv import (
    UnsatisfiableError,
    UvRun,
    compile_captured,
    network_hints,
    uv_error,
    uv_variables,
)
from tests.conftest import coded, git
from tests.refused import refused
from tests.unit.loopback import PYTHON, PackageIndex, Quiet, pure_wheel, serving, w0

TORCH, CUDA = Torch(2, 11, 0), Cuda(12, 8)


@pytest.fixture
def environments(store: Store, index: PackageIndex) -> Environments:
    return Environments(store, index.torch_index)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "build.log"


@pytest.mark.parametrize("default", [True, False], ids=["default variant", "another variant"])
def test_torch_comes_from_the_index_that_has_its_variant(
    default: bool, index: PackageIndex, environments: Environments, log: Path
) -> None:
    cuda = Cuda(13, 0) if default else CUDA
    index.add_torch("2.11.0", "13.0")
    index.add_torch("2.11.0+cu128", "12.8", channel="whl/cu128")
    index.add("numpy", "2.0.0")
    made = environments.ensure(
        PYTHON,
        [Compat.load().torch_requirement(TORCH, cuda), "numpy"],
        index=environments.torch_index(TORCH, cuda),
        log=log,
    )
    assert torch_cuda(made.site_packages) == ("13.0" if default else "12.8")
    assert locked_version(made.packages, "torch") == ("2.11.0" if default else "2.11.0+cu128")
    assert locked_version(made.packages, "numpy") == "2.0.0"
    assert made.interpreter.exists()
    assert bool([path for path in index.requested if path.startswith("/whl/cu128/")]) is not default


def test_an_environment_is_made_once_and_again_with_its_old_versions(
    index: PackageIndex, environments: Environments, store: Store, log: Path
) -> None:
    with pytest.raises(MissingToolError):
        environments.ensure(PYTHON, ["one"], index=[], log=log)
    assert list((store.root / "envs").glob("*.json")) == [], "a failed environment is not taken for a complete one"
    index.add("one", "1.0", requires=["two_parts"])
    index.add("two_parts", "1.0")
    assert environments.locked(PYTHON, ["one"], index=[]) is None
    first = environments.ensure(PYTHON, ["one"], index=[], log=log)
    record = store.root / "envs" / f"{first.folder.name}.json"
    assert json.loads(record.read_bytes()) == {"requirements": ["one"], "packages": ["one==1.0", "two-parts==1.0"]}
    said = log.read_bytes()
    index.requested.clear()
    assert environments.ensure(PYTHON, ["one"], index=[], log=log) == first
    assert (index.requested, log.read_bytes()) == ([], said), "the second time, nobody is asked"
    index.add("one", "1.1")
    index.add("two_parts", "1.1")
    shutil.rmtree(first.folder)
    assert environments.locked(PYTHON, ["one"], index=[]) == ("one==1.0", "two-parts==1.0")
    assert environments.ensure(PYTHON, ["one"], index=[], log=log) == first
    (first.folder / ".complete").unlink()  # as a killed run leaves it
    (first.site_packages / "half.py").touch()
    shutil.rmtree(first.site_packages / "one-1.0.dist-info")
    assert environments.ensure(PYTHON, ["one"], index=[], log=log) == first
    assert (first.folder / ".complete").exists()
    assert (first.site_packages / "one-1.0.dist-info").is_dir()
    assert not (first.site_packages / "half.py").exists()
    record.unlink()
    newest = environments.ensure(PYTHON, ["one"], index=[], log=log)
    assert newest.packages == ("one==1.1",), "without its record, an environment takes the newest"


def test_packages_are_asked_for_without_being_fetched(
    index: PackageIndex, environments: Environments, store: Store, log: Path
) -> None:
    with pytest.raises(MissingToolError, check=coded(Code.PACKAGE_NOT_FOUND)):
        environments.check(PYTHON, ["one"], index=[])
    index.add("one", "1.0")
    environments.check(PYTHON, ["one"], index=[])
    assert list((store.root / "envs").iterdir()) == []
    environments.ensure(PYTHON, ["one"], index=[], log=log)
    index.requested.clear()
    environments.check(PYTHON, ["one"], index=[])  # locked: nothing is left to ask
    assert index.requested == []


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("variant", [False, True], ids=["default index", "torch index"])
def test_an_index_out_of_reach_is_named_with_the_package_and_no_password(
    variant: bool, store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://user:p@ss@127.0.0.1:1/simple"
    environments = Environments(store, nowhere + "/{variant}")
    if not variant:
        monkeypatch.setenv("UV_DEFAULT_INDEX", nowhere)
    urls = environments.torch_index(TORCH, CUDA if variant else Cuda(13, 0))
    with pytest.raises(MissingToolError) as caught:
        environments.ensure(PYTHON, ["torch==2.11.0" + "+cu128" * variant, "numpy"], index=urls, log=log)
    error = caught.value
    assert any("torch 2.11.0 for CUDA 13.0: build for it with `--cuda 13.0`" in hint for hint in error.hints) is variant
    assert error.exit_code == Exit.TOOL_MISSING
    assert error.sentence == "the package index cannot be reached"
    assert any(hint in ("uv failed to download torch", "uv failed to download numpy") for hint in error.hints)
    assert "http://***@127.0.0.1:1/simple" in error.where
    assert ("/cu128" in error.where) is variant
    assert "UV_DEFAULT_INDEX" in error.where
    everything = "\n".join([str(error), *error.hints])
    assert "p@ss" not in everything
    assert str(log) in everything


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        pytest.param("nonesuch", "nonesuch was not found", id="unknown package"),
        pytest.param("one==2.0", "one==2.0", id="unknown version"),
    ],
)
def test_what_the_index_lacks_is_said_in_a_sentence(
    requirement: str, words: str, index: PackageIndex, environments: Environments, log: Path
) -> None:
    index.add("one", "1.0")
    with pytest.raises(MissingToolError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        environments.ensure(PYTHON, [requirement], index=[], log=log)
    assert not isinstance(caught.value, UnsatisfiableError)
    assert words in caught.value.sentence
    assert "\n" not in str(caught.value)
    assert caught.value.where == f"UV_DEFAULT_INDEX={index.default}"
    assert any("torch_index" in hint for hint in caught.value.hints)


@pytest.mark.parametrize("fault", ["conflict", "tag"])
def test_what_does_not_go_together_is_told_from_what_is_not_there(
    fault: str, index: PackageIndex, environments: Environments, tmp_path: Path, log: Path
) -> None:
    index.add("torch", "2.11.0")
    wheel = pure_wheel(
        tmp_path,
        "ops",
        "1.0",
        requires=["torch==2.10.*"] if fault == "conflict" else [],
        tag="cp27-none-any" if fault == "tag" else "py3-none-any",
    )
    with refused(Code.ENVIRONMENT_FAILED, "ops"):
        environments.ensure(PYTHON, ["torch==2.11.0", str(wheel)], index=[], log=log)


def test_any_other_word_of_uv_is_a_failed_build_with_its_log(
    environments: Environments, tmp_path: Path, log: Path
) -> None:
    (wheel := tmp_path / "ops-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with refused(Code.ENVIRONMENT_FAILED) as caught:
        environments.ensure(PYTHON, [str(wheel)], index=[], log=log)
    assert isinstance(caught.value, BuildError)
    assert (caught.value.stage, caught.value.log) == ("environment", log)


@pytest.mark.usefixtures("fresh_eyes")
def test_a_python_that_is_not_here_is_said(index: PackageIndex, environments: Environments, log: Path) -> None:
    with refused(Code.PYTHON_MISSING, "3.99") as caught:
        environments.ensure(Python(3, 99), [], index=[], log=log)
    assert "--upgrade uv" in caught.value.hints[0]
    assert index.requested == []


def test_the_shells_python_settings_do_not_reach_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, "/elsewhere")
    variables = uv_variables()
    assert not {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"} & variables.keys()
    assert variables["UV_PYTHON_DOWNLOADS"] == "never"


#: Settings of uv that change what it installs, for the index of the test below.
CONTENTS = {
    "UV_TORCH_BACKEND": "cpu",
    "UV_EXCLUDE_NEWER": "2001-01-01",
    "UV_RESOLUTION": "lowest",
    "UV_PRERELEASE": "allow",
    "UV_CONSTRAINT": "{folder}/old.txt",
    "UV_OVERRIDE": "{folder}/old.txt",
    "UV_NO_BINARY": "1",
    "UV_NO_BINARY_PACKAGE": "torch",
    "UV_REQUIRE_HASHES": "1",
    "UV_VENV_SEED": "1",
    "UV_CONFIG_FILE": "{folder}/uv.toml",
    "UV_PREVIEW_FEATURES": "{folder}",
    "UV_SYSTEM_PYTHON": "1",
}


@pytest.mark.parametrize("name", [*CONTENTS, "uv.toml", "pyproject.toml"])
def test_no_setting_of_the_user_changes_what_is_installed(
    index: PackageIndex, environments: Environments, log: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = log.parent
    monkeypatch.delenv("UV_NO_CONFIG", raising=False)
    for version in ("1.0", "2.0", "3.0rc1"):
        index.add("torch", version)
    (folder / "old.txt").write_text("torch==1.0\n")
    settings = 'exclude-newer = "2001-01-01"\noverride-dependencies = ["torch==1.0"]\n'
    (folder / "uv.toml").write_text(f'{settings}[pip]\ntorch-backend = "cpu"\nprerelease = "allow"\n')
    if name in CONTENTS:
        monkeypatch.setenv(name, CONTENTS[name].format(folder=folder))
    elif name == "uv.toml":
        (folder / "uv").mkdir()
        (folder / "uv.toml").rename(folder / "uv" / "uv.toml")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    else:
        (folder / "uv.toml").rename(folder / name)
        (folder / name).write_text("[tool.uv]\n" + settings)
        monkeypatch.chdir(folder)
    made = environments.ensure(PYTHON, ["torch"], index=[], log=log)
    assert made.packages == ("torch==2.0",)
    done = compile_captured("torch\n", ["--no-annotate"], folder=folder, index=[])
    assert done.stdout.strip() == "torch==2.0", done.stderr


def test_a_packaged_toolkit_gets_the_links_torch_looks_for(tmp_path: Path) -> None:
    environment = Environment(tmp_path, PYTHON, ())
    library = environment.site_packages / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"cudart")
    (library.parent / "libcudart.so").symlink_to(library.name)  # a build beside this one was faster with one of them
    library.with_name("libnvvm.so.4").write_bytes(b"nvvm")
    (library.parent / "libcublas.so").symlink_to("libcublas.so.13")  # of packages that are being unpacked
    requirements = toolkit_requirements(Cuda(13, 0))
    assert len(requirements) > 1
    assert all(requirement.endswith("==13.0.*") for requirement in requirements), "all parts have one minor version"
    for _ in range(2):  # and a second time finds them there
        home = environment.packaged_toolkit(Cuda(13, 0))
        link_toolkit(home, "gcc")
    assert (home / "lib64" / "libcudart.so").read_bytes() == b"cudart"
    assert (home / "nvvm" / "lib64" / "libnvvm.so").read_bytes() == b"nvvm", "nvlink opens it for -dlto"


def test_a_password_of_an_index_is_in_no_argument(store: Store, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are everybody's to read on a machine; a program's environment is its user's."""
    told: list[tuple[list[str], str]] = []

    def record(argv: list[str], *, log: Path, env: dict[str, str], **_: object) -> int:
        log.touch()
        told.append((argv, env.get("UV_INDEX", "")))
        return 1

    monkeypatch.setattr("builder.wheels.toolchain.uv.run", record)
    monkeypatch.setenv("UV_INDEX", "http://mine.invalid/simple")
    secret = "http://user:hush@torch.invalid/simple"
    environments = Environments(store, secret)
    urls = environments.torch_index(TORCH, CUDA)
    with pytest.raises(BuildfarmError):
        environments.check(PYTHON, ["torch==2.11.0"], index=urls)
    with pytest.raises(BuildfarmError):
        UvRun(urls, log, "job").install(store.root / "env", ["torch==2.11.0"])
    assert told
    for argv, index in told:
        assert "hush" not in " ".join(argv)
        assert index == f"{secret} http://mine.invalid/simple"


@pytest.mark.parametrize("tags", ["manylinux_2_99_x86_64", "manylinux_2_98_x86_64.manylinux_2_99_x86_64"])
def test_a_wheel_for_a_newer_c_library_says_nothing_of_the_wheel(
    tags: str, index: PackageIndex, environments: Environments, log: Path, tmp_path: Path
) -> None:
    index.add("two", "1.0")
    made = environments.ensure(PYTHON, ["two"], index=[], log=log)
    wheel = pure_wheel(tmp_path, "one", "1.0", tag=f"py3-none-{tags}")
    with pytest.raises(MissingToolError) as caught:
        UvRun([], log, "job").install(made.folder, [str(wheel)])
    assert caught.value.sentence.startswith(f"the wheel needs {tags.replace('.', ' or ')}, but the C library")
    assert any("--executor docker" in hint for hint in caught.value.hints)


PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*PROXIES, "UV_OFFLINE", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("http://me:pass/w@rd@proxy.example:3128", "http://***@proxy.example:3128"),
        ("me:secret@proxy.example:3128", "***@proxy.example:3128"),
    ],
)
def test_the_proxy_is_named_without_credentials(
    name: str, value: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert network_hints() == []
    monkeypatch.setenv(name, value)
    (hint,) = network_hints()
    assert hint.startswith(f"{name}={shown} names a proxy")


@pytest.mark.usefixtures("plain")
def test_a_source_behind_a_proxy_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://index.example/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with refused(Code.NETWORK_UNREACHABLE, "tiny 1.0") as caught:
        locate_sdist("tiny", "1.0")
    hints = " ".join(caught.value.hints)
    assert "HTTPS_PROXY=http://127.0.0.1:9 names a proxy" in hints
    assert "set HTTPS_PROXY" not in hints


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_uv_may_be_offline(value: str, monkeypatch: pytest.MonkeyPatch, *, offline: bool) -> None:
    monkeypatch.setenv("UV_OFFLINE", value)
    assert network_hints() == ([f"UV_OFFLINE={value} forbids uv to use the network: unset it"] if offline else [])


@pytest.mark.usefixtures("plain")
def test_packages_that_the_cache_lacks_do_not_conflict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before: "the packages conflict", because uv says that the requirements are unsatisfiable."""
    log = tmp_path / "log"
    log.write_text(
        "No solution found when resolving dependencies:\n"
        "  ╰─▶ Because torch was not found in the cache and you require torch==2.11.0, we can conclude that your\n"
        "      requirements are unsatisfiable.\n"
    )
    assert uv_error(1, log, 0, ["torch==2.11.0"], []).code is Code.ENVIRONMENT_FAILED
    monkeypatch.setenv("UV_OFFLINE", "1")
    error = uv_error(1, log, 0, ["torch==2.11.0"], [])
    assert error.code is Code.NETWORK_UNREACHABLE
    assert error.hints[0].startswith("UV_OFFLINE=1 forbids")
    assert [uv_error(-number, log, 0, [], []).code for number in (7, 9)] == [Code.DISK_FULL, Code.KILLED]
    assert not any("UV_DEFAULT_INDEX" in hint for hint in error.hints)


SOURCE = "import my_ext.part\n"


def cell(store: Store, folder: Path, source: str = SOURCE) -> Environment:
    """A new environment with one package, and its bytecode."""
    wheel = pure_wheel(folder, "my_ext", "1.0", {"my_ext/__init__.py": source, "my_ext/part.py": "VALUE = 1\n"})
    log = folder / "log"
    UvRun([], log, f"t/{folder.name}").create(folder / "env", Path(sys.executable), [str(wheel)])
    environment = Environment(folder / "env", PYTHON, ())
    python, site = environment.interpreter, environment.site_packages
    add_bytecode(store, python, site, ("my_ext", "absent"), log=log, owner=f"t/{folder.name}")
    return environment


def uses(environment: Environment) -> set[str]:
    """The modules whose bytecode Python accepts."""
    words = [str(environment.interpreter), "-v", "-B", "-I", "-c", "import my_ext"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    rows = (line.split() for line in said.splitlines() if " matches " in line and "my_ext" in line)
    return {Path(row[-1]).name for row in rows}


def test_a_second_cell_takes_the_bytecode_of_the_first(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    assert uses(cell(store, tmp_path / "a")) == {"__init__.py", "part.py"}
    (kept,) = (store.root / "envs").glob("bytecode-*")
    assert {path.name.partition(".")[0] for path in kept.rglob("*.pyc")} == {"__init__", "part"}
    (tmp_path / "other").mkdir()
    assert uses(cell(store, tmp_path / "other", f"{SOURCE}OTHER = 1\n")) == {"__init__.py", "part.py"}
    assert len(list((store.root / "envs").glob("bytecode-*"))) == 2, "other sources have bytecode of their own"
    monkeypatch.setattr(
        "builder.wheels.toolchain.environments.import_once", lambda *_, **__: pytest.fail("imported again")
    )
    (tmp_path / "b").mkdir()
    second = cell(store, tmp_path / "b")
    assert uses(second) == {"__init__.py", "part.py"}
    copies = {path.stat().st_ino for path in second.site_packages.rglob("*.pyc")}
    assert not copies & {path.stat().st_ino for path in kept.rglob("*.pyc")}, "a cell could change the store's files"


def test_bytecode_of_a_source_that_changed_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    environment = cell(Store(tmp_path / "store"), tmp_path / "a")
    part = environment.site_packages / "my_ext/part.py"
    part.unlink()  # it can be a hard link to a file of uv's cache
    part.write_text("VALUE = 2\n")
    assert uses(environment) == {"__init__.py"}


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
    git(tmp_path, "init", "-q", "work")
    git(work, "commit", "-q", "--allow-empty", "-m", "1")
    git(tmp_path, "clone", "-q", "--bare", "work", str(bare))
    git(bare, "update-server-info")
    handler = partial(Protected, directory=str(tmp_path / "served"))
    with serving(handler) as address:
        yield f"{address}/ops.git", git(bare, "rev-parse", "HEAD")


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


def test_it_is_fetched_once_and_kept_by_its_digest(index: PackageIndex, tmp_path: Path) -> None:
    index.add("ops", "1.0")
    first = fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)[0]
    assert first.name == "ops-1.0-py3-none-any.whl"
    assert first.parent.parent == tmp_path / "wheels"
    index.requested.clear()
    assert fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)[0] == first
    assert download_wheel(f"{index.url}/default/{first.name}", cache=tmp_path)[0] == first


def test_the_hash_in_a_url_is_compared(index: PackageIndex, tmp_path: Path) -> None:
    wheel = pure_wheel(index.root / "default", "ops", "1.0")
    url = f"{index.url}/default/{wheel.name}"
    fetched = download_wheel(f"{url}#sha256={sha256_of(wheel)}", cache=tmp_path)
    assert (fetched[0].read_bytes(), fetched[1]) == (wheel.read_bytes(), url)
    with pytest.raises(MissingToolError, match=f"but the URL names {'0' * 64}"):
        download_wheel(f"{url}#sha256={'0' * 64}", cache=tmp_path)


def test_a_project_with_wheels_only_names_the_commands_for_wheels(index: PackageIndex) -> None:
    pure_wheel(index.root / "default", "ops", "1.0")
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        locate_sdist("ops", "")
    assert "`buildfarm verify ops==VERSION` judges a wheel" in caught.value.hints[0]
    assert "write a recipe with `source: {wheel: ops, version: VERSION}`" in caught.value.hints[0]


def test_a_project_without_a_wheel_names_the_command_that_builds_one(index: PackageIndex, tmp_path: Path) -> None:
    (index.root / "default").mkdir(parents=True)
    (index.root / "default" / "ops-1.0.tar.gz").touch()
    with pytest.raises(UsageError, check=coded(Code.PACKAGE_NOT_FOUND)) as caught:
        fetch_wheel("ops", "1.0", PYTHON, cache=tmp_path)
    assert "`buildfarm build ops==1.0` builds a wheel" in caught.value.hints[0]


TAG = "cp312-cp312-linux_x86_64"
LOCAL = "1.0+cu12torch2.11cxx11abiTRUE"


def relabel(wheel: Path) -> Result:
    return CliRunner().invoke(app, ["relabel", str(wheel), "--out", str(wheel.parent / "out")])


def made(done: Result) -> Path:
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    with WheelFile(path) as archive:
        assert record_fault(archive) == ""
    return path


@pytest.mark.parametrize(
    ("name", "version", "tag"),
    [
        ("t0", LOCAL, TAG),
        ("t0", "2.0+cu130", TAG),
        ("other_name", LOCAL, TAG),
        ("t0", LOCAL, "cp312-cp312-manylinux_2_34_x86_64"),
    ],
)
def test_the_label_is_the_name_of_the_file(tmp_path: Path, name: str, version: str, tag: str) -> None:
    files = {"t0/__init__.py": b"", "t0-1.0.data/scripts/run": b"#!/bin/sh\n"}
    wheel = w0(tmp_path, "t0", LOCAL, TAG, files, meta_version="1.0")
    before, wheel = sha256_of(wheel), wheel.rename(tmp_path / f"{name}-{version}-{tag}.whl")
    facts = read_facts(made(relabel(wheel)))
    assert (facts.name.replace("-", "_"), facts.version, facts.tags) == (name, version.lower(), (tag,))
    stem = f"{name}-{version.lower()}"
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
