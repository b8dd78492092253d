"""Python environments for building and proving: made by uv, locked to exact versions, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from builder.errors import BuildError, FarmError, MissingToolError
from builder.images.network import asking_first
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.requirements import cell_requirements
from builder.process import masked, reap_orphans, run
from builder.store import Store, digest_of, write_whole
from builder.wheels.pythons import Interpreter, find_python, find_uv

#: Settings that say where packages come from, in the order uv reads them; pip's is honoured when uv has none.
INDEX_SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")

_UNREACHABLE = re.compile(
    r"(?i)failed to fetch|error sending request|dns error|connection refused|timed out|client error \(connect\)"
    r"|error reading a body from connection|connection (?:reset|closed)"
)
_NO_SOLUTION = re.compile(r"(?i)no solution found")
_ABSENT = re.compile(r"(?i)was not found in the package registry|there (?:is|are) no versions? of")
#: uv's words for a wheel none of whose platform tags this machine has: its C library is too old.
_OLDER_LIBC = re.compile(r"The wheel is compatible with ((?:Linux \(`\w+`\)(?:, )?)+), but you're on Linux \(`(\w+)`\)")
_DISK_FULL = "No space left on device"


class UnsatisfiableError(MissingToolError):
    """The packages are there, but they cannot be installed together or not under this Python."""


class DiskFullError(BuildError):
    """The environment did not fit; it says nothing about what was to be installed."""


class KilledError(BuildError):
    """uv was ended from outside; it says nothing about what was to be installed."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is complete.

    Attributes:
        folder: its root.
        python: the Python version it was made for.
        packages: what is installed, as exact requirements, sorted.

    """

    folder: Path
    python: Python
    packages: tuple[str, ...]

    @property
    def interpreter(self) -> Path:
        """Its python program."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its distributions are."""
        suffix = "t" if self.python.free_threaded else ""
        return self.folder / "lib" / f"python{self.python.major}.{self.python.minor}{suffix}" / "site-packages"


def index_setting() -> str:
    """Which setting names the package index, and its value without credentials, for error messages."""
    for name in INDEX_SETTINGS:
        if url := os.environ.get(name):
            return f"{name}={masked(url)}"
    return "the default package index (UV_DEFAULT_INDEX is not set)"


def uv_variables(index: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment for uv: never a download of a Python, and pip's index setting where uv has none.

    `index` are URLs of indexes to ask before the default one. They are no arguments, which everybody on the machine can
    read: they may hold a password.
    """
    variables = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    if not variables.keys() & {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} and "PIP_INDEX_URL" in variables:
        variables["UV_DEFAULT_INDEX"] = variables["PIP_INDEX_URL"]
    return {**asking_first(index, variables), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}


class Environments:
    """Makes environments under the store and keeps them for the next run.

    Each has a lock record beside it (`<key>.json`): the exact versions of its first resolution. A folder deleted to
    free disk is made again from that record, so a build's digest does not drift with the index.
    """

    def __init__(self, store: Store, torch_index: str) -> None:
        self.store = self._store = store
        self._torch_index = torch_index

    def index_urls(self, cuda: Cuda, *, default_variant: bool) -> list[str]:
        """The indexes that have this CUDA's torch, to ask before the default one: PyTorch's own, where it is needed."""
        return [] if default_variant else [self._torch_index.replace("{variant}", cuda.variant)]

    def ensure(self, python: Python, requirements: Sequence[str], *, index: Sequence[str], log: Path) -> Environment:
        """An environment with these requirements.

        Raises MissingToolError when the Python, a package or the index is not to be had.
        """
        interpreter = self.interpreter(python)
        key = digest_of([interpreter.version, list(requirements), list(index)])[:16]
        folder, record = self._store.root / "envs" / key, self._store.root / "envs" / f"{key}.json"
        marker = folder / ".complete"
        job = f"env-{key}"
        with self._store.lock(job):
            locked = self._read(record)
            if locked is None or not marker.exists():
                reap_orphans(self._store.mark(job))
                shutil.rmtree(folder, ignore_errors=True)
                wanted, mark = locked or requirements, self._store.mark(job)
                self.create(folder, interpreter, wanted, index=index, log=log, job=mark)
                locked = _freeze(folder, python)
                write_whole(
                    record,
                    json.dumps({"requirements": list(requirements), "packages": locked}, indent=1).encode(),
                )
                marker.touch()
        return Environment(folder, python, tuple(locked))

    def locked(self, python: Python, requirements: Sequence[str], *, index: Sequence[str]) -> tuple[str, ...] | None:
        """The exact versions such an environment has or would be made again with; None before its first resolution."""
        key = digest_of([self.interpreter(python).version, list(requirements), list(index)])[:16]
        packages = self._read(self._store.root / "envs" / f"{key}.json")
        return tuple(packages) if packages is not None else None

    def check(self, python: Python, requirements: Sequence[str], *, index: Sequence[str]) -> None:
        """Ask the index for these very packages without fetching them; raises as `ensure` would.

        Nothing is asked once an environment of them was resolved: its versions are locked.
        """
        if self.locked(python, requirements, index=index) is not None:
            return
        key = digest_of([str(python), list(requirements), list(index)])[:16]
        job = f"check-{key}"
        with self._store.work(job) as folder:
            wanted = folder / "wanted.txt"
            wanted.write_text("\n".join(requirements))
            argv = ["pip", "compile", "--quiet", "--no-deps", "--no-header", "--python-version", str(python)]
            argv += ["--output-file", str(folder / "found.txt"), str(wanted)]
            _uv(argv, requirements, index=index, log=self._store.log("packages"), job=self._store.mark(job))

    @staticmethod
    def interpreter(python: Python) -> Interpreter:
        """This machine's interpreter of that version; raises MissingToolError when there is none."""
        if found := find_python(python):
            return found
        raise MissingToolError(
            f"no Python {python} on this machine",
            hints=[
                f"`uv python install {python}` puts one beside the system's",
                "`--python X.Y` selects cells of another",
            ],
        )

    @staticmethod
    def create(
        folder: Path,
        interpreter: Interpreter,
        requirements: Sequence[str],
        *,
        index: Sequence[str],
        log: Path,
        job: str,
    ) -> None:
        """Make a virtual environment and install into it; raises MissingToolError or BuildError with uv's reason."""
        venv = ["venv", "--no-project", "--python", str(interpreter.path), str(folder)]
        _uv(venv, requirements, index=index, log=log, job=job)
        Environments.install(folder, requirements, index=index, log=log, job=job)

    @staticmethod
    def install(folder: Path, requirements: Sequence[str], *, index: Sequence[str], log: Path, job: str) -> None:
        """Install into an environment; raises as `create` does, UnsatisfiableError when it is nobody's absence."""
        argv = ["pip", "install", "--python", str(folder / "bin" / "python"), *requirements]
        _uv(argv, requirements, index=index, log=log, job=job)

    @staticmethod
    def _read(record: Path) -> list[str] | None:
        try:
            packages = json.loads(record.read_bytes())["packages"]
            return [str(package) for package in packages]
        except (OSError, ValueError, KeyError, TypeError):  # none, or not one of ours: resolve anew
            return None


def _uv(argv: Sequence[str], requirements: Sequence[str], *, index: Sequence[str], log: Path, job: str) -> None:
    start = log.stat().st_size if log.exists() else 0
    status = run([str(find_uv()), *argv], log=log, job=job, env=uv_variables(index))
    if status < 0:
        raise KilledError(f"uv was ended by signal {-status}", stage="environment", log=log)
    if status != 0:
        raise uv_fault(log, start, requirements, index)


def _freeze(folder: Path, python: Python) -> list[str]:
    site = Environment(folder, python, ()).site_packages
    names = (re.fullmatch(r"(.+?)-([^-]+)\.dist-info", path.name) for path in site.glob("*.dist-info"))
    return sorted(f"{m[1].lower().replace('_', '-')}=={m[2]}" for m in names if m)


def uv_fault(log: Path, start: int, requirements: Sequence[str], index: Sequence[str]) -> FarmError:
    """Why uv failed, from its own words in the log since `start`: no network, no such package, or something else."""
    with log.open("rb") as stream:
        stream.seek(start)
        said = stream.read().decode(errors="replace")
    wanted = ", ".join(requirements)
    where = " and ".join([*map(masked, index), index_setting()])
    if _DISK_FULL in said:
        return DiskFullError("the disk is full; nothing half-made was kept", stage="environment", log=log)
    if _UNREACHABLE.search(said):
        named = re.search(r"(?i)failed to (?:fetch: `?\S+/|download `)([\w.-]+)\S*$", said, re.MULTILINE)
        # Not in the sentence: uv asks for several at once, and one fault of all builds is told once.
        first = f"{named[1]} was asked for; " if named else ""
        return MissingToolError(
            "the package index cannot be reached",
            where=where,
            hints=[
                "set UV_DEFAULT_INDEX to an index or mirror this machine reaches",
                f"{first}wanted in all: {wanted}",
                f"uv's own words are in {log}",
            ],
        )
    if other := _OLDER_LIBC.search(said):
        tags = " or ".join(re.findall(r"`(\w+)`", other[1]))
        return MissingToolError(
            f"the wheel is for {tags}, and the C library here is that of {other[2]}",
            hints=[
                "`buildfarm smoke --executor docker` runs it in a container of its cell's runtime image",
                "`runtime` under `images:` in matrix.yaml names a newer base for such images",
            ],
        )
    absent = _ABSENT.search(said)
    if absent or _NO_SOLUTION.search(said):
        because = re.search(r"(?s)(?:╰─▶|cause:) (.+?)(?:\n\n|$)", said)  # uv before and after 0.10
        detail = " ".join(because[1].split()) if because else "no version fits"
        hints = [
            f"wanted in all: {wanted}",
            "`torch_index` in matrix.yaml names the index of torch's other CUDA variants",
        ]
        if absent:
            sentence = f"the package index does not have what is needed: {detail}"
            return MissingToolError(sentence, where=where, hints=hints)
        return UnsatisfiableError(f"the packages do not go together: {detail}", where=where, hints=hints)
    return BuildError(
        f"uv could not make the environment for {wanted}",
        stage="environment",
        log=log,
        hints=[f"its output is in {log}"],
    )


def locked_version(packages: Sequence[str], project: str) -> str:
    """The version of a project among exact requirements (`name==version`), or empty."""
    return next((p.split("==")[1] for p in packages if p.startswith(f"{project}==")), "")


def torch_cuda(site_packages: Path) -> str:
    """The CUDA version the installed torch was built for (`13.0`), read from its files; empty for a CPU build."""
    text = (site_packages / "torch" / "version.py").read_text()
    match = re.search(r"^cuda(?:: [^=]+)? = '([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else ""


def build_requirements(
    torch: Torch, cuda: Cuda, extra: Sequence[str], *, default_variant: bool, toolkit: bool
) -> list[str]:
    """What a build's environment holds: the cell's torch, with `toolkit` also nvcc, build tools, what a recipe adds."""
    return [
        *cell_requirements(torch, cuda, default_variant=default_variant),
        *(toolkit_requirements(cuda) if toolkit else ()),
        "ninja",
        # torch before 2.8 imports pkg_resources in cpp_extension; setuptools 82 no longer has it.
        "setuptools<82" if (torch.major, torch.minor) < (2, 8) else "setuptools",
        "wheel",
        *extra,
    ]


def toolkit_requirements(cuda: Cuda) -> list[str]:
    """The packages that make a whole nvcc of one minor version; see `link_toolkit` for the rest.

    nvcc's own wheel leaves crt and nvvm unpinned, so a plain `cuda-toolkit[nvcc]` mixes a 13.0 driver with the newest
    front end; all four are held to the same minor here.
    """
    return [
        f"cuda-toolkit[nvcc,cccl]=={cuda}.*",
        f"nvidia-cuda-crt=={cuda}.*",
        f"nvidia-nvvm=={cuda}.*",
    ]


def link_toolkit(environment: Environment, cuda: Cuda) -> Path:
    """Complete the toolkit inside an environment; returns its root, for CUDA_HOME.

    torch's cpp_extension looks for `lib64` and links `-lcudart`; the wheels ship `lib` and a versioned file only.
    """
    home = environment.site_packages / "nvidia" / f"cu{cuda.major}"
    links: Mapping[Path, str] = {
        home / "lib64": "lib",
        home / "lib" / "libcudart.so": f"libcudart.so.{cuda.major}",
    }
    for link, target in links.items():
        with suppress(FileExistsError):  # an earlier build, or one beside this, was here first
            link.symlink_to(target)
    return home
