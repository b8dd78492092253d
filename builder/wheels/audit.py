"""The platform tags a wheel has earned, by auditwheel's own analysis: `python -m builder.wheels.audit WHEEL`.

A process of its own: auditwheel changes the working directory while it looks, which the threads beside it
would not survive, and `auditwheel show` knows no excludes. The excludes come on stdin, one to a line; the
answer is JSON on stdout: {"policy": "manylinux_2_34_x86_64", "earned": ["manylinux_2_34_x86_64", ...,
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
    """Read one wheel's path from the command line and answer on stdout."""
    wheel = Path(sys.argv[1])
    try:
        libc = get_wheel_libc(wheel.name)
    except WheelToolsError:  # a linux_* tag names none; the libraries will
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
