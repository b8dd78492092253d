"""The options of a run on the workers of a Dask scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.errors import UsageError
from builder.matrix.axes import Arch

#: Seconds to wait for a scheduler that ended, and for a worker that can run a task.
PATIENCE = 60.0


@dataclass(frozen=True)
class RemoteOptions:
    """The options of a run on workers.

    Attributes:
        scheduler: the address of the Dask scheduler.
        prove_on: GPU models on which each cell is tested, such as `sm_90`; empty: on any worker.
        plain_tcp: whether the connection to another machine may be without TLS.
        patience: seconds to wait for a scheduler that ended, and for a worker that can run a task.

    """

    scheduler: str
    prove_on: tuple[str, ...] = ()
    plain_tcp: bool = False
    patience: float = PATIENCE


def gpu_models(texts: Sequence[str]) -> tuple[str, ...]:
    """The GPU models of `--prove-on sm_80,sm_90`; raises UsageError for anything else."""
    models = [model.strip() for text in texts for model in text.split(",")]
    for model in models:
        digits = model.removeprefix("sm_")
        try:
            if not model.startswith("sm_"):
                raise ValueError
            Arch.parse(f"{digits[:-1]}.{digits[-1:]}")
        except (ValueError, UsageError):
            raise UsageError(f"{model!r} is not a GPU model", where="--prove-on", hints=["write sm_80,sm_90"]) from None
    return tuple(dict.fromkeys(models))
