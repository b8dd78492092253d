"""cibuildwheel's settings for a job: the farm's own, and what a source's [tool.cibuildwheel] adds to them.

Precedence, strongest first: what the plan decides (image, Python, torch, CUDA, archs, front end, repair), the recipe's
`env`, the source's own settings, the farm's defaults.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from builder.wheels.place import are_flags
from builder.wheels.upstream import OwnTests, Upstream

#: Printed when a step becomes the source's own; `builder.wheels.folds` tells the stage from it.
BEFORE_BUILD_FOLD, TEST_FOLD = "::group::the source's before-build", "::group::the source's tests"

#: Variables of the farm that a source may set otherwise: defaults, nothing the plan decided.
YIELDING = frozenset({"CMAKE_BUILD_PARALLEL_LEVEL", "FORCE_CUDA", "MAX_JOBS", "PATH"})

#: Packages that make up the cell.
_PLANNED = re.compile(r"(?:torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==", re.IGNORECASE)


def constraints(packages: Sequence[str]) -> str:
    """The locked packages that no command of a source may replace, torch and CUDA, as a constraints file."""
    return "".join(f"{package}\n" for package in packages if _PLANNED.match(package))


def overruled(upstream: Upstream, *, farm: Collection[str], recipe: Collection[str]) -> list[str]:
    """Names of the source's variables that do not hold: the recipe sets them, or the plan decides them.

    `farm` and `recipe` are the names that either sets in the container. Flags for a compiler hold beside the farm's.
    """
    names = dict.fromkeys(name for name, _ in upstream.environment)
    return [n for n in names if n in recipe or (n in farm and n not in YIELDING and not are_flags(n))]


def merged(
    ours: Mapping[str, object],
    upstream: Upstream,
    *,
    frontend_args: Sequence[str],
    farm: Mapping[str, str],
    recipe: Collection[str],
    job: str = "/buildfarm/job",
) -> dict[str, object]:
    """The farm's cibuildwheel settings with the source's own joined to them.

    `ours` needs `before-build`; `frontend_args` are the farm's options for `uv build`; `farm` is what the farm sets
    in the container, `recipe` the names of the recipe's part of it; `job` is the job's folder in the container, which
    holds constraints.txt and before_test.sh.
    """
    settings = dict(ours)
    settings["before-all"] = upstream.before_all
    lost = overruled(upstream, farm=farm, recipe=recipe)
    if free := [(name, value) for name, value in upstream.environment if name not in lost]:
        if any(name == "PATH" for name, _ in free):
            free.append(("PATH", '"$BUILDFARM_OBJECTS/launch:$CUDA_HOME/bin:$PATH"'))  # the plan's compilers stay first
        flags = dict.fromkeys(name for name, _ in free if name in farm and are_flags(name))
        settings["environment"] = _bash([*free, *((name, f'"{farm[name]} ${name}"') for name in flags)])
    if upstream.before_build:
        # Their own shell's words go on to the end: `exit` status and `set -e` mean what they mean without the farm.
        lines = [f"{ours['before-build']} || exit", f'echo "{BEFORE_BUILD_FOLD}"']
        lines += [f"export UV_CONSTRAINT={job}/constraints.txt PIP_CONSTRAINT={job}/constraints.txt"]
        settings["before-build"] = "\n".join([*lines, upstream.before_build])
    settings["build-frontend"] = {"name": "uv", "args": [*frontend_args, *upstream.frontend_args]}
    settings["config-settings"] = upstream.config_settings
    if upstream.tests:
        settings |= _test_settings(upstream.tests, job)
    return settings


def _test_settings(tests: OwnTests, job: str) -> dict[str, object]:
    """cibuildwheel tests the repaired wheel in an environment of its own, which gets the build's own torch first."""
    lines = ['trap \'rm -rf "$BUILDFARM_ENVIRONMENT" "$BUILDFARM_ENVIRONMENT-test"\' EXIT', f'echo "{TEST_FOLD}"']
    if tests.sources:
        # By ourselves, from the container's copy: the top-level tests/ of a recipe's folder comes there last.
        lines.append(f'here=$PWD; (cd {{project}} && cp -r --parents -- {shlex.join(tests.sources)} "$here") || exit')
        lines.append("rm -f test_fail.py")  # cibuildwheel's word to those who forgot their sources
    constrained = [(name, f"{job}/constraints.txt") for name in ("UV_CONSTRAINT", "PIP_CONSTRAINT")]
    # PYTHONPATH: the shim of `assume_cuda` is for builds; a test must see what is there.
    return {
        "before-test": "\n".join([f"sh {job}/before_test.sh || exit", tests.before]).strip(),
        "test-command": "\n".join([*lines, tests.command]),
        "test-requires": list(tests.requires),
        "test-extras": tests.extras,
        "test-environment": _bash([("PYTHONPATH", "''"), *constrained, *tests.environment]),
    }


def _bash(assignments: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in assignments)
