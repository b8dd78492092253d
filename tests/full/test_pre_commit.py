"""The hook `buildfarm-verify`: pre-commit installs it from a clone of this repository, and runs it on wheels."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from builder.proofs.inventory import Shelf
from tests.conftest import Ran, lacking, run
from tests.full.test_workflows import copy_of_buildfarm
from tests.real.verify.corpus import Wheel
from tests.real.verify.made_up_torch import fill, stub_libraries

pytestmark = [pytest.mark.network, pytest.mark.slow]

CONFIG = """\
repos:
  - repo: {buildfarm}
    rev: {commit}
    hooks:
      - id: buildfarm-verify
        args: [--max-size, 10MB]
"""
GIT = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main")


def committed(folder: Path) -> str:
    """Make a git repository of a folder; return its commit."""
    for arguments in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "all")):
        assert run(*GIT, *arguments, cwd=folder).code == 0
    return run("git", "rev-parse", "HEAD", cwd=folder).out.strip()


@pytest.fixture
def program() -> Path:
    """pre-commit beside this Python, or on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "pre-commit"
    found = beside if beside.exists() else shutil.which("pre-commit")
    if not found or shutil.which("g++") is None:
        lacking("pre-commit or g++ is not installed")
    return Path(found)


def test_hook(program: Path, tmp_path: Path) -> None:
    buildfarm, project, stubs = tmp_path / "buildfarm", tmp_path / "project", tmp_path / "stubs"
    for folder in (buildfarm, project, stubs):
        folder.mkdir()
    commit = committed(copy_of_buildfarm(buildfarm))
    assert run(program, "validate-manifest", buildfarm / ".pre-commit-hooks.yaml").code == 0
    (project / ".pre-commit-config.yaml").write_text(CONFIG.format(buildfarm=buildfarm, commit=commit))
    (project / "text.md").write_text("no wheel\n")
    committed(project)
    env = {"PRE_COMMIT_HOME": str(tmp_path / "home"), "BUILDFARM_STORE": str(tmp_path / "store")}

    def hook() -> Ran:
        assert run("git", "add", "--all", cwd=project).code == 0
        return run(program, "run", "--color=never", cwd=project, env=env)

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
