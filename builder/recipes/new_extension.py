"""The files of a new extension: a small one that works, or one around a CUDA file of the user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.errors import Code, UsageError
from builder.recipes.host_functions import Function, plain_code, read_functions
from builder.recipes.inspection.native_code import COMPLETE_TORCH

_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(\s*(\w+)")
_LIBRARY = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT)?\s*\(\s*(\w+)")
_KERNEL = re.compile(
    r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)"
)
_ERROR = r"(?:throw|TORCH_CHECK|AT_ERROR|AT_ASSERT\w*|C10_THROW_ERROR)\b"
_TEXT = r"(?:[^(){};]|\((?:[^()]|\([^()]*\))*\))*"
_DEVICE = r"(?:\bis_(?:cuda|cpu)\(\)|\.device\(\)|\.device_type\(\))"
#: A branch for one device, such as `if (x.is_cuda()) return ...`, `x.is_cuda() ? ...` or `switch (x.device().type())`.
_BRANCH = re.compile(
    rf"\b(?:if|switch) ?\({_TEXT}?{_DEVICE}{_TEXT}\) ?\{{? ?(?!{_ERROR}|[\s{{]|$)|\bis_(?:cuda|cpu)\(\) ?\?"
)
_ELSE_ERROR = re.compile(rf"\belse ?\{{? ?{_ERROR}")


@dataclass(frozen=True)
class NewExtension:
    """The files of a new extension."""

    #: Its name.
    name: str
    #: The texts by their paths.
    files: dict[str, str]
    #: What the user should know about the files.
    notes: list[str] = field(default_factory=list)
    #: What the user should check or complete in them before the build.
    gaps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FunctionOp:
    """An op of the user's functions."""

    #: What defines its name, its schema and its fake kernel.
    function: Function
    #: The name of the function for CUDA.
    cuda: str
    #: The name of the function for the CPU, or empty.
    cpu: str = ""
    #: Why `cpu` is a function for the CPU, one sentence, or empty.
    why: str = ""


def small_extension(name: str) -> NewExtension:
    """An extension with one op, a * x + b * y, for the CPU and the GPU, with its cases."""
    files = {
        f"csrc/{name}.cpp": _render("op.cpp", name=name),
        f"csrc/{name}_cuda.cu": _render("op.cu", name=name),
        f"src/{name}/__init__.py": _render("op_init.py", name=name),
        "cases.py": _render("cases.py", name=name),
    }
    packaging = _packaging(name, [f"csrc/{name}.cpp", f"csrc/{name}_cuda.cu"], module="_C", complete_headers=False)
    return NewExtension(name, files | packaging, [f"one op, torch.ops.{name}.axpby, for the CPU and the GPU"])


def wrapped_extension(name: str, source: str, text: str) -> NewExtension:
    """An extension around the CUDA file `source` of the user, which is not changed.

    Raises UsageError if the file has nothing that can become an op.
    """
    complete = any(header in text for header in COMPLETE_TORCH)
    code = plain_code(text)
    if bound := _PYBIND.search(code):
        module = "_C" if bound[1] == "TORCH_EXTENSION_NAME" else bound[1]
        init = _render("module_init.py", name=name, module=module, source=source)
        files = {
            f"src/{name}/__init__.py": init,
            **_packaging(name, [source], module=module, complete_headers=complete),
        }
        gaps = [
            f'{source}: its functions need a GPU. Without one, their checks are "not run", and `buildfarm publish`'
            " needs `--require static`. To test them here, begin each function with a branch for CPU tensors: "
            "`if (!x.is_cuda()) { ... }`"
        ]
        notes = [f"{source} has a pybind11 module, which becomes {name}.{module}"]
        return NewExtension(name, files, notes, [] if has_device_branch(text) else gaps)
    if library := _LIBRARY.search(code):
        init = _render("library_init.py", name=name, namespace=library[1], source=source, ops=[])
        files = {f"src/{name}/__init__.py": init, **_packaging(name, [source], module="_C", complete_headers=complete)}
        notes = [f"{source} registers ops in the namespace {library[1]}"]
        gaps = [f"src/{name}/__init__.py: for torch.compile, write a fake kernel for each op, as the file shows"]
        return NewExtension(name, files, notes, gaps)
    return _with_ops(name, source, text, complete_headers=complete)


def _with_ops(name: str, source: str, text: str, *, complete_headers: bool) -> NewExtension:
    functions, refused = read_functions(text)
    if not functions:
        raise UsageError(
            "the file has no function that can become an op",
            Code.SOURCE_UNSUPPORTED,
            where=source,
            hints=_ways_out(text, refused),
        )
    ops = ops_of(functions)
    binding, cpu = f"csrc/{name}_ops.cu", f"csrc/{name}_cpu.cpp"
    lacking = [op for op in ops if not op.cpu]
    template = {cpu: _render("ops_cpu.cpp", name=name, binding=binding, ops=lacking)} if lacking else {}
    files = {
        binding: _render("ops.cu", name=name, source=source, ops=ops),
        **template,
        f"src/{name}/__init__.py": _render("library_init.py", name=name, namespace=name, source=source, ops=ops),
        **_packaging(name, [binding, *template], module="_C", complete_headers=complete_headers),
    }
    notes = [f"op torch.ops.{name}.{op.function.schema}" for op in ops]
    notes += [f"no op for {each}" for each in refused]
    if refused:
        notes.append(
            f"to make an op of {'one of these functions' if len(refused) > 1 else 'this function'}, write a function in"
            f" {source} that calls it, takes `torch::Tensor` and numbers, and returns tensors"
        )
    notes += [op.why for op in ops if op.why]
    if lacking:
        named = ", ".join(op.function.name for op in lacking)
        which = "these ops have no CPU kernel" if lacking == ops else f"no CPU kernel for {named}"
        notes.append(
            f'{which}: on a machine without a GPU their checks are "not run", and `buildfarm publish`'
            f" needs `--require static`; {cpu} shows how to add CPU kernels"
        )
    return NewExtension(name, files, notes, _gaps(name, binding, [op.function for op in ops]))


def _ways_out(text: str, refused: Sequence[str]) -> list[str]:
    """What to do with a file without a function that can become an op."""
    kernels = list(dict.fromkeys(_KERNEL.findall(plain_code(text))))
    launch = [
        f"write a function that launches {' or '.join(kernels[:3])}, such as `torch::Tensor {kernels[0]}_op(const"
        " torch::Tensor& x)`: it checks its tensors, and chooses blocks and threads"
        for _ in kernels[:1]
    ]
    example = "run `buildfarm init` in an empty folder: it writes an example with a kernel and its function"
    return [*refused, *launch, example]


def _gaps(name: str, binding: str, functions: Sequence[Function]) -> list[str]:
    """What the files of the ops of these functions leave to the user."""
    gaps = [
        f"{binding}: its schema says that {each.name} writes to {', '.join(each.written)}, because they are `Tensor&`:"
        " check it at QUESTION"
        for each in functions
        if len(each.written) > 1
    ]
    gaps += [
        f"{binding}: the schema of {each.name} has no default for {', '.join(each.lost)}: write it there"
        f" and in the fake kernel in src/{name}/__init__.py"
        for each in functions
        if each.lost
    ]
    gaps += [
        f"src/{name}/__init__.py: for torch.compile, complete the fake kernel of {each.name} at GAP: the shape of its"
        " result is not known"
        for each in functions
        if not each.fake
    ]
    return gaps


def _packaging(name: str, sources: list[str], *, module: str, complete_headers: bool) -> dict[str, str]:
    return {
        "setup.py": _render("setup.py", name=name, sources=sources, module=module),
        "pyproject.toml": _render("pyproject.toml"),
        "extension.yaml": _render("extension.yaml", name=name, complete_headers=complete_headers),
        ".gitignore": _render("gitignore"),
    }


def _render(template: str, **values: object) -> str:
    return _environment().get_template(f"{template}.j2").render(values)


@cache
def _environment() -> Environment:
    # No autoescape: it escapes for HTML, and the output is source code.
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "starter"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701
    )


def has_device_branch(text: str) -> bool:
    """Whether code does different things for tensors on the CPU and on a GPU."""
    return _BRANCH.search(re.sub(r"\s+", " ", text)) is not None


def ops_of(functions: Sequence[Function]) -> list[FunctionOp]:
    """Return the ops of these functions, in their order.

    A function that chooses by the device of its tensors is the kernel for CUDA and for the CPU. The function NAME_cpu
    is the CPU kernel of NAME, or of NAME_cuda without a NAME. NAME_cuda and NAME_cpu become no ops of their own if
    NAME calls them, or if they are the kernels of an op. All these functions have parameters of the same types.
    """
    named = {each.name: each for each in functions}
    ops: list[FunctionOp] = []
    for function in functions:
        base = re.sub(r"_(?:cuda|cpu)$", "", function.name)
        whole, cuda, cpu = (_like(function, named.get(f"{base}{end}")) for end in ("", "_cuda", "_cpu"))
        if function is whole:
            ops.append(_of_one(function, cuda, cpu))
        elif whole and (_calls(whole, function) or function is cpu):
            continue
        elif cuda and cpu and not whole:
            if function is cuda:
                ops.append(FunctionOp(_renamed(cuda, base), cuda.name, cpu.name, _says(base, cpu)))
        else:
            ops.append(FunctionOp(function, function.name))
    return ops


def _of_one(function: Function, cuda: Function | None, cpu: Function | None) -> FunctionOp:
    """The op of a function, which may have helpers for each device."""
    if cuda and not function.result and function.parameters == cuda.parameters and _calls(function, cuda):
        function = replace(function, result=cuda.result)
    if _BRANCH.search(function.body) and not _ELSE_ERROR.search(function.body):
        why = f"{function.name} looks at the device of its tensors: it is used for CUDA and for the CPU"
        return FunctionOp(function, function.name, function.name, why)
    if cpu:
        return FunctionOp(function, function.name, cpu.name, _says(function.name, cpu))
    return FunctionOp(function, function.name)


def _says(op: str, cpu: Function) -> str:
    return f"{cpu.name} is the CPU kernel of {op}"


def _like(one: Function, other: Function | None) -> Function | None:
    """The other function, if it has the same types."""
    return other if other and other.kinds == one.kinds and bool(other.written) == bool(one.written) else None


def _calls(function: Function, other: Function) -> bool:
    return bool(re.search(rf"\b{other.name} ?\(", function.body))


def _renamed(function: Function, name: str) -> Function:
    return replace(function, name=name, schema=name + function.schema.removeprefix(function.name))
