"""What installers pick if wheels are for one torch each. Run: python -m tests.benchmarks.installers_and_torch.

An index of small wheels is served by `buildfarm serve`, and a second index plays the public one, with some releases of
a torch that is empty. Several versions of pip and uv, Poetry and PDM install a package into an environment that has one
of the torches, or none. The command prints, as Markdown, the file and the torch that were installed.
docs/explanation/what-installers-pick.md has this output.

The installers come from the package index, each in an environment of its own.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.repository import Repository
from tests.benchmarks.installers import NOTHING, Indexes, Installers, Request, both_indexes, row
from tests.unit.loopback import pure_wheel

#: Releases of torch on the public index. Nothing was built for the newest one.
TORCHES = ("2.9.0", "2.11.0", "2.12.0")
#: The states of the environment; "": without torch.
INSTALLED = ("", "2.9.0", "2.11.0")
#: Versions and tags of the wheels by project. A wheel requires the torch that its version names.
WHEELS = {
    "my_op": [
        *(f"1.0+cu{cuda}.torch{torch}-py3-none-any" for cuda in (126, 130) for torch in ("2.9", "2.11")),
        "1.0+cu130.torch2.11-2-py3-none-any",
        "1.1+cu130.torch2.9-py3-none-any",
    ],
    "my_old": [f"1.0+cu130.torch{torch}-py3-none-any" for torch in ("29", "211", "2.11")],
    "my_tag": [f"1.0+cu130-py3-none-{platform}_x86_64" for platform in ("linux", "manylinux_2_17", "manylinux_2_28")],
}
NOW = "2.11.0"
#: Paths and requests. Without a path: the command that `buildfarm resolve` prints.
ASKED = (
    ("simple", Request(name="my_op")),
    ("cu130", Request(name="my_op")),
    ("cu130", Request(name="my_op", torch=f"=={NOW}")),
    ("cu130/torch2.11", Request(name="my_op")),
    ("", Request(name="my_op")),
    ("cu130", Request(name="my_old")),
    ("cu130/torch2.11", Request(name="my_old")),
    ("", Request(name="my_old")),
    ("cu130", Request("==1.0+cu130", name="my_tag", torch=f"=={NOW}")),
    ("", Request(name="my_tag")),
)


@dataclass(frozen=True)
class Task:
    """One installation: the installer, the path or "" for the printed command, the request, and the torch before."""

    installer: str
    path: str
    request: Request
    installed: str


def fill(repository: Repository, wheels: Path) -> None:
    """Publish the wheels; each has a module with the name of its file."""
    for project, names in WHEELS.items():
        for name in names:
            version, *rest = name.split("-")
            torch = version.rpartition("torch")[2] if "torch" in version else ""
            series = {"29": "2.9", "211": "2.11"}.get(torch, torch)
            tag = "-".join(rest[-3:])
            requires = [f"torch=={series}.*"] if series else ["torch"]
            made = pure_wheel(wheels / name, project, version, {f"{project}.py": name}, requires=requires, tag=tag)
            repository.add(new_wheel(made.rename(made.with_name(f"{project}-{name}.whl")), []))


#: Both indexes in a folder.
indexes = partial(both_indexes, fill, "torch", TORCHES)


class TorchInstallers(Installers):
    """Installers that install a package with its requirements."""

    def outcome(self, task: Task, farm: str, public: str) -> tuple[str, str]:
        """The file and the torch that are installed afterwards, or NOTHING."""
        request, words = task.request, [f"{farm}/{task.path}/", *task.request.words]
        if not task.path:
            words = _printed(request.name, farm, "uv" if task.installer.startswith("uv") else "pip")
        if task.installer.startswith(("pip", "uv")):
            option = "--extra-index-url" if task.installer.startswith("pip") else "--index"
            place = self.venv(self.new_folder())
            if task.installed:
                self.install_into("uv", place, public, [f"torch=={task.installed}"])
            self.install_into(task.installer, place, public, words if not task.path else [option, *words])
        else:
            if not task.path and not words[0].startswith("--"):  # a URL
                request = Request(name=request.name, torch=f"=={NOW}", url=words[0].rpartition(" @ ")[2])
                words = [f"{farm}/simple/"]
            elif not task.path:
                words = words[1:]
                request = Request(f"=={words[1].partition('==')[2]}", name=request.name, torch=f"=={NOW}")
            place = self.install_project(task.installer, Indexes(words[0], public, explicit=True), request)
        return _found(place, request.name)


@cache
def _printed(name: str, farm: str, program: str) -> list[str]:
    """The words after `install` of the command of pip or uv that `buildfarm resolve` prints."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    cell = ["--torch", NOW, "--cuda", "13.0", "--python", python]
    argv = [sys.executable, "-m", "builder", "resolve", name, "--index", farm, *cell, "--json"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    words = shlex.split(json.loads(done.stdout)["install"][program])
    return words[words.index("install") + 1 :]


def _found(environment: Path, project: str) -> tuple[str, str]:
    files = [path.read_text() for path in environment.rglob(f"site-packages/{project}.py")]
    torch = [path.name.split("-")[1].removesuffix(".dist") for path in environment.rglob("torch-*.dist-info")]
    shutil.rmtree(environment.parent)
    return f"`{files[0]}`" if files else NOTHING, torch[0] if torch else NOTHING


def main() -> None:
    """Install and print."""
    with tempfile.TemporaryDirectory(prefix="buildfarm-installers-") as temporary:
        folder = Path(temporary)
        installers = TorchInstallers(folder)
        for version in ("25.3", "26.2.1"):
            installers.add_pip(version, Path(sys.executable))
        installers.add_uv("0.9.*")
        installers.add_poetry_and_pdm()
        names = installers.versions()
        with indexes(folder) as (farm, public), ThreadPoolExecutor(3) as pool:
            row("path", "request", "torch before", "installer", "file", "torch after")
            row(*["---"] * 6)
            for path, request in ASKED:
                tasks = [Task(name, path, request, before) for name in names for before in _states(name)]
                found = list(pool.map(partial(installers.outcome, farm=farm, public=public), tasks))
                for before, those, outcome in _grouped(tasks, found, names):
                    row(f"`{path}/`" if path else "the printed command", request, before, those, *outcome)


def _states(installer: str) -> Sequence[str]:
    """Poetry and PDM install what the project says, whatever the environment has."""
    return INSTALLED if installer.startswith(("pip", "uv")) else ("",)


def _grouped(
    tasks: Sequence[Task], found: Sequence[tuple[str, str]], names: Mapping[str, str]
) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """The torch before and the installers of each outcome, as text."""
    states: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for task, outcome in zip(tasks, found, strict=True):
        states.setdefault((task.installer, outcome), []).append(task.installed)
    groups: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for (name, outcome), before in states.items():
        whole = len(before) == len(_states(name))
        text = "any or none" if whole else ", ".join(one or "none" for one in before)
        groups.setdefault((text, outcome), []).append(name)
    for (text, outcome), those in groups.items():
        yield text, "all" if len(those) == len(names) else ", ".join(names[name] for name in those), outcome


if __name__ == "__main__":
    main()
