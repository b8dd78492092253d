"""The memory of a process after it was put into huge pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from builder.gate.system.huge_pages import use_huge_pages
kept = [bytes([number]) * 5000 for number in range(100)] + [bytearray(b"x") * (8 << 20)]
use_huge_pages()
assert all(set(one) == {number} for number, one in enumerate(kept[:-1]))
assert kept[-1] == b"x" * (8 << 20)
import os
pid = os.fork()
if not pid:
    kept[-1][:] = b"y" * (8 << 20)
    os._exit(kept[-1][5] != ord("y"))
assert os.waitpid(pid, 0)[1] == 0
assert kept[-1] == b"x" * (8 << 20)
print("kept")
"""


def test_the_content_of_memory_stays_and_forks_do_not_share_writes() -> None:
    root = str(Path(__file__).parents[3])
    ran = subprocess.run(
        [sys.executable, "-I", "-c", _PROGRAM, root], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert ran.stdout == "kept\n"
