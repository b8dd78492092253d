"""Check an abi3 tag against the Python functions used, with abi3audit's table of the stable ABI (abi3info)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.tags import parse_tag

from builder.matrix.axes import AbiClass
from builder.proof import Check, Proof
from builder.proofs.static.claim import WheelClaim, join_names, make_proof
from builder.proofs.static.system_symbols import is_python
from builder.wheelfile.facts import WheelFacts

if TYPE_CHECKING:
    from abi3info.models import PyVersion  # type: ignore[import-untyped]


def check_abi3(facts: WheelFacts, claim: WheelClaim) -> Proof | None:
    """Every Python function used is in the stable ABI of the oldest Python in the tags.

    None when neither the tag nor the claim is abi3. A wheel that is claimed for every Python but tagged for one fails,
    unless it calls no Python function.
    """
    tags = [tag for line in facts.tags for tag in parse_tag(line)]
    oldest = [_python(tag.interpreter) for tag in tags if tag.abi == "abi3"]
    used = {library.path: [s for s in library.undefined if is_python(s)] for library in facts.libraries}
    errors = []
    if not oldest:
        if claim.abi is AbiClass.CPYTHON:
            return None
        if any(used.values()):
            errors.append(
                f"the recipe claims one binary for every Python, but the wheel is tagged {join_names(facts.tags)}: "
                'build with py_limited_api=True, and set py_limited_api="cp310" for bdist_wheel'
            )
        return make_proof(facts, Check.ABI3, errors, good="calls no Python function")
    floor = min(oldest)
    evidence = {}
    for path, symbols in used.items():
        added = {symbol: _added(symbol) for symbol in symbols}
        private = sorted(symbol for symbol, version in added.items() if version is None)
        newer = sorted(f"{symbol} ({version})" for symbol, version in added.items() if version and version > floor)
        if private:
            errors.append(
                f"{path} uses {join_names(private)}, which Python's stable ABI does not have: define Py_LIMITED_API"
            )
        if newer:
            errors.append(f"{path} uses {join_names(newer)}, which Python {floor} of the wheel's tag does not have")
        evidence[path] = {"private": private, "newer": newer}
    return make_proof(facts, Check.ABI3, errors, good=f"Python >= {floor}", evidence={"libraries": evidence})


def _python(interpreter: str) -> PyVersion:
    """The Python of a tag, such as `cp310`."""
    from abi3info.models import PyVersion  # noqa: PLC0415 - loads slowly; few wheels are abi3

    return PyVersion.parse_python_tag(interpreter)


def _added(symbol: str) -> PyVersion | None:
    """The Python release that added the symbol to the stable ABI, or None."""
    from abi3info import DATAS, FUNCTIONS  # type: ignore[import-untyped]  # noqa: PLC0415
    from abi3info.models import Symbol  # noqa: PLC0415

    entry = FUNCTIONS.get(Symbol(symbol)) or DATAS.get(Symbol(symbol))
    return entry.added if entry is not None else None
