"""Compares buildfarm with a plain cibuildwheel loop that builds the same wheels: processor seconds, wall time, ratio.

Run: python -m tests.benchmarks.farm_vs_cibuildwheel [--small] [--ext NAME] [--archs LIST]. It needs Docker, a package
index and the images of `tests/images/make-base all`, and takes an hour or more. The machine must be idle otherwise,
because the figures include the whole control group of the container engine.

Cells: five of a stable-ABI extension (diffrast, five torches) and four of a classic one (ms_deform_attn on torch 2.6,
four Pythons). Both sides run three phases: cold; after one line was added to a CUDA source of the stable extension;
after one line was added to a CUDA source of the classic one. buildfarm always runs for everything. The loop does not
know what changed and builds every cell again, but a user may start it only for the edited extension. Both ratios are
printed; the second one is for that user. What did not change is not measured again: the last phase uses the loop's
figures of the unedited extension from the phase before it.

The loop follows the documentation of cibuildwheel: one run with `--only` for each cell, the frontend `build` and pip,
torch installed in `before-build`, and `--exclude` options for auditwheel. It gets buildfarm's own images with compilers
and toolkit, and ninja. It keeps nothing between runs. Both sides download their packages in the cold phase. buildfarm's
proofs are left out, because the loop proves nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from builder.images.engine import Engine
from builder.images.image_build import ensure_image
from builder.images.network import ca_bundle, ca_variables, index_variables
from builder.images.specs import ImageChooser
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.store import Store

ROOT = Path(__file__).parents[2]

IMAGES = """\
images:
  - {cells: "*-cu13?-*", image: "buildfarm-cuda:13.0-bookworm", pythons: "buildfarm-pythons:local", toolkit: 13.0}
  - {cells: "*-cu124-*", image: "buildfarm-cuda:12.4-trixie", pythons: "buildfarm-pythons:local", toolkit: 12.4}
"""

#: What buildfarm's side runs: with separate volumes, so that its caches are cold, and without proofs.
BUILDFARM = """
import sys
import builder.resources
from builder.proofs.cells import prover
from builder.wheels.cibuildwheel import config
config.PACKAGES_VOLUME, config.OBJECTS_VOLUME = sys.argv.pop(1), sys.argv.pop(1)
prover.WheelProver.prove = lambda *_, **__: []
from builder.__main__ import main
main()
"""

#: The build requirements of the extensions, and NumPy, without which torch prints a warning. torch before 2.8 needs the
#: bound on setuptools.
TOOLS = "numpy 'setuptools>=77,<82' wheel ninja"

#: Files with the processor time of all containers, and their unit in seconds: cgroup v1, cgroup v2 (cgroupfs driver).
METERS = (("/sys/fs/cgroup/cpuacct/docker/cpuacct.usage", 1e-9), ("/sys/fs/cgroup/docker/cpu.stat", 1e-6))


@dataclass(frozen=True)
class Extension:
    """One extension of the comparison: its folder, the source to edit, and the axes of its cells."""

    name: str
    edited: str
    torches: Sequence[str]
    cuda: str
    pythons: Sequence[str]
    exclude: str = ""


#: The package index has torch 2.15 for CUDA 13.2, and the other releases for CUDA 13.0.
OTHER_CUDA = "exclude: [{torch: 2.15, cuda: 13.0, reason: benchmark}" + "".join(
    f", {{torch: {torch}, cuda: 13.2, reason: benchmark}}" for torch in ("2.11", "2.12", "2.13", "2.14")
)
FULL = (
    Extension(
        "diffrast",
        "csrc/cuda/antialias.cu",
        ["2.11", "2.12", "2.13", "2.14", "2.15"],
        "13.0, 13.2",
        ["3.12"],
        OTHER_CUDA + "]\n",
    ),
    Extension("ms_deform_attn", "csrc/cuda/forward.cu", ["2.6"], "12.4", ["3.10", "3.11", "3.12", "3.13"]),
)
SMALL = (
    Extension("diffrast", "csrc/cuda/antialias.cu", ["2.11", "2.12"], "13.0", ["3.12"]),
    Extension("ms_deform_attn", "csrc/cuda/forward.cu", ["2.6"], "12.4", ["3.11", "3.12"]),
)


@dataclass
class Spent:
    """Processor and wall time of one side in one phase, seconds."""

    containers: float = 0.0
    host: float = 0.0
    wall: float = 0.0

    @property
    def cpu(self) -> float:
        """Processor time of containers and host programs together."""
        return self.containers + self.host

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.containers + other.containers, self.host + other.host, self.wall + other.wall)


@contextmanager
def metered(spent: Spent) -> Iterator[None]:
    """Add the time that containers and child processes spend while the body runs."""

    def now() -> tuple[float, float, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return _containers(), used.ru_utime + used.ru_stime, time.monotonic()

    before = now()
    try:
        yield
    finally:
        for name, then, later in zip(("containers", "host", "wall"), before, now(), strict=True):
            setattr(spent, name, getattr(spent, name) + later - then)


def _containers() -> float:
    for path, unit in METERS:
        if Path(path).exists():
            text = Path(path).read_text()
            return float(text.split()[1] if "usage_usec" in text else text) * unit
    sys.exit("cannot read the processor time of containers: the engine needs the cgroupfs driver")


class Bench:
    """Both sides of the comparison, on copies of the extensions, which are edited between the phases."""

    def __init__(self, folder: Path, extensions: Sequence[Extension], archs: str) -> None:
        self.folder, self.extensions, self.archs, self.jobs = folder, extensions, archs, os.cpu_count() or 1
        self.volumes = [f"buildfarm-bench-{os.getpid()}-{name}" for name in ("packages", "objects")]
        self.images: dict[Cell, str] = {}
        self.cells: dict[str, list[Cell]] = {}
        self._read: dict[Path, int] = {}
        self._edits = 0
        for extension in extensions:
            shutil.copytree(
                ROOT / "extensions" / extension.name,
                folder / extension.name,
                ignore=shutil.ignore_patterns("build", "__pycache__", "*.egg-info", "*.so"),
            )
            self._matrix(extension).write_text(
                f"torch: [{', '.join(extension.torches)}]\ncuda: [{extension.cuda}]\n"
                f"python: [{', '.join(extension.pythons)}]\narchs: [{archs}]\nextensions: [{extension.name}]\n"
                f"{extension.exclude}{IMAGES}"
            )

    def _matrix(self, extension: Extension) -> Path:
        return self.folder / f"{extension.name}.yaml"

    def make_images(self) -> None:
        """Build the images of both sides, before the measurement."""
        engine, store = Engine(), Store(self.folder / "images")
        for extension in self.extensions:
            matrix, _, plan = read_plan(self._matrix(extension), Selection())
            chooser = ImageChooser(matrix, Compat.load(), {})
            self.cells[extension.name] = [cell for build in plan.builds for cell in build.serves]
            for build in plan.builds:
                for cell in build.serves:
                    image = chooser.build_image(
                        replace(build, torch=cell.torch, pythons=(cell.python,), serves=(cell,))
                    )
                    self.images[cell] = ensure_image(engine, store, image, log=self.folder / "images.log")

    def edit(self, extension: Extension) -> None:
        """Add a line to a source: a variable on the GPU, which changes the code of every architecture."""
        self._edits += 1
        with (self.folder / extension.name / extension.edited).open("a", encoding="utf-8") as stream:
            stream.write(f"__device__ int buildfarm_benchmark_{self._edits};\n")

    def buildfarm(self, *options: str) -> Spent:
        """Run `buildfarm build` once for each matrix, with additional options."""
        spent = Spent()
        words = [*self.volumes, "build", "--executor", "docker"]
        for extension in self.extensions:
            where = ["--matrix", str(self._matrix(extension)), "--store", str(self.folder / "store")]
            where += ["--dist", str(self.folder / "dist" / extension.name), "--jobs", str(self.jobs), *options]
            with metered(spent):
                self._run([sys.executable, "-c", BUILDFARM, *words, *where], f"buildfarm-{extension.name}")
        return spent

    def loop(self, extension: Extension) -> Spent:
        """Run cibuildwheel once for each cell of an extension."""
        spent = Spent()
        for cell in self.cells[extension.name]:
            argv = [sys.executable, "-P", "-m", "cibuildwheel", "--only", f"{cell.python.tag}-manylinux_x86_64"]
            argv += ["--output-dir", str(self.folder / "plain" / str(cell)), str(self.folder / extension.name)]
            with metered(spent):
                # cibuildwheel copies its working directory into the container.
                source = self.folder / extension.name
                self._run(argv, f"plain-{extension.name}-{cell}", self._settings(cell), cwd=source)
            shutil.rmtree(self.folder / "plain" / str(cell))
        return spent

    def _settings(self, cell: Cell) -> dict[str, str]:
        index = index_variables()
        # Root, as in cibuildwheel's default images: the loop installs into the image's own Python.
        create = ["--user=0:0", "--mount", f"type=bind,src={ca_bundle()},dst=/ca.pem,readonly"]
        create += [word for name in index for word in ("--env", name)]
        environment = {
            **ca_variables("/ca.pem"),
            "CUDA_HOME": "/usr/local/cuda",
            "FORCE_CUDA": "1",
            "MAX_JOBS": str(self.jobs),
            "TORCH_CUDA_ARCH_LIST": self.archs.replace(", ", ";"),
            "TORCH_DONT_CHECK_COMPILER_ABI": "1",
        }
        excluded = " ".join(f"--exclude 'lib{name}*.so*'" for name in ("torch", "c10", "cuda", "cudart"))
        settings = {
            "CONTAINER_ENGINE": f"docker; create_args: {' '.join(create)}; disable_host_mount: true",
            "MANYLINUX_X86_64_IMAGE": self.images[cell],
            "ENVIRONMENT": " ".join(f"{name}='{value}'" for name, value in environment.items()),
            "BUILD_FRONTEND": "build; args: --no-isolation",
            "BEFORE_BUILD": f"pip install build torch=={cell.torch} {TOOLS}",
            "REPAIR_WHEEL_COMMAND": f"auditwheel repair {excluded} -w {{dest_dir}} {{wheel}}",
            "AUDIT_COMMAND": "",
            "TEST_COMMAND": "",
            "DEPENDENCY_VERSIONS": "latest",
        }
        return {**index, **{f"CIBW_{name}": value for name, value in settings.items()}}

    def _run(
        self, argv: Sequence[str], name: str, env: dict[str, str] | None = None, *, cwd: Path | None = None
    ) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as stream:
            status = subprocess.run(
                argv,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd or self.folder,
                check=False,
            ).returncode
        if status:
            copy = Path(shutil.copy(log, Path(tempfile.gettempdir(), log.name)))
            sys.exit(f"{name} ended with status {status}; its output is in {copy}")

    def reused(self) -> list[str]:
        """The lines about reused objects that buildfarm printed since the last call, one for each build."""
        lines = []
        for extension in self.extensions:
            log = self.folder / f"buildfarm-{extension.name}.log"
            text = log.read_text(errors="replace")[self._read.get(log, 0) :]
            self._read[log] = self._read.get(log, 0) + len(text)
            lines += [line for line in text.splitlines() if ": objects: " in line]
        return list(dict.fromkeys(lines))

    def forget(self) -> None:
        """Delete wheels and objects; keep downloaded packages."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        self._remove(self.volumes[1])

    def clear(self) -> None:
        """Delete the volumes; the caller deletes the folder."""
        self._remove(*self.volumes)

    @staticmethod
    def _remove(*volumes: str) -> None:
        """Delete volumes, and those of single extensions, whose names go on after a dot."""
        listed = subprocess.run(
            ["docker", "volume", "ls", "--quiet"], check=True, capture_output=True, text=True
        ).stdout
        names = [name for name in listed.split() if name.partition(".")[0] in volumes]
        subprocess.run(["docker", "volume", "rm", "--force", *volumes, *names], check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two cells of each extension, one architecture")
    parser.add_argument("--ext", choices=[e.name for e in FULL], help="only this extension")
    parser.add_argument("--archs", default="", help='GPU architectures, "8.0, 9.0"; default: five, --small: one')
    options = parser.parse_args()
    extensions = [e for e in (SMALL if options.small else FULL) if options.ext in (None, e.name)]
    archs = options.archs or ("9.0" if options.small else "7.5, 8.0, 8.6, 8.9, 9.0")
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name:
        bench = Bench(Path(name), extensions, archs)
        bench.make_images()
        cells = ", ".join(f"{len(bench.cells[e.name])} of {e.name}" for e in extensions)
        print(f"cells: {cells}; archs {archs}; {bench.jobs} parallel compilers")
        columns = f"{'cibuildwheel CPU':>17}{'wall':>8}{'buildfarm CPU':>15}{'wall':>8}{'CPU ratio':>11}"
        print(f"{'phase':34}{columns}", flush=True)
        loops: dict[str, Spent] = {}
        try:
            for edited in (None, *extensions):
                if edited:
                    bench.edit(edited)
                ours = bench.buildfarm()
                last = edited is extensions[-1] and len(extensions) > 1
                for extension in [edited] if edited and last else extensions:
                    loops[extension.name] = bench.loop(extension)
                phase = f"a line in {edited.name}/{edited.edited}" if edited else "cold"
                print(_row(phase, sum(loops.values(), Spent()), ours))
                if edited:
                    print(_row("  only its own cells", loops[edited.name], ours))
                print("\n".join(bench.reused()), flush=True)
        finally:
            bench.clear()


def _row(phase: str, loop: Spent, ours: Spent) -> str:
    row = f"{loop.cpu:15.0f} s{loop.wall:6.0f} s{ours.cpu:13.0f} s{ours.wall:6.0f} s{loop.cpu / ours.cpu:10.1f}x"
    return f"{phase[:33]:34}{row}"


if __name__ == "__main__":
    main()
