"""One thin function per verb: options in, the farm called, data out on stdout. No logic."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from builder import __version__
from builder.errors import Exit, MissingToolError, UsageError
from builder.log import complain, say
from builder.matrix.axes import Arch
from builder.matrix.config import Select
from builder.matrix.declaration import read_plan
from builder.matrix.plan import plan_to_json
from builder.proof import Verdict
from builder.publish.plan_text import plan_text

app = typer.Typer(
    name="buildfarm",
    help="Builds wheels of PyTorch CUDA extensions and proves them in every cell they claim.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class SmokeExecutor(StrEnum):
    """Where wheels are proven."""

    LOCAL = "local"
    DOCKER = "docker"


class ExecutorName(StrEnum):
    """Where builds run."""

    AUTO = "auto"
    LOCAL = "local"
    DOCKER = "docker"


TorchOption = Annotated[
    list[str] | None, typer.Option("--torch", help="PyTorch release or series: 2.11.0, 2.11. Repeatable.")
]
CudaOption = Annotated[list[str] | None, typer.Option("--cuda", help="CUDA version: 13.0 or cu130. Repeatable.")]
PythonOption = Annotated[list[str] | None, typer.Option("--python", help="Python: 3.12 or cp312. Repeatable.")]
ExtOption = Annotated[list[str] | None, typer.Option("--ext", help="Extension by its recipe's name. Repeatable.")]
ArchOption = Annotated[
    list[str] | None,
    typer.Option("--arch", help="GPU architecture: 9.0, 9.0+PTX. Repeatable; replaces the matrix's and the recipes'."),
]
MatrixOption = Annotated[Path, typer.Option("--matrix", help="The declaration.")]
StoreOption = Annotated[
    Path | None, typer.Option("--store", help="The farm's memory; without it a folder in the user's cache.")
]
ImageOption = Annotated[
    str | None, typer.Option("--image", help="Base image for docker, in place of the matrix's `images:`.")
]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Compilers at once; default from cores and memory.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data for programs.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"buildfarm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


@app.command()
def plan(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    arch: ArchOption = None,
    matrix: MatrixOption = Path("matrix.yaml"),
    explain: Annotated[bool, typer.Option("--explain", help="Every skipped cell on its own line.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the builds, the cells each serves, and every skipped cell with its reason. Starts nothing."""
    _, _, planned = read_plan(matrix, _select(torch, cuda, python, ext), _archs(arch))
    _answer(plan_to_json(planned) if as_json else plan_text(planned, explain=explain))


@app.command()
def render(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: MatrixOption = Path("matrix.yaml"),
    out: Annotated[Path, typer.Option("--out", help="Where the Dockerfiles go.")] = Path("build/dockerfiles"),
    lock: Annotated[
        bool,
        typer.Option("--lock", help="First ask registries what the base images are now; keep it in buildfarm.lock."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the Dockerfile of every image the selection needs, and say who uses it. Starts no engine."""
    from builder.images.dockerfiles import dockerfiles, unpinned, write_dockerfiles  # noqa: PLC0415 - jinja2, no use to `plan`
    from builder.images.lock import lock_path, read_lock, refresh_lock  # noqa: PLC0415
    from builder.publish.render_text import render_json, render_text  # noqa: PLC0415

    declared, _, planned = read_plan(matrix, _select(torch, cuda, python, ext))
    pins = lock_path(matrix)
    problems = refresh_lock(pins, unpinned(dockerfiles(planned, declared, {}))) if lock else []
    files = dockerfiles(planned, declared, read_lock(pins))
    write_dockerfiles(out, files)
    for problem in problems:
        complain(problem)
    _answer(render_json(out, files) if as_json else render_text(out, files))
    raise typer.Exit(int(max((problem.exit_code for problem in problems), default=Exit.OK)))


@app.command()
def build(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    arch: ArchOption = None,
    matrix: MatrixOption = Path("matrix.yaml"),
    executor: Annotated[
        ExecutorName,
        typer.Option("--executor", help="auto takes docker if its images are there, else local."),
    ] = ExecutorName.AUTO,
    image: ImageOption = None,
    jobs: JobsOption = None,
    stand_in: Annotated[
        bool,
        typer.Option("--stand-in", help="Accept a CUDA toolkit of the same major, another minor; the wheel says so."),
    ] = False,
    dist: Annotated[Path, typer.Option("--dist", help="Where wheels, report.json and the index go.")] = Path("dist"),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build, repair and check the selected wheels; they land in dist/ with an index pip can install from."""
    from builder import farm  # noqa: PLC0415 - auditwheel, docker and the like, which `plan` should not wait for
    from builder.publish.report import build_text, failures, report_json  # noqa: PLC0415

    options = farm.Options(
        matrix=matrix,
        select=_select(torch, cuda, python, ext),
        archs=_archs(arch),
        executor=str(executor),
        image=image,
        jobs=jobs,
        stand_in=stand_in,
        store=store,
        dist=dist.absolute(),
    )
    planned, results = farm.run_build(options)
    for error, names in failures(results):
        complain(error, who=names)
    _answer(report_json(planned, results) if as_json else build_text(dist, planned, results))
    worst = max((result.exit for result in results), default=Exit.OK)
    raise typer.Exit(int(worst))


@app.command()
def rebuild(
    wheel: Annotated[Path, typer.Argument(help="A wheel that buildfarm built.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare: equal bit for bit, or where it differs (exit code 1).")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where the wheel that was made again goes.")] = None,
    matrix: MatrixOption = Path("matrix.yaml"),
    image: ImageOption = None,
    jobs: JobsOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build a wheel again from what it says of itself: the same source, toolchain and packages, in a scratch place."""
    from builder import rebuild as story  # noqa: PLC0415 - see `build`

    if not (verify or out):
        raise UsageError(
            "nothing would come of it", where="rebuild", hints=["`--verify` compares", "`--out DIR` keeps"]
        )
    rebuilt = story.run_rebuild(story.RebuildOptions(wheel, matrix, image, jobs, store, out))
    if verify:
        _answer(story.rebuild_json(rebuilt) if as_json else story.rebuild_text(rebuilt))
        raise typer.Exit(int(Exit.OK if rebuilt.equal else Exit.FAILED))


@app.command()
def smoke(
    wheels: Annotated[
        list[str] | None,
        typer.Argument(help="File, URL or NAME==VERSION. None: the wheels in dist/ and the official ones of recipes."),
    ] = None,
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: MatrixOption = Path("matrix.yaml"),
    index: Annotated[str, typer.Option("--index", help="Package index that is asked for NAME==VERSION first.")] = "",
    here: Annotated[
        bool, typer.Option("--here", help="Prove what is installed in this environment; needs nothing but its torch.")
    ] = False,
    pack: Annotated[
        Path | None,
        typer.Option("--pack", help="Write the gate and one extension's cases to a file, for `python FILE` elsewhere."),
    ] = None,
    executor: Annotated[
        SmokeExecutor,
        typer.Option("--executor", help="docker: in each cell's runtime image, with the GPU where there is one."),
    ] = SmokeExecutor.LOCAL,
    dist: Annotated[Path, typer.Option("--dist", help="Where wheels are when none is named.")] = Path("dist"),
    store: StoreOption = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Execute every op of a wheel in each of its cells: values, gradients, fakes, import orders, the GPU."""
    from builder import smoke as story  # noqa: PLC0415 - see `build`
    from builder.publish.smoke_text import smoke_json, smoke_junit, smoke_text  # noqa: PLC0415
    from builder.store import write_whole  # noqa: PLC0415

    select = _select(torch, cuda, python, ext)
    if (here or pack) and executor is SmokeExecutor.DOCKER:
        raise UsageError("says nothing to --here and --pack, which start no container", where="--executor docker")
    if pack:
        if wheels or torch or cuda or python or here or junit or as_json:
            raise UsageError("writes a file and runs nothing: only --ext and --matrix go with it", where="--pack")
        file = story.pack_gate(matrix, select, pack)
        say(f"on a machine with torch and the wheel installed: python {file.name}")
        return
    if here:
        if wheels or torch or cuda or python or index:
            raise UsageError("takes what is installed: no wheels, no cells, no index beside it", where="--here")
        smoked = story.smoke_here(matrix, select)
    else:
        options = story.SmokeOptions(matrix, tuple(wheels or ()), select, index, dist, store, str(executor))
        smoked = list(story.run_smoke(options))
    if junit:
        write_whole(junit.absolute(), smoke_junit(smoked).encode())
    _answer(smoke_json(smoked) if as_json else smoke_text(smoked))
    verdicts = {proof.verdict for one in smoked for proof in one.proofs}
    if verdicts == {Verdict.NOT_RUN}:
        raise MissingToolError("no check could be run in any of these cells", hints=("the reasons are above",))
    raise typer.Exit(int(Exit.FAILED if Verdict.FAILED in verdicts else Exit.OK))


def _answer(text: str) -> None:
    """Data to stdout. A reader that left early (`| head`) changes nothing of how the run ended."""
    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere


def _select(torch: list[str] | None, cuda: list[str] | None, python: list[str] | None, ext: list[str] | None) -> Select:
    return Select(tuple(torch or ()), tuple(cuda or ()), tuple(python or ()), tuple(ext or ()))


def _archs(arch: list[str] | None) -> tuple[Arch, ...]:
    texts = [part for text in arch or () for part in text.replace(",", ";").split(";") if part]
    if arch and not texts:
        raise UsageError("names no GPU architecture; write it like 9.0 or 9.0+PTX", where="--arch")
    try:
        return tuple(sorted({Arch.parse(text) for text in texts}))
    except UsageError as error:
        raise UsageError(error.sentence, where="--arch", hints=error.hints) from None
