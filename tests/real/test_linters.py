"""hadolint, zizmor, actionlint and GitHub's schema accept the Dockerfiles and workflows that buildfarm writes."""

import re
import subprocess
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from builder.publish.ci.workflows import ACTIONS
from tests.conftest import lacking
from tests.unit.images.test_images import every_file, shipped
from tests.unit.publish.ci.conftest import project
from tests.unit.publish.ci.test_workflows import ACTION, VERIFY, WORKFLOWS, written

__all__ = ["project"]  # a fixture: a project whose workflows are written


def linted(texts: dict[str, str], folder: Path) -> str:
    """hadolint's output for these files; empty without findings."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    argv = [str(hadolint), "--no-color", "--failure-threshold", "style", *sorted(texts)]
    answer = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert (answer.returncode == 0) == (answer.stdout == "")
    return answer.stdout + answer.stderr


def test_hadolint_accepts_every_file(tmp_path: Path) -> None:
    """Of the files that differ only in versions, tags such as cp312 and cu130, and digests, it reads one.

    Other numbers count: it has a rule about the user 0.
    """
    values = re.compile(r"\b[0-9a-f]{64}\b|\d+([.-]\d+)+|(?<=cp)\d+|(?<=cu)\d+")
    texts = {values.sub("0", text): (name.replace(" ", "-"), text) for name, text in every_file().items()}
    assert len(texts) > 15
    assert linted(dict(texts.values()), tmp_path) == ""


def test_hadolint_reports_findings(tmp_path: Path) -> None:
    text = next(iter(shipped().values())).replace("# hadolint ignore", "# ignore")
    assert "DL3041" in linted({"Dockerfile": text}, tmp_path)


def findings(program: str, *arguments: str | Path) -> str:
    """The output of a linter; empty without findings."""
    path = Path(sysconfig.get_path("scripts")) / program
    if not path.exists():
        lacking(f"{program} is not installed beside this Python")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def zizmor(*paths: Path) -> str:
    return findings("zizmor", "--offline", "--no-config", *paths)


def schema(*paths: Path) -> str:
    return findings("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *paths)


def actionlint(folder: Path, *paths: Path) -> str:
    config = folder / "actionlint.yaml"
    config.write_text("self-hosted-runner:\n  labels: [gpu, arc-gpu]\n")
    return findings("actionlint", "-config-file", config, *paths)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--runner-labels", "arc-gpu", "--publish-labels", "arc-gpu", "--index", "/srv/wheels"),
        ("--require", "cpu", "--branch", "release/1.0"),
    ],
)
def test_linters_accept_the_workflows(project: Path, arguments: tuple[str, ...]) -> None:
    written(project, *arguments)
    paths = sorted((project / ".github" / "workflows").iterdir())
    assert schema(*paths) == ""
    assert zizmor(*paths) == ""
    assert actionlint(project, *paths) == ""


def test_linters_accept_the_workflows_of_this_repository(tmp_path: Path) -> None:
    paths = sorted(WORKFLOWS.iterdir())
    assert schema(*paths) == ""
    assert findings("check-jsonschema", "--builtin-schema", "vendor.github-actions", ACTION, VERIFY) == ""
    assert zizmor(*paths, ACTION, VERIFY) == ""
    assert actionlint(tmp_path, *paths) == ""


PLAN = 'buildfarm plan --github "$SCOPE"'


@pytest.mark.parametrize(
    ("linter", "old", "new", "finding"),
    [
        ("zizmor", "        with:\n          persist-credentials: false\n", "", "artipacked"),
        ("zizmor", ACTIONS["checkout"], "actions/checkout@v7", "unpinned-uses"),
        ("zizmor", "  pull_request:\n", "  pull_request_target:\n", "dangerous-triggers"),
        ("zizmor", "contents: read", "contents: write", "excessive-permissions"),
        ("zizmor", PLAN, "buildfarm plan --github ${{ github.head_ref }}", "template-injection"),
        ("zizmor", PLAN, "buildfarm plan --github ${{ inputs.select }}", "template-injection"),
        ("actionlint", "needs.plan.outputs.jobs", "needs.plan.outputs.job", 'property "job" is not defined'),
        ("schema", "runs-on:", "runs_on:", "runs_on"),
    ],
)
def test_a_linter_reports_each_defect(project: Path, linter: str, old: str, new: str, finding: str) -> None:
    written(project)
    path = project / ".github" / "workflows" / "buildfarm.yml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    linters: dict[str, Callable[[Path], str]] = {"zizmor": zizmor, "schema": schema}
    linters["actionlint"] = partial(actionlint, project)
    assert finding in linters[linter](path)
