"""An abi3 tag against the Python functions used, by abi3audit's own table of the stable ABI (abi3info)."""

from __future__ import annotations

from abi3info import DATAS, FUNCTIONS  # type: ignore[import-untyped]
from abi3info.models import PyVersion, Symbol  # type: ignore[import-untyped]
from packaging.tags import parse_tag

from builder.matrix.axes import AbiClass
from builder.proof import Check, Proof
from builder.proofs.claim import Claim, judge, listed
from builder.proofs.symbols import is_python
from builder.wheels.facts import WheelFacts


def check_abi3(facts: WheelFacts, claim: Claim) -> Proof | None:
    """Each Python function used is in the stable ABI of the oldest Python the tags name.

    None when neither the tag nor the claim speaks of abi3. A wheel that is claimed for every Python but is
    tagged for one fails, unless it calls no Python at all.
    """
    tags = [tag for line in facts.tags for tag in parse_tag(line)]
    oldest = [PyVersion.parse_python_tag(tag.interpreter) for tag in tags if tag.abi == "abi3"]
    used = {library.path: [s for s in library.undefined if is_python(s)] for library in facts.libraries}
    faults = []
    if not oldest:
        if claim.abi is AbiClass.CPYTHON:
            return None
        if any(used.values()):
            faults.append(
                f"one binary for every Python is claimed, but it is tagged {listed(facts.tags)}: build with "
                'py_limited_api=True and tell bdist_wheel py_limited_api="cp310"'
            )
        return judge(facts, Check.ABI3, faults, good="calls no Python")
    floor = min(oldest)
    evidence = {}
    for path, symbols in used.items():
        added = {symbol: _added(symbol) for symbol in symbols}
        private = sorted(symbol for symbol, version in added.items() if version is None)
        newer = sorted(f"{symbol} ({version})" for symbol, version in added.items() if version and version > floor)
        if private:
            faults.append(f"{path} uses {listed(private)}, which are not in Python's stable ABI: define Py_LIMITED_API")
        if newer:
            faults.append(f"{path} uses {listed(newer)}, newer than the Python {floor} of its tag")
        evidence[path] = {"private": private, "newer": newer}
    return judge(facts, Check.ABI3, faults, good=f"Python >= {floor}", evidence={"libraries": evidence})


def _added(symbol: str) -> PyVersion | None:
    """The Python that added it to the stable ABI, or None when it never was."""
    entry = FUNCTIONS.get(Symbol(symbol)) or DATAS.get(Symbol(symbol))
    return entry.added if entry is not None else None
