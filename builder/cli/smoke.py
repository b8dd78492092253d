"""`buildfarm smoke`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from builder.cli.distributed.scheduler_options import (
    PlainTcpOption,
    ProveOnOption,
    SchedulerOption,
    WorkerTimeoutOption,
    remote_options,
)
from builder.cli.options import (
    CudaOption,
    ExtOption,
    HereOption,
    IndexOption,
    JsonOption,
    JunitOption,
    NoPullOption,
    NoPythonDownloadsOption,
    PackOption,
    PythonOption,
    QuietOption,
    SmokeDistOption,
    SmokeExecutor,
    SmokeExecutorOption,
    StoreOption,
    SummaryOption,
    TorchOption,
    VerboseOption,
    WheelMatrixOption,
    WheelsArgument,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.commands.distributed.options import PATIENCE
from builder.errors import Exit, MissingToolError, UsageError
from builder.log import print_line, set_verbosity
from builder.matrix.compat import and_list
from builder.matrix.config import MATRIX, Selection
from builder.proof import Verdict
from builder.result import SmokeResult

EXAMPLES = examples(
    "buildfarm smoke NAME.whl --torch 2.11 --cuda 13.0 --python 3.12",
    "buildfarm smoke NAME==VERSION --executor docker --junit smoke.xml",
    "buildfarm smoke --scheduler tls://scheduler.example:8786 --prove-on sm_80,sm_90",
    "buildfarm smoke --here --ext NAME",
    "buildfarm smoke --ext NAME --pack gate.pyz",
)

#: Parameters that have an effect with --pack and with --here; `executor` is checked before.
_PACK_OPTIONS = frozenset({"pack", "ext", "matrix", "executor", "quiet", "verbose"})
_HERE_OPTIONS = frozenset({"here", "ext", "matrix", "executor", "junit", "as_json", "quiet", "verbose"})


def smoke(
    context: typer.Context,
    wheels: WheelsArgument = None,
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: WheelMatrixOption = None,
    index: IndexOption = "",
    here: HereOption = False,
    pack: PackOption = None,
    executor: SmokeExecutorOption = SmokeExecutor.LOCAL,
    no_pull: NoPullOption = False,
    no_python_downloads: NoPythonDownloadsOption = False,
    scheduler: SchedulerOption = None,
    prove_on: ProveOnOption = None,
    plain_tcp: PlainTcpOption = False,
    worker_timeout: WorkerTimeoutOption = PATIENCE,
    dist: SmokeDistOption = Path("dist"),
    store: StoreOption = None,
    junit: JunitOption = None,
    summary: SummaryOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Test finished wheels: call every op in each cell and run the checks of ops. Builds nothing.

    A named wheel needs no matrix.yaml. Without the file, it is tested with --torch, --cuda and --python; without these
    options, with the versions of the current environment.
    """
    from builder.commands.smoke import smoke as verb  # noqa: PLC0415 - see `build`
    from builder.commands.smoke.smoke_here import smoke_here  # noqa: PLC0415

    set_verbosity(quiet=quiet, verbose=verbose)
    select = selection(torch, cuda, python, ext)
    if (here or pack) and executor is SmokeExecutor.DOCKER:
        raise UsageError(
            "cannot be combined with --here or --pack, which start no container", where="--executor docker"
        )
    if pack:
        return _pack(context, matrix, select, pack)
    if here:
        _refuse_others(context, "--here", "--here tests what is installed", _HERE_OPTIONS)
        results = smoke_here(matrix or MATRIX, select)
    else:
        remote = remote_options(scheduler, prove_on, plain_tcp=plain_tcp, worker_timeout=worker_timeout)
        pull, downloads = not no_pull, not no_python_downloads
        options = verb.SmokeOptions(
            matrix, tuple(wheels or ()), select, index, dist, store, str(executor), pull, downloads, summary, remote
        )
        results = list(verb.run_smoke(options))
    return _finish(results, junit, as_json=as_json)


def _pack(context: typer.Context, matrix: Path | None, select: Selection, target: Path) -> None:
    """Write the op gate and the cases of an extension to a file."""
    from builder.commands.smoke.smoke import pack_gate  # noqa: PLC0415 - see `build`

    _refuse_others(context, "--pack", "--pack runs no check", _PACK_OPTIONS)
    file = pack_gate(matrix or MATRIX, select, target)
    print_line(f"wrote {file}; run `python {file.name}` in an environment with torch and the wheel")


def _finish(results: Sequence[SmokeResult], junit: Path | None, *, as_json: bool) -> None:
    """Print the results; write the JUnit file; exit with the code of the run."""
    from builder.publish.smoke_text import smoke_json, smoke_junit, smoke_text  # noqa: PLC0415 - see `build`
    from builder.store import write_atomic  # noqa: PLC0415

    if junit:
        write_atomic(junit.absolute(), smoke_junit(results).encode())
    print_data(smoke_json(results) if as_json else smoke_text(results))
    raise typer.Exit(int(_exit(results)))


def _refuse_others(context: typer.Context, option: str, reason: str, allowed: frozenset[str]) -> None:
    """Raise UsageError if the command line has parameters that this option ignores."""
    ignored = [
        "WHEEL" if parameter.name == "wheels" else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in allowed and _is_given(context, str(parameter.name))
    ]
    if ignored:
        raise UsageError(f"cannot be combined with {and_list(ignored)}: {reason}", where=option)


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _exit(results: Sequence[SmokeResult]) -> Exit:
    """The exit code of a run; raises MissingToolError when no check ran."""
    verdicts = {proof.verdict for result in results for proof in result.proofs}
    if verdicts == {Verdict.NOT_RUN}:
        raise MissingToolError("no check could run in any of the cells", hints=["the output above gives the reasons"])
    failed = any(proof.verdict is Verdict.FAILED for result in results for proof in result.all_proofs)
    return Exit.FAILED if failed else Exit.OK
