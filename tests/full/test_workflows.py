"""Whole workflows from `plan` to `publish`: this machine compiles, tests and publishes, and pip installs the wheel.

Each job runs every step of its workflow, including those that install buildfarm. What differs from GitHub:

- One machine runs all jobs, without containers. The job `build` compiles with the local executor.
- This machine has no GPU, so the job `smoke` calls the ops on the CPU only. It has a store of its own: it gets the
  wheel and the proofs from artifacts, as a GPU runner does.
- The job `publish` requires the level `cpu`, as `buildfarm ci --require cpu` writes it. The committed workflow requires
  `gpu`; the test of this repository first shows that it refuses a wheel that no GPU has tested.
- `tests/github_actions/__init__.py` lists what is not emulated at all, such as permissions and time limits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT, Farm, run
from tests.github_actions.actions import Actions
from tests.github_actions.workflow import WorkflowRun

pytestmark = [pytest.mark.network, pytest.mark.slow]

WORKFLOW = ".github/workflows/buildfarm.yml"
AXPBY = "import torch, mine; print(torch.ops.mine.axpby(torch.ones(2), torch.ones(2), 2.0, -0.5).tolist())"
SAMPLE = """\
import torch, ms_deform_attn
shapes, start, where = torch.tensor([[4, 4]]), torch.tensor([0]), torch.full((1, 5, 2, 1, 1, 2), 0.5)
out = ms_deform_attn.ms_deform_attn(torch.full((1, 16, 2, 8), 3.0), shapes, start, where, torch.ones(1, 5, 2, 1, 1))
print(out.unique().tolist())
"""


def copy_of_buildfarm(folder: Path) -> Path:
    """The files of this repository that git does not ignore, without the tests."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", ":!tests", cwd=ROOT)
    assert listed.code == 0, listed.err
    for name in filter(None, listed.out.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def started(tmp_path: Path, store: Path) -> Callable[..., WorkflowRun]:
    """Makes a run of a repository's workflow, which was started by hand."""

    def start(repository: Path, **inputs: str) -> WorkflowRun:
        home = tmp_path / "home"
        home.mkdir()
        cache = run(find_uv(), "cache", "dir").out.strip()  # a download of torch serves all tests
        return WorkflowRun(
            WORKFLOW,
            tmp_path / "run",
            Actions(repository, tmp_path / "run" / "artifacts", tmp_path / "caches"),
            {
                "event_name": "workflow_dispatch",
                "ref": "refs/heads/main",
                "sha": "0" * 40,
                "repository": "owner/name",
            },
            inputs,
            env={"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "UV_CACHE_DIR": cache},
            env_of={"smoke": {"BUILDFARM_STORE": str(store)}},
        )

    return start


def results(done: WorkflowRun) -> dict[str, str]:
    return {name.rpartition(" / ")[2]: job.result for name, job in done.jobs.items()}


def printed(done: WorkflowRun) -> str:
    return "\n".join(f"# {name}: {job.result}\n{job.output}" for name, job in done.jobs.items())


def assert_tested_on_cpu(done: WorkflowRun) -> None:
    (smoke,) = (job for name, job in done.jobs.items() if name.endswith(" / smoke"))
    assert "0 failed" in smoke.summary
    assert "no GPU on this machine" in smoke.summary


def installed(done: WorkflowRun, name: str, venv: Callable[..., Path], python: Path) -> Path:
    """An environment with torch, into which pip installed the wheel from the index of the run."""
    interpreter = venv(python, "torch==2.11.0", "numpy", "pip")
    index = done.actions.artifacts / "index"
    words = ("-m", "pip", "--isolated", "install", "--no-deps", "--no-cache-dir", "--index-url")
    ran = run(interpreter, *words, (index / "cu130").as_uri(), name)
    assert ran.code == 0, ran.all
    return interpreter


def test_the_workflow_of_another_project(
    farm: Farm,
    started: Callable[..., WorkflowRun],
    venv: Callable[..., Path],
    python_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    repository = tmp_path / "mine"
    select = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--arch", "9.0")
    made = farm("init", repository, *select, cwd=tmp_path)
    assert made.code == 0, made.all
    copy_of_buildfarm(repository / "tools" / "buildfarm")
    written = farm("ci", "--install", "./tools/buildfarm", "--require", "cpu", cwd=repository)
    assert written.code == 0, written.all
    done = started(repository)
    assert done.run() == "success", printed(done)
    assert results(done) == dict.fromkeys(("plan", "build", "smoke", "publish"), "success")
    assert_tested_on_cpu(done)
    answer = run(installed(done, "mine", venv, python_of("3.12")), "-I", "-c", AXPBY)
    assert answer.out.strip() == "[1.5, 1.5]", answer.all


def test_the_workflow_of_this_repository(
    farm: Farm,
    started: Callable[..., WorkflowRun],
    venv: Callable[..., Path],
    python_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    repository = copy_of_buildfarm(tmp_path / "repository")
    # A run with these versions in `select` publishes nothing.
    cell = {"torch": [2.11], "cuda": [13.0], "python": [3.12], "archs": [9.0]}
    matrix = {**cell, "extensions": ["extensions/ms_deform_attn"]}
    (repository / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    done = started(repository, select="--ext ms_deform_attn")
    assert done.run() == "failure"
    passed = dict.fromkeys(("plan", "build", "smoke"), "success")
    assert results(done) == {**passed, "publish": "failure"}, printed(done)
    assert_tested_on_cpu(done)
    assert "gpu-values: not run" in " ".join(done.jobs["publish"].summary.split())
    committed = (repository / WORKFLOW).read_text()
    written = farm("ci", "--install", ".[cache]", "--require", "cpu", cwd=repository)
    assert written.code == 0, written.all
    changed = [new for new in (repository / WORKFLOW).read_text().splitlines() if new not in committed.splitlines()]
    assert [line.split("--require")[1].split()[0] for line in changed] == ["cpu`.", "cpu"]
    assert done.run() == "success", printed(done)
    assert results(done) == {**passed, "publish": "success"}
    answer = run(installed(done, "ms_deform_attn", venv, python_of("3.12")), "-I", "-c", SAMPLE)
    assert answer.out.strip() == "[3.0]", answer.all
