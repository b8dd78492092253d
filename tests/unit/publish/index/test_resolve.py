"""`resolve`: the wheel for a machine, or why each does not fit; the commands that install it; indexes with a token."""

import base64
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests

from builder.commands.index.resolve import Cure, Target, best_wheel, how_to_build, misfit
from builder.errors import Code, Exit
from builder.matrix.axes import Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.publish.index import install
from builder.publish.index.install import install_lines
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Entry, FarmFacts
from builder.publish.index.reader import IndexReader, login_for
from builder.publish.index.repository import Repository
from builder.wheels.toolchain.machine import Interpreter
from tests.refused import refused
from tests.unit.conftest import Call
from tests.unit.loopback import Quiet, pure_wheel, serving
from tests.unit.publish.index.make import ready

TARGET = Target(Cell(Torch(2, 6, 0), Cuda(12, 4), Python(3, 11), Platform.LINUX_X86_64), (2, 31), Arch(8, 9))


def entry(filename: str = "my_ext-1.0+cu124-cp311-cp311-manylinux_2_28_x86_64.whl", **changes: object) -> Entry:
    farm = FarmFacts(("cu124",), {"torch2.6.0-cu124-cp311": "cpu"}, archs=("sm_80", "sm_90"))
    return replace(Entry(filename, "", "", 1, "", "", "", farm=farm), **changes)  # type: ignore[arg-type]


#: A cell, as options.
CELL = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")


def nothing(_: Entry) -> list[str]:
    return []


@pytest.mark.parametrize(
    ("wheel", "requires", "reason"),
    [
        (entry(), ["torch==2.6.*"], ""),
        (entry(yanked="slow"), [], "yanked: slow"),
        (entry("my_ext-1.0+cu124-cp312-cp312-manylinux_2_28_x86_64.whl"), [], "its tag is not for Python 3.11"),
        (entry("my_ext-1.0+cu124-cp311-cp311-manylinux_2_28_aarch64.whl"), [], "its tag is not for Python 3.11"),
        (entry("my_ext-1.0+cu124-cp310-abi3-manylinux_2_28_x86_64.whl"), [], ""),
        (entry(requires_python=">=3.12"), [], "it requires Python >=3.12"),
        (entry(requires_python=">=3.11.4"), [], ""),
        (entry("my_ext-1.0+cu124-cp311-cp311-manylinux_2_34_x86_64.whl"), [], "it needs glibc 2.34; this"),
        (
            entry("my_ext-1.0-cp311-cp311-linux_x86_64.whl", farm=FarmFacts(platform="manylinux_2_43_x86_64")),
            [],
            "it needs glibc 2.43; this target has 2.31",
        ),
        (entry("my_ext-1.0+cu124-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"), [], ""),
        (entry(farm=FarmFacts(("cu121",))), [], "it is for cu121, not cu124"),
        (entry("my_ext-1.0+cu12-cp311-abi3-linux_x86_64.whl", farm=FarmFacts(("cu128",))), [], ""),
        (entry(farm=FarmFacts(("cu124",), archs=("sm_90",))), [], "it has no code for a GPU of compute capability 8.9"),
        (entry(farm=FarmFacts(("cu124",), archs=("compute_80",))), [], ""),
        (entry(), ["torch==2.5.*", "numpy"], "METADATA requires torch==2.5.*"),
        (entry(), ["torch==2.6.0+cu124"], ""),
        (entry(farm=FarmFacts(("cu124", "cu126"))), ["torch==2.6.0+cu126"], "METADATA requires torch==2.6.0+cu126"),
        (entry(), ['torch==2.5.*; python_version < "3.10"', 'torch==2.6.*; python_version >= "3.10"'], ""),
        (entry(), ['torch==2.5.*; extra == "old"', "torch"], ""),
        (entry(), ["numpy>=1.19.*", "torch==2.6.*"], ""),
        (entry("my_ext-1.0+cu12torch2.6-cp311-cp311-linux_x86_64.whl", farm=None), ["torch"], ""),
        (entry("my_ext-1.0+cu12torch2.8-cp311-abi3-linux_x86_64.whl", farm=None), ["torch"], "the version 1.0+cu12t"),
    ],
)
def test_a_wheel_fits_or_has_one_reason(wheel: Entry, requires: list[str], reason: str) -> None:
    found = misfit(wheel, lambda _: requires, TARGET)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


STABLE, UNTESTED = {"torch2.6.0-cu124-cp311": "static"}, {"torch2.5.0-cu124-cp311": "gpu"}


@pytest.mark.parametrize(
    ("versions", "best", "passed_over"),
    [
        ({"1.0": STABLE, "2.0": UNTESTED}, "1.0", "2.0"),
        ({"1.0": STABLE, "2.0": {}}, "1.0", "2.0"),
        ({"1.0": STABLE, "2.0rc1": STABLE}, "1.0", "2.0rc1"),
        ({"1.0": UNTESTED, "2.0rc1": STABLE}, "1.0", "2.0rc1"),
        ({"1.0": STABLE, "2.0": UNTESTED, "3.0rc1": STABLE}, "1.0", "3.0rc1"),
        ({"1.0": STABLE, "2.0": STABLE, "3.0rc1": {}}, "2.0", "3.0rc1"),
        ({"1.0rc1": STABLE, "1.0rc2": {}}, "1.0rc1", "1.0rc2"),
        ({"1.0": {}, "2.0": UNTESTED}, "2.0", ""),
        ({"9.0": STABLE, "10.0": STABLE}, "10.0", ""),
        ({"1.0": {"torch2.6.0-cu124-cp311": "gpu"}, "2.0": STABLE}, "2.0", ""),
        ({"1.0": {"torch2.6.0-cu124-cp311": "none"}, "2.0": {}}, "2.0", ""),
    ],
)
def test_stable_then_tested_then_the_newest_version(
    versions: dict[str, dict[str, str]], best: str, passed_over: str
) -> None:
    wheels = [
        entry(f"my_ext-{version}+cu124-cp311-cp311-linux_x86_64.whl", farm=FarmFacts(("cu124",), cells))
        for version, cells in versions.items()
    ]
    found = best_wheel(wheels, nothing, TARGET)
    assert found.best
    assert (found.best.version.public, found.newer.version.public if found.newer else "") == (best, passed_over)


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (("1.0+cu130-1-py3-none-any", "1.0+cu130-2-py3-none-any", "1.0+cu130-10-py3-none-any"), 2),
        (
            (
                "1.0+cu130-cp312-cp312-linux_x86_64",
                "1.0+cu130-cp312-cp312-manylinux_2_28_x86_64",
                "1.0+cu130-cp312-cp312-manylinux_2_17_x86_64",
            ),
            1,
        ),
        (("1.0+cu130.torch2.11-py3-none-any", "1.0+cu130.torch2.11-1-py3-none-any"), 1),
        (("1.0-py3-none-any", "1.0-1-py3-none-any"), 1),
    ],
)
def test_of_two_files_of_a_version_the_commands_name_the_url(
    names: tuple[str, ...], best: int, repository: Repository, tmp_path: Path, call: Call
) -> None:
    made = []
    for number, name in enumerate(names):
        version, *rest = name.split("-")
        wheel = pure_wheel(tmp_path / name, "my_ext", version, {"my_ext.py": str(number)}, tag="-".join(rest[-3:]))
        wheel = wheel.rename(wheel.with_name(f"my_ext-{name}.whl"))
        repository.add(new_wheel(wheel, []))
        made.append(wheel.name)
    words = ["resolve", "my_ext", "--index", tmp_path / "index", *CELL]
    found = json.loads(call(*words, "--json")[1])
    assert found["wheel"] == made[best]
    entry = repository.find(made[best])
    url = f"{(tmp_path / 'index' / entry.path).as_uri()}#sha256={entry.sha256}"
    assert found["install"] == {
        "pip": f"pip install 'my-ext @ {url}' torch==2.11.0",
        "uv": f"uv pip install 'my-ext @ {url}' torch==2.11.0",
    }
    for other in {*made} - {made[best]}:
        repository.yank(other, "")
    assert (" @ " in json.loads(call(*words, "--json")[1])["install"]["uv"]) is False


def test_the_current_form_of_a_version_comes_before_the_earlier_one() -> None:
    earlier, now = (
        entry(f"my_ext-1.0+cu124.{torch}-cp311-cp311-linux_x86_64.whl") for torch in ("torch26", "torch2.6")
    )
    assert earlier.version > now.version
    assert best_wheel([now, earlier], nothing, TARGET).best == now


MATRIX = "torch: [2.11.0]\ncuda: [13.0]\npython: [3.12]\narchs: [9.0]\nextensions: [my_ext]\n"
RECIPE = "name: my_ext\nversion: 1.0\nabi: cpython\ncuda: required\nsource: {path: .}\nimports: [my_ext]\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an index, whose wheel has code for an H100."""
    folder = tmp_path / "project"
    (folder / "my_ext").mkdir(parents=True)
    (folder / "my_ext" / "extension.yaml").write_text(RECIPE)
    (folder / "matrix.yaml").write_text(MATRIX)
    made = ready(tmp_path, version="1.0+cu130.torch2.11")
    assert made.entry.farm
    entry = replace(made.entry, farm=replace(made.entry.farm, archs=("sm_90",)))
    Repository(Folder(folder / "index")).add(replace(made, entry=entry))
    monkeypatch.chdir(folder)
    return folder


def cure(call: Call, *options: object) -> tuple[list[str], list[str]]:
    """What to do before the printed command, and the words of the command."""
    code, out, err = call("resolve", "my-ext", "--index", "index", *options, "--json")
    assert code == 1, err
    data = json.loads(out)
    steps = "".join(f"{step}, then " for step in data["before_build"])
    assert f"{steps}run: {data['build']}\n" in call("resolve", "my-ext", "--index", "index", *options)[1]
    return data["before_build"], shlex.split(data["build"])[1:]


RAISE = "raise its version in the recipe and in the source"


def test_the_printed_command_compiles_for_a_gpu_that_the_wheel_lacks(project: Path, call: Call) -> None:
    before, words = cure(call, *CELL, "--gpu", "RTX 4090")
    assert (before, words[-4:]) == ([RAISE], ["--arch", "8.9", "--arch", "9.0"])
    code, out, err = call("plan", *words[1:])
    assert (code, out.splitlines()[0]) == (0, "1 build serves 1 cell; 0 cells are skipped."), err
    assert out.splitlines()[2].endswith("archs 8.9 9.0")
    (project / "my_ext" / "extension.yaml").write_text(RECIPE.replace("1.0", "1.1"))
    assert cure(call, *CELL, "--gpu", "RTX 4090") == ([], words), "the version is raised"
    (project / "my_ext" / "extension.yaml").write_text(
        RECIPE.replace("path: .", f"sdist: my-ext, version: 1.0, sha256: {'0' * 64}")
    )
    before, _ = cure(call, *CELL, "--gpu", "RTX 4090")
    assert before == ["choose another index for it, or change its version by a patch (`patches`) and in the recipe"]
    (project / "matrix.yaml").unlink()
    before, words = cure(call, *CELL, "--gpu", "RTX 4090")
    assert before == ["list torch 2.11.0, CUDA 13.0 and Python 3.12 in matrix.yaml", RAISE]
    assert words[-4:] == ["--arch", "8.9", "--arch", "9.0"]


def test_what_the_matrix_does_not_list_is_added_first(project: Path, call: Call) -> None:
    options = ("--torch", "2.12", *CELL[2:], "--gpu", "H100")
    before, words = cure(call, *options)
    newest = Compat.load().resolve_torch("2.12")
    assert (before, "--arch" in words) == ([f"add {newest} under `torch`"], False)
    assert call("plan", *words[1:])[0] == 3, "the matrix does not list it yet"
    listed = MATRIX.replace("[2.11.0]", f"[2.11.0, {newest}]")
    (project / "matrix.yaml").write_text(listed)
    assert cure(call, *options) == ([], words)
    code, out, err = call("plan", *words[1:])
    assert (code, out.splitlines()[0]) == (0, "1 build serves 1 cell; 0 cells are skipped."), err
    other = next(platform for platform in Platform if platform.machine != os.uname().machine)
    (project / "matrix.yaml").write_text(f"{listed}platforms: [{other}]\n")
    assert cure(call, *options)[0] == [f"add linux_{os.uname().machine} under `platforms`"]


def test_no_command_is_printed_for_what_cannot_be_built(project: Path, call: Call) -> None:
    words = ("resolve", "my-ext", "--index", "index", *CELL)
    assert "no wheel can be built: " in call(*words, "--gpu", "6.0")[1], "CUDA 13 compiles for no such GPU"
    (project / "my_ext" / "extension.yaml").write_text(RECIPE + 'python: ">=3.13"\n')
    out = call(*words, "--gpu", "8.9")[1]
    assert "no wheel can be built: my_ext" in out
    assert "buildfarm build" not in out
    unknown = how_to_build("my_ext", replace(TARGET, cell=replace(TARGET.cell, torch=Torch(99, 0, 0))), [])
    newer = entry("my_ext-1.0+cu124-cp311-cp311-manylinux_2_34_x86_64.whl")
    older = "choose a machine or a base image with glibc 2.31 or older"
    assert how_to_build("other", TARGET, [newer]).before[-1] == older, "another project"
    assert unknown == Cure("no wheel can be built: this version of buildfarm does not know torch 99.0.0")


def test_the_current_environment_is_the_default(
    repository: Repository, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.add(ready(tmp_path, version="1.0+cu130"))
    packages = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    code, out, err = call("resolve", "my_ext", "--index", tmp_path / "index", "--json")
    assert (code, json.loads(out)["cell"]) == (0, "torch2.11.0-cu130-cp312"), err
    (packages / "torch" / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n")
    code, _, err = call("resolve", "my_ext", "--index", tmp_path / "index")
    assert code == 2
    assert "is not for CUDA" in " ".join(err.split())


CELLS = [Cell.parse(f"torch2.11.0-cu130-cp{python}") for python in ("311", "312")]


@pytest.mark.parametrize(("here", "named"), [("", "3.12"), ("3.11", "/py/3.11")])
def test_the_new_environment_has_the_newest_python_of_this_machine(
    here: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = Interpreter(Path("/py/3.11"), "3.11.2", headers=True)
    monkeypatch.setattr(install, "find_python", lambda python: older if str(python) == here else None)
    assert f" venv --seed --python {named} env &&" in install_lines(CELLS, [])[1]


@pytest.mark.parametrize("version", ["1.0", "1.0+cu130"])
def test_only_a_local_version_is_installed_by_its_version(version: str) -> None:
    """pip takes the file of any index for `==1.0`; no public index has `1.0+cu130`."""
    url = f"https://wheels.example/files/ab/cd/my_ext-{version}-py3-none-any.whl#sha256=0"
    cells = [Cell.parse("torch2.11.0-cu128-cp312")]
    place, theirs = "https://wheels.example/simple/", "https://torch.example/cu128"
    pip, uv = install.install_commands(place, "my_ext", version, cells, "https://torch.example/{variant}", url)
    torch = "torch==2.11.0+cu128"
    assert shlex.split(uv) == [
        "uv", "pip", "install", "--index", place, "--index", theirs, f"my_ext=={version}", torch,
    ]  # fmt: skip
    index = "--extra-index-url"
    both = [index, place, index, theirs, f"my_ext=={version}", torch]
    direct = [index, theirs, f"my_ext @ {url}", torch]
    assert shlex.split(pip) == ["pip", "install", *(both if "+" in version else direct)]


WANTED = f"Basic {base64.b64encode(b'__token__:right').decode()}"


class Handler(Quiet, SimpleHTTPRequestHandler):
    """Serves files, if `private` to those who have the token; notes what they send."""

    def __init__(self, *args: Any, private: bool, seen: list[str | None], **options: Any) -> None:
        self.private, self.seen = private, seen
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        if self.private and self.seen[-1] != WANTED:
            self.send_error(401)
        else:
            super().do_GET()


@contextmanager
def index_on_server(folder: Path, monkeypatch: pytest.MonkeyPatch, *, private: bool) -> Iterator[tuple[str, list[Any]]]:
    """The URL of an index with one wheel, and what its clients sent."""
    monkeypatch.delenv("BUILDFARM_TOKEN", raising=False)
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    Repository(Folder(folder / "index")).add(ready(folder))
    seen: list[str | None] = []
    with serving(partial(Handler, private=private, seen=seen, directory=str(folder / "index"))) as address:
        yield f"http://{address}/", seen


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an index that needs a token."""
    with index_on_server(tmp_path, monkeypatch, private=True) as (address, _):
        yield address


def test_the_token_comes_from_variable_url_or_netrc(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(Code.LOGIN_REFUSED, "401") as caught:
        IndexReader(url).entries("my_ext")
    assert caught.value.where == url
    assert "BUILDFARM_TOKEN" in caught.value.hints[0]
    with_password = url.replace("://", "://__token__:right@")
    assert len(IndexReader(with_password).entries("my_ext")) == 1
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login __token__ password right\n")
    (tmp_path / "netrc").chmod(0o600)
    assert len(IndexReader(url).entries("my_ext")) == 1
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("BUILDFARM_TOKEN", "wrong")
    with refused(Code.LOGIN_REFUSED, "401"):
        IndexReader(url).entries("my_ext")
    monkeypatch.setenv("BUILDFARM_TOKEN", "right")
    (entry,) = IndexReader(url).entries("my_ext")
    assert IndexReader(url).requires(entry) == ()


def test_an_index_that_asks_for_no_token_does_not_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index_on_server(tmp_path, monkeypatch, private=False) as (address, seen):
        monkeypatch.setenv("BUILDFARM_TOKEN", "right")
        assert len(IndexReader(address).entries("my_ext")) == 1
    assert set(seen) == {None}


def test_the_commands_contain_no_password(url: str, call: Call) -> None:
    code, out, err = call("resolve", "my_ext", "--index", url.replace("://", "://__token__:right@"), *CELL)
    assert code == Exit.OK, err
    assert url in out
    assert "@127" not in out
    assert "***" not in out
    assert "pip and uv read it from ~/.netrc" in err


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("https://wheels.example/", ("__token__", "secret")),
        ("http://127.0.0.1:8080/", ("__token__", "secret")),
        ("http://wheels.example/", None),
        ("https://me:p%40ss@wheels.example/", ("me", "p@ss")),
    ],
)
def test_without_tls_only_this_machine_gets_the_token(url: str, login: tuple[str, str] | None) -> None:
    assert login_for(url, {"BUILDFARM_TOKEN": "secret\n"}) == login


def test_the_bundle_of_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, seen = tmp_path / "ca.pem", []
    bundle.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))

    def get(_: str, **options: Any) -> None:
        seen.append(options["verify"])
        raise requests.ConnectionError

    monkeypatch.setattr("requests.get", get)
    with refused(Code.NETWORK_UNREACHABLE):
        IndexReader("https://wheels.example/").entries("my_ext")
    assert seen == [str(bundle)]
