"""hadolint accepts the Dockerfiles of the shipped matrix and of five typical cells."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.unit.images.test_dockerfiles import TYPICAL, files_of, shipped


def linted(texts: dict[str, str], folder: Path) -> str:
    """hadolint's output for these files; empty without findings."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    argv = [str(hadolint), "--no-color", "--failure-threshold", "style", *sorted(texts)]
    answer = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert (answer.returncode == 0) == (answer.stdout == "")
    return answer.stdout + answer.stderr


@pytest.mark.parametrize("cuda", ["cu118", "cu121", "cu124", "cu126", "cu128", "cu129", "cu130", "cu132"])
def test_hadolint_accepts_all_files_of_the_shipped_matrix(cuda: str, tmp_path: Path) -> None:
    texts = {file.file: file.text for file in shipped() if f"-{cuda}-" in file.file}
    assert texts
    assert linted(texts, tmp_path) == ""


@pytest.mark.parametrize("name", TYPICAL)
def test_hadolint_accepts_typical_files(name: str, tmp_path: Path) -> None:
    assert linted({file.file: file.text for file in files_of(name)}, tmp_path) == ""


def test_hadolint_reports_findings(tmp_path: Path) -> None:
    text = shipped()[0].text.replace("# hadolint ignore", "# ignore")
    assert "DL3041" in linted({"Dockerfile": text}, tmp_path)


def test_the_lint_test_covers_every_cuda_of_the_shipped_matrix() -> None:
    assert {m[0] for file in shipped() if (m := re.search(r"cu\d+", file.file))} == {
        "cu118", "cu121", "cu124", "cu126", "cu128", "cu129", "cu130", "cu132",
    }  # fmt: skip
