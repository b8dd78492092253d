"""The actions that workflows here use, as folders of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from builder.matrix.axes import Python
from builder.wheels.toolchain.pythons import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.github_actions.expressions import NotEmulated

if TYPE_CHECKING:
    from tests.github_actions.job import Job


class StepFailed(Exception):  # noqa: N818 - it reads as what happened
    """A step ended with an error."""


@dataclass
class Actions:
    """What steps with `uses:` do; all jobs share the folders."""

    #: What checkout copies.
    repository: Path
    #: Has a folder for each artifact of the run.
    artifacts: Path
    #: Has a tar file for each entry of actions/cache.
    caches: Path
    #: Composite actions of other repositories, by `OWNER/NAME`.
    published: Mapping[str, Path] = field(default_factory=dict)

    def composite(self, name: str, workspace: Path) -> Path | None:
        """The folder of a composite action, or None."""
        if name.startswith("./"):
            return workspace / name
        return self.published.get(name.partition("@")[0])

    def run(self, action: str, given: Mapping[str, str], job: Job) -> dict[str, str]:
        """Do what the action does, and return its outputs; raises StepFailed, and NotEmulated for another action."""
        if action == "actions/checkout":
            shutil.copytree(self.repository, job.workspace, dirs_exist_ok=True, symlinks=True)
        elif action == "actions/setup-python":
            self._setup_python(given["python-version"], job)
        elif action == "actions/upload-artifact":
            self._upload(given, job.workspace)
        elif action == "actions/download-artifact":
            self._download(given, job.workspace)
        elif action == "actions/cache/restore":
            return self._restore(given)
        elif action == "actions/cache/save":
            self._save(given, job)
        else:
            raise NotEmulated(f"the action {action}")
        return {}

    def _save(self, given: Mapping[str, str], job: Job) -> None:
        file = self.caches / f"{given['key']}.tar"
        if file.exists():  # GitHub prints a warning and does not save
            raise StepFailed(f"there is a cache {given['key']}")
        paths = given["path"].replace("~", job.env.get("HOME", os.environ["HOME"]))
        if found := [str(path) for line in paths.split() for path in _glob(Path(line))]:
            file.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["tar", "-cPf", str(file), *found], check=True)

    def _setup_python(self, version: str, job: Job) -> None:
        if job.programs:  # which have their own Python
            return
        found = find_python(Python.parse(version))
        if found is None:
            raise StepFailed(f"no Python {version} on this machine")
        # An environment of its own: a hosted runner has a Python that the job may change.
        folder = job.folder / "python"
        subprocess.run([find_uv(), "venv", "--quiet", "--seed", "--python", found.path, folder], check=True)
        job.path.insert(0, str(folder / "bin"))

    def _upload(self, given: Mapping[str, str], workspace: Path) -> None:
        target = self.artifacts / given["name"]
        if not 1 <= int(given.get("retention-days", "90")) <= 90:
            raise StepFailed("retention-days is 1 to 90")
        if target.exists() and given.get("overwrite") != "true":
            raise StepFailed(f"there is an artifact {given['name']}")
        shutil.rmtree(target, ignore_errors=True)
        found = [path for line in given["path"].split() for path in _glob(workspace / line)]
        if not found:
            if given.get("if-no-files-found") == "error":
                raise StepFailed(f"no file for {given['path']}")
            return
        for path in found:  # the content of one folder, or files of one folder
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns(".*"))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)

    def _download(self, given: Mapping[str, str], workspace: Path) -> None:
        if "name" not in given and given.get("merge-multiple") != "true":
            raise NotEmulated("download-artifact with a folder for each artifact")
        found = sorted(self.artifacts.glob(given.get("pattern") or given["name"]))
        if not found and "name" in given:
            raise StepFailed(f"there is no artifact {given['name']}")
        for artifact in found:
            shutil.copytree(artifact, workspace / given["path"], dirs_exist_ok=True)

    def _restore(self, given: Mapping[str, str]) -> dict[str, str]:
        exact = self.caches / f"{given['key']}.tar"
        older = [
            file
            for prefix in given.get("restore-keys", "").split()
            for file in sorted(self.caches.glob(f"{prefix}*.tar"), key=lambda file: file.stat().st_mtime, reverse=True)
        ]
        hit = exact.exists()
        if found := next((file for file in (exact, *older) if file.exists()), None):
            subprocess.run(["tar", "-xPf", str(found)], check=True)
        return {"cache-hit": "true" if hit else "false" if found else ""}


def _glob(pattern: Path) -> list[Path]:
    """The files and folders of a pattern, without hidden ones."""
    found = Path("/").glob(str(pattern).lstrip("/"))
    return sorted(path for path in found if not path.name.startswith("."))
