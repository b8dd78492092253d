"""What `buildfarm add` writes for sources of the package index, and for how many of them each line of code decides it.

    python tests/benchmarks/inspection_of_sources.py FOLDER [NAME…] > before.txt
    python tests/benchmarks/inspection_of_sources.py FOLDER --decides [MODULE…]

Downloads the source distributions of SOURCES into FOLDER: 0.5 GB, unpacked. The inspection reads each one twice: as it
is, and as its repository has it, without PKG-INFO and the folder *.egg-info, which state what only the build backend
knows there. Nothing of a source is run. Two versions of buildfarm are compared by what the first call prints.

The second call deletes each statement, condition and operand of the inspection in turn, and inspects again the sources
that come by it. It prints for how many of them the recipe or a finding changes; a line with 0 decides nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import inspect
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from builder.commands.add import recipe_text
from builder.errors import UsageError
from builder.matrix.config import SdistSource
from builder.recipes.fetch import PinnedSource, parse_reference, pin, unpack_source
from builder.recipes.inspection import draft_recipe
from builder.recipes.inspection.draft_recipe import inspect_source

SOURCES = """
apache-tvm-ffi==0.1.15.post2 auto-gptq==0.7.1 beamgrad==2.3.0 bilateralfilter-torch==1.1.0 causal-conv1d==1.7.0
chamferdist==1.0.3 colossalai==0.5.0 ctcdecode==1.0.2 cufinufft==2.5.1 cuneb-chenn==0.0.4 dbscan-torch==0.2.0
deformops==3.0.1 dftd4==4.3.1 diso==0.1.4 evnn-pytorch==0.2.0 fast-hadamard-transform==1.1.0 fast-rnnt==1.3
fastsafetensors==0.5.0 flash-attn==2.8.3.post2 flashmel==0.1.0 foldedtensor==0.4.0 fpsample==1.0.2 gptqmodel==7.7.0
grouped-gemm==0.3.0 gsplat==1.5.3 hamming-sim-pytorch==0.1.2.2 haste-pytorch==0.5.0rc0 inplace-abn==1.1.0
kaldifeat==1.24 lanms-pytorch==1.0.3 lightgbm==4.7.0 mamba-ssm==2.3.2.post1 megablocks==0.10.0
metatensor-torch==0.10.8 minkowskiengine==0.5.4 mmcv==2.2.0 modulated-deform-conv==1.0.2 moe-kernels==0.1.0
nerfacc==0.5.3 openequivariance==0.7.0 philtorch==0.7.0 pycuda==2026.1 pytorch-fft==0.15 rwkv==0.8.32
safetensors==0.8.0 scikit-fmm==2025.6.23 spatial-correlation-sampler==0.5.0 sphericart-torch==2.0.4
torch-c-dlpack-ext==0.1.5 torch-cluster==1.6.3 torch-kdtree==1.0 torch-linear-assignment==0.1.0
torch-points-kernels==0.7.0 torch-scatter==2.1.2 torch-sparse==0.6.18 torchac==0.8.9 torchsort==0.1.10
transformer-engine-torch==2.20.2 vesin-torch==0.6.2 vllm==0.33.0
"""
#: The readers of a source, in the order of their calls, and the modules with the code of each.
READERS = {
    "read_setup_script": "builder.diagnosis.setup_script",
    "read_native_code": "builder.recipes.inspection.native_code",
    "read_metadata": "builder.recipes.inspection.metadata",
    "read_packages": "builder.recipes.inspection.build_settings",
}
MODULES = [*READERS.values(), "builder.recipes.inspection.draft_recipe"]
_SECONDS = 20  # after which a changed inspection does not end


@dataclass
class Source:
    """One form of a source, and what the inspection of the unchanged code found in it."""

    pinned: PinnedSource
    tree: Path
    text: str = ""
    facts: dict[str, object] = field(default_factory=dict)
    #: The lines of the inspection that run: module and line.
    lines: set[tuple[str, int]] = field(default_factory=set)
    seconds: float = 0


def fetched(label: str, folder: Path) -> Source:
    """The source distribution NAME==VERSION, unpacked below `folder`."""
    home = folder / label.replace("==", "-")
    kept = home / "pin.json"
    if not kept.exists():
        shutil.rmtree(home, ignore_errors=True)
        (home / "source").mkdir(parents=True)
        pinned = pin(parse_reference(label))
        assert isinstance(pinned.source, SdistSource)
        tree = unpack_source(pinned, home / "source", cache=folder / "files")
        kept.write_text(json.dumps({"sha256": pinned.source.sha256, "tree": str(tree.relative_to(home))}))
    name, _, version = label.partition("==")
    stated = json.loads(kept.read_text())
    source = SdistSource(name, version, stated["sha256"])
    return Source(PinnedSource(source, label, "source distribution", name), home / stated["tree"])


def without_metadata(source: Source, folder: Path) -> Source:
    """The source as its repository has it: hard links to all but what the command `sdist` adds."""
    tree = folder / source.pinned.label
    made = shutil.ignore_patterns("PKG-INFO", "*.egg-info")
    shutil.copytree(source.tree, tree, symlinks=True, ignore=made, copy_function=os.link)
    label = f"{source.pinned.label} (repository)"
    return Source(PinnedSource(source.pinned.source, label, source.pinned.kind, source.pinned.default_name), tree)


def drafted(source: Source) -> str:
    """The recipe and the findings, or the error."""
    try:
        draft = inspect_source(source.pinned, source.tree)
    except UsageError as error:
        return "\n".join([f"error: {error.where}: {error.sentence}", *(f"  hint: {hint}" for hint in error.hints), ""])
    asks = f"asks the build backend for the {' and '.join(draft.unknown)}\n" if draft.unknown else ""
    lines = [f"{'?' if each.question else '-'} {each.found} -> {each.consequence}" for each in draft.findings]
    written = [line for line in recipe_text(draft, "add").splitlines() if not line.startswith("source:")]
    return asks + "\n".join([*written, *lines, ""]).replace(str(source.tree), "TREE")


# The deletions.


@dataclass(frozen=True)
class Deletion:
    """A function of the inspection without one of its parts."""

    module: str
    line: int
    what: str
    function: str
    code: CodeType


def parts(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Callable[[], None]]]:
    """Each part of a module that can be deleted, its description, and what deletes it."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            for index, each in enumerate(value if isinstance(value, list) else ()):
                if name in ("body", "orelse") and _is_step(each):
                    yield each, f"delete {_short(each)}", partial(_never, value, index)
                elif name == "values" and isinstance(node, ast.BoolOp):
                    neutral = ast.Constant(isinstance(node.op, ast.And))
                    yield each, f"without the operand {_short(each)}", partial(value.__setitem__, index, neutral)
                elif name == "elts" and isinstance(each, ast.Constant | ast.Starred) and len(value) > 1:
                    yield each, f"without the item {_short(each)}", partial(value.__delitem__, index)
                elif (
                    name == "args"
                    and isinstance(node, ast.Call)
                    and getattr(node.func, "id", "") in ("_first", "_names", "_specifier")
                ):
                    yield each, f"without the argument {_short(each)}", partial(value.__delitem__, index)
                elif name == "ifs":
                    yield each, f"without the filter {_short(each)}", partial(value.__delitem__, index)
                elif isinstance(each, ast.match_case):
                    yield (
                        each.pattern,
                        f"without the case {_short(each.pattern)}",
                        partial(setattr, each, "guard", ast.Constant(False)),
                    )
        if isinstance(node, ast.If | ast.IfExp):
            for answer in (False, True):
                yield (
                    node.test,
                    f"always {answer}: {_short(node.test)}",
                    partial(setattr, node, "test", ast.Constant(answer)),
                )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield node.right, f"without {_short(node.right)}", partial(_replace, node, node.left)


def _is_step(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Expr | ast.AugAssign | ast.For | ast.While) and not is_text


def _never(body: list[ast.stmt], index: int) -> None:
    body[index] = ast.If(ast.Constant(False), [body[index]], [])  # it stays in the code, which may be a generator


def _replace(node: ast.BinOp, other: ast.expr) -> None:
    node.right = copy.deepcopy(other)


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:90]


def deletions(name: str) -> Iterator[Deletion]:
    """Every deletion in a module."""
    text = inspect.getsource(importlib.import_module(name))
    for number in range(sum(1 for _ in parts(ast.parse(text)))):
        tree = ast.parse(text)
        node, what, delete = list(parts(tree))[number]
        line = int(getattr(node, "lineno", 0))
        function = next((each for each in _functions(tree) if each.lineno <= line <= (each.end_lineno or 0)), None)
        if function is None:
            continue
        delete()
        code = compile(ast.fix_missing_locations(tree), name, "exec")
        made = next((each for each in _codes(code) if each.co_firstlineno == _first_line(function)), None)
        if made and made.co_name == function.name:
            yield Deletion(name, line, what, made.co_qualname, made)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    inner = [each for node in tree.body for each in (node.body if isinstance(node, ast.ClassDef) else [node])]
    return [each for each in inner if isinstance(each, ast.FunctionDef)]


def _first_line(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _function(module: ModuleType, qualname: str) -> Any:
    found: Any = module
    for part in qualname.split("."):
        found = inspect.getattr_static(found, part)
    return found.fget if isinstance(found, property) else found


def first_run(source: Source) -> None:
    """Inspect with the unchanged code, and keep its text, the facts of each reader, and the lines that run."""
    files = {importlib.import_module(name).__file__ or "": name for name in MODULES}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if name := files.get(frame.f_code.co_filename):
            if event == "line":
                source.lines.add((name, frame.f_lineno))
            return trace
        return None

    with replaced(lambda name, real: lambda *args, **more: source.facts.setdefault(name, real(*args, **more))):
        sys.settrace(trace)
        start = time.process_time()
        source.text = drafted(source)
        source.seconds = time.process_time() - start
        sys.settrace(None)


class replaced:  # noqa: N801 - a context manager
    """Readers of the inspection that are replaced for a while."""

    def __init__(self, by: Callable[[str, Callable[..., object]], Callable[..., object]]) -> None:
        self.real = {name: getattr(draft_recipe, name) for name in READERS}
        self.made = {name: by(name, real) for name, real in self.real.items()}

    def __enter__(self) -> None:
        for name, made in self.made.items():
            setattr(draft_recipe, name, made)

    def __exit__(self, *_: object) -> None:
        for name, real in self.real.items():
            setattr(draft_recipe, name, real)


class _NothingChangedError(Exception):
    """The reader with the deletion found the same."""


def changes(source: Source, deletion: Deletion) -> bool:
    """Whether a deletion changes what `add` says of a source. Readers that come before it answer from memory."""
    order = list(READERS)
    own = next((name for name, module in READERS.items() if module == deletion.module), "")

    def reader(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def read(*args: Any, **more: Any) -> object:
            if name not in source.facts:
                return real(*args, **more)
            if name == own:
                found = real(*args, **more)
                if found == source.facts[name] and own != "read_packages":
                    raise _NothingChangedError
                return found
            before = not own or name == "read_native_code" or order.index(name) < order.index(own)
            return source.facts[name] if before else real(*args, **more)

        return read

    signal.alarm(_SECONDS)
    try:
        with replaced(reader):
            return drafted(source) != source.text
    except _NothingChangedError:
        return False
    except Exception:  # noqa: BLE001 - what the code cannot do without is no question of what it decides
        return True
    finally:
        signal.alarm(0)


def decides(sources: list[Source], names: list[str], enough: int) -> None:
    """Print each deletion with the number of sources for which it changes something, counted up to `enough`."""
    signal.signal(signal.SIGALRM, _too_long)
    for source in sources:
        first_run(source)
    sources.sort(key=lambda source: source.seconds)  # those that take longest come last, and often not at all
    for name in names:
        module = importlib.import_module(name)
        for each in deletions(name):
            function = _function(module, each.function)
            code = getattr(function, "__wrapped__", function).__code__
            function.__code__ = each.code.replace(co_filename=code.co_filename)
            try:
                changed = set[str]()
                for source in sources:
                    label = source.pinned.default_name
                    if len(changed) < enough and label not in changed and (name, each.line) in source.lines:
                        changed |= {label} if changes(source, each) else set()
            finally:
                function.__code__ = code
            print(f"{len(changed):3} {name.rpartition('.')[2]}:{each.line} {each.function}: {each.what}", flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Inspect the sources."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these projects; with --decides, these modules")
    parser.add_argument("--decides", action="store_true", help="delete each part of the inspection in turn")
    parser.add_argument(
        "--enough", type=int, default=len(SOURCES.split()), help="with --decides, count up to this number"
    )
    options = parser.parse_intermixed_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    labels = [
        label
        for label in SOURCES.split()
        if options.decides or not options.names or label.partition("==")[0] in options.names
    ]
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        both = []
        for label in labels:
            source = fetched(label, folder)
            both += [source, without_metadata(source, Path(temporary))]
        if options.decides:
            wanted = [name for name in MODULES if not options.names or name.rpartition(".")[2] in options.names]
            decides(both, wanted, options.enough)
        else:
            for source in both:
                print(f"## {source.pinned.label}\n{drafted(source)}")


if __name__ == "__main__":
    main()
