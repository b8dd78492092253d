"""The everyday commands: `nox` runs lint and unit, `nox -s all` runs every test, `nox -s docs` builds the docs."""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "unit"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, types and declared dependencies. Takes about a minute."""
    session.install(".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("deptry", "builder")


@nox.session
def unit(session: nox.Session) -> None:
    """Run the unit tests and print their coverage of `builder`. Arguments after `--` go to pytest."""
    session.install(".[test]")
    session.run("pytest", "tests/unit", "-n", "auto", "--cov", "--cov-report=term:skip-covered", *session.posargs)


@nox.session(name="all")
def everything(session: nox.Session) -> None:
    """Run every test: real builds, containers, 40 GB of disk. Nothing is skipped."""
    session.install(".[test]")
    session.run("pytest", "-n", "3", "--all", *session.posargs, env={"CI": "true"})


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into build/site; a warning is an error."""
    session.install(".[docs]")
    session.run("mkdocs", "build", "--strict", "--site-dir", "build/site")
