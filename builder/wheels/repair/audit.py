"""The platform tags that auditwheel confirms for a wheel: `python -m builder.wheels.repair.audit WHEEL`.

It runs in a process of its own, because auditwheel changes the working directory, which other threads would see, and
`auditwheel show` has no option for excludes. Excluded file names come on stdin, one per line. The answer is JSON on
stdout: {"policy": "manylinux_2_34_x86_64", "earned": ["manylinux_2_34_x86_64", ...,
"linux_x86_64"]}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from auditwheel.error import WheelToolsError
from auditwheel.wheel_abi import analyze_wheel_abi
from auditwheel.wheeltools import get_wheel_architecture, get_wheel_libc


def main() -> None:
    """Read a wheel's path from the command line and print the answer."""
    wheel = Path(sys.argv[1])
    try:
        libc = get_wheel_libc(wheel.name)
    except WheelToolsError:  # a linux_* tag names no C library; the wheel's libraries do
        libc = None
    found = analyze_wheel_abi(
        libc=libc,
        architecture=get_wheel_architecture(wheel.name),
        wheel_fn=wheel,
        exclude=frozenset(sys.stdin.read().splitlines()),
        disable_isa_ext_check=False,
        allow_graft=False,
    )
    earned = [policy for policy in found.policies if not found.overall_policy < policy]
    names = [name for policy in reversed(earned) for name in (policy.name, *policy.aliases)]
    sys.stdout.write(json.dumps({"policy": found.overall_policy.name, "earned": names}))


if __name__ == "__main__":
    main()
