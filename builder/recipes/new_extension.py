"""The files of a new extension: a small one that works, or one around CUDA files of the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.errors import Code, UsageError
from builder.gate.imports.registration import backward_of
from builder.recipes.host_functions import (
    Function,
    defined_ops,
    has_cpu_branch,
    ops_of,
    plain_code,
    read_functions,
    without_comments,
)
from builder.recipes.inspection.native_code import COMPLETE_TORCH, has_needless_header, too_many_headers

_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(\s*(\w+)")
_LIBRARY = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT)?\s*\(\s*(\w+)")
_LAUNCH = (
    "write a function that launches the kernel, such as `torch::Tensor scale(const torch::Tensor& x)`: it checks its"
    " tensors, and chooses blocks and threads"
)
_BRANCH = "begin NAME with a branch for CPU tensors: `if (!x.is_cuda()) { ... }`"
#: Names of the gradient of a result, and of a result itself.
_GRADIENT = re.compile(r"(?:\w*_)?grad(?:_?\w+)?|d_?(?:out(?:put)?|y|z|o)|g_?(?:out|y|o)?")
_RESULT = re.compile(r"out(?:put)?|result|res|y")
#: Names of tensors that have no gradient, because they hold integers or bools.
_NOT_FLOATING = re.compile(
    r"(?:\w*_)?(?:idx|ind(?:ex|ices|s)?|ids?|index\w*|offsets?|\w*ptr|labels?|targets?|mask|lengths?|batch|seq_?lens?)"
)


@dataclass(frozen=True)
class NewExtension:
    """The files of a new extension."""

    name: str  # its name
    files: dict[str, str]  # the texts by their paths
    notes: list[str] = field(default_factory=list)  # what the user should know about the files
    gaps: list[str] = field(default_factory=list)  # what the user should check or complete in them before the build


def small_extension(name: str) -> NewExtension:
    """An extension with one op, a * x + b * y, for the CPU and the GPU, with its cases."""
    files = {
        f"csrc/{name}.cpp": _render("op.cpp", name=name),
        f"csrc/{name}_cuda.cu": _render("op.cu", name=name),
        f"src/{name}/__init__.py": _render("op_init.py", name=name),
        "cases.py": _render("cases.py", name=name),
    }
    packaging = _packaging(name, [f"csrc/{name}.cpp", f"csrc/{name}_cuda.cu"], text="")
    return NewExtension(name, files | packaging, [f"one op, torch.ops.{name}.axpby, for the CPU and the GPU"])


def wrapped_extension(name: str, sources: Mapping[str, str]) -> NewExtension:
    """An extension around C++ and CUDA files of the user, their texts by their names; no file is changed.

    Raises UsageError if the files have nothing that can become an op, or if two would compile to one object.
    """
    first: dict[str, str] = {}
    for source in sources:
        other = first.setdefault(source.rpartition(".")[0], source)
        if other != source:
            raise UsageError(
                f"{other} and {source} have the same name without the ending, and would compile to the same object"
                " file",
                Code.SOURCE_UNSUPPORTED,
                where=source,
                hints=[f"rename one of them, such as {source.replace('.', '_kernel.', 1)}"],
            )
    extension = _with_own_binding(name, sources) or _with_ops(name, sources)
    headers = [too_many_headers([source]) for source, text in sources.items() if has_needless_header(text)]
    return replace(extension, notes=extension.notes + headers)


def _with_own_binding(name: str, sources: Mapping[str, str]) -> NewExtension | None:
    """An extension of files of which one has PYBIND11_MODULE or TORCH_LIBRARY; None without such a file."""
    title, text, package = ", ".join(sources), "\n".join(sources.values()), f"src/{name}/__init__.py"
    for source in sources:
        code = plain_code(sources[source])
        if bound := _PYBIND.search(code):
            module = "_C" if bound[1] == "TORCH_EXTENSION_NAME" else bound[1]
            names = re.findall(r'\bm\.def\(\s*"(\w+)"', without_comments(text))
            joined = {re.sub(r"_?(?:forward|fwd)$", "", one.forward.name) or name: one for one in _bound_pairs(text)}
            init = _render("module_init.py", name=name, module=module, source=title, gradients=joined)
            notes = [f"{source} has a pybind11 module, which becomes {name}.{module}"]
            notes += [
                f"{name}.{function} is {each.forward.name} with the gradient of {each.backward.name}"
                for function, each in joined.items()
            ]
            done = {each.forward.name for each in joined.values()}
            pairs = [
                f"{package}: {one} has no gradient: {partner} seems to compute it; join them in a"
                " torch.autograd.Function, or say in cases.py that it needs none"
                for one in names
                if one not in done and (partner := backward_of(one, names))
            ]
            files = {package: init, **_packaging(name, sources, text, module)}
            on_cpu = has_cpu_branch(re.sub(r"\s+", " ", text))
            return NewExtension(name, files, notes, ([] if on_cpu else [_needs_gpu(title, _BRANCH)]) + pairs)
        if library := _LIBRARY.search(code):
            # Code that registers kernels for autograd has a gradient of its own.
            gradients, unjoined = gradients_of([] if "Autograd" in plain_code(text) else defined_ops(text))
            init = _render(
                "library_init.py", name=name, namespace=library[1], source=title, ops=[], gradients=gradients
            )
            notes = [
                f"{source} registers ops in the namespace {library[1]}",
                *_joined_notes(gradients),
                "for torch.compile, each op needs a fake kernel: add what `buildfarm cases` prints after the build to"
                f" {package}",
            ]
            gaps = [f"{package}: {each}" for each in unjoined]
            return NewExtension(name, {package: init, **_packaging(name, sources, text)}, notes, gaps)
    return None


def _with_ops(name: str, sources: Mapping[str, str]) -> NewExtension:
    title, text = ", ".join(sources), "\n".join(sources.values())
    functions, refused = read_functions(text)
    if not functions:
        have = "the file has" if len(sources) == 1 else "the files have"
        raise UsageError(
            f"{have} no function that can become an op",
            Code.SOURCE_UNSUPPORTED,
            where=title,
            hints=[
                *refused,
                *([_LAUNCH] if "__global__" in text else []),
                "run `buildfarm init` in an empty folder: it writes an example with a kernel and its function",
            ],
        )
    ops, binding = ops_of(functions), f"csrc/{name}_ops.cu"
    called = {each.name: each for op in ops for each in (op, op.cpu) if each}.values()
    # One file is included, so that its functions need no declaration; several may have helpers of the same name.
    one = len(sources) == 1
    gradients, unjoined = gradients_of(ops)
    init = _render("library_init.py", name=name, namespace=name, source=title, ops=ops, gradients=gradients)
    written = {
        binding: _render("ops.cu", name=name, source=title, ops=ops, called=called, include=one),
        f"src/{name}/__init__.py": init,
        **_packaging(name, [*([] if one else sources), binding], text),
    }
    notes = [f"op torch.ops.{name}.{op.schema}" for op in ops]
    if lacks_fake := [op.name for op in ops if op.returns != "()"]:
        notes.append(
            f"no fake kernel for {', '.join(lacks_fake)}: for torch.compile, add what `buildfarm cases` prints after"
            f" the build to src/{name}/__init__.py"
        )
    notes += [*_joined_notes(gradients), *unjoined, *_no_backward_notes(name, [op.name for op in ops])]
    notes += [f"no op for {each}" for each in refused]
    if lacking := [op.name for op in ops if not op.cpu]:
        again = f"`rm {' '.join([*written, 'matrix.yaml'])}` and run `buildfarm init` again, which registers it"
        notes.append(_needs_gpu(", ".join(lacking), f"write NAME_cpu beside NAME, or {_BRANCH}. Then {again}"))
    return NewExtension(name, written, notes, [f"src/{name}/__init__.py: {each}" for each in unjoined])


def _needs_gpu(names: str, cure: str) -> str:
    return (
        f'{names}: no kernel for the CPU. On a machine without a GPU, the checks are "not run", and `buildfarm publish`'
        f" needs `--require static`. To test here, {cure}"
    )


def _joined_notes(gradients: Sequence[JoinedGradient]) -> list[str]:
    return [f"{each.forward.name} gets its gradient from {each.backward.name}" for each in gradients]


def _no_backward_notes(name: str, ops: Sequence[str]) -> list[str]:
    """A sentence that names the ops that neither have a backward nor are one."""
    paired = {each for op in ops if (partner := backward_of(op, ops)) for each in (op, partner)}
    alone = [op for op in ops if op not in paired]
    them = "it" if len(alone) == 1 else "them"
    return [
        f"no gradient for {', '.join(alone)}: to train with {them}, call torch.library.register_autograd in"
        f" src/{name}/__init__.py"
    ][: len(alone)]


def _packaging(name: str, sources: Iterable[str], text: str, module: str = "_C") -> dict[str, str]:
    """The files that make a wheel of sources; `text` is that of the user's files."""
    complete_headers = any(header in text for header in COMPLETE_TORCH)
    return {
        "setup.py": _render("setup.py", name=name, sources=list(sources), module=module),
        "pyproject.toml": _render("pyproject.toml"),
        "extension.yaml": _render("extension.yaml", name=name, complete_headers=complete_headers),
        ".gitignore": _render("gitignore"),
    }


def _render(template: str, **values: object) -> str:
    return source_templates(Path(__file__).parent / "starter").get_template(f"{template}.j2").render(values)


@cache
def source_templates(folder: Path) -> Environment:
    """The templates of source code in a folder. No autoescape: it escapes for HTML."""
    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701
    )


@dataclass(frozen=True)
class JoinedGradient:
    """How a backward gets its arguments, and for which inputs of the forward it returns gradients."""

    forward: Function
    backward: Function
    arguments: tuple[str, ...]  # the arguments of the backward as Python expressions
    tensors: Mapping[str, str]  # what the forward keeps for it: tensors, by name, each with its expression, and numbers
    numbers: tuple[str, ...]
    without: tuple[int, ...]  # the indices of results that have no gradient: the forward returns them for the backward
    returned: tuple[int | None, ...]  # for each input of the forward, the index of its gradient, or None

    @property
    def names(self) -> list[str]:
        """The inputs of the forward in Python."""
        return [each.python for each in self.forward.parameters]


def _bound_pairs(text: str) -> list[JoinedGradient]:
    """The pairs that the code gives to `m.def`, by their names in Python, if their signatures show how to join them."""
    bound = re.findall(r'\bm\.def\(\s*"(\w+)"\s*,\s*&(?:\w+::)*(\w+)', without_comments(text))
    python = {function: known for known, function in bound}

    def named(function: Function) -> Function:
        return replace(function, name=python[function.name])

    return [
        replace(each, forward=named(each.forward), backward=named(each.backward))
        for each in gradients_of(read_functions(text)[0])[0]
        if {each.forward.name, each.backward.name} <= python.keys()
    ]


def gradients_of(functions: Sequence[Function]) -> tuple[list[JoinedGradient], list[str]]:
    """The pairs whose signatures show how to join them, and a sentence for each pair that a person must join."""
    by_name = {each.name: each for each in functions}
    pairs = [(one, by_name[partner]) for one in functions if (partner := backward_of(one.name, by_name))]
    found = [(forward, backward, _join(forward, backward)) for forward, backward in pairs]
    left = [
        f"{forward.name} has no gradient: {backward.name} seems to compute it, but {why}; join them with"
        f" torch.library.register_autograd, or say in cases.py that {forward.name} needs none"
        for forward, backward, why in found
        if isinstance(why, str)
    ]
    return [joined for _, _, joined in found if isinstance(joined, JoinedGradient)], left


def _join(forward: Function, backward: Function) -> JoinedGradient | str:
    """The pair, or why its signatures do not show how to join it."""
    if "output" in (*forward.kinds, *backward.kinds) or not forward.count or not backward.count:
        return "it is not clear how many tensors the two return"
    if "*" in forward.schema:
        return "torch gives the parameters after `*` to another function"
    if forward.returns == "Tensor[]" and any(each.default for each in forward.parameters):
        # Where a list is returned, torch (2.11) wants a gradient for each argument that the caller gave.
        return "torch joins no op that returns a list and has defaults (return a std::tuple)"
    inputs, results = {each.python: each.kind for each in forward.parameters}, forward.results
    arguments, tensors, numbers, grads = list[str](), dict[str, str](), list[str](), set[int]()
    for name, kind in ((each.python, each.kind) for each in backward.parameters):
        if inputs.get(name) == kind == "tensor":
            tensors[name] = name
            arguments.append(name)
        elif inputs.get(name) == kind:
            numbers.append(name)
            arguments.append(f"ctx.{name}")
        elif kind == "tensor" and len(grads) < forward.count and _GRADIENT.fullmatch(name):
            at = _result_of(name, results, set(range(forward.count)) - grads)
            arguments.append(f"grads[{at}].contiguous()")
            grads.add(at)
        elif kind == "tensor" and (name in results or (forward.returns == "Tensor" and _RESULT.fullmatch(name))):
            single = forward.returns == "Tensor"
            kept = "output" if single else name
            tensors[kept] = "output" if single else f"output[{results.index(name)}]"
            arguments.append(kept)
        else:
            some = f" ({', '.join(results)})" if results else ""
            return f"its parameter {name} is neither an input, nor a result{some}, nor the gradient of one"
    without = tuple(at for at in range(forward.count) if at not in grads)
    if not grads or any(not results or results[at] not in tensors for at in without):
        return f"it takes {len(grads)} gradients of {forward.count} results"
    receivers = [name for name, kind in inputs.items() if kind == "tensor"]
    if len(receivers) != backward.count:
        receivers = [name for name in receivers if not _NOT_FLOATING.fullmatch(name)]
    if len(receivers) != backward.count:
        return f"it returns {backward.count} tensors, and {forward.name} takes {len(receivers)}"
    returned = tuple(receivers.index(name) if name in receivers else None for name in inputs)
    return JoinedGradient(forward, backward, tuple(arguments), tensors, tuple(numbers), without, returned)


def _result_of(gradient: str, results: Sequence[str], free: set[int]) -> int:
    """Which result a gradient belongs to: the one that its name ends with, else the first that has none yet."""
    ends = (at for at, result in enumerate(results) if gradient.endswith(f"_{result}") or gradient == f"d{result}")
    return next(ends, min(free))
