"""Which command the check `window` names for torch releases whose symbols are unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from builder.matrix.config import Selection
from builder.proofs.verify.torch_window import Linker


@pytest.mark.parametrize(
    ("series", "runtimes", "select", "command"),
    [
        (["2.10"], {13}, Selection(), "inventory add 2.10 --cuda 13.0"),
        (["2.11"], {13}, Selection(), "inventory add 2.11"),
        (["2.10"], {12}, Selection(), "inventory add 2.10"),
        (["2.9", "2.10"], {13}, Selection(), "inventory add 2.9 2.10 --cuda 13.0"),
        (["2.11"], {13}, Selection(cuda=("12.6",)), "inventory add 2.11 --cuda 12.6"),
        (["2.10", "2.11", "2.12", "2.13"], {13}, Selection(), "inventory add --all --cuda 13.0"),
        (["9.9"], {13}, Selection(), "inventory add 9.9"),
    ],
)
def test_the_command_reads_the_torch_of_the_wheel_s_cuda(
    series: list[str], runtimes: set[int], select: Selection, command: str
) -> None:
    nothing: Any = None
    linker = Linker(nothing, nothing, select)
    vars(linker)["claims"] = SimpleNamespace(runtimes=runtimes, variant="")
    assert linker._add(series) == f"`buildfarm {command}` reads the symbols"
