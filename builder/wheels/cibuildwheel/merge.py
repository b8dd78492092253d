"""cibuildwheel's settings for a job: buildfarm's own, merged with those of the source's [tool.cibuildwheel].

Precedence, highest first: settings that the plan decides (image, Python, torch, CUDA, architectures, front end,
repair), the recipe's `env`, the source's own settings, buildfarm's defaults.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from builder.wheels.cibuildwheel.upstream import Upstream, UpstreamTests
from builder.wheels.variables import holds_flags

#: Printed before the source's own commands, so that `builder.wheels.cibuildwheel.log` can tell the stage.
BEFORE_BUILD_FOLD, TEST_FOLD = "::group::the source's before-build", "::group::the source's tests"

#: Variables of buildfarm that a source may override, because they are defaults and not decisions of the plan.
OVERRIDABLE = frozenset({"CMAKE_BUILD_PARALLEL_LEVEL", "FORCE_CUDA", "MAX_JOBS", "PATH"})

#: Packages whose versions the cell determines.
_CELL_PACKAGES = re.compile(r"(?:torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==", re.IGNORECASE)


def constraints(packages: Sequence[str]) -> str:
    """A constraints file with the locked versions of torch and CUDA, which the source's commands must not change."""
    return "".join(f"{package}\n" for package in packages if _CELL_PACKAGES.match(package))


def overridden_variables(upstream: Upstream, *, variables: Collection[str], recipe: Collection[str]) -> list[str]:
    """Names of the source's variables without effect, because the recipe or the plan sets them.

    `variables` and `recipe` are the names of the variables that buildfarm and the recipe set in the container. Compiler
    flags are never overridden: the source's flags are appended to buildfarm's.
    """
    names = dict.fromkeys(name for name, _ in upstream.environment)
    return [n for n in names if n in recipe or (n in variables and n not in OVERRIDABLE and not holds_flags(n))]


def merge_settings(
    ours: Mapping[str, object],
    upstream: Upstream,
    *,
    frontend_args: Sequence[str],
    variables: Mapping[str, str],
    recipe: Collection[str],
    config_settings: Collection[str] = (),
    job_dir: str = "/buildfarm/job",
    before_test: str,
) -> dict[str, object]:
    """buildfarm's settings for cibuildwheel, merged with the source's own.

    `ours` are buildfarm's settings and must contain `before-build`; `frontend_args` are buildfarm's options for
    `uv build`; `variables` are those that buildfarm sets in the container, `recipe` the names of those that come
    from the recipe; `config_settings` are the keys of options in `frontend_args` that the recipe sets; `job_dir` is
    the container's directory with constraints.txt, and `before_test` the command that prepares the environment of the
    source's tests.
    """
    settings = dict(ours)
    settings["before-all"] = upstream.before_all
    overridden = overridden_variables(upstream, variables=variables, recipe=recipe)
    if kept := [(name, value) for name, value in upstream.environment if name not in overridden]:
        if any(name == "PATH" for name, _ in kept):
            kept.append(
                ("PATH", '"$BUILDFARM_OBJECTS/launch:$CUDA_HOME/bin:$PATH"')
            )  # the plan's compilers must come first
        flags = dict.fromkeys(name for name, _ in kept if name in variables and holds_flags(name))
        settings["environment"] = _bash([*kept, *((name, f'"{variables[name]} ${name}"') for name in flags)])
    if upstream.before_build:
        # The source's commands come last, so that their exit status and `set -e` work as without buildfarm.
        lines = [f"{ours['before-build']} || exit", f'echo "{BEFORE_BUILD_FOLD}"']
        lines += [f"export UV_CONSTRAINT={job_dir}/constraints.txt PIP_CONSTRAINT={job_dir}/constraints.txt"]
        settings["before-build"] = "\n".join([*lines, upstream.before_build])
    settings["build-frontend"] = {"name": "uv", "args": [*frontend_args, *upstream.frontend_args]}
    settings["config-settings"] = upstream.config_settings
    if config_settings:
        own = shlex.split(upstream.config_settings)
        settings["config-settings"] = shlex.join(word for word in own if word.partition("=")[0] not in config_settings)
    if upstream.tests:
        settings |= _test_settings(upstream.tests, job_dir, before_test)
    return settings


def _test_settings(tests: UpstreamTests, job_dir: str, before_test: str) -> dict[str, object]:
    """Settings for the source's tests: cibuildwheel runs them in a new environment with the build's own torch."""
    lines = ['trap \'rm -rf "$BUILDFARM_ENVIRONMENT" "$BUILDFARM_ENVIRONMENT-test"\' EXIT', f'echo "{TEST_FOLD}"']
    if tests.sources:
        # Copied here from the container's project: `test-sources` of cibuildwheel would lack the recipe's tests/.
        lines.append(f'here=$PWD; (cd {{project}} && cp -r --parents -- {shlex.join(tests.sources)} "$here") || exit')
        lines.append("rm -f test_fail.py")  # cibuildwheel's reminder about missing test-sources
    constrained = [(name, f"{job_dir}/constraints.txt") for name in ("UV_CONSTRAINT", "PIP_CONSTRAINT")]
    # PYTHONPATH is empty because the shim of `assume_cuda` is only for builds; tests must see the real state.
    return {
        "before-test": "\n".join([f"{before_test} || exit", tests.before]).strip(),
        "test-command": "\n".join([*lines, tests.command]),
        "test-requires": list(tests.requires),
        "test-extras": tests.extras,
        "test-environment": _bash([("PYTHONPATH", "''"), *constrained, *tests.environment]),
    }


def _bash(assignments: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in assignments)
