"""Facts about a setup.py from its syntax tree. The script is not executed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from builder.recipes.inspection.constants import Constants

#: Functions of torch.cuda that need a GPU to answer.
_DEVICE_QUERIES = {
    "current_device",
    "device_count",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
}
_EXTENSIONS = {"CUDAExtension": True, "CppExtension": False, "SyclExtension": False, "Extension": False}
_ARCH = re.compile(r"(?:compute|sm)_(\d{2,3}[af]?)\b")
#: Values that turn something off: comparing with them does not tell which value turns it on.
_OFF = {"", "0", "false", "off", "no", "n"}
_LISTS_FILES = {"iterdir", "listdir", "rglob", "walk", "scandir"}


@dataclass(frozen=True)
class ExtensionModule:
    """A module that setup.py compiles; `*` in `name` and `sources` is a part that only the run knows.

    Attributes:
        name: full name of the module, such as `package._C`.
        sources: its source files.
        cuda: whether it is a CUDAExtension.

    """

    name: str
    sources: tuple[str, ...]
    cuda: bool


@dataclass
class SetupFacts:
    """What a setup.py does.

    Attributes:
        keywords: arguments of `setup()` that are constants.
        extensions: the modules that it compiles.
        variables: environment variables that it reads, each with the value it compares with, or empty.
        asks_for_gpu: whether it calls torch.cuda.is_available().
        device_queries: functions of torch.cuda that it calls and that fail without a GPU.
        architectures: GPU architectures in compiler flags, such as `90`.
        replaces_arch_list: whether it assigns TORCH_CUDA_ARCH_LIST.
        nvcc_threads: whether it passes `--threads` to nvcc.
        ninja: whether torch may use ninja.
        limited_api: whether it asks for Python's limited API.
        downloads: whether it imports a module that can download.
        lists_files: whether it finds source files in folders by itself.
        imports: modules that it imports, without the standard library.
        strings: every text constant.

    """

    keywords: dict[str, object] = field(default_factory=dict)
    extensions: list[ExtensionModule] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    asks_for_gpu: bool = False
    device_queries: list[str] = field(default_factory=list)
    architectures: list[str] = field(default_factory=list)
    replaces_arch_list: bool = False
    nvcc_threads: bool = False
    ninja: bool = True
    limited_api: bool = False
    downloads: bool = False
    lists_files: bool = False
    imports: list[str] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)


def read_setup_script(tree: Path) -> SetupFacts:
    """Return the facts about the setup.py of a source; empty facts without one, or if it is not valid Python."""
    facts = SetupFacts()
    script = tree / "setup.py"
    try:
        module = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return facts
    constants = Constants(module)
    for node in ast.walk(module):
        match node:
            case ast.Call():
                _read_call(node, constants, facts)
            case ast.Compare(left=left, comparators=[ast.Constant(value=str(value))]):
                for name in _variables_in(left, constants):
                    facts.variables[name] = value if value.lower() not in _OFF else ""
            case ast.Attribute() | ast.Subscript():
                _read_access(node, constants, facts)
            case ast.Constant(value=str(text)):
                facts.strings.append(text)
    facts.architectures = sorted({arch for text in facts.strings for arch in _ARCH.findall(text)}, key=_arch_order)
    facts.nvcc_threads = any(re.match(r"--threads\b", text) for text in facts.strings)
    facts.imports = sorted(set(_imported(module, tree)))
    facts.downloads = (
        any(isinstance(node, ast.Import) and "urllib.request" in map(_name, node.names) for node in ast.walk(module))
        or "requests" in facts.imports
    )
    return facts


def _read_call(node: ast.Call, constants: Constants, facts: SetupFacts) -> None:
    called = _last_name(node.func)
    for keyword in node.keywords:
        if keyword.arg == "use_ninja" and constants.value(keyword.value) is False:
            facts.ninja = False
        if keyword.arg == "py_limited_api" and constants.value(keyword.value) is True:
            facts.limited_api = True
    facts.lists_files = facts.lists_files or called in _LISTS_FILES
    if called in _EXTENSIONS or (called.endswith("extension") and called != "load_extension"):
        _read_extension(node, called, constants, facts)
    elif called == "setup":
        known = ((keyword.arg, constants.value(keyword.value)) for keyword in node.keywords if keyword.arg)
        facts.keywords.update({name: value for name, value in known if value is not None})
    for name in _variables_in(node, constants):
        facts.variables.setdefault(name, "")


def _read_extension(node: ast.Call, called: str, constants: Constants, facts: SetupFacts) -> None:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    arguments = dict(zip(("name", "sources"), node.args, strict=False))
    name_node, source_node = given.get("name", arguments.get("name")), given.get("sources", arguments.get("sources"))
    name = constants.value(name_node) if name_node else None
    if not isinstance(name, str) or not re.fullmatch(r"[\w.*-]+", name):
        return
    sources = constants.value(source_node) if source_node else None
    files = tuple(each for each in sources if isinstance(each, str)) if isinstance(sources, list) else ()
    # `Extension = CUDAExtension if … else CppExtension` is common: such a name counts as CUDA.
    facts.extensions.append(ExtensionModule(name, files, _EXTENSIONS.get(called, True)))


def _read_access(node: ast.Attribute | ast.Subscript, constants: Constants, facts: SetupFacts) -> None:
    if isinstance(node, ast.Subscript):
        if _last_name(node.value) == "environ" and constants.value(node.slice) == "TORCH_CUDA_ARCH_LIST":
            facts.replaces_arch_list |= isinstance(node.ctx, ast.Store)
        if isinstance(node.ctx, ast.Load):
            for name in _variables_in(node, constants):
                facts.variables.setdefault(name, "")
        return
    if _last_name(node.value) == "cuda":
        facts.asks_for_gpu |= node.attr == "is_available"
        if node.attr in _DEVICE_QUERIES and node.attr not in facts.device_queries:
            facts.device_queries.append(node.attr)


def _variables_in(node: ast.AST, constants: Constants) -> Iterator[str]:
    """Names of environment variables that an expression reads: os.getenv, os.environ.get, os.environ[…]."""
    for inner in ast.walk(node):
        name: object = None
        if isinstance(inner, ast.Call) and inner.args:
            function = inner.func
            environ_get = isinstance(function, ast.Attribute) and _last_name(function.value) == "environ"
            if _last_name(function) == "getenv" or (environ_get and _last_name(function) == "get"):
                name = constants.value(inner.args[0])
        elif isinstance(inner, ast.Subscript) and _last_name(inner.value) == "environ":
            name = constants.value(inner.slice)
        if isinstance(name, str):
            yield name


def _imported(module: ast.Module, tree: Path) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for top in (name.partition(".")[0] for name in names):
            local = (tree / f"{top}.py").exists() or (tree / top).is_dir()
            if top not in sys.stdlib_module_names and not local:
                yield top


def _name(alias: ast.alias) -> str:
    return alias.name


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _arch_order(arch: str) -> tuple[int, str]:
    return int(arch.rstrip("af")), arch
