"""Tasks of a small build, proofs of its wheel, and workers, as the tests of builds on workers need them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from distributed import Scheduler, Worker

from builder.commands.building.preflight import RunSettings
from builder.commands.distributed.protocol import GPU, MANY, BuildTask, CheckTask, Needs, version_resource
from builder.commands.distributed.worker.service import Service
from builder.matrix.axes import Cell
from builder.matrix.config import Matrix
from builder.proof import Proof, Verdict
from builder.proofs.cells.op_gate import CELL_CHECKS
from builder.store import StoredBuild
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, build_record

CELL: Cell = BUILD.serves[0]
SHA = "a" * 64
RECIPE = make.recipe("ops")
SETTINGS = RunSettings(Matrix(Path("matrix.yaml"), (CELL.torch,), (CELL.cuda,), (CELL.python,)), "local")
WHEEL = StoredBuild("d" * 64, Path("ops-1.0-py3-none-any.whl"), build_record(), SHA)
BUILD_TASK = BuildTask("e" * 64, BUILD, RECIPE, SETTINGS)
PROOF_TASK = CheckTask(WHEEL, RECIPE, CELL, SETTINGS, "basis", BUILD)


def proofs(gpu: Verdict, reason: str = "", *, others: Verdict = Verdict.PASSED, **evidence: Any) -> tuple[Proof, ...]:
    """Every check of a cell: those on a GPU with this verdict, reason and evidence, and the others."""
    return tuple(
        Proof(SHA, CELL, check, gpu, reason, dict(evidence)) if check.on_gpu else Proof(SHA, CELL, check, others)
        for check in CELL_CHECKS
    )


@asynccontextmanager
async def workers(folder: Path, *names: str, needs: Needs | None = None) -> AsyncIterator[tuple[str, list[Service]]]:
    """Run a scheduler, and workers of these names that can build, each with a store below `folder`.

    Those named `gpu` have a GPU. `needs` replaces what the workers offer.

    The value is the address of the scheduler, and the plugin of each worker.
    """
    resources = {name: amount for name, (amount, _) in (needs or BUILD_TASK.needs).items()} | {version_resource(): MANY}
    local: dict[str, Any] = {"host": "127.0.0.1", "dashboard": False}
    plugins = [Service(folder / name, name, jobs=1) for name in names]
    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(Scheduler(port=0, dashboard_address="127.0.0.1:0", **local))
        for name, plugin in zip(names, plugins, strict=True):
            more: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "plugins": (plugin,)}
            more["resources"] = resources | ({GPU: 1} if name == "gpu" else {})
            await stack.enter_async_context(Worker(scheduler.address, name=name, **local, **more))
        yield cast("str", scheduler.address), plugins
