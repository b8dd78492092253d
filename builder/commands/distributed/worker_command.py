"""`buildfarm worker`. It imports Dask, which is not always installed, after the command line was read."""

from builder.commands.distributed.options import WorkerOptions, require_dask


def worker(options: WorkerOptions) -> None:
    """Build and test wheels for `buildfarm build --scheduler`, as a worker of a Dask scheduler.

    Examples:
        buildfarm worker tcp://127.0.0.1:8786
        buildfarm worker tls://scheduler.example:8786 --builds 2 --store /var/tmp/worker-store
    """
    require_dask()
    from builder.commands.distributed.worker.start import run_worker  # noqa: PLC0415 - imports Dask

    run_worker(options)
