"""The same wheels by a plain cibuildwheel loop and by the farm: processor seconds and wall, as a ratio.

Run it: python -m tests.benchmarks.farm_vs_cibuildwheel [--small] [--ext NAME] [--pip] [--twice] [--json FILE]. It needs
Docker, a package index and the images of `tests/images/make-base all`, takes an hour or more, and says something only
on a machine that does nothing else: containers are charged to the engine's whole control group.

Cells: five of a stable-ABI extension (diffrast, five torches) and four of a classic one (ms_deform_attn on torch 2.6,
four Pythons). Three phases, each done by both sides: cold; after a line is added to one CUDA source of the stable
extension; the same of the classic one. The farm is always asked for everything. A plain loop knows of no change and
builds every cell again; a person who knows may start it for the edited extension alone. Both are told: the second
ratio is that of the knowing person. What nothing changed for is not measured a third time: the last phase takes the
loop's figures of the unedited extension from the phase before it.

The loop is what cibuildwheel's docs lead to: for each cell one run with `--only`, torch installed in `before-build`,
auditwheel told what to leave out. It is given what could be given to it: the farm's own images with compilers and
toolkit in place, uv as front end and installer, ninja. With `--pip` it has what cibuildwheel takes unasked (4.3: the
front end `build`, and pip). It keeps nothing from run to run, so `--once` takes its cold figures for every phase. Both
sides download their packages in the cold phase, the farm not with `--packages buildfarm-uv`. The farm's proofs are left
out, since the loop proves nothing; `--proofs` adds them to the farm's side.

The farm's side is minutes where the loop's is half an hour, and a shared machine is a quarter slower in some minutes
than in others. With `--twice` each phase of the farm is done twice, the cold one before and after the loop, and the
mean is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from builder.images.engine import Engine
from builder.images.making import ensure_image
from builder.images.network import ca_bundle, ca_variables, index_variables
from builder.images.specs import Choice
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Select
from builder.matrix.declaration import read_plan
from builder.store import Store

ROOT = Path(__file__).parents[2]

IMAGES = """\
images:
  - {cells: "*-cu13?-*", image: "buildfarm-cuda:13.0-bookworm", pythons: "buildfarm-pythons:local", toolkit: 13.0}
  - {cells: "*-cu124-*", image: "buildfarm-cuda:12.4-trixie", pythons: "buildfarm-pythons:local", toolkit: 12.4}
"""

#: What the farm's side runs: volumes of its own, so that its caches are cold, and no proofs unless asked for.
FARM = """
import sys
import builder.proofs.cells, builder.wheels.container, builder.wheels.resources
builder.wheels.container.PACKAGES_VOLUME, builder.wheels.container.OBJECTS_VOLUME = sys.argv.pop(1), sys.argv.pop(1)
if sys.argv.pop(1) == "no proofs":
    builder.proofs.cells.CellProver.prove = lambda *_, **__: []
from builder.__main__ import main
main()
"""

#: What the extensions name in their pyproject.toml, and NumPy, without which torch warns. torch before 2.8 needs the
#: bound on setuptools.
TOOLS = "numpy 'setuptools>=77,<82' wheel ninja"

#: The accumulated processor time of all containers, and its unit in seconds: cgroup v1 and v2 with the cgroupfs driver.
METERS = (("/sys/fs/cgroup/cpuacct/docker/cpuacct.usage", 1e-9), ("/sys/fs/cgroup/docker/cpu.stat", 1e-6))


@dataclass(frozen=True)
class Extension:
    """One extension of the comparison: its recipe's folder, the source that is edited, and its cells' axes."""

    name: str
    edited: str
    torches: Sequence[str]
    cuda: str
    pythons: Sequence[str]
    exclude: str = ""


#: Of torch 2.15 the package index has CUDA 13.2, of the others 13.0.
ELSEWHERE = "exclude: [{torch: 2.15, cuda: 13.0, reason: benchmark}" + "".join(
    f", {{torch: {torch}, cuda: 13.2, reason: benchmark}}" for torch in ("2.11", "2.12", "2.13", "2.14")
)
FULL = (
    Extension(
        "diffrast",
        "csrc/cuda/antialias.cu",
        ["2.11", "2.12", "2.13", "2.14", "2.15"],
        "13.0, 13.2",
        ["3.12"],
        ELSEWHERE + "]\n",
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
        """Of containers and host programs together."""
        return self.containers + self.host

    def __truediv__(self, number: int) -> Spent:
        return Spent(self.containers / number, self.host / number, self.wall / number)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.containers + other.containers, self.host + other.host, self.wall + other.wall)


@contextmanager
def metered(spent: Spent) -> Iterator[None]:
    """Add what is spent meanwhile, by containers and by programs this one waits for."""

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
    sys.exit("no accumulated processor time of Docker's containers here; the engine needs the cgroupfs driver")


class Bench:
    """Both sides of the comparison, over copies of the extensions that are edited in between."""

    def __init__(
        self,
        folder: Path,
        extensions: Sequence[Extension],
        archs: str,
        *,
        jobs: int,
        proofs: bool,
        packages: str,
        pip: bool = False,
    ) -> None:
        self.pip = pip
        self.folder, self.extensions, self.archs, self.jobs, self.proofs = folder, extensions, archs, jobs, proofs
        self.own = [f"buildfarm-bench-{os.getpid()}-{name}" for name in ("objects", "packages")]
        self.volumes = [packages or self.own[1], self.own[0]]
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
        """What both sides build in, before any clock runs."""
        engine, store = Engine(), Store(self.folder / "images")
        for extension in self.extensions:
            matrix, _, plan = read_plan(self._matrix(extension), Select())
            choice = Choice(matrix, Compat.load(), {})
            self.cells[extension.name] = [cell for build in plan.builds for cell in build.serves]
            for build in plan.builds:
                for cell in build.serves:
                    image = choice.build_image(replace(build, torch=cell.torch, pythons=(cell.python,), serves=(cell,)))
                    self.images[cell] = ensure_image(engine, store, image, log=self.folder / "images.log")

    def edit(self, extension: Extension) -> None:
        """One line more in one source: a variable on the GPU, which changes the code of every architecture."""
        self._edits += 1
        with (self.folder / extension.name / extension.edited).open("a", encoding="utf-8") as stream:
            stream.write(f"__device__ int buildfarm_benchmark_{self._edits};\n")

    def farm(self, *asked: str) -> Spent:
        """One `buildfarm build` of each matrix, with these words more."""
        spent = Spent()
        words = [*self.volumes, "proofs" if self.proofs else "no proofs", "build", "--executor", "docker"]
        for extension in self.extensions:
            where = ["--matrix", str(self._matrix(extension)), "--store", str(self.folder / "store")]
            where += ["--dist", str(self.folder / "dist" / extension.name), "--jobs", str(self.jobs), *asked]
            with metered(spent):
                self._run([sys.executable, "-c", FARM, *words, *where], f"farm-{extension.name}")
        return spent

    def loop(self, extension: Extension) -> Spent:
        """One run of cibuildwheel for each cell of an extension."""
        spent = Spent()
        for cell in self.cells[extension.name]:
            argv = [sys.executable, "-P", "-m", "cibuildwheel", "--only", f"{cell.python.tag}-manylinux_x86_64"]
            argv += ["--output-dir", str(self.folder / "plain" / str(cell)), str(self.folder / extension.name)]
            with metered(spent):
                # cibuildwheel copies the folder it is started in into the container.
                place = self.folder / extension.name
                self._run(argv, f"plain-{extension.name}-{cell}", self._settings(cell), cwd=place)
            shutil.rmtree(self.folder / "plain" / str(cell))
        return spent

    def _settings(self, cell: Cell) -> dict[str, str]:
        index = index_variables()
        # Root, as in the images that cibuildwheel takes by itself: the loop installs into the image's own Python.
        create = ["--user=0:0", "--mount", f"type=bind,src={ca_bundle()},dst=/ca.pem,readonly"]
        create += [word for name in index for word in ("--env", name)]
        environment = {
            **ca_variables("/ca.pem"),
            "CUDA_HOME": "/usr/local/cuda",
            "FORCE_CUDA": "1",
            "MAX_JOBS": str(self.jobs),
            "TORCH_CUDA_ARCH_LIST": self.archs.replace(", ", ";"),
            "TORCH_DONT_CHECK_COMPILER_ABI": "1",
            "UV_NO_PROGRESS": "1",
        }
        install = "pip install build" if self.pip else "uv pip install --python $(which python)"
        excluded = " ".join(f"--exclude 'lib{name}*.so*'" for name in ("torch", "c10", "cuda", "cudart"))
        settings = {
            "CONTAINER_ENGINE": f"docker; create_args: {' '.join(create)}; disable_host_mount: true",
            "MANYLINUX_X86_64_IMAGE": self.images[cell],
            "ENVIRONMENT": " ".join(f"{name}='{value}'" for name, value in environment.items()),
            "BUILD_FRONTEND": "build; args: --no-isolation" if self.pip else "uv; args: --no-build-isolation",
            "BEFORE_BUILD": f"{install} torch=={cell.torch} {TOOLS}",
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
            kept = Path(shutil.copy(log, Path(tempfile.gettempdir(), log.name)))
            sys.exit(f"{name} ended with status {status}; its output is in {kept}")

    def reused(self) -> list[str]:
        """What the farm said of its objects since this was asked last, a line for each build it made."""
        lines = []
        for extension in self.extensions:
            log = self.folder / f"farm-{extension.name}.log"
            text = log.read_text(errors="replace")[self._read.get(log, 0) :]
            self._read[log] = self._read.get(log, 0) + len(text)
            lines += [line for line in text.splitlines() if ": objects: " in line]
        return list(dict.fromkeys(lines))

    def forget(self) -> None:
        """Wheels and objects go; what was downloaded stays."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        self._remove(self.own[0])

    def clear(self) -> None:
        """Delete the volumes; the folder is the caller's."""
        self._remove(*self.own)

    @staticmethod
    def _remove(*volumes: str) -> None:
        subprocess.run(["docker", "volume", "rm", "--force", *volumes], check=False, stdout=subprocess.DEVNULL)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two cells of each extension, one architecture")
    parser.add_argument("--pip", action="store_true", help="cibuildwheel's default front end and installer in the loop")
    parser.add_argument("--once", action="store_true", help="the loop in the cold phase alone: it keeps nothing anyway")
    parser.add_argument("--twice", action="store_true", help="each phase of the farm twice, and the mean of both")
    parser.add_argument("--ext", choices=[e.name for e in FULL], help="one extension alone")
    parser.add_argument("--archs", default="", help='GPU architectures, "8.0, 9.0"; default: five, --small: one')
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once, of both sides")
    parser.add_argument("--proofs", action="store_true", help="let the farm prove its wheels too")
    parser.add_argument("--packages", default="", help="a volume with packages for the farm, where disk is short")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    return parser.parse_args()


def main() -> None:
    """Measure, print, and write JSON where asked."""
    asked = _asked()
    extensions = [e for e in (SMALL if asked.small else FULL) if asked.ext in (None, e.name)]
    archs = asked.archs or ("9.0" if asked.small else "7.5, 8.0, 8.6, 8.9, 9.0")
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name:
        bench = Bench(
            Path(name),
            extensions,
            archs,
            jobs=asked.jobs,
            proofs=asked.proofs,
            packages=asked.packages,
            pip=asked.pip,
        )
        bench.make_images()
        cells = ", ".join(f"{len(bench.cells[e.name])} of {e.name}" for e in extensions)
        print(f"cells: {cells}; archs {archs}; {asked.jobs} compilers at once")
        print(
            f"{'phase':34}{'cibuildwheel CPU':>17}{'wall':>8}{'farm CPU':>10}{'wall':>8}{'CPU ratio':>11}", flush=True
        )
        loops: dict[str, Spent] = {}
        try:
            for phase, edited in (("cold", None), *((f"a line in {e.name}/{e.edited}", e) for e in extensions)):
                if edited:
                    bench.edit(edited)
                runs = [bench.farm()]
                last = edited is extensions[-1] and len(extensions) > 1
                for extension in () if edited and asked.once else [edited] if edited and last else extensions:
                    loops[extension.name] = bench.loop(extension)
                if asked.twice:
                    if edited:
                        bench.edit(edited)
                    else:
                        bench.forget()
                        bench.clear()
                    runs.append(bench.farm())
                loop, farm = sum(loops.values(), Spent()), sum(runs, Spent()) / len(runs)
                ratio = loop.cpu / farm.cpu
                figures[phase] = {
                    "loop": asdict(loop),
                    "farm": [asdict(run) for run in runs],
                    "cpu_ratio": round(ratio, 2),
                }
                row = f"{loop.cpu:15.0f} s{loop.wall:6.0f} s{farm.cpu:8.0f} s{farm.wall:6.0f} s{ratio:10.1f}x"
                lines = [f"{phase[:33]:34}{row}"]
                if asked.twice:
                    lines[0] += f"  (farm: {' and '.join(f'{run.cpu:.0f} s' for run in runs)})"
                if edited:
                    alone = loops[edited.name]
                    figures[phase] |= {"loop_alone": asdict(alone), "cpu_ratio_alone": round(alone.cpu / farm.cpu, 2)}
                    lines += [f"{'  its own cells alone':34}{alone.cpu:15.0f} s{alone.wall:6.0f} s"]
                    lines[-1] += f"{'':18}{alone.cpu / farm.cpu:10.1f}x"
                print("\n".join([*lines, *bench.reused()]), flush=True)
        finally:
            bench.clear()
    if asked.json:
        asked.json.write_text(json.dumps({"archs": archs, "jobs": asked.jobs, "phases": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
