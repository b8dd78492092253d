"""Joins the op of a forward to the op of its backward, if the names of their parameters show how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from builder.gate.imports.registration import backward_of
from builder.recipes.host_functions import Function

#: Names of the gradient of a result, and of a result itself.
_GRADIENT = re.compile(r"(?:\w*_)?grad(?:_?\w+)?|d_?(?:out(?:put)?|y|z|o)|g_?(?:out|y|o)?")
_RESULT = re.compile(r"out(?:put)?|result|res|y")
#: Names of tensors that have no gradient, because they hold integers or bools.
_NOT_FLOATING = re.compile(
    r"(?:\w*_)?(?:idx|ind(?:ex|ices|s)?|ids?|index\w*|offsets?|\w*ptr|labels?|targets?|mask|lengths?|batch|seq_?lens?)"
)


@dataclass(frozen=True)
class JoinedGradient:
    """How a backward gets its arguments, and for which inputs of the forward it returns gradients."""

    forward: Function
    backward: Function
    #: The arguments of the backward as Python expressions.
    arguments: tuple[str, ...]
    #: What the forward keeps for it: tensors, by name, and numbers.
    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    #: For each input of the forward, the index of its gradient, or None.
    returned: tuple[int | None, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs of the forward in Python."""
        return tuple(each.partition("=")[0] for each in self.forward.parameters)


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
    if forward.written or backward.written or not forward.count or not backward.count:
        return "it is not clear how many tensors the two return"
    if "*" in forward.schema:
        return "torch gives the parameters after `*` to another function"
    if forward.returns == "Tensor[]" and any("=" in each for each in forward.parameters):
        # Where a list is returned, torch (2.11) wants a gradient for each argument that the caller gave.
        return "torch joins no op that returns a list and has defaults (return a std::tuple)"
    inputs = dict(zip(_names(forward), forward.kinds, strict=True))
    arguments, tensors, numbers, grads = list[str](), list[str](), list[str](), 0
    for name, kind in zip(_names(backward), backward.kinds, strict=True):
        if inputs.get(name) == kind:
            (tensors if kind == "tensor" else numbers).append(name)
            arguments.append(name if kind == "tensor" else f"ctx.{name}")
        elif kind == "tensor" and grads < forward.count and _GRADIENT.fullmatch(name):
            arguments.append(f"grads[{grads}].contiguous()")
            grads += 1
        elif kind == "tensor" and forward.returns == "Tensor" and _RESULT.fullmatch(name):
            tensors.append("output")
            arguments.append("output")
        else:
            return f"its parameter {name} is neither an input nor the gradient of a result"
    if grads != forward.count:
        return f"it takes {grads} gradients of {forward.count} results"
    receivers = [name for name, kind in inputs.items() if kind == "tensor"]
    if len(receivers) != backward.count:
        receivers = [name for name in receivers if not _NOT_FLOATING.fullmatch(name)]
    if len(receivers) != backward.count:
        return f"it returns {backward.count} tensors, and {forward.name} takes {len(receivers)}"
    returned = tuple(receivers.index(name) if name in receivers else None for name in inputs)
    return JoinedGradient(forward, backward, tuple(arguments), tuple(dict.fromkeys(tensors)), tuple(numbers), returned)


def _names(function: Function) -> list[str]:
    return [each.partition("=")[0] for each in function.parameters]
