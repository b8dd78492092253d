"""The program of the atlas continues after a kill."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from docs.atlas.facts import Atlas
from tests.conftest import PATIENCE, ROOT
from tests.unit.loopback import Handler, only, pure_wheel, served
from tests.unit.test_docs import TAG


def run_atlas(folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "docs.atlas", "--store", str(folder / "store")]
    argv += ["--projects", str(folder / "projects.yaml"), "--facts", str(folder / "facts.json")]
    return subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_a_killed_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server holds the second wheel back until the run is killed; the next run downloads the first one no more."""
    held, release, answer = threading.Event(), threading.Event(), Handler.do_GET
    downloaded: list[str] = []

    def do_get(handler: Handler) -> None:
        if "urllib" in handler.headers["User-Agent"]:  # uv reads the metadata of wheels
            downloaded.append(handler.path.rpartition("/")[2])
            if "bb-1.0-" in handler.path and not release.is_set():
                held.set()
                release.wait(PATIENCE)
        answer(handler)

    monkeypatch.setattr(Handler, "do_GET", do_get)
    (tmp_path / "projects.yaml").write_text("projects: [aa, bb, cc]\n")
    for project, version in (("aa", "1.0"), ("bb", "1.0"), ("bb", "1.1")):
        pure_wheel(tmp_path / "index" / "default", project, version, tag=TAG)
    with served(tmp_path / "index") as index:
        only(index, tmp_path / "cache", monkeypatch)
        first = run_atlas(tmp_path)
        assert held.wait(PATIENCE)
        first.kill()
        first.communicate()
        release.set()
        kept = sorted(path.name for path in (tmp_path / "store" / "atlas").glob("*.json.gz"))
        assert kept == [f"aa-1.0-{TAG}.whl.json.gz", f"bb-1.1-{TAG}.whl.json.gz"]
        assert (tmp_path / "store" / "atlas" / "scratch").is_dir()
        assert list(Atlas.load(tmp_path / "facts.json").projects) == ["aa"]
        downloaded.clear()
        second = run_atlas(tmp_path)
        _, said = second.communicate()
    assert second.returncode == 0, said
    assert downloaded == [f"bb-1.0-{TAG}.whl"]
    assert "3 wheels judged, of which 1 were downloaded" in said
    assert not (tmp_path / "store" / "atlas" / "scratch").exists()
    atlas = Atlas.load(tmp_path / "facts.json")
    assert [one["version"] for one in atlas.projects["bb"]] == ["1.1", "1.0"]
    assert [one["check"] for one in atlas.projects["aa"][0]["failed"]] == ["payload"]
    assert list(atlas.none) == ["cc"]
