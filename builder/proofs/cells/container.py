"""Environments of cells in containers: the cell's runtime image, with this machine's GPU if it has one.

A container serves one wheel in one cell. It has a network, and passwords of package indexes, only while packages are
installed: an import and an op need no network, and the code under test must not reach one. A container in which the
code has run never gets a network again. Load this module only when a container is
needed: the Docker SDK takes a while to import.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import elftools

from builder.errors import BuildError, Code, MissingToolError, SymbolsUnreadableError, UsageError
from builder.gate.amounts import size_text
from builder.gate.outcome import Answer
from builder.gate.pack import pack
from builder.images.container import (
    CONTAINER_DIR,
    GPU_REQUESTS,
    OWNER_LABEL,
    Container,
    ContainerSpec,
    NoGpuError,
    RunResult,
)
from builder.images.engine import Engine
from builder.images.image_build import ensure_image
from builder.images.network import FIRST_INDEX, ca_variables, copy_ca_bundle, index_variables, saved_mount
from builder.images.registry import lock_path, read_lock, read_mirrors
from builder.images.specs import ImageChooser, RuntimeImage
from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import Matrix, Recipe
from builder.process import log_size
from builder.proofs.cells.driver import gpu_for
from builder.proofs.cells.import_check import (
    IMPORT_SECONDS,
    ImportOutcome,
    hanging_import,
    import_arguments,
    judge_import,
    write_secret,
)
from builder.proofs.cells.op_gate import ANSWER_BYTES, gate_arguments, gate_seconds, read_signed, spec_of, write_key
from builder.proofs.static import symbol_table
from builder.proofs.static.symbol_table import SymbolTable
from builder.resources import measure_resources
from builder.store import Store
from builder.untrusted import parse_json
from builder.wheelfile import elf, limits
from builder.wheels.toolchain.environments import Environments
from builder.wheels.toolchain.uv import find_uv, uv_error

#: Paths in a rendered runtime image, and of the files mounted into it. The cache of uv ends with the container: code
#: of the wheel could change it.
_PYTHON, _UV, _CA, _CACHE = "/opt/cell/bin/python", "/run/buildfarm/uv", "/run/buildfarm/ca.pem", f"{CONTAINER_DIR}/uv"

#: Reads the symbols of torch's libraries inside of the container, whose Python has no buildfarm, so that gigabytes need
#: not be copied out.
READ_SYMBOLS = f"""\
import json, pathlib, sys, sysconfig
sys.path.insert(0, "{CONTAINER_DIR}/reader")
try:
    import elftools.elf.elffile
except Exception:
    sys.exit("pyelftools {version("pyelftools")} does not run under Python %d.%d" % sys.version_info[:2])
from builder.proofs.static.symbol_table import collect_symbols
table = collect_symbols(pathlib.Path(sysconfig.get_path("purelib")))
pathlib.Path("{CONTAINER_DIR}/symbols.json").write_text(json.dumps(table.to_json()))
"""


#: Stands for `builder.errors`, which needs a newer Python than cells may have.
_ERRORS = """\
class _Codes:
    def __getattr__(self, name):
        return name


class UsageError(Exception):
    def __init__(self, sentence, code, where=""):
        super().__init__(f"{where}: {sentence}" if where else sentence)


Code, MissingToolError = _Codes(), UsageError
"""

#: Bytes of the symbols of torch's libraries as JSON; they are read before the wheel is installed.
MOST_SYMBOLS = 1 << 30


def write_reader(folder: Path) -> Path:
    """Copy `symbol_table` and the modules that it imports to a folder; return the folder."""
    for module in (symbol_table, elf, limits):
        file = Path(str(module.__file__))
        target = folder.joinpath(*module.__name__.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    (folder / "builder" / "errors.py").write_text(_ERRORS)
    shutil.copytree(Path(elftools.__file__).parent, folder / "elftools", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def container_environments(matrix: Matrix, store: Store, environments: Environments) -> ContainerEnvironments:
    """Cells in containers with the images of a matrix; first removes containers that killed runs left."""
    engine = Engine(read_mirrors())
    if problem := engine.problem():
        raise problem
    engine.remove_orphans(store)
    chooser = ImageChooser(matrix, Compat.load(), read_lock(lock_path(matrix.path)))
    return ContainerEnvironments(engine, store, chooser, environments)


@dataclass(frozen=True)
class ContainerEnvironments:
    """As `LocalEnvironments`, in containers of the cells' runtime images."""

    _engine: Engine
    _store: Store
    _chooser: ImageChooser
    _environments: Environments

    @contextmanager
    def open(
        self,
        cell: Cell,
        folder: Path,
        *,
        owner: str,
        log: Path,
        cases: bool = True,  # noqa: ARG002 (Python keeps its bytecode in the container)
    ) -> Iterator[ContainerEnvironment]:
        """Start a container of the cell's runtime image; builds the image when it does not exist."""
        self._engine.remove_containers(owner)
        image, spec = self._image(cell, folder, owner, log)
        wanted, no_gpu = gpu_for(cell)
        with ExitStack() as containers:

            def start(spec: ContainerSpec) -> Container:
                containers.close()
                return containers.enter_context(self._engine.container(spec))

            for request in GPU_REQUESTS if wanted else ():
                container = start(with_gpu := replace(spec, gpus=request))
                try:
                    container.run(["true"], log=log)
                except NoGpuError as error:
                    no_gpu = no_gpu or error.sentence
                    continue
                no_gpu, spec = "", with_gpu
                break
            else:
                # As the default runtime, NVIDIA's would act without a request and refuse an image for its driver.
                spec = replace(spec, environment={"NVIDIA_VISIBLE_DEVICES": "void"})
                container = start(spec)
            variables = _variables(self._environments.torch_index(cell.torch, cell.cuda))
            yield ContainerEnvironment(
                container, partial(start, spec), spec, variables, image.packages, no_gpu, folder, log
            )

    def _image(self, cell: Cell, folder: Path, owner: str, log: Path) -> tuple[RuntimeImage, ContainerSpec]:
        """The cell's runtime image, which exists afterwards, and how a container of it is started."""
        try:
            image = self._chooser.runtime_image(cell)
        except UsageError as error:  # a problem of the configuration, which says nothing about the wheel
            raise MissingToolError(error.sentence, error.code, where=error.where, hints=error.hints) from error
        index = self._environments.torch_index(cell.torch, cell.cuda)
        try:
            tag = ensure_image(self._engine, self._store, image, log=log, index=index)
        except BuildError as error:  # the image failed, not the wheel: there is no environment to prove it in
            sentence = f"{error.sentence}; the full output is in {log}"
            raise MissingToolError(sentence, error.code, where=image.name, hints=error.hints) from error
        spec = ContainerSpec(
            image=tag,
            labels={OWNER_LABEL: owner},
            bind_mounts={find_uv(): _UV, copy_ca_bundle(folder): _CA, **saved_mount()},
            memory=measure_resources().memory,
        )
        return image, spec


class OutOfMemoryError(MissingToolError):
    """A program in the container needed more memory than the container has."""


@dataclass
class ContainerEnvironment:
    """As `LocalEnvironment`, in a container."""

    alone: ClassVar[bool] = True  # the limit of the container is all the free memory of the machine

    _container: Container
    _start: Callable[[], Container]
    _spec: ContainerSpec
    _variables: Mapping[str, str]
    _packages: tuple[str, ...]
    _no_gpu: str
    _folder: Path
    _log: Path
    _offline: bool = False

    def symbols(self) -> SymbolTable:
        """Read in the container, by the same code as on this machine."""
        self._container.put(write_reader(self._folder / "reader"), "reader")
        result = self._step([_PYTHON, "-I", "-c", READ_SYMBOLS])
        symbols = self._container.get("symbols.json", MOST_SYMBOLS)
        if result.status != 0 or symbols is None:
            why = (result.stderr.strip().splitlines() or [f"the full output is in {self._log}"])[-1]
            sentence = f"the libraries of torch cannot be read in a container: {why}"
            raise SymbolsUnreadableError(sentence, Code.IMAGE_UNSUITABLE)
        return parse_json(symbols, SymbolTable.from_json)

    def install(self, wheel: Path, companions: Sequence[str] = ()) -> None:
        """Install with this machine's uv, in a new container if code of the wheel has run in this one."""
        if self._offline:
            self._container, self._offline = self._start(), False
        inside = f"wheels/{wheel.name}"
        self._container.put(wheel, inside)
        wanted = [*self._packages, f"{CONTAINER_DIR}/{inside}", *companions]
        start = log_size(self._log)
        argv = [_UV, "pip", "install", "--no-config", "--python", _PYTHON, *wanted]
        result = self._step(argv, variables=self._variables)
        if result.status != 0:
            index = self._variables.get(FIRST_INDEX, "").split()
            error = uv_error(result.status, self._log, start, wanted, index)
            error.where = error.where or self._spec.image
            raise error

    def try_import(
        self, modules: Sequence[str], *, as_with_gpu: bool = False, stubs: Path | None = None
    ) -> ImportOutcome:
        """Import in a fresh process of the container, without a network."""
        self._go_offline()
        path, secret = write_secret(self._folder)
        self._container.put(path, "secret")
        arguments = import_arguments(f"{CONTAINER_DIR}/secret", modules, as_with_gpu)
        if stubs:
            self._container.put(stubs, "stubs")
        variables = {"LD_LIBRARY_PATH": f"{CONTAINER_DIR}/stubs"} if stubs else {}
        result = self._step([_PYTHON, *arguments], IMPORT_SECONDS, variables)
        if result.timed_out:
            return hanging_import(modules)
        outcome = judge_import(modules, secret, result.status, result.stdout, result.stderr)
        return replace(outcome, evidence={**outcome.evidence, "image": self._spec.image})

    def run_gate(self, recipe: Recipe, cores: int) -> Answer | str:
        """Run the gate in the container without a network; without a GPU, each GPU check says why."""
        gate = pack(self._folder / "gate", spec_of(recipe, cores), recipe.cases)
        key = write_key(gate)
        self._container.put(gate, "gate")
        self._go_offline()
        try:
            result = self._step([_PYTHON, *gate_arguments(f"{CONTAINER_DIR}/gate")], gate_seconds(recipe))
        except OutOfMemoryError as error:
            return error.sentence
        written = self._container.get("gate/answer.json", ANSWER_BYTES) or b""
        answer = read_signed(written, key, result.status, self._log)
        return answer if isinstance(answer, str) else in_container(answer, self._spec.image, self._no_gpu)

    def _go_offline(self) -> None:
        if not self._offline:
            self._container.go_offline()
            self._offline = True
            # Reads torch's files from the image's layers before any time limit starts. The gate's processes import
            # torch in parallel, which took more than their limit of three minutes on an overloaded machine with
            # fuse-overlayfs (measured 2026-11).
            self._step([_PYTHON, "-I", "-c", "import torch"])

    def _step(
        self, argv: Sequence[str], seconds: float | None = None, variables: Mapping[str, str] = MappingProxyType({})
    ) -> RunResult:
        result = self._container.run(argv, log=self._log, timeout=seconds, variables=variables)
        if result.out_of_memory:
            raise OutOfMemoryError(
                f"the container ran out of memory: its limit was {size_text(self._spec.memory)},"
                " which was all the free memory of this machine when the container was created",
                Code.OUT_OF_MEMORY,
                hints=["close other programs, or use a machine with more memory"],
            )
        return result


def in_container(answer: Answer, image: str, no_gpu: str) -> Answer:
    """Add the image to the gate's answer; `no_gpu` replaces the gate's own reason for a missing GPU."""
    where = {**answer.where, "image": image}
    reason = where.get("no_gpu")
    if not no_gpu or not reason:
        return replace(answer, where=where)
    outcomes = [replace(one, reason=no_gpu) if one.reason == reason else one for one in answer.outcomes]
    return replace(answer, where={**where, "no_gpu": no_gpu}, outcomes=outcomes)


def _variables(torch_index: Sequence[str]) -> Mapping[str, str]:
    """Variables for uv in the container: this machine's indexes, and PyTorch's own index first where needed."""
    fixed = {"UV_CACHE_DIR": _CACHE, "UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    return {**index_variables(index=torch_index), **ca_variables(_CA), **fixed}
