"""Environments of cells in containers: the cell's runtime image, with this machine's GPU where it has one.

One container serves a visit. It has a network while packages are installed, and none while the gate runs: what an op
computes hangs on no network, and code that is under test gets no way out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import elftools

from builder import errors
from builder.errors import BuildError, MissingToolError, UsageError
from builder.gate.outcome import NOT_RUN, Answer
from builder.gate.pack import pack
from builder.images.container import ALL_GPUS, LABEL, ROOM, Container, ContainerSpec, Ended, NoGpuError
from builder.images.engine import Engine
from builder.images.making import ensure_image
from builder.images.network import FIRST_INDEX, ca_bundle, ca_variables, index_variables
from builder.images.specs import Choice
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Recipe
from builder.proof import Check
from builder.proofs import providers
from builder.proofs.driver import driver_version, gpu_here, too_old
from builder.proofs.gating import spec_of
from builder.proofs.importing import IMPORT_SECONDS, ImportOutcome, hanging_import, import_arguments, judge_import
from builder.proofs.providers import SymbolTable
from builder.store import Store
from builder.wheels import device_code, elf
from builder.wheels.container import PACKAGES_VOLUME
from builder.wheels.environment import Environments, KilledError, uv_fault
from builder.wheels.pythons import find_uv
from builder.wheels.resources import measure

#: Places in a rendered runtime image, and of what is lent to it.
_PYTHON, _UV, _CA, _CACHE = "/opt/cell/bin/python", "/run/buildfarm/uv", "/run/buildfarm/ca.pem", f"{ROOM}/uv"

#: Reads the symbols of torch's libraries where they are: gigabytes need not leave the image for it.
_READ_SYMBOLS = f"""\
import json, pathlib, sys, sysconfig
sys.path.insert(0, "{ROOM}/reader")
from builder.proofs.providers import collect_symbols
table = collect_symbols(pathlib.Path(sysconfig.get_path("purelib")))
pathlib.Path("{ROOM}/symbols.json").write_text(json.dumps(table.to_json()))
"""

#: torch is read from the image's layers once before the gate's clocks run: its processes import it side by side, which
#: took more than the three minutes it allows on an overloaded machine with fuse-overlayfs (seen 2026-11).
_GATE = f"{_PYTHON} -I -c 'import torch'; {_PYTHON} -I -X faulthandler {ROOM}/gate --answer {ROOM}/gate/answer.json"


@dataclass(frozen=True)
class Gpu:
    """What becomes of this machine's GPU: whether a container asks for it, and if not, why, where there is one."""

    wanted: bool
    why_not: str = ""


def gpu_for(cell: Cell) -> Gpu:
    """Whether a container of this cell asks for the GPU, told before anything is started."""
    if not gpu_here():
        return Gpu(wanted=False)
    # NVIDIA's runtime refuses to start a container whose image asks for a newer driver, and torch would find no GPU.
    reason = too_old(driver_version(), cell.cuda)
    return Gpu(wanted=not reason, why_not=reason)


class ContainerCells:
    """See `CellEnvironments`."""

    def __init__(self, engine: Engine, store: Store, choice: Choice, environments: Environments) -> None:
        self._engine = engine
        self._store = store
        self._choice = choice
        self._environments = environments

    @contextmanager
    def open(self, cell: Cell, folder: Path, *, job: str, log: Path) -> Iterator[ContainerCell]:
        """A container of the cell's runtime image, which is made where it is not there."""
        self._engine.reap(f"{LABEL}={job}")
        try:
            image = self._choice.runtime_image(cell)
        except UsageError as error:  # it says nothing about the wheel either
            raise MissingToolError(error.sentence, where=error.where, hints=error.hints) from error
        default = Compat.load().is_default_variant(cell.torch, cell.cuda)
        index = self._environments.index_urls(cell.cuda, default_variant=default)
        try:
            tag = ensure_image(self._engine, self._store, image, log=log, index=index)
        except BuildError as error:  # of the cell, not of a build: there is nothing to see it in
            sentence = f"{error.sentence}; the whole output is in {log}"
            raise MissingToolError(sentence, where=image.name, hints=error.hints) from error
        spec = ContainerSpec(
            image=tag,
            labels={LABEL: job},
            environment=_variables(index),
            lent={find_uv(): _UV, ca_bundle(): _CA},
            volumes={PACKAGES_VOLUME: _CACHE},
            memory=measure().memory,
        )
        gpu = gpu_for(cell)
        for request in ALL_GPUS if gpu.wanted else ():
            with self._engine.container(replace(spec, gpus=request)) as container:
                try:
                    container.step(["true"], log=log)
                except NoGpuError as error:
                    gpu = Gpu(wanted=False, why_not=gpu.why_not or error.sentence)
                    continue
                gpu = Gpu(wanted=True)
                yield ContainerCell(container, spec, image.packages, gpu, folder, log)
                return
        # Where NVIDIA's runtime is the engine's default it would act unasked, and refuse an image for its driver.
        plain = replace(spec, environment={**spec.environment, "NVIDIA_VISIBLE_DEVICES": "void"})
        with self._engine.container(plain) as container:
            yield ContainerCell(container, plain, image.packages, gpu, folder, log)


@dataclass(frozen=True)
class ContainerCell:
    """See `CellEnvironment`."""

    _container: Container
    _spec: ContainerSpec
    _own: tuple[str, ...]
    _gpu: Gpu
    _folder: Path
    _log: Path

    def symbols(self) -> SymbolTable:
        """Read in the container, by the same code as elsewhere."""
        self._container.put(_reader(self._folder / "reader"), "reader")
        ended = self._step([_PYTHON, "-I", "-c", _READ_SYMBOLS])
        told = self._container.get("symbols.json")
        if ended.status != 0 or told is None:
            raise MissingToolError(
                "the libraries of torch in the cell's image cannot be read",
                where=self._spec.image,
                hints=[*ended.stderr.strip().splitlines()[-1:], f"the whole output is in {self._log}"],
            )
        return SymbolTable.from_json(json.loads(told))

    def install(self, wheel: Path, companions: Sequence[str] = ()) -> None:
        """Install with this machine's uv, which is lent to the container."""
        inside = f"wheels/{wheel.name}"
        self._container.put(wheel, inside)
        wanted = [*self._own, f"{ROOM}/{inside}", *companions]
        start = self._log.stat().st_size if self._log.exists() else 0
        ended = self._step([_UV, "pip", "install", "--no-config", "--python", _PYTHON, *wanted])
        if ended.status < 0:
            raise KilledError(f"uv was ended by signal {-ended.status}", stage="environment", log=self._log)
        if ended.status != 0:
            index = self._spec.environment.get(FIRST_INDEX, "").split()
            fault = uv_fault(self._log, start, wanted, index)
            fault.where = fault.where or self._spec.image
            raise fault

    def try_import(self, modules: Sequence[str]) -> ImportOutcome:
        """Import in a start of the container."""
        self._step([_PYTHON, "-I", "-c", "import torch"])  # read from the image's layers before the clock runs
        ended = self._step([_PYTHON, *import_arguments(modules)], IMPORT_SECONDS)
        if ended.timed_out:
            return hanging_import(modules)
        outcome = judge_import(modules, ended.status, ended.stdout, ended.stderr)
        return replace(outcome, evidence={**outcome.evidence, "image": self._spec.image})

    def run_gate(self, recipe: Recipe) -> Answer | str:
        """Run the gate in a container without a network; where it had no GPU, each check of a GPU says why."""
        gate = pack(self._folder / "gate", spec_of(recipe, measure().cores), recipe.cases)
        try:
            self._container.put(gate, "gate")
            self._container.go_offline()
            ended = self._step(["/bin/sh", "-c", _GATE])
            told = self._container.get("gate/answer.json")
        except MissingToolError as error:
            return error.sentence
        try:
            answer = Answer.from_json(json.loads(told or b""))
        except (ValueError, KeyError, TypeError):
            return f"the gate ended with status {ended.status} and left no answer; its output is in {self._log}"
        return in_container(answer, self._spec.image, self._gpu.why_not)

    def _step(self, argv: Sequence[str], seconds: float | None = None) -> Ended:
        ended = self._container.step(argv, log=self._log, seconds=seconds)
        if ended.out_of_memory:
            raise MissingToolError(
                f"the container ran out of memory: it may take {self._spec.memory / 2**30:.1f} GiB,"
                " what this machine had left when it was made",
                hints=["close other programs, or run it on a machine with more memory"],
            )
        return ended


def in_container(answer: Answer, image: str, no_gpu: str) -> Answer:
    """The gate's answer with where it ran; the reason for no GPU is ours where it could see none, and says why."""
    where = {**answer.where, "image": image}
    said = where.get("no_gpu")
    if not no_gpu or not said:
        return replace(answer, where=where)
    outcomes = [
        replace(one, reason=no_gpu)
        if one.verdict == NOT_RUN and one.reason == said and Check(one.check).on_gpu
        else one
        for one in answer.outcomes
    ]
    return replace(answer, where={**where, "no_gpu": no_gpu}, outcomes=outcomes)


def _variables(torch_index: Sequence[str]) -> Mapping[str, str]:
    """How uv in the container reaches packages: as this machine does, PyTorch's own index first where it is needed."""
    fixed = {"UV_CACHE_DIR": _CACHE, "UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    return {**index_variables(index=torch_index), **ca_variables(_CA), **fixed}


def _reader(folder: Path) -> Path:
    """A folder from which any Python reads symbols: `providers`, what it imports, nothing else of ours."""
    for module in (errors, providers, elf, device_code):
        file = Path(str(module.__file__))
        target = folder.joinpath(*module.__name__.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    shutil.copytree(Path(elftools.__file__).parent, folder / "elftools", ignore=shutil.ignore_patterns("__pycache__"))
    return folder
