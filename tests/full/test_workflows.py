"""The jobs of the written workflows install buildfarm: from the lock, and on GPU machines without a network."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, Farm, run
from tests.unit.publish.ci.steps import program, run_step, step_named

pytestmark = [pytest.mark.network, pytest.mark.slow]


def copy_of_buildfarm(folder: Path) -> Path:
    """The files of this repository that git does not ignore, without the tests."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", ":!tests", cwd=ROOT)
    assert listed.code == 0, listed.err
    for name in filter(None, listed.out.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_each_job_installs_buildfarm(farm: Farm, python_of: Callable[[str], Path], tmp_path: Path) -> None:
    python = python_of("3.12")
    repository = tmp_path / "mine"
    made = farm("init", repository, "--torch", "2.11", "--cuda", "13.0", "--python", "3.12", cwd=tmp_path)
    assert made.code == 0, made.all
    copy_of_buildfarm(repository / "tools" / "buildfarm")
    written = farm("ci", "--install", "./tools/buildfarm", cwd=repository)
    assert written.code == 0, written.all
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
