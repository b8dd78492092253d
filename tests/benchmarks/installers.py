"""What installers pick from an index with CUDA variants. Run: python -m tests.benchmarks.installers.

An index of small wheels is served by `buildfarm serve`, and a second index plays the public one. pip, uv, Poetry and
PDM install one package from each path. The command prints, as Markdown, the version that was installed for each
request. docs/explanation/what-installers-pick.md has this output.

Poetry and PDM are installed from the package index, each into an environment of its own.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

import uv

from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from tests.fixtures.servers import clean_environment, environment, running
from tests.unit.loopback import pure_wheel, served

#: Versions of the package, and what is special about a wheel: its tag, its Requires-Python, or that it is yanked.
WHEELS: Mapping[str, Mapping[str, str]] = {
    "0.5+cu130": {"requires_python": "<3.4"},
    "1.0": {},
    "1.0+cu92": {},
    "1.0+cu121": {},
    "1.0+cu124": {},
    "1.0+cu130": {},
    "1.1+cu124": {},
    "1.2+cu130": {"requires_python": ">=3.99"},
    "1.3+cu130": {"tag": "cp36-cp36m-any"},
    "1.4+cu130": {"yanked": "wrong results"},
    "2.0rc1+cu130": {},
}
PUBLIC = ("1.0", "5.0")
PATHS = ("simple", "cu130", "cpu")
NOTHING = "none"


@dataclass(frozen=True)
class Request:
    """A request for the package: its version specifier, and whether pre-releases are allowed."""

    specifier: str = ""
    pre: bool = False
    name: str = "my_ext"
    torch: str = ""  # the version specifier of torch, which is requested too; empty: it is not
    url: str = ""  # the URL of the wheel that a project requires, with its hash; empty: a version from an index

    @property
    def words(self) -> list[str]:
        """The requirements."""
        own = f"{self.name} @ {self.url}" if self.url else f"{self.name}{self.specifier}"
        return [own, *([f"torch{self.torch}"] if self.torch else [])]

    def __str__(self) -> str:
        """The request as a person writes it."""
        return f"`{' '.join(self.words)}`{' with pre-releases' if self.pre else ''}"


REQUESTS = (
    Request(),
    Request("==1.0"),
    Request("==1.0+cu124"),
    Request("==1.4"),
    Request("==0.5+cu130"),
    Request(pre=True),
)


@dataclass(frozen=True)
class Indexes:
    """Where the package is looked for."""

    farm: str  # URL of a path of our index
    public: str = ""  # URL of the public index, or "" for none
    explicit: bool = False  # whether the project names our index for this package only
    order: tuple[str, ...] = ()  # options of pip and uv in place of the usual ones


#: Installs a request into an empty folder; returns the folder with what was installed.
Install = Callable[[Path, Indexes, Request], Path]


class Installers:
    """Installers in a folder of their own, without the settings of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = clean_environment(folder)
        self._all: dict[str, Install] = {"pip": self._pip, "uv": self._uv}
        #: The Python of each pip, and the program of each uv.
        self._programs = {"pip": Path(sys.executable), "uv": Path(uv.find_uv_bin())}

    @property
    def names(self) -> list[str]:
        """The installers."""
        return list(self._all)

    def add_poetry_and_pdm(self) -> None:
        """Install Poetry and PDM from the package index of this machine."""
        self._poetry_bin = environment(self._folder / "poetry", "poetry") / "poetry"
        self._pdm_bin = environment(self._folder / "pdm", "pdm[locked]") / "pdm"
        self._all |= {"Poetry": self._poetry, "PDM": self._pdm}

    def add_pip(self, version: str, python: Path) -> None:
        """Install a version of pip for a Python from the package index of this machine, as `pip VERSION`."""
        own = environment(self._folder / f"pip-{version}", f"pip=={version}", python=python) / "python"
        self._all[f"pip {version}"] = partial(self._pip, python=str(own))
        self._programs[f"pip {version}"] = own

    def add_uv(self, version: str) -> None:
        """Install a version of uv from the package index of this machine, as `uv VERSION`."""
        self._programs[f"uv {version}"] = environment(self._folder / f"uv-{version}", f"uv=={version}") / "uv"

    def versions(self) -> dict[str, str]:
        """The name and the version of each installer, as it prints them; pips and uvs first."""
        poetry_and_pdm = {"Poetry": self._poetry_bin, "PDM": self._pdm_bin}
        found = {}
        for name, program in (self._programs | poetry_and_pdm).items():
            argv: list[str | Path] = [program, *(["-m", "pip"] if name.startswith("pip") else []), "--version"]
            text = subprocess.run(argv, check=True, capture_output=True, text=True, env=self._env).stdout
            found[name] = f"{name.split()[0]} {re.findall(r'[0-9]+(?:[.][0-9]+)+', text)[0]}"
        return dict(sorted(found.items(), key=lambda item: (not item[1].startswith(("pip", "uv")), item[1])))

    def new_folder(self) -> Path:
        """An empty folder."""
        folder = self._folder / f"project-{uuid4().hex[:8]}"
        folder.mkdir()
        return folder

    def install_into(self, installer: str, environment: Path, public: str, words: Sequence[str]) -> None:
        """Let a pip or a uv install into an environment, with the requirements, from the public index and others."""
        python = environment / "bin" / "python"
        if installer.startswith("pip"):
            options: list[str | Path] = ["-m", "pip", "--python", python, "install", "--no-cache-dir", "--index-url"]
        else:
            options = ["pip", "install", "--python", python, "--default-index"]
        self._run([self._programs[installer], *options, public, *words], environment)

    def install_project(self, installer: str, indexes: Indexes, request: Request) -> Path:
        """Let Poetry or PDM install what a project requires; returns the folder with what was installed."""
        return self._all[installer](self.new_folder(), indexes, request)

    def pick(self, installer: str, indexes: Indexes, request: Request) -> str:
        """The version that the installer installs, or NOTHING."""
        folder = self.new_folder()
        installed = self._all[installer](folder, indexes, request)
        found = [path.name.split("-")[1].removesuffix(".dist") for path in installed.rglob("my_ext-*.dist-info")]
        assert len(found) < 2, found
        shutil.rmtree(folder)
        return found[0] if found else NOTHING

    def _pip(self, folder: Path, indexes: Indexes, request: Request, python: str = sys.executable) -> Path:
        order = indexes.order or ("--index-url", indexes.farm)
        options = ["--no-deps", "--no-cache-dir", "--target", str(folder / "to"), *(["--pre"] if request.pre else [])]
        self._run([python, "-m", "pip", "install", *options, *order, *request.words], folder)
        return folder

    def _uv(self, folder: Path, indexes: Indexes, request: Request) -> Path:
        target = ["--python", sys.executable, "--target", str(folder / "to")]
        options = ["--no-deps", *target, *(["--prerelease", "allow"] if request.pre else [])]
        if indexes.explicit:
            self._pyproject(folder, request, uv_source(indexes))
            words = ["-r", "pyproject.toml"]
        else:
            words = [*(indexes.order or ("--default-index", indexes.farm)), *request.words]
        self._run([uv.find_uv_bin(), "pip", "install", *options, *words], folder)
        return folder

    def _poetry(self, folder: Path, indexes: Indexes, request: Request) -> Path:
        sources = [("farm", indexes.farm, "explicit" if indexes.explicit else "primary")]
        if indexes.public:
            sources.append(("public", indexes.public, "primary"))
        source = f'version = "{request.specifier or "*"}", allow-prereleases = {str(request.pre).lower()}'
        source += ', source = "farm"' if indexes.explicit else ""
        if request.url:
            source = f'url = "{request.url}"'
        lines = [
            "[tool.poetry]\npackage-mode = false",
            f'[tool.poetry.dependencies]\npython = "~{sys.version_info[0]}.{sys.version_info[1]}"',
            f"{request.name} = {{{source}}}",
            *([f'torch = "{request.torch}"'] if request.torch else []),
            *(
                f'[[tool.poetry.source]]\nname = "{name}"\nurl = "{url}"\npriority = "{priority}"'
                for name, url, priority in sources
            ),
        ]
        (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
        place = self.venv(folder)
        self._run([self._poetry_bin, "install", "--no-root", "--no-interaction"], folder, VIRTUAL_ENV=str(place))
        return place

    def _pdm(self, folder: Path, indexes: Indexes, request: Request) -> Path:
        farm_only = request.name.replace("_", "-")
        text = f'[[tool.pdm.source]]\nname = "pypi"\nurl = "{indexes.public or indexes.farm}"\nverify_ssl = true\n'
        if indexes.public:
            text += f'[[tool.pdm.source]]\nname = "farm"\nurl = "{indexes.farm}"\n'
            text += f'include_packages = ["{farm_only}"]\n' if indexes.explicit else ""
        if indexes.explicit:  # "pypi" must not answer for the package
            text = text.replace("verify_ssl = true\n", f'verify_ssl = true\nexclude_packages = ["{farm_only}"]\n')
        if request.pre:
            text += "[tool.pdm.resolution]\nallow-prereleases = true\n"
        self._pyproject(folder, request, text)
        place = self.venv(folder)
        self._run([self._pdm_bin, "install", "--no-self", "--no-isolation"], folder, VIRTUAL_ENV=str(place))
        return place

    def _pyproject(self, folder: Path, request: Request, more: str) -> None:
        python = f"=={sys.version_info[0]}.{sys.version_info[1]}.*"
        project = {"name": "user", "version": "0", "requires-python": python}
        lines = [f"{key} = {json.dumps(value)}" for key, value in project.items()]
        dependency = json.dumps(request.words)
        (folder / "pyproject.toml").write_text("\n".join(["[project]", *lines, f"dependencies = {dependency}", more]))

    def venv(self, folder: Path) -> Path:
        """A new environment below a folder."""
        subprocess.run([uv.find_uv_bin(), "venv", "-q", "-p", sys.executable, str(folder / "venv")], check=True)
        return folder / "venv"

    def _run(self, argv: Sequence[str | Path], folder: Path, **more: str) -> None:
        """Run an installer; that it finds nothing is a result too."""
        own = {
            "POETRY_CACHE_DIR": str(folder / "cache"),
            "PDM_CACHE_DIR": str(folder / "cache"),
            "PDM_CHECK_UPDATE": "0",
        }
        subprocess.run(
            [str(word) for word in argv],
            cwd=folder,
            env={**self._env, **own, **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=900,
        )


def uv_source(indexes: Indexes) -> str:
    """The lines with which a uv project takes the package from our index only."""
    return (
        f'[[tool.uv.index]]\nname = "farm"\nurl = "{indexes.farm}"\nexplicit = true\n'
        f'[[tool.uv.index]]\nname = "public"\nurl = "{indexes.public}"\ndefault = true\n'
        '[tool.uv.sources]\nmy-ext = { index = "farm" }\n'
    )


def fill(repository: Repository, wheels: Path) -> None:
    """Publish the wheels."""
    for version, special in WHEELS.items():
        wheel = pure_wheel(
            wheels,
            "my_ext",
            version,
            tag=special.get("tag", "py3-none-any"),
            requires_python=special.get("requires_python", ""),
        )
        repository.add(new_wheel(wheel, []))
        if "yanked" in special:
            repository.yank(wheel.name, special["yanked"])


@contextmanager
def both_indexes(
    fill: Callable[[Repository, Path], None], project: str, releases: Sequence[str], folder: Path
) -> Iterator[tuple[str, str]]:
    """Serve our index, and a public one with a project; yields the URL of the root of ours, and that of the public."""
    fill(Repository(Folder(folder / "index")), folder / "wheels")
    with running(folder / "index") as farm, served(folder / "public") as public:
        for version in releases:
            public.add(project, version)
        yield farm.url, public.default


#: Both indexes in a folder.
indexes = partial(both_indexes, fill, "my_ext", PUBLIC)


def two_indexes(farm: str, public: str) -> list[tuple[str, str, Indexes]]:
    """The ways to use our index beside a public one: installer, what a person writes, the indexes."""
    first, second = (
        ("--index-url", public, "--extra-index-url", farm),
        ("--index-url", farm, "--extra-index-url", public),
    )
    extra = ("--default-index", public, "--index", farm)
    best = (*extra, "--index-strategy", "unsafe-best-match")
    return [
        ("pip", "`--index-url PUBLIC --extra-index-url FARM`", Indexes(farm, public, order=first)),
        ("pip", "`--index-url FARM --extra-index-url PUBLIC`", Indexes(farm, public, order=second)),
        ("uv", "`--default-index PUBLIC --index FARM`", Indexes(farm, public, order=extra)),
        ("uv", "the same with `--index-strategy unsafe-best-match`", Indexes(farm, public, order=best)),
        ("uv", "`explicit = true` and `[tool.uv.sources]`", Indexes(farm, public, explicit=True)),
        ("Poetry", "both sources `primary`", Indexes(farm, public)),
        ("Poetry", "FARM `explicit`, and `source` of the package", Indexes(farm, public, explicit=True)),
        ("PDM", "two sources", Indexes(farm, public)),
        ("PDM", "`include_packages` and `exclude_packages`", Indexes(farm, public, explicit=True)),
    ]


def row(*cells: object) -> None:
    """Print a row of a table in Markdown."""
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def main() -> None:
    """Install and print."""
    with tempfile.TemporaryDirectory(prefix="buildfarm-installers-") as temporary:
        folder = Path(temporary)
        installers = Installers(folder)
        installers.add_poetry_and_pdm()
        with indexes(folder) as (farm, public), ThreadPoolExecutor(4) as pool:
            row("path", "request", *installers.names)
            row(*["---"] * (2 + len(installers.names)))
            asked = [(path, request) for path in PATHS for request in REQUESTS]
            tasks = [
                (name, Indexes(f"{farm}/{path}/"), request) for path, request in asked for name in installers.names
            ]
            picks = iter(list(pool.map(lambda task: installers.pick(*task), tasks)))
            for path, request in asked:
                row(f"`{path}/`", request, *(next(picks) for _ in installers.names))
            print()
            few = REQUESTS[0], REQUESTS[1], Request("==1.0+cu130")
            row("installer", "configuration", *few)
            row(*["---"] * (2 + len(few)))
            ways = two_indexes(f"{farm}/cu130/", public)
            tasks = [(name, places, request) for name, _, places in ways for request in few]
            picks = iter(list(pool.map(lambda task: installers.pick(*task), tasks)))
            for name, words, _ in ways:
                row(name, words, *(next(picks) for _ in few))


if __name__ == "__main__":
    main()
