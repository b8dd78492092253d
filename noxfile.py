"""The everyday commands: `nox` runs lint and unit, `nox -s all` runs every test, `nox -s lock` renews the lock."""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "unit"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

LOCK = "requirements.lock"


def install(session: nox.Session) -> None:
    """Install the locked versions of everything, and buildfarm."""
    session.install("--requirement", LOCK)
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


@nox.session(name="all")
def everything(session: nox.Session) -> None:
    """Run all four tiers of the tests: real builds, containers, 40 GB of disk. Nothing is skipped."""
    install(session)
    for program in ("install-chromium", "install-redis"):
        session.run(f"tests/fixtures/{program}", external=True)
    session.run("tests/images/make-base", "all", external=True)
    variables = {"CI": "true"}
    # Tests in containers share one set of images and volumes, so one process runs them.
    session.run("pytest", "tests/containers", "tests/full/containers", *session.posargs, env=variables)
    others = ("tests/full", "tests/real", "tests/unit", "--ignore=tests/full/containers")
    session.run("pytest", "-n", "3", *others, *session.posargs, env=variables)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into build/site; a warning is an error."""
    install(session)
    session.run("mkdocs", "build", "--strict", "--site-dir", "build/site")


@nox.session
def lock(session: nox.Session) -> None:
    """Write requirements.lock: the newest versions that pyproject.toml allows, for every supported Python."""
    session.install("uv")
    options = ["--all-extras", "--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade"]
    options += ["--no-emit-index-url", "--no-annotate", "--custom-compile-command", "nox -s lock"]
    session.run("uv", "pip", "compile", "pyproject.toml", *options, "--output-file", LOCK)
