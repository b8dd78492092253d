"""`buildfarm verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.options import (
    CudaOption,
    IndexOption,
    JsonOption,
    PythonOption,
    QuietOption,
    StoreOption,
    TorchOption,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.errors import Exit
from builder.log import set_verbosity

if TYPE_CHECKING:
    from builder.proofs.verify.judge import WheelVerdict

EXAMPLES = examples(
    "buildfarm verify dist/*.whl",
    "buildfarm verify NAME==VERSION --torch 2.11 --cuda 13.0",
    "buildfarm verify WHEEL --beside .venv --max-size 300MB",
    'buildfarm verify WHEEL --gpu B200 --gpu "RTX 4090" --driver 550',
)

WheelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="WHEEL",
        help="File, folder with wheels, URL, or NAME==VERSION on the package index. NAME, or a .dist-info folder: an"
        " installed package.",
    ),
]


GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu", metavar="GPU", help="A GPU that must run the wheel: its name (RTX 4090), 8.9 or sm_89. Repeatable."
    ),
]
DriverOption = Annotated[
    str, typer.Option("--driver", metavar="VERSION", help="NVIDIA driver of the GPUs: 550 or 550.54.14.")
]
BesideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--beside",
        metavar="WHEEL|ENV",
        help="A package that is imported in the same process: another wheel, as for WHEEL, or the folder of an"
        " environment with packages. Repeatable.",
    ),
]
MaxSizeOption = Annotated[
    str, typer.Option("--max-size", metavar="SIZE", help="The largest wheel file that passes, such as 300MB or 1GiB.")
]

SarifOption = Annotated[
    Path | None,
    typer.Option("--sarif", metavar="FILE", help="Also write the failures and remarks to FILE as SARIF 2.1.0."),
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Also write the verdicts to FILE as Markdown.")
]


def verify(
    wheels: WheelsArgument,
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    gpu: GpuOption = None,
    driver: DriverOption = "",
    beside: BesideOption = None,
    max_size: MaxSizeOption = "",
    index: IndexOption = "",
    store: StoreOption = None,
    sarif: SarifOption = None,
    markdown: MarkdownOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Judge any wheel from its file alone: with which torch, GPUs and systems it works. Executes nothing in it.

    The symbols of torch releases are in the inventories of the store, which `buildfarm inventory` makes.

    Without --torch and --cuda, the wheel is linked with every inventory of its CUDA major version.
    """
    from builder.commands.folders import open_store  # noqa: PLC0415 - see `build`
    from builder.commands.verify.verify import VerifyOptions, run_verify  # noqa: PLC0415
    from builder.publish.verify.verify_text import verify_json, verify_text  # noqa: PLC0415
    from builder.store import write_atomic  # noqa: PLC0415

    set_verbosity(quiet=quiet, verbose=False)
    options = VerifyOptions(
        wheels=tuple(wheels),
        select=selection(torch, cuda, python, None),
        gpus=tuple(gpu or ()),
        driver=driver,
        index=index,
        max_size=_bytes(max_size),
        beside=tuple(beside or ()),
    )
    verdicts = run_verify(options, open_store(store))
    for file, text in _reports(verdicts, sarif, markdown):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode())
    print_data(verify_json(verdicts) if as_json else verify_text(verdicts))
    raise typer.Exit(int(Exit.FAILED if any(one.failed for one in verdicts) else Exit.OK))


def _bytes(size: str) -> int:
    """The bytes of a size such as `100M`; 0 for an empty text."""
    if not size:
        return 0
    from builder.matrix.models.fields import parse_size  # noqa: PLC0415 - it needs the models of matrix.yaml

    return parse_size(size)


def _reports(verdicts: Sequence[WheelVerdict], sarif: Path | None, markdown: Path | None) -> Iterator[tuple[Path, str]]:
    """The files to write, and their text; the modules of other formats are not imported."""
    if sarif:
        from builder.publish.verify.sarif import verify_sarif  # noqa: PLC0415

        yield sarif, verify_sarif(verdicts)
    if markdown:
        from builder.publish.verify.verify_markdown import verify_markdown  # noqa: PLC0415

        yield markdown, verify_markdown(verdicts)
