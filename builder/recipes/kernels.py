"""Kernels of one CUDA file, read from its text, and their signatures as ops of torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder.recipes.host_functions import op_schema, plain_code, without_comments

_KERNEL = re.compile(
    r"(?:template\s*<\s*(?:typename|class)\s+(\w+)\s*>\s*)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?"
    r"void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{"
)
#: A launch: `kernel<float, 8><<<`, or `cudaLaunchKernel(kernel`. The arguments of a template may have arguments too.
_LAUNCH = (
    r"\b{name}\s*(?:<(?:[^<>;{{}}]|<(?:[^<>;{{}}]|<[^<>;{{}}]*>)*>)*>\s*)?<<<|\bcudaLaunch\w+\s*\([^;]*?\b{name}\b"
)
_DTYPES = {
    "float": "kFloat", "double": "kDouble", "int": "kInt", "int32_t": "kInt", "int64_t": "kLong", "long": "kLong",
    "uint8_t": "kByte", "unsigned char": "kByte", "int8_t": "kChar", "int16_t": "kShort", "bool": "kBool",
}  # fmt: skip
_INTEGERS = {"int", "int32_t", "int64_t", "long", "size_t", "unsigned", "unsigned int", "uint32_t", "short"}
_FLOATS = {"float", "double"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: its name.
        type: the type of its value, or of the elements that it points to.
        kind: `tensor`, `output` (a pointer that the kernel may write), `int`, `float` or `bool`.
        dtype: the dtype of a tensor in ATen, or empty for the parameter of a template.

    """

    name: str
    type: str
    kind: str
    dtype: str = ""

    @property
    def cpp(self) -> str:
        """The parameter of the op's C++ function."""
        types = {"int": "int64_t", "float": "double", "bool": "bool"}
        return f"{types.get(self.kind, 'const at::Tensor&')} {self.name}"

    @property
    def unsigned(self) -> bool:
        """Whether it is an integer without negative values."""
        return self.type == "size_t" or self.type.startswith("u")

    @property
    def argument(self) -> str:
        """What the op passes to the kernel."""
        if self.kind == "tensor":
            return f"{self.name}.const_data_ptr<{self.type}>()"
        if self.kind == "output":
            return f"{self.name}.mutable_data_ptr<{self.type}>()"
        return f"static_cast<{self.type}>({self.name})"


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be launched with tensors and numbers; `template` is its type parameter, or empty."""

    name: str
    parameters: tuple[Parameter, ...]
    template: str

    @property
    def tensors(self) -> list[Parameter]:
        """The parameters that are tensors."""
        return [each for each in self.parameters if each.kind in ("tensor", "output")]

    @property
    def integers(self) -> list[Parameter]:
        """The parameters that are integers."""
        return [each for each in self.parameters if each.kind == "int"]

    @property
    def counted(self) -> str:
        """The tensor whose elements are counted for the launch: the last that the kernel writes."""
        return next(each for each in reversed(self.tensors) if each.kind == "output").name

    @property
    def schema(self) -> str:
        """The schema of the op."""
        return op_schema(self.name, [(each.kind, each.name) for each in self.parameters], "()")


def read_kernels(text: str) -> tuple[list[Kernel], list[str]]:
    """Return the kernels that an op can launch, and a sentence for each that it cannot.

    A kernel that the file itself launches is refused: only the file knows for how many threads the kernel is made.
    """
    kernels, refused, code = [], [], without_comments(text)
    for template, name, listed in _KERNEL.findall(plain_code(text)):
        parameters = [_parameter(part, template) for part in _split(listed)]
        known = [each for each in parameters if each]
        if re.search(_LAUNCH.format(name=name), code):
            refused.append(f"{name}: the file launches it; make the function that launches it an op")
        elif len(known) != len(parameters):
            unknown = next(part for part, each in zip(_split(listed), parameters, strict=True) if each is None)
            refused.append(f"{name}: the parameter `{unknown}` has no equivalent in torch")
        elif not any(each.kind == "output" for each in known):
            refused.append(f"{name}: no parameter is a pointer that the kernel can write")
        else:
            kernels.append(Kernel(name, tuple(known), template))
    return kernels, refused


def _split(listed: str) -> list[str]:
    return [" ".join(part.split()) for part in listed.split(",") if part.strip()]


def _parameter(text: str, template: str) -> Parameter | None:
    cleaned = re.sub(r"\b(?:__restrict__|__restrict|restrict|volatile)\b", " ", text)
    pointer = re.fullmatch(r"\s*(const\s+)?([\w ]+?)\s*(const\s*)?\*\s*(?:const\s+)?(\w+)\s*", cleaned)
    if pointer:
        kind, dtype = "tensor" if pointer[1] or pointer[3] else "output", _DTYPES.get(pointer[2], "")
        known = dtype or pointer[2] == template
        return Parameter(pointer[4], pointer[2], kind, dtype) if known else None
    value = re.fullmatch(r"\s*(?:const\s+)?([\w ]+?)\s+(\w+)\s*", cleaned)
    if value is None:
        return None
    kinds = [("bool", {"bool"}), ("int", _INTEGERS), ("float", _FLOATS | {template} - {""})]
    known_kind = next((kind for kind, types in kinds if value[1] in types), None)
    return Parameter(value[2], value[1], known_kind) if known_kind else None
