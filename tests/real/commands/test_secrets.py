"""A run with secrets in its index, its environment and the output of its build: none is printed or kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.__main__ import run_command
from tests.fixtures.small_project import small_project

pytestmark = pytest.mark.usefixtures("headers")
SECRET = "hunter2secret"


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_keeps_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: bool
) -> None:
    with small_project(tmp_path / "project", monkeypatch) as project:
        backend = project.recipe(
            "steady", more=f"env: {{MIRROR: 'https://me:{SECRET}@host/x?token={SECRET}'}}\n"
        ).parent
        text = (backend / "backend.py").read_text().replace('f"{NAME}/env.txt"', '# f"{NAME}/env.txt"')
        said = "".join(
            f"print({line!r}, flush=True)\n"
            for line in (
                f"fetching https://me:{SECRET}@host/x.git",
                f"GET https://host/x?access_token={SECRET}",
                f"GET https://host/t/{SECRET}/x",
                f"Authorization: Bearer {SECRET}",
            )
        )
        (backend / "backend.py").write_text(said + text + ("raise SystemExit(1)\n" if broken else ""))
        matrix = project.matrix("steady")
        matrix.write_text(matrix.read_text().replace("http://", f"http://me:{SECRET}@"))
        words = ["build", "--matrix", str(matrix), "--executor", "local", "--store", str(project.store)]
        words += ["--dist", str(project.root / "dist"), "--verbose", "--index-url", f"https://me:{SECRET}@host"]
        monkeypatch.setattr(sys, "argv", ["buildfarm", *words[:-2]])
        code = run_command()
        out, err = capsys.readouterr()
        log = (project.store / "logs").glob("steady*.log")
        assert "GET https://host/x?access_token=" in next(log).read_text()
        assert code == int(broken), err
        assert SECRET not in out + err
        files = [path for folder in (project.store, project.root / "dist") for path in folder.rglob("*")]
        assert [path for path in files if path.is_file() and SECRET.encode() in path.read_bytes()] == []
