"""The everyday commands: `nox` runs lint and unit, `nox -s all` runs every test, `nox -s lock` renews the lock.

`nox -s newest` and `nox -s lowest` build with other versions than those of the lock, `nox -s pythons` tests with other
Pythons.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox

nox.options.sessions = ["lint", "unit"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

LOCK = "requirements.lock"
#: What the workflows of `buildfarm ci` install: a part of the lock.
WORKFLOW_LOCK = "builder/publish/ci/requirements.txt"


def install(session: nox.Session) -> None:
    """Install the locked versions of everything, and buildfarm."""
    session.install("--no-deps", "--requirement", LOCK)
    session.install("--no-deps", "--no-build-isolation", ".")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, types and declared dependencies. Takes about a minute."""
    install(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("deptry", "builder")


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests and print their coverage of `builder`. Arguments after `--` go to pytest."""
    install(session)
    session.run("pytest", "tests/unit", "-n", "auto", "--cov", "--cov-report=term:skip-covered", *session.posargs)


@nox.session(python=["3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """Run the README's tests with the other supported Pythons; `.ci/run` runs them with the oldest."""
    install(session)
    session.run("pytest", "-n", "2", *session.posargs, env={"CI": "true"})


@nox.session(name="all")
def everything(session: nox.Session) -> None:
    """Run all four tiers of the tests: real builds, containers, 40 GB of disk. Nothing is skipped."""
    install(session)
    session.run("tests/fixtures/install-chromium", external=True)
    session.run("tests/images/make-base", "all", external=True)
    session.run("tests/images/list-packages", external=True)
    variables = {"CI": "true"}
    # Tests in containers share one set of images and volumes, so one process runs them.
    session.run("pytest", "tests/containers", "tests/full/containers", *session.posargs, env=variables)
    others = ("tests/full", "tests/real", "tests/field", "tests/unit", "--ignore=tests/full/containers")
    session.run("pytest", "-n", "3", *others, *session.posargs, env=variables)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into build/site; a warning is an error."""
    install(session)
    session.run("mkdocs", "build", "--strict", "--site-dir", "build/site")


@nox.session
def lock(session: nox.Session) -> None:
    """Write requirements.lock: the newest versions that pyproject.toml allows, for every supported Python.

    Also the part of it that the jobs of `buildfarm ci` install with Python 3.12.
    """
    session.install("uv")
    compile_ = ["uv", "pip", "compile", "pyproject.toml", "--generate-hashes", "--no-emit-index-url", "--no-annotate"]
    compile_ += ["--custom-compile-command", "nox -s lock"]
    every = ["--all-extras", "--universal", "--python-version", "3.11", "--upgrade", "--no-strip-extras"]
    session.run(*compile_, *every, "--output-file", LOCK)
    jobs = ["--group", "build", "--constraint", LOCK, "--python-version", "3.12"]
    jobs += ["--python-platform", "x86_64-manylinux_2_28"]
    session.run(*compile_, *jobs, "--output-file", WORKFLOW_LOCK)


@nox.session
def newest(session: nox.Session) -> None:
    """Build and prove with the newest releases, and pre-releases of what buildfarm depends on most."""
    session.install("--upgrade", ".", *tools(), *(f"{name}>={first}" for name, first in PRERELEASES.items()))
    build_with_other_versions(session)


@nox.session
def lowest(session: nox.Session) -> None:
    """Build and prove with the lowest versions that pyproject.toml allows."""
    session.install("--upgrade", "--resolution", "lowest-direct", ".", *tools())
    build_with_other_versions(session)


#: The tests themselves use these, in their locked versions.
TOOLS = ("ninja", "nvidia-cuda-cuobjdump", "pip", "pytest", "pytest-timeout", "pytest-xdist")
#: Packages whose pre-releases are tried, and a version that makes uv accept them.
PRERELEASES = {"auditwheel": "6.5.0a0", "cibuildwheel": "4.0.0a0"}
#: A build on this machine and a build in a container, with all proofs of their cells.
BUILDS = ("tests/real/test_main_job.py", "tests/full/containers/test_cuda_images.py::test_the_main_job_in_a_container")


def locked_versions() -> dict[str, str]:
    """The version of each package in the lock."""
    return dict(re.findall(r"^([\w.-]+)(?:\[.+\])?==(\S+)", Path(LOCK).read_text(), re.MULTILINE))


def tools() -> list[str]:
    """Requirements of the programs that run the tests."""
    locked = locked_versions()
    return [f"{name}=={locked[name]}" for name in TOOLS]


def build_with_other_versions(session: nox.Session) -> None:
    """Name what differs from the lock, then run the builds."""
    frozen = session.run("uv", "pip", "freeze", "--python", str(session.bin + "/python"), silent=True, external=True)
    locked = locked_versions()
    installed = dict(re.findall(r"^([\w.-]+)==(\S+)", str(frozen), re.MULTILINE))
    for name, version in sorted(installed.items()):
        if locked.get(name) != version:
            session.log(f"{name}: {locked.get(name, 'not')} in {LOCK}, {version} here")
    session.run("tests/images/make-base", "buildfarm-base:bookworm", "buildfarm-pythons:local", external=True)
    # Old versions of packages use deprecated parts of newer ones.
    session.run("pytest", "--override-ini=filterwarnings=default", *BUILDS, *session.posargs, env={"CI": "true"})
