"""Host functions of C++ and CUDA files, read from their text: which become ops, and why the others do not."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
_IN_SCHEMA = {"int": "int64_t", "float": "double"}
#: What a function may take to become an op.
ACCEPTED = "`torch::Tensor`, `double`, `float`, `bool` and integers"
#: An expression that makes a tensor with the shape, dtype and device of another one.
_LIKE = (
    (re.compile(r"(?:at|torch)::(?:empty|zeros|ones)_like\( ?(\w+) ?\)|(\w+)\.clone\(\)"), False),
    (re.compile(r"(?:at|torch)::(?:empty|zeros|ones)\( ?(\w+)\.sizes\(\), ?\1\.options\(\) ?\)"), True),
)


@dataclass(frozen=True)
class Function:
    """A host function that becomes an op."""

    #: Its name.
    name: str
    #: Of the op.
    schema: str
    #: Its parameters as in Python: names, with their defaults.
    parameters: tuple[str, ...]
    #: Those of its tensors.
    tensors: tuple[str, ...]
    #: A Python expression for a tensor like the result, without its numbers; empty if it is not known.
    result: str = ""
    #: The names of the tensors that it writes to; empty if it returns tensors.
    written: tuple[str, ...] = ()
    #: What it returns, as in the schema: `Tensor`, `Tensor[]`, `(Tensor, Tensor)` or `()`.
    returns: str = "Tensor"
    #: The parameters whose default is no number and no bool, or stands before such a parameter.
    lost: tuple[str, ...] = ()
    #: The kinds of its parameters (see `op_schema`).
    kinds: tuple[str, ...] = ()
    #: Its parameters in C++, without defaults.
    declared: tuple[str, ...] = ()
    #: Their names in C++.
    arguments: tuple[str, ...] = ()
    #: The types of its numbers that TORCH_LIBRARY does not take, by the position of the parameter.
    narrow: Mapping[int, str] = field(default_factory=dict)
    #: Its code in one line.
    body: str = ""

    @property
    def fake(self) -> bool:
        """Whether the fake kernel of its op is known: the op returns nothing, or its result is like a parameter."""
        return bool(self.result) or self.returns == "()"

    @property
    def returned(self) -> str:
        """What it returns in C++."""
        types = {"()": "void", "Tensor": "at::Tensor", "Tensor[]": "std::vector<at::Tensor>"}
        return types.get(self.returns, f"std::tuple<{self.returns.strip('()').replace('Tensor', 'at::Tensor')}>")

    @property
    def declaration(self) -> str:
        """Its declaration for a file that includes ATen only."""
        return f"{self.returned} {self.name}({_of_aten(self.declared)});"

    @property
    def op_parameters(self) -> str:
        """The parameters of its op in C++, in the types of TORCH_LIBRARY."""
        parts = enumerate(zip(self.declared, self.arguments, strict=True))
        return _of_aten(
            [f"{_IN_SCHEMA[self.kinds[at]]} {name}" if at in self.narrow else part for at, (part, name) in parts]
        )

    @property
    def narrows_integers(self) -> bool:
        """Whether it takes integers that must be in the range of a smaller type."""
        return any(self.kinds[at] == "int" for at in self.narrow)

    def call(self, names: Sequence[str]) -> str:
        """The call of the function in C++ with arguments of these names, in the types of TORCH_LIBRARY."""
        given = list(names)
        for at, kind in self.narrow.items():
            cast = f'narrow_to<{kind}>({names[at]}, "{names[at]}")'
            given[at] = cast if self.kinds[at] == "int" else f"static_cast<{kind}>({names[at]})"
        return f"{self.name}({', '.join(given)})"

    @property
    def count(self) -> int:
        """The number of tensors that it returns; 0 if it is not known."""
        if self.returns != "Tensor[]":
            return self.returns.count("Tensor")
        lists = re.findall(r"\breturn ?\{((?:[^{};()]|\((?:[^()]|\([^()]*\))*\))*)\}", self.body)
        counts = {len(re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", each).split(",")) for each in lists}
        every = len(lists) == len(re.findall(r"\breturn\b", self.body))
        return counts.pop() if every and len(counts) == 1 else 0


def _of_aten(parameters: Sequence[str]) -> str:
    return re.sub(rf"(?<![\w:]){_TENSOR.pattern}\b", "at::Tensor", ", ".join(parameters))


def without_comments(text: str) -> str:
    """Return C++ code without comments."""
    return _COMMENT_OR_STRING.sub(lambda found: " " if found[0][0] == "/" else found[0], text)


def plain_code(text: str) -> str:
    """Return C++ code without comments, without preprocessor lines, and with empty strings."""
    plain = _COMMENT_OR_STRING.sub(lambda found: " " if found[0][0] == "/" else '""', text)
    return _DIRECTIVE.sub("", plain)


def schema_name(name: str) -> str:
    """Return the name of a C++ parameter for a schema and for Python: in both, names such as `in` are keywords."""
    return f"{name}_" if keyword.iskeyword(name) else name


def op_schema(
    name: str, parameters: Iterable[tuple[str, str]], result: str, defaults: Mapping[str, str] | None = None
) -> str:
    """Return the schema of an op from the kinds and the names of its parameters.

    A kind is `tensor`, `output` (a tensor that the op writes to), or a kind of the schema, such as `int`. Each output
    has an alias of its own. `defaults` are the values of the last parameters, by name.
    """
    listed, aliases = [], iter(ascii_lowercase)
    for kind, each in parameters:
        text = f"Tensor({next(aliases)}!)" if kind == "output" else kind.replace("tensor", "Tensor")
        listed.append(f"{text} {_with_default(each, defaults or {})}")
    return f"{name}({', '.join(listed)}) -> {result}"


def _with_default(name: str, defaults: Mapping[str, str]) -> str:
    return f"{schema_name(name)}={defaults[name]}" if name in defaults else schema_name(name)


def read_functions(text: str) -> tuple[list[Function], list[str]]:
    """Return the functions that become ops, and a sentence for each other host function that none of them calls."""
    functions: dict[str, Function] = {}
    refused: dict[str, str] = {}
    for space, header, body in _definitions(plain_code(text)):
        found = _HEADER.fullmatch(header)
        if not found or found["before"].strip().endswith(":") or re.search(r"__(?:global|device)__", found["before"]):
            continue  # no function of the file's own scope, or device code
        parts = [" ".join(part.split()) for part in found["listed"].split(",") if part.strip()]
        name, returned = found["name"], _returned(found["before"])
        parameters = [_schema_of(part, may_write=returned == "void") for part in parts]
        reason = _why_not(found["before"], parts, parameters, space)
        if name in functions:
            reason = "a function before it has the same name"
        if reason:
            refused.setdefault(name, reason)
            continue
        functions[name] = _function(name, parts, [each for each in parameters if each], returned, body)
    called = {word for each in functions.values() for word in re.findall(r"\w+", each.body)} - functions.keys()
    return list(functions.values()), [f"{name}: {why}" for name, why in refused.items() if name not in called]


def defined_ops(text: str) -> list[Function]:
    """The ops whose schemas the code gives to `m.def`, as functions without code."""
    defined = re.findall(r'\bm\.def\(\s*((?:"[^"]*"\s*)+)', without_comments(text))
    found = [_SCHEMA.fullmatch("".join(re.findall(r'"([^"]*)"', each)).strip()) for each in defined]
    return [_of_schema(each) for each in found if each]


def _of_schema(schema: re.Match[str]) -> Function:
    parts = [part.strip().rpartition(" ") for part in schema["listed"].split(",") if part.strip() not in ("", "*")]
    names = tuple(name.partition("=")[0] for _, _, name in parts)
    kinds = tuple({"Tensor": "tensor", "SymInt": "int"}.get(kind, kind) for kind, _, _ in parts)
    written = tuple(name for name, kind in zip(names, kinds, strict=True) if "!" in kind)
    returned = re.sub(r"(Tensor) \w+", r"\1", schema["returned"])
    return Function(
        schema["name"], schema[0], names, (), written=written, returns=returned, kinds=kinds, arguments=names
    )


def _function(name: str, parts: Sequence[str], known: Sequence[tuple[str, str]], returned: str, body: str) -> Function:
    defaults, lost = _defaults(parts, known)
    tensors = [each for kind, each in known if kind in ("tensor", "output")]
    result, line = _result_of(returned), " ".join(body.split())
    return Function(
        name,
        op_schema(name, known, result, defaults),
        tuple(_with_default(each, defaults) for _, each in known),
        tuple(map(schema_name, tensors)),
        "" if result != "Tensor" else _result(line, tensors, f"{name.removesuffix('_cuda')}_cpu"),
        tuple(schema_name(each) for kind, each in known if kind == "output"),
        result,
        lost,
        tuple(kind for kind, _ in known),
        tuple(part.partition("=")[0].strip() for part in parts),
        tuple(each for _, each in known),
        {at: kind for at, part in enumerate(parts) if (kind := _parameter(part)[0]) in _NARROW},
        line,
    )


def _defaults(parts: Sequence[str], known: Sequence[tuple[str, str]]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The defaults of the last parameters as in Python, and the other parameters with a default.

    In a schema as in C++, every parameter after one with a default has a default.
    """
    given = [(kind, name, part.partition("=")[2].strip()) for part, (kind, name) in zip(parts, known, strict=True)]
    defaults: dict[str, str] = {}
    while given and (value := _literal(*given[-1][::2])):
        defaults[given.pop()[1]] = value
    return defaults, tuple(schema_name(name) for _, name, text in given if text)


def _literal(kind: str, text: str) -> str:
    if kind == "bool":
        return {"true": "True", "false": "False"}.get(text, "")
    pattern = {"int": r"-?\d+", "float": r"(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?"}.get(kind)
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


def _schema_of(text: str, *, may_write: bool) -> tuple[str, str] | None:
    """The kind and the name of one parameter for `op_schema`; None for a type that no op can have."""
    declared, name = _parameter(text)
    kind = "tensor" if _TENSOR.fullmatch(declared) else _TYPES.get(declared) or _NARROW.get(declared)
    if may_write and _WRITTEN.fullmatch(text):
        kind = "output"
    if kind not in ("tensor", "output") and "&" in text and "const" not in text:
        return None  # the function writes to a number
    return (kind, name) if kind else None


def _parameter(text: str) -> tuple[str, str]:
    """The type and the name of a parameter, without `const`, `std::` and a default; two empty texts for others."""
    pattern = r"(?:const )?(?:std::)?((?:unsigned |long )?[\w:]+) ?(?:const )?&? ?(\w+)"
    found = re.fullmatch(pattern, text.partition("=")[0].strip())
    return (found[1], found[2]) if found else ("", "")


def _why_not(before: str, parts: Sequence[str], parameters: Sequence[tuple[str, str] | None], space: str) -> str:
    returned = _returned(before)
    if not _result_of(returned):
        return f"it returns `{returned}`; only a function that returns tensors or `void` becomes an op"
    for part, parameter in zip(parts, parameters, strict=True):
        if parameter is None:
            return f"the parameter `{part}` has no equivalent in the schema of an op; an op takes {ACCEPTED}"
    kinds = {parameter[0] for parameter in parameters if parameter}
    if not kinds & {"tensor", "output"}:
        return "it has no tensor as parameter"
    if returned == "void" and "output" not in kinds:
        return "it returns `void` and has no parameter `Tensor&`; use `Tensor&` for each tensor that it writes to"
    if _TEMPLATE.search(before):
        return "it is a template"
    if word := re.search(r"\b(static|inline)\b", before):
        return f"it is {word[1]}; remove `{word[1]}` to make it an op"
    return f"it is in the namespace {space}" if space else ""


def _result(body: str, tensors: Sequence[str], fallback: str) -> str:
    """The result of a function as a Python expression, if its body makes it like one of the parameters.

    What the function `fallback` returns has the shape of the other results.
    """
    returned = {value.strip() for value in re.findall(r"\breturn\b([^;]*);", body)} - {""}
    returned = {value for value in returned if not re.match(rf"{fallback}\b", value)}
    name = returned.pop() if len(returned) == 1 else ""
    made = _assigned(body, name) if name.isidentifier() else [name]
    for pattern, contiguous in _LIKE if len(made) == 1 else ():
        if found := pattern.fullmatch(made[0]):
            source = next(filter(None, found.groups()))
            before = _assigned(body, source)
            copied = re.fullmatch(r"(\w+)\.contiguous\(\)", before[0]) if len(before) == 1 else None
            origin = copied[1] if copied else source
            if origin in tensors and (copied or not before) and (origin == source or not _assigned(body, origin)):
                like = schema_name(origin)
                return f"{like}.new_empty({like}.shape)" if contiguous or copied else f"torch.empty_like({like})"
    return ""


def _assigned(body: str, name: str) -> list[str]:
    """Every expression that is assigned to a name, without the others of the same declaration."""
    found = re.findall(rf"(?<![\w.]){name} ?=(?!=) ?((?:[^;,()]|\((?:[^()]|\([^()]*\))*\))*)", body)
    return [each.strip() for each in found]
