"""`buildfarm cases`."""

from __future__ import annotations

from pathlib import Path

from builder.cli.options import (
    CasesDistOption,
    CasesExecutorOption,
    CasesOutOption,
    CudaOption,
    ExecutorName,
    ExtOption,
    JsonOption,
    MatrixOption,
    NoPullOption,
    NoPythonDownloadsOption,
    PythonOption,
    StoreOption,
    TorchOption,
    examples,
    selection,
)
from builder.cli.output import print_data
from builder.matrix.config import MATRIX

EXAMPLES = examples(
    "buildfarm cases --ext NAME",
    "buildfarm cases --ext NAME --torch 2.11 --python 3.12 --out draft.py",
    "buildfarm cases --ext NAME --torch 2.2 --cuda 12.1 --executor docker",
)


def cases(
    torch: TorchOption = None,
    cuda: CudaOption = None,
    python: PythonOption = None,
    ext: ExtOption = None,
    matrix: MatrixOption = MATRIX,
    executor: CasesExecutorOption = ExecutorName.AUTO,
    no_pull: NoPullOption = False,
    no_python_downloads: NoPythonDownloadsOption = False,
    out: CasesOutOption = None,
    dist: CasesDistOption = Path("dist"),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draft the cases.py of a built extension: find its ops, and try inputs until each op accepts a call."""
    from builder.commands.cases.cases import CasesOptions, run_cases  # noqa: PLC0415 - loads slowly
    from builder.commands.cases.summary import summary_json, summary_text  # noqa: PLC0415

    select = selection(torch, cuda, python, ext)
    options = CasesOptions(matrix, select, out, dist, store, str(executor), not no_python_downloads, not no_pull)
    results = list(run_cases(options))
    print_data(summary_json(results) if as_json else summary_text(results))
