"""`buildfarm facts`: read what this version does not know about torch and CUDA, and keep it beside matrix.yaml."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import Code, Exit, MissingToolError, UsageError
from builder.log import print_line, print_warning
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat, use_facts_of
from builder.matrix.compat_table import FACTS, Rows, facts_text, read_rows
from builder.matrix.config import MATRIX, TORCH_INDEX, Selection
from builder.matrix.fields import specifier
from builder.matrix.yaml_document import read_document
from builder.option import flag
from builder.store import write_atomic
from builder.wheels.upstream import Facts, add_variant, newest_torch, toolkit_facts, torch_facts


@dataclass(frozen=True, kw_only=True)
class FactsOptions:
    """The options of `buildfarm facts`."""

    torch: list[str] | None = None
    cuda: list[str] | None = None
    matrix: Path = MATRIX
    check: bool = flag("Read the facts of the file again, write nothing, and fail on a difference.")


def facts(options: FactsOptions) -> Exit:
    """Read from the package index what this version does not know about a torch or a CUDA, for a plan.

    It is what matrix.yaml and the options name; of a version specifier such as `torch: ">=2.10"`, each newer release.
    The facts go into facts.yaml beside matrix.yaml: commit both.

    Examples:
        buildfarm facts --torch 2.16
        buildfarm facts --check
    """
    if options.check:
        return _check(options.matrix.parent / FACTS.name, _declared(options.matrix)[1])
    torches = (*(options.torch or ()), *_newer(options.matrix))
    if not read_unknown(options.matrix, Selection(torches, tuple(options.cuda or ()), (), ())):
        print_line("this version of buildfarm knows all of these versions; there is nothing to read")
    return Exit.OK


def _newer(matrix: Path) -> Iterator[str]:
    """Yield each unknown release that the version specifier of matrix.yaml admits, newest first, until a known one."""
    use_facts_of(matrix.parent)
    wanted, below, compat = _declared(matrix)[0].get("torch"), "", Compat.load()
    if not isinstance(wanted, str):
        return
    with suppress(UsageError):  # the index has no older release that is admitted
        while not compat.has_torch(newest := str(newest_torch(f"{specifier(wanted)}{below}"))):
            yield newest
            below = f",<{newest}"


def read_unknown(matrix: Path, select: Selection) -> list[str]:
    """Read the facts of each torch and CUDA that matrix.yaml and the selection name and that is unknown.

    Returns what was read, and writes facts.yaml beside matrix.yaml. Raises as `torch_facts` and `toolkit_facts`.
    """
    use_facts_of(matrix.parent)
    compat, file, read = Compat.load(), matrix.parent / FACTS.name, list[str]()
    data, index = _declared(matrix)
    torches = [*_readable(data.get("torch"), compat.has_torch), *select.torch]
    wanted = [Cuda.parse(text) for text in (*_readable(data.get("cuda"), Cuda.parse), *select.cuda)]
    rows: Rows = read_rows(file) if file.exists() else {"torch": {}, "toolkits": {}}
    unreachable, toolkits = "", list(wanted)
    for text in dict.fromkeys(torches):
        if not compat.has_torch(text):
            print_line(f"torch {text} is unknown to this version of buildfarm: read its facts from the package index")
            torch, found = torch_facts(text)
            try:
                _add_variants(torch, wanted if not unreachable else (), index, found)
            except MissingToolError as error:
                if error.code is not Code.NETWORK_UNREACHABLE:
                    raise
                unreachable = error.sentence
            rows["torch"][str(torch)] = found.to_row()
            toolkits.append(Cuda.parse(found.row["default"]))
            read.append(f"torch {torch}")
    if unreachable:
        place = index.partition("/{variant}")[0]
        print_warning(
            f"{FACTS} has the CUDA of the package index alone, because {place} was not reached: {unreachable}"
        )
    for cuda in dict.fromkeys(toolkits):
        if not compat.has_toolkit(cuda):
            print_line(f"CUDA {cuda} is unknown to this version of buildfarm: read its facts from the package index")
            rows["toolkits"][str(cuda)] = toolkit_facts(cuda).to_row()
            read.append(f"CUDA {cuda}")
    if read:
        write_atomic(file, facts_text(rows).encode())
        use_facts_of(matrix.parent)
        print_line(f"wrote {file}; commit it with {matrix.name}, because a plan depends on both")
    return read


def _declared(matrix: Path) -> tuple[dict[str, Any], str]:
    """The keys of matrix.yaml, which are judged later, because an unknown version is an error; PyTorch's own index."""
    data = read_document(matrix).data if matrix.exists() else {}
    return data, str(data.get("torch_index") or TORCH_INDEX)


def _readable(value: object, read: Callable[[str], object]) -> Iterator[str]:
    """The texts of a list of matrix.yaml that `read` accepts."""
    for text in value if isinstance(value, list) else ():
        with suppress(UsageError):
            if isinstance(text, str):
                read(text)
                yield text


def _add_variants(torch: Torch, cudas: Iterable[Cuda], index: str, found: Facts) -> None:
    """Read the variants for these CUDA versions from PyTorch's own index. Raises MissingToolError as `add_variant`."""
    for cuda in dict.fromkeys(cudas):
        if cuda.variant not in found.row["variants"]:
            add_variant(torch, cuda, index, found)


def _check(file: Path, index: str) -> Exit:
    rows, differences = read_rows(file), list[str]()
    for name, row in rows["torch"].items():
        torch, found = torch_facts(name)
        _add_variants(torch, map(Cuda.parse, row["variants"]), index, found)
        differences += _different(f"torch {name}", row, found.row)
    for name, row in rows["toolkits"].items():
        differences += _different(f"CUDA {name}", row, toolkit_facts(Cuda.parse(name)).row)
    for line in differences:
        print_warning(line)
    if differences:
        return Exit.FAILED
    print_line(f"{file}: each fact is as on the package index")
    return Exit.OK


def _different(what: str, old: dict[str, object], new: dict[str, object]) -> Iterator[str]:
    for key in sorted({*old, *new} - {"sources"}):
        if old.get(key) != new.get(key):
            yield f"{what}, {key}: the file has {old.get(key)}, the index {new.get(key)}"
