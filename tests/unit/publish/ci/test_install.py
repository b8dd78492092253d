"""`buildfarm ci --install`: a requirement that every job installs alike, without a secret; others are refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from builder.commands import ci as ci_command
from builder.commands.ci import check_install
from builder.errors import Code, UsageError
from builder.publish.ci.workflows import MAIN
from tests.refused import refused
from tests.unit.publish.ci.steps import step_named
from tests.unit.publish.ci.test_workflows import ci

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "value",
    [
        "./buildfarm",
        "buildfarm/",
        "./buildfarm[s3]",
        "./buildfarm[cache, dask]",
        "./tools/buildfarm-1.0-py3-none-any.whl[s3]",
        f"git+https://git.example/buildfarm@{COMMIT}",
        f"git+https://git.example/buildfarm.git@{COMMIT}#subdirectory=tools",
        f"buildfarm[s3] @ git+https://git.example/buildfarm@{COMMIT}",
        f"buildfarm @ git+ssh://git@git.example/buildfarm@{COMMIT}",
        f"buildfarm @ https://git.example/buildfarm/archive/{COMMIT}.zip",
        f"https://git.example/buildfarm-1.0-py3-none-any.whl#sha256={COMMIT[:32] * 2}",
    ],
)
def test_paths_of_the_repository_and_urls_with_a_commit(project: Path, value: str) -> None:
    (project / "tools").mkdir()
    (project / "tools" / "buildfarm-1.0-py3-none-any.whl").write_bytes(b"")
    check_install(value, project)
    assert ci(project, "--install", value).exit_code == 0


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        *((name, Code.VALUE_INVALID, "package index") for name in ("buildfarm", "buildfarm[s3]", "buildfarm==0.1.0")),
        *((name, Code.VALUE_INVALID, "package index") for name in ("other >=1,<2", "Tools")),
        ("git+https://git.example/buildfarm@main", Code.VALUE_INVALID, "commit"),
        ("git+https://git.example/buildfarm", Code.VALUE_INVALID, "commit"),
        ("buildfarm[s3] @ git+https://git.example/buildfarm@v0.1.0", Code.VALUE_INVALID, "commit"),
        (f"git+https://git.example/buildfarm@{COMMIT[:12]}", Code.VALUE_INVALID, "commit"),
        (f"git+https://git.example/buildfarm@main#egg={COMMIT}", Code.VALUE_INVALID, "commit"),
        (f"git+https://git.example/{COMMIT}@main", Code.VALUE_INVALID, "commit"),
        ("git+ssh://git@git.example/buildfarm", Code.VALUE_INVALID, "commit"),
        ("https://git.example/buildfarm/archive/main.zip", Code.VALUE_INVALID, "commit"),
        (f"buildfarm @ git+https://HOST/OWNER/buildfarm@{COMMIT}", Code.VALUE_INVALID, "HOST/OWNER is a placeholder"),
        ("buildfarm @ git+https://git.example/buildfarm@COMMIT", Code.VALUE_INVALID, "COMMIT is a placeholder"),
        (f"buildfarm @ git+/srv/buildfarm@{COMMIT}", Code.VALUE_INVALID, "cannot be reached from GitHub"),
        ("./nope", Code.NO_SUCH_FILE, ""),
        ("./nope[s3]", Code.NO_SUCH_FILE, ""),
        ("tools/nope", Code.NO_SUCH_FILE, ""),
        ("./ops", Code.NO_SUCH_FILE, ""),  # has no pyproject.toml
        ("./matrix.yaml", Code.VALUE_INVALID, ""),
        ("../buildfarm", Code.VALUE_INVALID, ""),
        ("./linked", Code.VALUE_INVALID, ""),  # a link out of the repository
        ("/srv/buildfarm", Code.VALUE_INVALID, ""),
        ("~/buildfarm", Code.VALUE_INVALID, ""),
        (f"git+file:///srv/buildfarm@{COMMIT}", Code.VALUE_INVALID, "cannot be reached from GitHub"),
        ("buildfarm @ ./buildfarm", Code.VALUE_INVALID, "cannot be reached from GitHub"),
        ("-r ./buildfarm", Code.VALUE_INVALID, ""),
        ("--index-url=https://git.example/", Code.VALUE_INVALID, ""),
        ("./buildfarm ./ops", Code.NO_SUCH_FILE, ""),
        (f"buildfarm @ http://git.example/buildfarm@{COMMIT}", Code.VALUE_INVALID, "TLS"),
        (f"buildfarm @ git+http://git.example/buildfarm@{COMMIT}", Code.VALUE_INVALID, "TLS"),
    ],
)
def test_what_differs_between_jobs_or_is_missing_is_refused(project: Path, value: str, code: Code, words: str) -> None:
    outside = project.parent / "buildfarm"
    outside.mkdir(exist_ok=True)
    (outside / "pyproject.toml").touch()
    (project / "linked").symlink_to(outside)
    with refused(code, "--install", words):
        check_install(value, project)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("true", ""),  # no repository
        ("git init -q . && git add buildfarm", ""),
        ("git init -q .", "git does not track buildfarm"),
        ("git init -q . && git init -q buildfarm", "buildfarm is a git repository of its own"),
        (
            f"git init -q . && git update-index --add --cacheinfo 160000,{COMMIT},buildfarm",
            "git -C CLONE archive --prefix=buildfarm/ HEAD | tar x",
        ),
    ],
)
def test_a_path_that_a_checkout_lacks_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], prepare: str, says: str
) -> None:
    subprocess.run(["/bin/sh", "-c", prepare], cwd=project, check=True)
    done = ci(project, "--install", "./buildfarm[s3]")
    assert done.exit_code == 0, done.exception
    told = done.output + capsys.readouterr().err
    assert says in told
    assert bool(says) == ("--install: " in told)


def test_an_example_repeats_the_other_options(project: Path) -> None:
    done = ci(project, "--require", "cpu")
    assert isinstance(done.exception, UsageError)
    assert "`buildfarm ci --require cpu --install ./tools/buildfarm`" in done.exception.hints[1]


def test_a_path_may_have_signs_that_yaml_reads(project: Path) -> None:
    (project / "buildfarm").rename(project / "a #b")
    assert ci(project, "--install", "./a #b").exit_code == 0
    plan = yaml.safe_load((project / MAIN).read_text())["jobs"]["plan"]
    assert "'./a #b'" in step_named(plan["steps"], "Install buildfarm")["run"]


@pytest.mark.parametrize(
    "value",
    [
        f"git+https://user:tok3n@git.example/buildfarm@{COMMIT}",
        f"buildfarm[s3] @ git+https://tok3n@git.example/buildfarm@{COMMIT}",
        f"git+ssh://git:tok3n@git.example/buildfarm@{COMMIT}",
        f"https://git.example/archive/{COMMIT}.zip?private_token=tok3n",
        "git+https://user:tok3n@git.example/buildfarm@main",
    ],
)
def test_a_secret_is_refused_and_is_in_no_message_and_no_file(project: Path, value: str) -> None:
    with refused(Code.VALUE_INVALID, "--install", "committed") as told:
        check_install(value, project)
    assert "tok3n" not in str(told.value)
    done = ci(project, "--install", value)
    assert "tok3n" not in f"{done.output}{done.exception}"
    assert not (project / ".github").exists()


def installed_from(direct_url: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let buildfarm be installed with this direct_url.json (PEP 610)."""
    text = None if direct_url is None else json.dumps(direct_url)
    monkeypatch.setattr(ci_command, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))


def test_the_default_is_the_commit_that_this_buildfarm_was_installed_from(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vcs = {"vcs": "git", "requested_revision": "main", "commit_id": COMMIT}
    installed_from({"url": "https://git.example/buildfarm", "vcs_info": vcs}, monkeypatch)
    done = ci(project, "--require", "cpu")
    assert done.exit_code == 0, done.exception
    requirement = f"buildfarm @ git+https://git.example/buildfarm@{COMMIT}"
    assert (
        (project / MAIN).read_text().startswith(f"# Written by `buildfarm ci --install '{requirement}' --require cpu`.")
    )


@pytest.mark.parametrize("direct_url", [None, {"url": "file:///home/me/buildfarm", "dir_info": {}}])
def test_without_such_a_commit_the_option_is_asked_for_with_an_example(
    direct_url: dict[str, object] | None, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_from(direct_url, monkeypatch)
    error = ci(project).exception
    assert isinstance(error, UsageError)
    assert error.code is Code.COMMAND_LINE_INVALID
    assert 'buildfarm @ git+https://HOST/OWNER/buildfarm@COMMIT"' in error.hints[0]
    assert "`buildfarm ci --install ./tools/buildfarm`" in error.hints[1]
    assert not (project / ".github").exists()
