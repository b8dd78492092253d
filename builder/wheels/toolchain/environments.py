"""Python environments for builds and proofs: uv creates them, exact versions are locked, none is used incomplete."""

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.errors import Code, MissingToolError
from builder.formats import digest_of
from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.compat import Compat
from builder.process import kill_orphans, run
from builder.store import BYTECODE, Store, sync_file_system, write_atomic
from builder.untrusted import known_json, remove_tree, texts
from builder.wheels.build_scripts.new_environment import BUILD_MODULES, IMPORT, fix_header_times
from builder.wheels.toolchain.machine import Pythons
from builder.wheels.toolchain.uv import UvRun


def import_once(python: Path, modules: Sequence[str], *, log: Path, owner: str, hashed: Path | None = None) -> int:
    """Import modules of an environment's packages, so that Python keeps their bytecode in the environment.

    Returns the exit status of `run`: 0 also if a module cannot be imported.

    Builds and checks cannot write into their environment (`confinement`), so Python cannot keep there what it compiles.
    The bytecode of sources below `hashed` is made valid for copies of the sources too.
    """
    return run([str(python), "-I", "-c", IMPORT, str(hashed or ""), *modules], log=log, owner=owner)


def add_bytecode(store: Store, python: Path, site: Path, modules: Sequence[str], *, log: Path, owner: str) -> None:
    """Give a new environment the bytecode of these modules, and of all that they import.

    The first environment with exactly these packages imports the modules; later ones get copies of its bytecode. `site`
    is the environment's site-packages.
    """
    # The sources in site-packages have their hashes in the RECORD files.
    rows = (row for path in sorted(site.glob("*.dist-info/RECORD")) for row in path.read_text("utf-8").splitlines())
    sources = [row for row in rows if ".py," in row and not row.startswith("..")]
    name = f"{BYTECODE}{digest_of([os.path.realpath(python), sources, list(modules)])[:16]}"
    store.use(f"envs/{name}")
    kept = store.root / "envs" / name
    with store.work(name) as folder:
        if kept.is_dir():
            shutil.copytree(kept, site, dirs_exist_ok=True)
            return
        if import_once(python, modules, log=log, owner=owner, hashed=site) == -signal.SIGKILL:
            return  # what there is may be little
        new = folder / "new"
        new.mkdir()
        for path in site.rglob("*.pyc"):
            copy = new / path.relative_to(site)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        sync_file_system(new)
        new.rename(kept)


#: What most checks of ops import; `import_once` says why they are named. Without cases, checks import the first.
CELL_MODULES = (
    "torch",
    "torch._dynamo.backends.debugging",
    "torch._functorch.partitioners",
    "torch._inductor.lowering",
    "torch.testing._internal.optests",
    "torch.distributed.tensor.experimental",
)


@dataclass(frozen=True)
class Environment:
    """A complete virtual environment."""

    folder: Path  # its root
    python: Python  # its Python version
    packages: tuple[str, ...]  # the installed packages as exact requirements, sorted

    @property
    def interpreter(self) -> Path:
        """Path of its Python interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Path of its site-packages."""
        return self.folder / "lib" / f"python{self.python}" / "site-packages"

    def packaged_toolkit(self, cuda: Cuda) -> Path:
        """The CUDA toolkit that NVIDIA's packages install, for CUDA_HOME; `link_toolkit` completes it."""
        return self.site_packages / "nvidia" / f"cu{cuda.major}"


class Environments:
    """Creates environments in the store and keeps them for later runs.

    Next to each is a lock record (`<key>.json`) with the exact versions of the first resolution. An environment that
    was deleted to free disk space is created again from that record, so new releases do not change a build's digest.
    """

    def __init__(self, store: Store, torch_index: str) -> None:
        """`torch_index` is the URL of torch's own index."""
        self.store = store
        #: Finds the interpreter of a version, or downloads it; see `Pythons.obtain`.
        self.interpreter = Pythons(store).obtain
        self._torch_index = torch_index

    def torch_index(self, torch: Torch, cuda: Cuda) -> list[str]:
        """The indexes to ask for this torch before the default index: none for the variant on the package index."""
        if Compat.load().is_default_variant(torch, cuda):
            return []
        return [self._torch_index.replace("{variant}", cuda.variant)]

    def ensure(
        self,
        python: Python,
        requirements: Sequence[str],
        *,
        index: Sequence[str],
        log: Path,
        options: Sequence[str] = (),
    ) -> Environment:
        """An environment with these requirements; `options` are further options of `uv pip install`.

        Raises MissingToolError when the Python, a package or the index is not available.
        """
        interpreter = self.interpreter(python)
        key = _key(interpreter.version, requirements, index)
        folder, record = self.store.root / "envs" / key, self.store.root / "envs" / f"{key}.json"
        marker = folder / ".complete"
        job = f"env-{key}"
        self.store.use(f"envs/{key}")
        with self.store.lock(job):
            locked = _locked(record)
            if locked is None or not marker.exists() or _changes(folder, python, locked):
                kill_orphans(self.store.owner(job))
                remove_tree(folder)
                uv = UvRun(index, log, self.store.owner(job))
                uv.create(folder, interpreter.path, locked or requirements, options)
                fix_header_times(Environment(folder, python, ()).site_packages)
                import_once(folder / "bin" / "python", BUILD_MODULES, log=log, owner=uv.owner)
                locked = _freeze(folder, python)
                data = {"requirements": list(requirements), "packages": locked}
                write_atomic(record, json.dumps(data, indent=1).encode())
                # An environment has thousands of files; after a power cut, a marked one is complete.
                sync_file_system(folder)
                write_atomic(marker, b"")
        return Environment(folder, python, locked)

    def locked(self, python: Python, requirements: Sequence[str], *, index: Sequence[str]) -> tuple[str, ...] | None:
        """The locked versions of such an environment; None before its first resolution."""
        return _locked(self.record(python, requirements, index=index))

    def record(self, python: Python, requirements: Sequence[str], *, index: Sequence[str]) -> Path:
        """The file with the locked versions of such an environment."""
        key = _key(self.interpreter(python).version, requirements, index)
        return self.store.root / "envs" / f"{key}.json"

    def changes(self, environment: Environment) -> list[str]:
        """What a program did to the packages of an environment, such as `installed numpy==2.0`; empty: nothing.

        A changed environment is not used again: `ensure` makes it anew from its lock record.
        """
        changed = _changes(environment.folder, environment.python, environment.packages)
        if changed:
            (environment.folder / ".complete").unlink(missing_ok=True)
        return changed

    def check(self, python: Python, requirements: Sequence[str], *, index: Sequence[str]) -> None:
        """Ask the index for these packages without downloading them; raises as `ensure` would.

        Once their versions are locked, the index is not asked.
        """
        if self.locked(python, requirements, index=index) is not None:
            return
        job = f"check-{_key(str(python), requirements, index)}"
        options = ["--no-deps", f"--python-version={python.series}"]  # uv knows no `3.14t` here
        with self.store.work(job) as folder:
            UvRun(index, self.store.log("packages"), self.store.owner(job)).compile(requirements, options, folder)


def _key(version: str, requirements: Sequence[str], index: Sequence[str]) -> str:
    return digest_of([version, list(requirements), list(index)])[:16]


def _locked(record: Path) -> tuple[str, ...] | None:
    return known_json(record, lambda data: texts(data["packages"]))


def _freeze(folder: Path, python: Python) -> tuple[str, ...]:
    site = Environment(folder, python, ()).site_packages
    names = (re.fullmatch(r"(.+?)-([^-]+)\.dist-info", path.name) for path in site.glob("*.dist-info"))
    return tuple(sorted(f"{m[1].lower().replace('_', '-')}=={m[2]}" for m in names if m))


def _changes(folder: Path, python: Python, locked: Sequence[str]) -> list[str]:
    found, recorded = set(_freeze(folder, python)), set(locked)
    return [
        *(f"installed {package}" for package in sorted(found - recorded)),
        *(f"removed {package}" for package in sorted(recorded - found)),
    ]


def locked_version(packages: Sequence[str], project: str) -> str:
    """The version of a project among exact requirements (`name==version`), or empty."""
    return next((p.split("==")[1] for p in packages if p.startswith(f"{project}==")), "")


def build_requirements(torch: Torch, cuda: Cuda, extra: Sequence[str], *, toolkit: bool) -> list[str]:
    """The requirements of a build's environment: torch, with `toolkit` also nvcc, NumPy, build tools, and `extra`."""
    of_cell = Compat.load().cell_requirements(torch, cuda)
    return [
        *of_cell,
        *(() if "numpy<2" in of_cell else ("numpy",)),  # an old torch names its NumPy
        *(toolkit_requirements(cuda) if toolkit else ()),
        "ninja",
        # torch before 2.8 imports pkg_resources in cpp_extension; setuptools 82 no longer has it.
        "setuptools<82" if (torch.major, torch.minor) < (2, 8) else "setuptools",
        "wheel",
        "pip",  # setup.py of many sources, and the source's own commands in containers, call `python -m pip`
        *extra,
    ]


def toolkit_requirements(cuda: Cuda) -> list[str]:
    """The packages of a complete nvcc of one minor version; see `new_environment.link_toolkit` for the rest.

    nvcc's wheel does not pin crt and nvvm: a plain `cuda-toolkit[nvcc]` installs nvcc 13.0 with the newest front
    end. Here all four packages have the same minor version.
    """
    return [f"cuda-toolkit[nvcc,cccl]=={cuda}.*", f"nvidia-cuda-crt=={cuda}.*", f"nvidia-nvvm=={cuda}.*"]


def wheels_only(packages: Sequence[str], build_requires: Sequence[str]) -> list[str]:
    """Options of uv with which it builds none of these packages from source, because that would execute their code.

    The packages that the recipe itself names in `build_requires` may be built.
    """
    own = {canonicalize_name(Requirement(text).name) for text in build_requires}
    names = sorted({canonicalize_name(package.partition("==")[0]) for package in packages} - own)
    return [f"--only-binary={name}" for name in names]


def check_needed(
    packages: Sequence[str], requirements: Sequence[str], options: Sequence[str], *, index: Sequence[str], store: Store
) -> None:
    """Raise MissingToolError for packages that the recipe does not need: a package may run code when Python starts.

    uv resolves the `requirements` of the recipe with the recorded `packages` (`name==version`) and installs nothing.
    `options` are further ones of `uv pip compile`, and `index` are URLs of indexes that are asked first.
    """
    job = f"recorded-{digest_of(list(packages))[:16]}"
    with store.work(job) as folder:
        constraints = folder / "recorded.txt"
        constraints.write_text("\n".join(packages) + "\n")
        arguments = ["--no-config", "--no-annotate", "--constraints", str(constraints), *options]
        resolved = UvRun(index, store.log("packages"), store.owner(job)).compile(requirements, arguments, folder)
    needed = {canonicalize_name(Requirement(line).name) for line in resolved.splitlines() if line.strip()}
    unneeded = [package for package in packages if canonicalize_name(package.partition("==")[0]) not in needed]
    if unneeded:
        raise MissingToolError(
            f"the record of the wheel names packages that the recipe does not need: {', '.join(unneeded[:5])}",
            Code.RECORD_DIFFERS,
            hints=[
                "do not trust the wheel: its record is not what a build of this recipe writes",
                "if a different version of buildfarm built the wheel, run that version",
            ],
        )
