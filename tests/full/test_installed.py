"""Buildfarm as others install it: jobs of the written workflows, and pre-commit."""

import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from builder.proofs.inventory import Shelf
from tests.conftest import ROOT, Farm, Ran, committed, lacking, run
from tests.real.verify.corpus import Wheel, fill, stub_libraries
from tests.unit.publish.ci.steps import program, run_step, step_named

pytestmark = [pytest.mark.network, pytest.mark.slow]


def copy_of_buildfarm(folder: Path) -> Path:
    """The files of this repository that git does not ignore, without the tests."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", ":!tests", cwd=ROOT).ok()
    for name in filter(None, listed.out.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_each_job_installs_buildfarm(farm: Farm, python_of: Callable[[str], Path], tmp_path: Path) -> None:
    python = python_of("3.12")
    repository = tmp_path / "mine"
    farm("init", repository, "--torch", "2.11", "--cuda", "13.0", "--python", "3.12", cwd=tmp_path).ok()
    copy_of_buildfarm(repository / "tools" / "buildfarm")
    farm("ci", "--install", "./tools/buildfarm", cwd=repository).ok()
    jobs = {
        name: job["steps"]
        for path in (repository / ".github" / "workflows").iterdir()
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
        if "steps" in job
    }
    programs = program(tmp_path, "python", f'exec "{python}" "$@"\n')
    buildfarm = repository / "runner" / "buildfarm" / "bin" / "buildfarm"
    for job, names in {"plan": ["Install buildfarm", "Collect buildfarm for the GPU machines"], "smoke": []}.items():
        for name in names or ["Install buildfarm"]:
            done = run_step(step_named(jobs[job], name), repository, programs)
            assert done.code == 0, done.printed
        assert run(buildfarm, "plan", cwd=repository).code == 0
        shutil.rmtree(buildfarm.parent.parent)


CONFIG = """\
repos:
  - repo: {buildfarm}
    rev: {commit}
    hooks:
      - id: buildfarm-verify
        args: [--max-size, 10MB]
"""


@pytest.fixture
def pre_commit() -> Path:
    """pre-commit beside this Python, or on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "pre-commit"
    found = beside if beside.exists() else shutil.which("pre-commit")
    if not found or shutil.which("g++") is None:
        lacking("pre-commit or g++ is not installed")
    return Path(found)


def test_hook(pre_commit: Path, tmp_path: Path) -> None:
    buildfarm, project, stubs = tmp_path / "buildfarm", tmp_path / "project", tmp_path / "stubs"
    for folder in (buildfarm, project, stubs):
        folder.mkdir()
    commit = committed(copy_of_buildfarm(buildfarm))
    assert run(pre_commit, "validate-manifest", buildfarm / ".pre-commit-hooks.yaml").code == 0
    (project / ".pre-commit-config.yaml").write_text(CONFIG.format(buildfarm=buildfarm, commit=commit))
    (project / "text.md").write_text("no wheel\n")
    committed(project)
    env = {"PRE_COMMIT_HOME": str(tmp_path / "home"), "BUILDFARM_STORE": str(tmp_path / "store")}

    def hook() -> Ran:
        assert run("git", "add", "--all", cwd=project).code == 0
        return run(pre_commit, "run", "--color=never", cwd=project, env=env)

    (project / "text.md").write_text("still no wheel\n")
    assert "(no files to check)Skipped" in hook().out
    stub_libraries(stubs)
    fill(Shelf(tmp_path / "store" / "inventories"))
    Wheel().write(project, stubs)
    passed = hook()
    assert (passed.code, "Passed" in passed.out) == (0, True), passed.all
    Wheel(requires=(), version="1.1+cu130").write(project, stubs)
    failed = hook()
    assert failed.code == 1, failed.all
    assert "METADATA does not require torch" in failed.out
