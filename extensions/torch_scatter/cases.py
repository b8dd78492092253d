"""The official API of torch-scatter 2.1.2 and every op it registers, against reductions by group in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make
from references import groups

PUBLIC = ["torch_scatter"]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
NUMBERS = (*FLOATS, torch.int64, torch.int32, torch.uint8)
#: Upstream adds up in the dtype itself, so a 16-bit sum is rounded once for each member.
TOLERANCES = {torch.float16: (4e-3, 4e-3), torch.bfloat16: (3e-2, 4e-2)}

NO_FAKE = "upstream registers no fake kernel: its catch-all kernel asks the fake tensor for its data and stops there"
UNTRACED = {check: NO_FAKE for check in ("opcheck", "fake", "devices", "export", "compile")}
#: Faults of 2.1.2 that running it on the CPU brought to light.
NO_ROW_BACKWARD = "the gradient of an empty input ends the process: it is gather_coo with an empty index (SIGFPE)"
ZERO_FACTOR = "upstream's gradient of a product is 0 wherever the factor itself is 0, whatever the others are"
OUT_STRIDED = "upstream copies an `out` that is not contiguous, then torch misses the changed tensor among the results"
SIZE_FROM_DATA = "the size of the result is the largest index plus one: it cannot be known without the numbers"
ATOMICS = ("cpu",)  # upstream documents that scatter and segment_coo add up in no fixed order on CUDA


def numbers(make: Make, *shape: int) -> Tensor:
    """Distinct numbers, none of them zero, that every dtype holds exactly: multiples of 1/16, or 1, 2, 3 ..."""
    count = math.prod(shape)
    order = Make("cpu", torch.float64, seed=count).rand(count).argsort().double().reshape(shape)
    if not make.dtype.is_floating_point:
        return make.tensor(order + 1)
    return make.tensor((order - count // 2 + 0.5) / 8, grad=True)


@dataclass(frozen=True)
class Situation:
    """A tensor and its groups: the shape, the index or the bounds, the dimension, how many groups (None: not told)."""

    name: str
    shape: Sequence[int]
    index: Any
    dim: int = 0
    size: int | None = 4
    edge: str = ""

    def grouped(self, make: Make) -> tuple[Tensor, Tensor]:
        """The numbers and their index."""
        return numbers(make, *self.shape), make.integers(self.index)


#: For scatter: the index in any order; rows, columns, every element for itself.
SCATTERED = (
    Situation("groups of rows", (6, 5), (0, 3, 0, 1, 3, 3)),
    Situation("groups of columns", (2, 6), (3, 0, 0, 1, 3, 0), dim=-1),
    Situation("each element its own group", (2, 3), ((0, 2, 2), (1, 0, 2)), dim=1, size=3),
    Situation("size from the index", (6, 5), (0, 3, 0, 1, 3, 3), size=None),
    Situation("one row", (1, 3), (2,), edge="batch"),
    Situation("no row", (0, 3), (), edge="empty"),
    Situation("no column", (3, 0), (0, 1, 1), edge="empty"),
)
#: For segment_*_coo: the same, sorted, along the last dimension of the index.
SORTED = (
    Situation("groups of rows", (6, 5), (0, 0, 1, 3, 3, 3)),
    Situation("two batches", (2, 4, 3), ((0, 0, 1, 1), (0, 2, 2, 2)), dim=1, size=3),
    Situation("size from the index", (6, 5), (0, 0, 1, 3, 3, 3), size=None),
    Situation("one row", (1, 3), (2,), edge="batch"),
    Situation("no row", (0, 3), (), edge="empty"),
    Situation("no column", (3, 0), (0, 1, 1), edge="empty"),
)
#: For segment_csr and gather_csr: bounds instead of an index.
BOUNDED = (
    Situation("groups of rows", (6, 5), (0, 2, 2, 3, 6)),
    Situation("two batches", (2, 4, 3), ((0, 1, 4), (0, 3, 4)), dim=1),
    Situation("one row", (1, 3), (0, 0, 1), edge="batch"),
    Situation("no row", (0, 3), (0, 0, 0), edge="empty"),
    Situation("no column", (3, 0), (0, 1, 3), edge="empty"),
)


def scatter_inputs(situation: Situation) -> Callable[[Make], Sequence[Any]]:
    """(src, index, dim, out, dim_size)."""
    return lambda make: (*situation.grouped(make), situation.dim, None, situation.size)


def segment_inputs(situation: Situation) -> Callable[[Make], Sequence[Any]]:
    """(src, index, out, dim_size)."""
    return lambda make: (*situation.grouped(make), None, situation.size)


def bounded_inputs(situation: Situation) -> Callable[[Make], Sequence[Any]]:
    """(src, indptr, out)."""
    return lambda make: (*situation.grouped(make), None)


def scatter_reference(reduce: str) -> Callable[..., Any]:
    """What scatter_<reduce> answers."""

    def expected(src: Tensor, index: Tensor, dim: int, out: None = None, size: int | None = None) -> Any:
        dim %= src.dim()
        return groups.reduced(src, groups.members_of_index(index, src, dim, size), dim, reduce)

    return expected


def segment_reference(reduce: str) -> Callable[..., Any]:
    """What segment_<reduce>_coo answers."""

    def expected(src: Tensor, index: Tensor, out: None = None, size: int | None = None) -> Any:
        dim = index.dim() - 1
        return groups.reduced(src, groups.members_of_index(index, src, dim, size), dim, reduce)

    return expected


def bounded_reference(reduce: str) -> Callable[..., Any]:
    """What segment_<reduce>_csr answers."""

    def expected(src: Tensor, indptr: Tensor, out: None = None) -> Any:
        return groups.reduced(src, groups.members_of_pointers(indptr, src), indptr.dim() - 1, reduce)

    return expected


def product_of_nothing(src: Tensor, index: Tensor, dim: int, out: None = None, size: int | None = None) -> Tensor:
    """scatter_mul of an empty input answers 0; a group without members answers 1 as soon as there is any number."""
    answer = scatter_reference("mul")(src, index, dim, out, size)
    return answer * 0 if src.numel() == 0 else answer


def values_of(reference: Callable[..., Any]) -> Callable[..., Any]:
    """`scatter(reduce=...)` and its sisters answer no places."""

    def expected(*args: Any, reduce: str) -> Tensor:  # noqa: ARG001
        answer = reference(*args)
        return answer[0] if isinstance(answer, tuple) else answer

    return expected


@dataclass(frozen=True)
class Family:
    """Ops that differ in the reduction alone.

    Attributes:
        pattern: the name, with a place for the reduction.
        chooser: the function that takes the reduction as an argument.
        situations: what the ops are called with; the functions around them get the first and an empty one.
        inputs: a situation to the positional arguments.
        reference: a reduction to the reference.
        reductions: those it knows; "add" is another name of "sum", in Python alone.
        deterministic: devices that add up in a fixed order.
        traced: reductions whose Python function is made of torch's own ops.

    """

    pattern: str
    chooser: str
    situations: Sequence[Situation]
    inputs: Callable[[Situation], Callable[[Make], Sequence[Any]]]
    reference: Callable[[str], Callable[..., Any]]
    reductions: Sequence[str]
    deterministic: Sequence[str]
    traced: Sequence[str] = ()

    def cases(self) -> Iterator[Case]:
        """Each op, the function of the same name, and the function that takes the reduction."""
        usual, empty = self.situations[0], next(one for one in self.situations if one.edge == "empty")
        for reduce in self.reductions:
            name = self.pattern.format(reduce)
            expected = product_of_nothing if name == "scatter_mul" else self.reference(reduce)
            yield from self._cases(f"torch_scatter::{name}", reduce, expected, self.situations)
            yield from self._cases(f"torch_scatter.{name}", reduce, expected, [usual, empty])
            yield from self._cases(self.chooser, reduce, values_of(expected), [usual], chosen=reduce)
        total = self.reference("sum")
        yield from self._cases(f"torch_scatter.{self.pattern.format('add')}", "sum", total, [usual, empty])
        yield from self._cases(self.chooser, "sum", values_of(total), [usual, empty], chosen="add")

    def _cases(
        self,
        op: str,
        reduce: str,
        expected: Callable[..., Any],
        situations: Sequence[Situation],
        chosen: str = "",
    ) -> Iterator[Case]:
        for situation in situations:
            not_claimed = dict(UNTRACED) if "::" in op or reduce not in self.traced else {}
            if situation.size is None:
                untold = ("fake", "devices", "export", "compile", "gpu-graph")
                not_claimed |= {check: SIZE_FROM_DATA for check in untold if check not in not_claimed}
            if self.pattern == "segment_{}_coo" and situation.name == "no row" and reduce in {"sum", "mean"}:
                not_claimed["gradients"] = NO_ROW_BACKWARD
            yield Case(
                op=op,
                name=f"{chosen}, {situation.name}" if chosen else situation.name,
                inputs=self.inputs(situation),
                kwargs={"reduce": chosen} if chosen else {},
                reference=expected,
                dtypes=NUMBERS,
                tolerances=TOLERANCES,
                gradcheck="gradients" not in not_claimed,
                edge=situation.edge,
                deterministic=self.deterministic,
                not_claimed=not_claimed,
            )


FAMILIES = (
    Family(
        "scatter_{}",
        "torch_scatter.scatter",
        SCATTERED,
        scatter_inputs,
        scatter_reference,
        ("sum", "mul", "mean", "min", "max"),
        ATOMICS,
        traced=("sum", "mean"),
    ),
    Family(
        "segment_{}_coo",
        "torch_scatter.segment_coo",
        SORTED,
        segment_inputs,
        segment_reference,
        ("sum", "mean", "min", "max"),
        ATOMICS,
    ),
    Family(
        "segment_{}_csr",
        "torch_scatter.segment_csr",
        BOUNDED,
        bounded_inputs,
        bounded_reference,
        ("sum", "mean", "min", "max"),
        ("cpu", "cuda"),
    ),
)

CASES = [case for family in FAMILIES for case in family.cases()]
CASES += [
    Case(
        op=f"torch_scatter{mark}scatter_mul",
        name="a zero among the factors",
        inputs=lambda make: (make.tensor([[2, 3], [0, 5], [4, 6]], grad=True), make.integers([0, 0, 1]), 0, None, 2),
        reference=scatter_reference("mul"),
        dtypes=FLOATS,
        deterministic=ATOMICS,
        not_claimed={**UNTRACED, "gradients": ZERO_FACTOR},
    )
    for mark in ("::", ".")
]


def into(kind: str, out: Sequence[Any]) -> Callable[[Make], Sequence[Any]]:
    """Three numbers in two groups, added to what `out` holds already; where that argument stands depends on the op."""

    def made(make: Make) -> Sequence[Any]:
        src, target = make.tensor([1, 2, 3], grad=make.dtype.is_floating_point), make.tensor(out)
        if kind == "scatter":
            return src, make.integers([1, 0, 1]), 0, target, None
        if kind == "coo":
            return src, make.integers([0, 1, 1]), target, None
        return src, make.integers([0, 1, 3]), target

    return made


def sums_into(kind: str) -> Callable[..., Tensor]:
    """scatter and segment_coo add to `out`; segment_csr, as documented for no other, overwrites it."""

    def expected(src: Tensor, index: Tensor, *rest: Any) -> Tensor:
        out = next(one for one in rest if isinstance(one, Tensor))
        members = groups.members_of_pointers(index, src) if kind == "csr" else groups.members_of_index(index, src, 0, 2)
        found = groups.reduced(src, members, 0, "sum")
        return found if kind == "csr" else out + found

    return expected


CASES += [
    Case(
        op=op,
        name="into a tensor of the caller's",
        inputs=into(kind, [10, 20]),
        reference=sums_into(kind),
        dtypes=NUMBERS,
        mutates=(3 if kind == "scatter" else 2,),
        deterministic=ATOMICS,
        not_claimed={**UNTRACED, "layouts": OUT_STRIDED},
    )
    for op, kind in (
        ("torch_scatter::scatter_sum", "scatter"),
        ("torch_scatter::segment_sum_coo", "coo"),
        ("torch_scatter::segment_sum_csr", "csr"),
        ("torch_scatter.scatter", "scatter"),
        ("torch_scatter.segment_coo", "coo"),
        ("torch_scatter.segment_csr", "csr"),
    )
]

#: For gather_coo and gather_csr: shape of the groups, then the sorted group of each row, or the bounds of each group.
GATHERED = {
    "coo": (
        Situation("rows of groups", (4, 5), (0, 0, 1, 3, 3)),
        Situation("two batches", (2, 3, 2), ((0, 0, 1, 1), (0, 2, 2, 2))),
        Situation("one row", (1, 3), (0,), edge="batch"),
        Situation("no column", (3, 0), (0, 1, 1), edge="empty"),
        Situation("no row", (4, 3), (), edge="empty"),
    ),
    "csr": (
        Situation("rows of groups", (4, 5), (0, 2, 3, 3, 6)),
        Situation("two batches", (2, 2, 3), ((0, 1, 4), (0, 3, 4))),
        Situation("one row", (1, 3), (0, 1), edge="batch"),
        Situation("no column", (2, 0), (0, 1, 3), edge="empty"),
        Situation("no row", (2, 3), (0, 0, 0), edge="empty"),
    ),
}


def gather_reference(kind: str) -> Callable[..., Tensor]:
    """What gather_<kind> answers."""

    def expected(src: Tensor, index: Tensor, out: None = None) -> Tensor:
        rows = index if kind == "coo" else groups.index_of_pointers(index)
        return groups.gathered(src, rows, index.dim() - 1)

    return expected


#: The checks that meet a fault of upstream's gather_*, and the fault.
_CALLED = ("edges", "gradients", "memory", "gpu-values")
GATHER_FAULTS = {
    ("coo", "no row"): (_CALLED, "an empty index ends the process: upstream's kernel divides by zero (SIGFPE)"),
    ("csr", "no column"): (_CALLED, "upstream answers no rows where the bounds ask for rows of no columns"),
    ("csr", "no row"): (_CALLED[1:3], "upstream leaves the gradient uninitialised where no row was gathered"),
}


def gather_cases(kind: str) -> Iterator[Case]:
    """The op and the function of the same name."""
    for mark in ("::", "."):
        for situation in GATHERED[kind] if mark == "::" else GATHERED[kind][:1]:
            checks, fault = GATHER_FAULTS.get((kind, situation.name), ((), ""))
            yield Case(
                op=f"torch_scatter{mark}gather_{kind}",
                name=situation.name,
                inputs=bounded_inputs(situation),
                reference=gather_reference(kind),
                dtypes=NUMBERS,
                tolerances=TOLERANCES,
                gradcheck=not checks,
                edge=situation.edge,
                # Its gradient is segment_sum, which for coo adds up in no fixed order on CUDA.
                deterministic=ATOMICS if kind == "coo" else ("cpu", "cuda"),
                not_claimed={**UNTRACED, **{check: fault for check in checks}},
            )


CASES += [case for kind in GATHERED for case in gather_cases(kind)]

#: Every group has two members or none: the deviation of one number has no gradient.
COMPOSED = (
    Situation("groups of rows", (6, 5), (0, 3, 0, 1, 3, 1)),
    Situation("groups of columns", (2, 6), (3, 0, 0, 1, 3, 1), dim=-1),
    Situation("size from the index", (4, 2), (0, 1, 0, 1), size=None),
    Situation("no column", (4, 0), (0, 1, 0, 1), edge="empty"),
    Situation("no row", (0, 3), (), edge="empty"),
)


def composite(name: str, reference: Callable[..., Tensor], order: Callable[..., Sequence[Any]]) -> Iterator[Case]:
    """A function made of several ops; `order` puts (dim, size) where its signature has them."""
    for situation in COMPOSED:

        def inputs(make: Make, situation: Situation = situation) -> Sequence[Any]:
            return (*situation.grouped(make), *order(situation.dim, situation.size))

        def expected(src: Tensor, index: Tensor, *_: Any, situation: Situation = situation) -> Tensor:
            return reference(src, index, situation.dim % src.dim(), situation.size)

        not_claimed = {} if name == "scatter_std" else dict(UNTRACED)
        if situation.size is None:
            untold = ("fake", "devices", "export", "compile", "gpu-graph")
            not_claimed |= {check: SIZE_FROM_DATA for check in untold if check not in not_claimed}
        yield Case(
            op=f"torch_scatter.{name}",
            name=situation.name,
            inputs=inputs,
            reference=expected,
            dtypes=FLOATS,
            tolerances=TOLERANCES,
            gradcheck=True,
            edge=situation.edge,
            deterministic=ATOMICS,
            not_claimed=not_claimed,
        )


def softmax(*args: Any) -> Tensor:
    """Within each group."""
    return groups.log_softmax(*args).exp()


CASES += composite("scatter_std", groups.deviation, lambda dim, size: (dim, None, size))
CASES += composite("scatter_logsumexp", groups.log_sum_exp, lambda dim, size: (dim, None, size))
CASES += composite("scatter_softmax", softmax, lambda dim, size: (dim, size))
CASES += composite("scatter_log_softmax", groups.log_softmax, lambda dim, size: (dim, 1e-12, size))


def built_for_this_cuda(version: int) -> None:
    """-1 for a CPU build, else 1000 times the major version of the CUDA it was built with, and a little."""
    running = torch.version.cuda
    expected = {-1} if running is None else {-1, int(running.split(".")[0])}
    said = version if version < 0 else version // 1000
    assert said in expected, f"built with CUDA {version}, beside torch's CUDA {running}"


CASES.append(
    Case(
        op="torch_scatter::cuda_version",
        inputs=lambda _: (),
        invariant=built_for_this_cuda,
        devices=("cpu",),
        not_claimed={check: "it takes no tensors" for check in ("opcheck", "fake", "devices", "export", "compile")},
    )
)
