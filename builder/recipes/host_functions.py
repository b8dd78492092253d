"""Host functions of C++ and CUDA files, read from their text: which become ops, and why the others do not."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

_COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
_SCOPE = re.compile(r"(?:inline )?namespace(?: ([\w:]+))?|extern \"\"")
_HEADER = re.compile(r"(?P<before>[^()=]*[\s>&*])(?P<name>\w+) ?\((?P<listed>[^()]*)\)(?: noexcept)?")
_SCHEMA = re.compile(r"(?P<name>\w+)\((?P<listed>[^()]*(?:\([a-z]!\)[^()]*)*)\) ?-> ?(?P<returned>.+)")
_TEMPLATE = re.compile(r"template ?<[^>]*>")
_SPECIFIER = re.compile(r"\b(?:static|inline|constexpr|__host__|__forceinline__|extern \"\")")
_TENSOR = re.compile(r"(?:(?:torch|at)::)?Tensor")
_TENSORS = re.compile(
    rf"std::(?:vector ?< ?{_TENSOR.pattern} ?>|tuple ?< ?{_TENSOR.pattern}(?: ?, ?{_TENSOR.pattern})* ?>)"
)
_WRITTEN = re.compile(r"(?:(?:torch|at)::)?Tensor ?& ?\w+")
#: The types of TORCH_LIBRARY. `long` is another name of int64_t on Linux.
_TYPES = {"int64_t": "int", "long": "int", "double": "float", "bool": "bool"}
#: Types that the ops file casts to, from those of TORCH_LIBRARY.
_NARROW = {
    **dict.fromkeys(("int", "int32_t", "int16_t", "int8_t", "short", "size_t", "unsigned", "long long"), "int"),
    **dict.fromkeys(("uint64_t", "uint32_t", "uint16_t", "uint8_t", "unsigned int", "unsigned long"), "int"),
    "float": "float",
}
_ERROR = r"(?:throw|TORCH_CHECK|AT_ERROR|AT_ASSERT\w*|C10_THROW_ERROR)\b"
_TEXT = r"(?:[^(){};]|\((?:[^()]|\([^()]*\))*\))*"
_DEVICE = r"(?:\bis_(?:cuda|cpu)\(\)|\.device\(\)|\.device_type\(\))"
#: A branch for one device, such as `if (x.is_cuda()) return ...`, `x.is_cuda() ? ...` or `switch (x.device().type())`.
_BRANCH = re.compile(
    rf"\b(?:if|switch) ?\({_TEXT}?{_DEVICE}{_TEXT}\) ?\{{? ?(?!{_ERROR}|[\s{{]|$)|\bis_(?:cuda|cpu)\(\) ?\?"
)
_ELSE_ERROR = re.compile(rf"\belse ?\{{? ?{_ERROR}")
#: What a `return` of a value returns; `return;` is of a lambda.
_RETURN = re.compile(r"\breturn\b ?([^;]+?) ?;")
_IN_SCHEMA = {"int": "int64_t", "float": "double"}
#: What a function may take to become an op.
_ACCEPTED = "`torch::Tensor`, `double`, `float`, `bool` and integers"


@dataclass(frozen=True)
class HostParameter:
    """A parameter of a host function."""

    kind: str  # `tensor`, `output` (a tensor that the function writes to), or a kind of the schema, such as `int`
    name: str  # in C++
    declared: str = ""  # type and name in C++, without a default
    default: str = ""  # as in Python; empty if there is none that a schema can have
    narrow: str = ""  # its type in C++ if TORCH_LIBRARY does not take this type of numbers

    @property
    def python(self) -> str:
        """Its name in a schema and in Python: in both, names such as `in` are keywords."""
        return f"{self.name}_" if keyword.iskeyword(self.name) else self.name

    @property
    def with_default(self) -> str:
        """The name and the default, as in a schema and in Python."""
        return f"{self.python}={self.default}" if self.default else self.python


@dataclass(frozen=True)
class Function:
    """A host function that becomes an op."""

    name: str
    schema: str  # of the op
    parameters: tuple[HostParameter, ...]
    returns: str  # what it returns, as in the schema: `Tensor`, `Tensor[]`, `(Tensor, Tensor)` or `()`
    body: str = ""  # its code in one line
    cpu: Function | None = None  # the function for the CPU, or None

    @property
    def kinds(self) -> list[str]:
        """The kinds of its parameters."""
        return [each.kind for each in self.parameters]

    @property
    def tensors(self) -> list[str]:
        """The names of its tensors in Python."""
        return [each.python for each in self.parameters if each.kind in ("tensor", "output")]

    @property
    def narrow(self) -> list[HostParameter]:
        """Its numbers that are cast from those of the op."""
        return [each for each in self.parameters if each.narrow]

    @property
    def declaration(self) -> str:
        """Its declaration for a file that includes ATen only."""
        types = {"()": "void", "Tensor": "at::Tensor", "Tensor[]": "std::vector<at::Tensor>"}
        several = f"std::tuple<{self.returns.strip('()').replace('Tensor', 'at::Tensor')}>"
        listed = _of_aten([each.declared for each in self.parameters])
        return f"{types.get(self.returns, several)} {self.name}({listed});"

    @property
    def op_parameters(self) -> str:
        """The parameters of its op in C++, in the types of TORCH_LIBRARY."""
        listed = self.parameters
        return _of_aten([f"{_IN_SCHEMA[each.kind]} {each.name}" if each.narrow else each.declared for each in listed])

    @property
    def call(self) -> str:
        """Its call in C++ with the parameters of its op."""
        given = [each.name for each in self.parameters]
        for at, each in enumerate(self.parameters):
            if each.narrow and each.kind == "int":
                given[at] = f'narrow_to<{each.narrow}>({each.name}, "{each.name}")'
            elif each.narrow:
                given[at] = f"static_cast<{each.narrow}>({each.name})"
        return f"{self.name}({', '.join(given)})"

    @property
    def count(self) -> int:
        """The number of tensors that it returns; 0 if it is not known."""
        if self.returns != "Tensor[]":
            return self.returns.count("Tensor")
        lists = re.findall(r"\breturn ?\{((?:[^{};()]|\((?:[^()]|\([^()]*\))*\))*)\}", self.body)
        counts = {len(re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", each).split(",")) for each in lists}
        every = len(lists) == len(_RETURN.findall(self.body))
        return counts.pop() if every and len(counts) == 1 else 0

    @property
    def results(self) -> list[str]:
        """The names of the variables that it returns, if each `return` has the same ones; else empty."""
        every = {re.sub(r"^(?:std::make_tuple ?)?[({] ?| ?[)}]$", "", each) for each in _RETURN.findall(self.body)}
        names = every.pop().replace(" ", "").split(",") if len(every) == 1 else []
        return names if len(names) == self.count and all(map(str.isidentifier, names)) else []


def _of_aten(parameters: Sequence[str]) -> str:
    return re.sub(rf"(?<![\w:]){_TENSOR.pattern}\b", "at::Tensor", ", ".join(parameters))


def without_comments(text: str) -> str:
    """Return C++ code without comments."""
    return _COMMENT_OR_STRING.sub(lambda found: " " if found[0][0] == "/" else found[0], text)


def plain_code(text: str) -> str:
    """Return C++ code without comments, without preprocessor lines, and with empty strings."""
    plain = _COMMENT_OR_STRING.sub(lambda found: " " if found[0][0] == "/" else '""', text)
    return _DIRECTIVE.sub("", plain)


def has_cpu_branch(code: str) -> bool:
    """Whether plain code in one line has a branch for one device that does not end in an error on the other."""
    return bool(_BRANCH.search(code) and not _ELSE_ERROR.search(code))


def ops_of(functions: Sequence[Function]) -> list[Function]:
    """The functions that become ops, each with its kernel for the CPU.

    A function that chooses by the device of its tensors is the kernel for both; NAME_cpu is that of NAME or NAME_cuda,
    with parameters of the same types. NAME calls its helpers NAME_cuda and NAME_cpu, which become no ops of their own.
    """
    named, ops = {each.name: each for each in functions}, list[Function]()
    for function in functions:
        base, _, device = function.name.rpartition("_")
        if device in ("cuda", "cpu") and (base in named or (device == "cpu" and f"{base}_cuda" in named)):
            continue
        other = named.get(f"{function.name.removesuffix('_cuda')}_cpu")
        cpu = function if has_cpu_branch(function.body) else other if other and other.kinds == function.kinds else None
        ops.append(replace(function, cpu=cpu))
    return ops


def read_functions(text: str) -> tuple[list[Function], list[str]]:
    """Return the functions that become ops, and why others do not; a refused one that an op calls is left out."""
    functions: dict[str, Function] = {}
    refused: dict[str, str] = {}
    for space, header, body in _definitions(plain_code(text)):
        found = _HEADER.fullmatch(header)
        if not found or found["before"].strip().endswith(":") or re.search(r"__(?:global|device)__", found["before"]):
            continue  # no function of the file's own scope, or device code
        parts = [" ".join(part.split()) for part in found["listed"].split(",") if part.strip()]
        name, returned = found["name"], _returned(found["before"])
        parameters = [_parameter(part, may_write=returned == "void") for part in parts]
        reason = _why_not(found["before"], parts, parameters, space)
        if name in functions:
            reason = "a function before it has the same name"
        if reason:
            refused.setdefault(name, reason)
            continue
        known = _with_defaults([each for each in parameters if each])
        result = _result_of(returned)
        functions[name] = Function(name, _schema(name, known, result), tuple(known), result, " ".join(body.split()))
    words = ((word, caller) for caller, each in functions.items() for word in re.findall(r"\w+", each.body))
    called = {word: caller for word, caller in words if word != caller}
    helpers = {name for name, each in functions.items() if each.returns == "()" and name in called}
    reasons = [f"{name}: {why}" for name, why in refused.items() if name not in called]
    reasons += [f"{name}: it returns `void`, and {called[name]} calls it" for name in sorted(helpers)]
    return [each for name, each in functions.items() if name not in helpers], reasons


def defined_ops(text: str) -> list[Function]:
    """The ops whose schemas the code gives to `m.def`, as functions without code."""
    defined = re.findall(r'\bm\.def\(\s*((?:"[^"]*"\s*)+)', without_comments(text))
    found = [_SCHEMA.fullmatch("".join(re.findall(r'"([^"]*)"', each)).strip()) for each in defined]
    return [_of_schema(each) for each in found if each]


def _of_schema(schema: re.Match[str]) -> Function:
    parts = [part.strip().rpartition(" ") for part in schema["listed"].split(",") if part.strip() not in ("", "*")]
    kinds = {"Tensor": "tensor", "SymInt": "int"}
    parameters = tuple(
        HostParameter(
            "output" if "!" in kind else kinds.get(kind, kind), name.partition("=")[0], default=name.partition("=")[2]
        )
        for kind, _, name in parts
    )
    return Function(schema["name"], schema[0], parameters, re.sub(r"(Tensor) \w+", r"\1", schema["returned"]))


def _schema(name: str, parameters: Iterable[HostParameter], result: str) -> str:
    """The schema of an op. Each tensor that it writes to has an alias of its own."""
    listed, aliases = [], iter(ascii_lowercase)
    for each in parameters:
        text = f"Tensor({next(aliases)}!)" if each.kind == "output" else each.kind.replace("tensor", "Tensor")
        listed.append(f"{text} {each.with_default}")
    return f"{name}({', '.join(listed)}) -> {result}"


def _with_defaults(parameters: list[HostParameter]) -> list[HostParameter]:
    """The parameters with the defaults that a schema can have: after one with a default, every parameter has one."""
    last = next((at for at in reversed(range(len(parameters))) if not _literal(parameters[at])), -1)
    return [replace(each, default=_literal(each) if at > last else "") for at, each in enumerate(parameters)]


def _literal(parameter: HostParameter) -> str:
    """The default of C++ as in Python; empty for one that is no number and no bool."""
    kind, text = parameter.kind, parameter.default
    if kind == "bool":
        return {"true": "True", "false": "False"}.get(text, "")
    pattern = {"int": r"-?\d+", "float": r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?"}.get(kind)
    if pattern is None or not re.fullmatch(pattern, text):
        return ""
    return repr(float(text.rstrip("fF"))) if kind == "float" else str(int(text))


def _definitions(code: str) -> Iterator[tuple[str, str, str]]:
    """Yield the namespace, the header and the body of everything with a body that is not inside another body."""
    scopes: list[str] = []
    start = at = 0
    while at < len(code):
        if code[at] == "{":
            header = " ".join(code[start:at].split())
            if scope := _SCOPE.fullmatch(header):
                scopes.append(scope[1] or "")
            else:
                end = _end_of_body(code, at)
                yield "::".join(filter(None, scopes)), header, code[at + 1 : end]
                at = end
        elif code[at] == "}" and scopes:
            scopes.pop()
        if code[at : at + 1] in ("{", "}", ";"):
            start = at + 1
        at += 1


def _end_of_body(code: str, start: int) -> int:
    depth = 0
    for found in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return found.start()
    return len(code)


def _returned(before: str) -> str:
    return " ".join(_SPECIFIER.sub("", _TEMPLATE.sub("", before)).split())


def _result_of(returned: str) -> str:
    """The C++ type that a function returns, as in a schema; empty if no schema has it."""
    if returned == "void":
        return "()"
    if _TENSORS.fullmatch(returned):
        return "Tensor[]" if "vector" in returned else f"({', '.join(['Tensor'] * (returned.count(',') + 1))})"
    return "Tensor" if _TENSOR.fullmatch(returned) else ""


def _parameter(text: str, *, may_write: bool) -> HostParameter | None:
    """One parameter, with its default in C++; None for a type that no op can have."""
    declared, _, default = (part.strip() for part in text.partition("="))
    found = re.fullmatch(r"(?:const )?(?:std::)?((?:unsigned |long )?[\w:]+) ?(?:const )?&? ?(\w+)", declared)
    if not found:
        return None
    written = may_write and _WRITTEN.fullmatch(text)
    narrow = _NARROW.get(found[1], "")
    kind = "output" if written else "tensor" if _TENSOR.fullmatch(found[1]) else _TYPES.get(found[1]) or narrow
    if not kind or (kind not in ("tensor", "output") and "&" in text and "const" not in text):
        return None  # also a number that the function writes to
    return HostParameter(kind, found[2], declared, default, found[1] if narrow else "")


def _why_not(before: str, parts: Sequence[str], parameters: Sequence[HostParameter | None], space: str) -> str:
    returned = _returned(before)
    if not _result_of(returned):
        return f"it returns `{returned}`; only a function that returns tensors or `void` becomes an op"
    for part, parameter in zip(parts, parameters, strict=True):
        if parameter is None:
            return f"the parameter `{part}` has no equivalent in the schema of an op; an op takes {_ACCEPTED}"
    kinds = {parameter.kind for parameter in parameters if parameter}
    if not kinds & {"tensor", "output"}:
        return "it has no tensor as parameter"
    if returned == "void" and "output" not in kinds:
        return "it returns `void` and has no parameter `Tensor&`; use `Tensor&` for each tensor that it writes to"
    if _TEMPLATE.search(before):
        return "it is a template"
    if word := re.search(r"\b(static|inline)\b", before):
        return f"it is {word[1]}; remove `{word[1]}` to make it an op"
    return f"it is in the namespace {space}" if space else ""
