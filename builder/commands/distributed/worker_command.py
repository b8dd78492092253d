"""`buildfarm worker`. It imports Dask, which is not always installed, after the command line was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from builder.cli.options import QuietOption, StoreOption, examples
from builder.commands.distributed.options import require_dask
from builder.log import set_verbosity

EXAMPLES = examples(
    "buildfarm worker tcp://127.0.0.1:8786",
    "buildfarm worker tls://scheduler.example:8786 --builds 2 --store /var/tmp/worker-store",
)

#: What dask-jobqueue passes to every worker. buildfarm measures cores and memory itself.
UnusedOption = Annotated[str, typer.Option(hidden=True)]


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `buildfarm worker`."""

    scheduler: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", envvar="BUILDFARM_SCHEDULER", help="Address of the Dask scheduler, tls://HOST:PORT."
        ),
    ]
    name: Annotated[str, typer.Option(help="Name of this machine in messages. Default: its host name.")] = ""
    builds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of builds at the same time. Default: one for each four cores."),
    ] = None
    host: Annotated[
        str, typer.Option(help="Address on which this worker listens. Default: the one that reaches the scheduler.")
    ] = ""
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            "--death-timeout",
            min=0,
            help="Seconds to wait for the scheduler, at the start and after it ended. --death-timeout is the name that"
            " `dask worker` gives to this option.",
        ),
    ] = 3600.0
    plain_tcp: Annotated[bool, typer.Option("--plain-tcp", help="Allow connections to other machines without TLS.")] = (
        False
    )
    store: StoreOption = None
    quiet: QuietOption = False
    nthreads: UnusedOption = ""
    memory_limit: UnusedOption = ""


def worker(options: WorkerOptions) -> None:
    """Build and test wheels for `buildfarm build --scheduler`, as a worker of a Dask scheduler."""
    set_verbosity(quiet=options.quiet, verbose=False)
    require_dask()
    from builder.commands.distributed.worker.start import run_worker  # noqa: PLC0415 - imports Dask

    run_worker(options)
