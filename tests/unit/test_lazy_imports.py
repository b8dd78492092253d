"""A command imports slow packages only when it needs them: neither `--version` nor a build of nothing loads them."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Modules that load slowly, and that few commands need.
_SLOW = {
    *("pydantic", "yaml", "jinja2", "elftools", "auditwheel", "abi3info", "requests", "urllib3", "docker"),
    *("http", "ssl", "importlib.metadata"),
}


def loaded_by(statement: str) -> set[str]:
    """The modules that a new process has after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("statement", "slow"),
    [
        pytest.param("import builder.__main__", _SLOW, id="the command line"),
        pytest.param(
            "import builder.commands.verify", _SLOW - {"yaml", "elftools", "auditwheel"}, id="buildfarm verify"
        ),
        pytest.param(
            "import builder.commands.building.build",
            _SLOW - {"pydantic", "yaml", "importlib.metadata"},
            id="buildfarm build, if the store has all",
        ),
    ],
)
def test_packages_of_other_commands_are_not_imported(statement: str, slow: set[str]) -> None:
    assert loaded_by(statement) & slow == set()
