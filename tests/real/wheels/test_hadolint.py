"""hadolint accepts the Dockerfiles of the shipped matrix and of five typical cells."""

import subprocess
import sysconfig
from pathlib import Path

from tests.unit.images.test_images import every_file, shipped


def linted(texts: dict[str, str], folder: Path) -> str:
    """hadolint's output for these files; empty without findings."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    argv = [str(hadolint), "--no-color", "--failure-threshold", "style", *sorted(texts)]
    answer = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert (answer.returncode == 0) == (answer.stdout == "")
    return answer.stdout + answer.stderr


def test_hadolint_accepts_every_file(tmp_path: Path) -> None:
    texts = {name.replace(" ", "-"): text for name, text in every_file().items()}
    assert linted(texts, tmp_path) == ""


def test_hadolint_reports_findings(tmp_path: Path) -> None:
    text = next(iter(shipped().values())).replace("# hadolint ignore", "# ignore")
    assert "DL3041" in linted({"Dockerfile": text}, tmp_path)
