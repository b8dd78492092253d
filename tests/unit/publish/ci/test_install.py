"""`buildfarm ci --install`: a requirement that every job installs alike, without a secret; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from builder.errors import Code, UsageError
from builder.publish.ci import install
from builder.publish.ci.install import check_install
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
        "./buildfarm[cache]",
        "./buildfarm[cache, dask]",
        "./tools/buildfarm-1.0-py3-none-any.whl[cache]",
        f"git+https://git.example/buildfarm@{COMMIT}",
        f"git+https://git.example/buildfarm.git@{COMMIT}#subdirectory=tools",
        f"buildfarm[cache] @ git+https://git.example/buildfarm@{COMMIT}",
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


@pytest.mark.parametrize("value", ["buildfarm", "buildfarm[cache]", "buildfarm==0.1.0", "other >=1,<2", "Tools"])
def test_a_name_of_the_public_index_is_refused(project: Path, value: str) -> None:
    with refused(Code.VALUE_INVALID, "--install", "package index"):
        check_install(value, project)


@pytest.mark.parametrize(
    "value",
    [
        "git+https://git.example/buildfarm@main",
        "git+https://git.example/buildfarm",
        "buildfarm[cache] @ git+https://git.example/buildfarm@v0.1.0",
        f"git+https://git.example/buildfarm@{COMMIT[:12]}",
        f"git+https://git.example/buildfarm@main#egg={COMMIT}",
        f"git+https://git.example/{COMMIT}@main",
        "git+ssh://git@git.example/buildfarm",
        "https://git.example/buildfarm/archive/main.zip",
    ],
)
def test_a_url_without_a_commit_is_refused(project: Path, value: str) -> None:
    with refused(Code.VALUE_INVALID, "--install", "commit"):
        check_install(value, project)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("./nope", Code.NO_SUCH_FILE),
        ("./nope[cache]", Code.NO_SUCH_FILE),
        ("tools/nope", Code.NO_SUCH_FILE),
        ("./ops", Code.NO_SUCH_FILE),  # has no pyproject.toml
        ("./matrix.yaml", Code.VALUE_INVALID),
        ("../buildfarm", Code.VALUE_INVALID),
        ("/srv/buildfarm", Code.VALUE_INVALID),
        ("~/buildfarm", Code.VALUE_INVALID),
        (f"git+file:///srv/buildfarm@{COMMIT}", Code.VALUE_INVALID),
        ("buildfarm @ ./buildfarm", Code.VALUE_INVALID),
        ("-r ./buildfarm", Code.VALUE_INVALID),
        ("--index-url=https://git.example/", Code.VALUE_INVALID),
        ("./buildfarm ./ops", Code.NO_SUCH_FILE),
    ],
)
def test_what_a_job_does_not_find_is_refused(project: Path, value: str, code: Code) -> None:
    (project.parent / "buildfarm").mkdir(exist_ok=True)
    (project.parent / "buildfarm" / "pyproject.toml").touch()
    with refused(code, "--install"):
        check_install(value, project)


@pytest.mark.parametrize("scheme", ["http", "git+http"])
def test_code_without_tls_is_refused(project: Path, scheme: str) -> None:
    with refused(Code.NOT_ENCRYPTED, "--install"):
        check_install(f"buildfarm @ {scheme}://git.example/buildfarm@{COMMIT}", project)


def test_a_path_may_have_signs_that_yaml_reads(project: Path) -> None:
    (project / "buildfarm").rename(project / "a #b")
    assert ci(project, "--install", "./a #b").exit_code == 0
    plan = yaml.safe_load((project / MAIN).read_text())["jobs"]["plan"]
    assert "'./a #b'" in step_named(plan["steps"], "Install buildfarm")["run"]


def test_a_link_out_of_the_repository_is_refused(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "pyproject.toml").touch()
    (project / "linked").symlink_to(outside)
    with refused(Code.VALUE_INVALID, "--install"):
        check_install("./linked", project)


@pytest.mark.parametrize(
    "value",
    [
        f"git+https://user:tok3n@git.example/buildfarm@{COMMIT}",
        f"buildfarm[cache] @ git+https://tok3n@git.example/buildfarm@{COMMIT}",
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
    monkeypatch.setattr(install, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))


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
    assert error.code is Code.OPTION_MISSING
    assert 'buildfarm @ git+https://HOST/OWNER/buildfarm@COMMIT"' in error.hints[0]
    assert "`--install ./tools/buildfarm`" in error.hints[1]
    assert not (project / ".github").exists()


def test_an_example_of_the_documentation_is_no_address(project: Path) -> None:
    with refused(Code.VALUE_INVALID, "--install", "HOST or OWNER in place of a name"):
        check_install(f"buildfarm @ git+https://HOST/OWNER/buildfarm@{COMMIT}", project)
