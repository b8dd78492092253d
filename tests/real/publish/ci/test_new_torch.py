"""The job that opens an issue for a new release of torch, with a package index on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from builder.publish.ci.workflows import MAIN, WorkflowOptions, workflows
from tests.conftest import BUILDFARM, git
from tests.unit.loopback import PackageIndex, only, pure_wheel, served
from tests.unit.publish.ci.conftest import MATRIX, RECIPE
from tests.unit.publish.ci.steps import program, run_step, step_named
from tests.unit.wheels import test_upstream as upstream

NEWEST = MATRIX.replace("2.11.0", "2.15.0").replace("13.0", "13.2")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """An index with the newest torch that buildfarm knows."""
    with served(tmp_path / "index") as served_index:
        only(served_index, tmp_path / "cache", monkeypatch)
        add_torch(served_index, "2.15.0")
        yield served_index


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    (tmp_path / "project" / "ops").mkdir(parents=True)
    (tmp_path / "project" / "ops" / "extension.yaml").write_text(RECIPE)
    (tmp_path / "project" / "matrix.yaml").write_text(NEWEST)
    return tmp_path / "project" / "matrix.yaml"


def add_torch(index: PackageIndex, version: str) -> None:
    for python in ("cp311-cp311", "cp312-cp312", "cp313-cp313", "cp313-cp313t"):
        pure_wheel(index.root / "default", "torch", version, tag=f"{python}-manylinux_2_28_x86_64")


#: `gh`, which keeps the titles of issues in a file.
GH = """\
set -eu
[ "$GH_TOKEN" = token ] && [ "$GH_REPO" = owner/name ]
case "$1 $2" in
"issue list") cat "$HOME/issues" ;;
"issue create") echo "$4" >> "$HOME/issues"; cp "$6" "$HOME/body" ;;
esac
"""


#: `gh`, which keeps whether it opened or changed a pull request, and its text.
GH_PULL = """\
set -eu
[ "$GH_TOKEN" = token ] && [ "$GH_REPO" = owner/name ]
case "$1 $2" in
"pr list") [ -e "$HOME/calls" ] && echo 1 || echo 0 ;;
"pr create") echo create >> "$HOME/calls"; cp "${10}" "$HOME/body" ;;
"pr edit") echo edit >> "$HOME/calls"; cp "$5" "$HOME/body" ;;
esac
"""


@pytest.mark.parametrize(
    ("newest", "listed", "reason"),
    [
        ("2.15.0", "2.15.0", ""),
        ("2.15.0", "2.14.1", "the matrix does not list torch 2.15.0"),
        ("2.99.0", "2.15.0", "does not know torch 2.99.0"),
    ],
)
def test_one_issue_is_opened_for_a_release(
    index: PackageIndex, matrix: Path, tmp_path: Path, newest: str, listed: str, reason: str
) -> None:
    add_torch(index, newest)
    matrix.write_text(NEWEST.replace("2.15.0", listed))
    steps = yaml.safe_load(workflows(WorkflowOptions("./buildfarm"))[MAIN])["jobs"]["new-torch"]["steps"]
    programs = program(matrix.parent, "gh", GH)
    (programs / "buildfarm").symlink_to(BUILDFARM)
    (programs / "uv").symlink_to(BUILDFARM.with_name("uv"))
    (tmp_path / "issues").write_text("New torch release: 2.9\n")
    for _ in ("first night", "second night"):
        look = step_named(steps, "Look for a release of torch that matrix.yaml does not have")
        looked = run_step(look, matrix.parent, programs)
        assert (looked.code, bool(looked.summary)) == (0, bool(reason)), looked.printed
        given = {"GH_TOKEN": "token", "GH_REPO": "owner/name", "HOME": str(tmp_path)}
        opened = run_step(step_named(steps, "Open an issue"), matrix.parent, programs, **given)
        assert opened.code == 0, opened.printed
    titles = f"New torch release: {newest}\n" if reason else ""
    assert (tmp_path / "issues").read_text() == f"New torch release: 2.9\n{titles}"
    assert not reason or reason in (tmp_path / "body").read_text()


def test_a_broken_matrix_and_an_index_that_does_not_answer_fail_the_job(
    index: PackageIndex, matrix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_torch(index, "2.99.0")
    steps = yaml.safe_load(workflows(WorkflowOptions("./buildfarm"))[MAIN])["jobs"]["new-torch"]["steps"]
    look = step_named(steps, "Look for a release of torch that matrix.yaml does not have")
    programs = program(matrix.parent, "gh", GH)
    (programs / "buildfarm").symlink_to(BUILDFARM)
    (programs / "uv").symlink_to(BUILDFARM.with_name("uv"))
    matrix.write_text("cudo: [13.0]\n")
    broken = run_step(look, matrix.parent, programs)
    assert (broken.code != 0, "cudo" in broken.printed, broken.summary) == (True, True, "")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    assert run_step(look, matrix.parent, programs).code != 0


def test_a_range_of_torch_gets_a_pull_request_with_the_facts(index: PackageIndex, matrix: Path, tmp_path: Path) -> None:
    """The plan of the night has the new release; a second night changes the text of the pull request."""
    upstream.add_torch(index, {**upstream.TORCH, "torch/version.py": "__version__ = '2.99.0'\ncuda = '13.2'\n"})
    matrix.write_text(NEWEST.replace("[2.15.0]", '">=2.15"'))
    folder, origin = matrix.parent, tmp_path / "origin.git"
    git(tmp_path, "init", "--quiet", "--bare", str(origin))
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message=a")):
        git(folder, *words)
    git(folder, "remote", "add", "origin", str(origin))
    programs = program(folder, "gh", GH_PULL)
    (programs / "buildfarm").symlink_to(BUILDFARM)
    jobs = yaml.safe_load(workflows(WorkflowOptions("./buildfarm"))[MAIN])["jobs"]

    read = run_step(step_named(jobs["plan"]["steps"], "Read the facts of new releases of torch"), folder, programs)
    assert (read.code, read.output) == (0, "read=true\n"), read.printed
    (artifact := folder / "runner" / "facts" / "facts.yaml").parent.mkdir()
    artifact.write_bytes((folder / "facts.yaml").read_bytes())
    given = {"GH_TOKEN": "token", "GH_REPO": "owner/name", "HOME": str(tmp_path), "RUN": "https://host.invalid/run"}
    for publish in ("success", "failure"):
        step = step_named(jobs["facts"]["steps"], "Open a pull request")
        opened = run_step(step, folder, programs, **given, WHEELS="success", PUBLISH=publish)
        assert opened.code == 0, opened.printed
        git(folder, "switch", "--quiet", "-")
        git(folder, "branch", "--quiet", "-D", "buildfarm-facts")
        artifact.write_text("x")
    assert (tmp_path / "calls").read_text() == "create\nedit\n"
    text = (tmp_path / "body").read_text()
    assert "torch 2.99.0 is unknown to this version of buildfarm: read its facts" in text
    assert "Plan before: 1 build serves 1 cell" in text
    assert "Plan with these facts: 2 builds serve 2 cells" in text
    assert "Builds and tests: success; publish: failure. [The run](https://host.invalid/run) says which wheels." in text
    assert git(origin, "show", "buildfarm-facts:facts.yaml") == "x"
