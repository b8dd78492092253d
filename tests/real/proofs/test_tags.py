"""The check `tags` and auditwheel find the same platform for a compiled library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder.proofs.static.tags import best_platform
from builder.wheelfile.facts import read_facts
from tests.fixtures.compiled import compiled
from tests.unit.proofs.make import make_wheel


@pytest.mark.parametrize(
    "source",
    [
        '#include <stdlib.h>\nchar* f() { return getenv("X"); }',
        "#include <iostream>\nvoid f() { std::cout << 1.5 << std::endl; }",
    ],
)
def test_platform_equals_that_of_auditwheel(tmp_path: Path, source: str) -> None:
    extension = compiled(tmp_path, source + '\nextern "C" void* PyInit__C() { return 0; }', name="_C.so")
    wheel = make_wheel(tmp_path, {"ops/_C.so": extension})
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)], capture_output=True, text=True, check=True
    )
    assert best_platform(read_facts(wheel), frozenset()) == json.loads(shown.stdout)["overall_tag"]
