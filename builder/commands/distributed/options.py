"""The options of a worker of a Dask scheduler, and of a run on such workers."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from builder.errors import Code, MissingToolError, UsageError
from builder.option import argument, flag, option

#: Seconds to wait for a worker that can run a task.
PATIENCE = 60.0
#: The heading of these options in the help.
PANEL = "Several machines"


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `buildfarm worker`."""

    scheduler: str = argument(
        "Address of the Dask scheduler, tls://HOST:PORT.", "ADDRESS", envvar="BUILDFARM_SCHEDULER"
    )
    name: str = option("Name of this machine in messages. Default: its host name.", default="")
    builds: int | None = option("Number of builds at the same time. Default: one for each four cores.", min=1)
    host: str = option("Address on which this worker listens. Default: the one that reaches the scheduler.", default="")
    wait: float = option(
        "Seconds to wait for the scheduler. --death-timeout is the name that `dask worker` gives to this option.",
        "",
        "--wait",
        "--death-timeout",
        default=3600.0,
        min=0,
    )
    plain_tcp: bool = flag("Allow connections to other machines without TLS.")
    store: Path | None = None
    quiet: bool = False
    #: What dask-jobqueue passes to every worker. buildfarm measures cores and memory itself.
    nthreads: str = option("", default="", hidden=True)
    memory_limit: str = option("", default="", hidden=True)


@dataclass(frozen=True, kw_only=True)
class WorkersOptions:
    """The options of `buildfarm build` for workers."""

    scheduler: str | None = option(
        "Build and test on the workers of this Dask scheduler, tls://HOST:PORT; see `buildfarm worker`.",
        envvar="BUILDFARM_SCHEDULER",
        rich_help_panel=PANEL,
    )
    plain_tcp: bool = flag(
        "With --scheduler: allow a connection to another machine without TLS.", rich_help_panel=PANEL
    )
    worker_timeout: float = option(
        "With --scheduler: seconds to wait for a worker that can run a task.",
        default=PATIENCE,
        min=0,
        envvar="BUILDFARM_WORKER_TIMEOUT",
        rich_help_panel=PANEL,
    )

    def check_workers(self) -> None:
        """Raise UsageError for an address that is not one or is not safe, and MissingToolError without Dask."""
        if self.scheduler:
            require_dask()
            from builder.commands.distributed.connection import check_address  # noqa: PLC0415 - imports Dask

            check_address(self.scheduler, plain_tcp=self.plain_tcp, option="--scheduler")


def require_dask() -> None:
    """Raise MissingToolError unless Dask's scheduler package is installed, UsageError if it cannot read its files."""
    if find_spec("distributed") is None:
        sentence = "the package `distributed` is not installed; it is needed for builds on several machines"
        hint = "install buildfarm with it: `pip install 'buildfarm[dask]'`"
        raise MissingToolError(sentence, Code.PACKAGE_MISSING, hints=[hint])
    try:
        import_module("dask.config")
    except ValueError as error:
        sentence = f"Dask cannot read its configuration: {' '.join(str(error).split())}"
        hint = "correct or delete the file; Dask reads every YAML file of the folder"
        raise UsageError(sentence, Code.FILE_INVALID, hints=[hint]) from None
