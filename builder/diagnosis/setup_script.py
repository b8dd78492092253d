"""Facts about a setup.py, and the modules of the source that it imports, from their text. Nothing is executed."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Stands in a text for a part that only the run knows. It reads as a glob pattern.
UNKNOWN = "*"
#: Functions of torch.cuda that need a GPU to answer.
_DEVICE_QUERIES = {
    "current_device", "device_count", "get_device_capability", "get_device_name", "get_device_properties",
    "mem_get_info",
}  # fmt: skip
_EXTENSIONS = {"CUDAExtension": True, "CppExtension": False, "SyclExtension": False, "Extension": False}
_ARCH = re.compile(r"(?:compute|sm)_\d{2,3}[af]?\b")
#: Values that turn something off: comparing with them does not tell which value turns it on.
_OFF = {"", "0", "false", "off", "no", "n"}
#: Modules that can download, and programs.
_DOWNLOADERS = {"urllib", "urllib.request", "http.client", "urllib3", "requests", "httpx", "wget"}
_DOWNLOADS = re.compile(r"(?:curl|wget|aria2c)(?:\s|$)")
#: An option of the command line, such as `--cuda_ext` or `--blas=`; those of setuptools are not the source's own.
_OPTION = re.compile(r"--[A-Za-z][\w-]*=?")
_OPTIONS_OF_SETUPTOOLS = {
    "--help", "--version", "--inplace", "--dist-dir", "--verbose", "--quiet", "--egg-base", "--name",
}  # fmt: skip


@dataclass(frozen=True)
class ExtensionModule:
    """A module that setup.py compiles; `*` in `name` and `sources` is a part that only the run knows."""

    name: str  # full name of the module, such as `package._C`
    sources: tuple[str, ...]  # its source files
    cuda: bool  # whether it is a CUDAExtension
    optional: bool = False  # whether setuptools leaves it out if its compile fails (`optional=True`)


@dataclass
class SetupFacts:
    """What a setup.py does, with the modules of the source that it imports."""

    keywords: dict[str, object] = field(default_factory=dict)  # arguments of `setup()` that are constants
    #: Names of all arguments of `setup()`; `*` for those that only the run knows.
    arguments: list[str] = field(default_factory=list)
    extensions: list[ExtensionModule] = field(default_factory=list)  # the modules that it compiles
    #: Environment variables that it reads, each with the value it compares with, or empty.
    variables: dict[str, str] = field(default_factory=dict)
    asks_for_gpu: bool = False  # whether it calls torch.cuda.is_available()
    needs_gpu: bool = False  # whether it calls functions of torch.cuda that fail without a GPU
    architectures: bool = False  # whether it has GPU architectures in compiler flags, or gives torch a list of them
    downloads: bool = False  # whether it imports a module that can download, or starts a program that does
    #: Options that it looks for in its command line, such as `--cuda_ext` and `--blas=`.
    options: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)  # modules that every build imports, without the standard library
    include_dirs: list[str] = field(default_factory=list)  # the relative folders of headers that extensions name
    strings: list[str] = field(default_factory=list)  # every text constant


def parse_python(source: bytes) -> ast.Module:
    """Parse a file of somebody else, without Python's warnings about it. Raises SyntaxError or ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file of a source says; nothing without the file, or if the build front end rejects it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def read_setup_script(tree: Path) -> SetupFacts:
    """Return the facts about the setup.py of a source; few facts without one, or if it is not valid Python."""
    facts = SetupFacts()
    for path, module in _modules(tree):
        facts.imports += _imported(module, path, tree)
        facts.downloads |= not _DOWNLOADERS.isdisjoint(_names(ast.walk(module)))
        constants = Constants(module)
        for node in ast.walk(module):
            _read_node(node, constants, facts, is_setup=path == tree / "setup.py")
        facts.options += _options(module)
    facts.architectures |= any(map(_ARCH.search, facts.strings))
    facts.downloads |= any(_DOWNLOADS.match(text) for text in facts.strings)
    facts.imports = sorted(set(facts.imports))
    facts.options = list(dict.fromkeys(facts.options))
    return facts


def _modules(tree: Path) -> Iterator[tuple[Path, ast.Module]]:
    """setup.py and the modules of the source that it imports or executes, each once."""
    pending, seen = [tree / "setup.py"], set[Path]()
    while pending:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            module = parse_python(path.read_bytes() if path.is_file() else b"")
        except (OSError, SyntaxError, ValueError):
            continue
        yield path, module
        pending += _helpers(module, path, tree)


def _helpers(module: ast.Module, path: Path, tree: Path) -> Iterator[Path]:
    """Files of the source that a module imports, or executes by their path."""
    called = {_last_name(node.func) for node in ast.walk(module) if isinstance(node, ast.Call)}
    if called & {"exec", "run_path", "spec_from_file_location"}:
        texts = (node.value for node in ast.walk(module) if isinstance(node, ast.Constant))
        own = (text for text in texts if isinstance(text, str) and re.fullmatch(r"\w[\w/.-]{,99}\.py", text))
        yield from (tree / text for text in own if ".." not in text and (tree / text).is_file())
    for name in _names(ast.walk(module)):
        parts = name.split(".")
        for base in (tree, path.parent):
            for depth in range(1, len(parts) + 1):
                inner = base.joinpath(*parts[:depth])
                yield from (each for each in (inner / "__init__.py", inner.with_suffix(".py")) if each.is_file())


def _read_node(node: ast.AST, constants: Constants, facts: SetupFacts, *, is_setup: bool) -> None:
    match node:
        case ast.Call():
            _read_call(node, constants, facts, is_setup=is_setup)
        case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()], comparators=[owner]):
            if _last_name(owner) == "environ":
                facts.variables.setdefault(name, "")
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant(value="TORCH_CUDA_ARCH_LIST"))]):
            facts.architectures |= _last_name(owner) == "environ"
        case ast.Compare(left=left, comparators=[ast.Constant(value=str(value))]):
            for name in _variables_in(left, constants):
                facts.variables[name] = value if value.lower() not in _OFF else ""
        case ast.Attribute(value=owner, attr=attribute) if _last_name(owner) == "cuda":
            facts.asks_for_gpu |= attribute == "is_available"
            facts.needs_gpu |= attribute in _DEVICE_QUERIES
        case ast.Constant(value=str(text)):
            facts.strings.append(text)


def _options(module: ast.Module) -> Iterator[str]:
    """Options that a module looks for in `sys.argv`: by comparison, by `startswith`, by `remove`, or by argparse."""
    if not {_last_name(node) for node in ast.walk(module)} & {"argv", "parse_known_args"}:
        return
    for node in ast.walk(module):
        candidates: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            candidates = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and _last_name(node.func) in {"startswith", "remove", "index", "add_argument"}:
            candidates = list(node.args)
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.List | ast.Tuple):
            candidates = list(node.iter.elts)  # for flag in ("--a", "--b"): if flag in sys.argv
        own = (str(each.value) for each in candidates if isinstance(each, ast.Constant))
        yield from (text for text in own if _OPTION.fullmatch(text) and text.rstrip("=") not in _OPTIONS_OF_SETUPTOOLS)


def _read_call(node: ast.Call, constants: Constants, facts: SetupFacts, *, is_setup: bool) -> None:
    called = _last_name(node.func)
    if called in _EXTENSIONS or called.endswith("extension"):
        _read_extension(node, called, constants, facts)
    elif called == "setup" and is_setup:
        facts.arguments += [keyword.arg or UNKNOWN for keyword in node.keywords]
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
    if sources == [] and not getattr(source_node, "elts", ()) and "." not in name:
        return  # it only marks the wheel as one for a platform: a different program, such as CMake, compiles
    files = tuple(each for each in sources if isinstance(each, str)) if isinstance(sources, list) else ()
    optional = "optional" in given and constants.value(given["optional"]) is True
    # `Extension = CUDAExtension if … else CppExtension` is common: such a name counts as CUDA.
    facts.extensions.append(ExtensionModule(name, files, _EXTENSIONS.get(called, True), optional))
    folders = constants.value(given["include_dirs"]) if "include_dirs" in given else []
    texts = map(str, folders) if isinstance(folders, list) else ()
    facts.include_dirs += [each for each in texts if not each.startswith("/") and UNKNOWN not in each]


def _variables_in(node: ast.AST, constants: Constants) -> Iterator[str]:
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


def _imported(module: ast.Module, path: Path, tree: Path) -> Iterator[str]:
    """Modules of others that each build with a module needs."""
    for name in _names(_unconditional(module.body)):
        top = name.partition(".")[0]
        local = any((base / f"{top}.py").exists() or (base / top).is_dir() for base in (tree, path.parent))
        if top not in sys.stdlib_module_names and not local:
            yield top


def _unconditional(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The imports below no condition: without the module, each build fails that calls the function around it."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.Try(body=inner, handlers=handlers):
                if all(any(isinstance(each, ast.Raise) for each in handler.body) for handler in handlers):
                    yield from _unconditional(inner)
            case ast.FunctionDef(body=inner) | ast.ClassDef(body=inner):
                yield from _unconditional(inner)


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Full names of everything that nodes import, such as `urllib.request` for `from urllib import request`."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(source), names=names):
                # Of `urllib`, only the imported name says whether it downloads.
                yield from ([source] if source != "urllib" else [])
                yield from (f"{source}.{alias.name}" for alias in names)


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Constants:
    """The constants of a module. A name that is assigned more than once has no known value."""

    def __init__(self, module: ast.Module) -> None:
        self._nodes: dict[str, list[ast.expr]] = {}
        self._open: set[str] = set()
        for node in ast.walk(module):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._nodes.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                known = self._nodes.get(node.target.id, [])
                known += [each for each in known if isinstance(each, ast.Constant)]  # a text that grows is not known

    def value(self, node: ast.expr) -> object:
        """Return the value of an expression, or None; a text may hold `*` for parts that are not known."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name not in self._open and len(nodes := self._nodes.get(name, [])) == 1:
                self._open.add(name)
                try:
                    return self.value(nodes[0])
                finally:
                    self._open.remove(name)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [value for value in map(self.value, items) if value is not None]
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {str(self.value(key)): self.value(value) for key, value in pairs if key is not None}
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = [self.value(left), self.value(right)]
                if any(isinstance(each, list) for each in both):
                    return [one for each in both if isinstance(each, list) for one in each]
                if any(isinstance(each, str) for each in both):
                    return "".join(each if isinstance(each, str) else UNKNOWN for each in both)
            case ast.JoinedStr(values=parts):
                return "".join(
                    self._text(part.value if isinstance(part, ast.FormattedValue) else part) for part in parts
                )
            case ast.Call(
                func=ast.Attribute(attr="join", value=ast.Attribute(attr="path") | ast.Name(id="osp" | "path" | "op"))
                | ast.Name(id="join"),
                args=args,
            ):  # of `os.path`, and not of a text that joins a list
                return "/".join(self._text(arg) for arg in args if not isinstance(arg, ast.Starred))
            case ast.Call(func=ast.Attribute(attr="glob") | ast.Name(id="glob"), args=[pattern, *_]):
                return [self._text(pattern)]
        return None

    def _text(self, node: ast.expr) -> str:
        value = self.value(node)
        return value if isinstance(value, str) else UNKNOWN
