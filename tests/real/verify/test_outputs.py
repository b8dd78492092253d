"""The verdicts of `verify` as text, Markdown and JSON."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Exit
from tests.real.verify.corpus import Wheel, with_op


def test_markdown(stubs: Path, store: Path, tmp_path: Path) -> None:
    bad = with_op("int ops_forward();", "ops_forward();", root_is_purelib="true").write(tmp_path, stubs)
    markdown = tmp_path / "out" / "verify.md"
    done = CliRunner().invoke(app, ["verify", str(bad), "--store", str(store), "--markdown", str(markdown)])
    assert done.exit_code == Exit.FAILED, done.output

    text = markdown.read_text()
    assert "| **FAILED** | linkage | torch2.11.0-cu130-cp312: " in text
    assert "undefined symbol ops\\_forward" in text
    assert all(line.count(" | ") == 2 for line in text.splitlines() if line.startswith("| ") and "---" not in line)


def test_text_of_a_stranger_is_no_markup(stubs: Path, store: Path, tmp_path: Path) -> None:
    wheel = Wheel(requires=("torch==2.11.*", "<script>|[x](http://evil.example)")).write(tmp_path, stubs)
    out = tmp_path / "verify.md"
    CliRunner().invoke(app, ["verify", str(wheel), "--store", str(store), "--markdown", str(out)])
    text = out.read_text()
    assert "\\<script\\>\\|\\[x\\](http" in text
    assert "<script>" not in text


def test_a_damaged_wheel_does_not_stop_the_others(stubs: Path, store: Path, tmp_path: Path) -> None:
    good = Wheel().write(tmp_path, stubs)
    damaged = tmp_path / "damaged-1.0-py3-none-any.whl"
    damaged.write_bytes(b"no zip")
    markdown = tmp_path / "verify.md"
    options = ["--store", str(store), "--markdown", str(markdown)]
    done = CliRunner().invoke(app, ["verify", str(damaged), str(good), *options])
    assert done.exit_code == Exit.USAGE, done.output
    assert f"{good.name}  " in done.stdout
    assert "damaged-1.0-py3-none-any.whl: this wheel cannot be read" in " ".join(done.stderr.split())
    assert "### damaged-1.0-py3-none-any.whl\n\n**FAILED**: this wheel cannot be read" in markdown.read_text()

    done = CliRunner().invoke(app, ["verify", str(damaged), str(good), "--store", str(store), "--json"])
    judged, unreadable = json.loads(done.stdout)
    assert judged["wheel"] == good.name
    assert judged["failed"] is False
    assert (unreadable["wheel"], unreadable["failed"], unreadable["error"]["code"]) == (
        damaged.name,
        True,
        "wheel-damaged",
    )


def test_other_files_that_are_no_readable_wheels(stubs: Path, store: Path, tmp_path: Path) -> None:
    good = Wheel().write(tmp_path, stubs)
    (tmp_path / "broken").mkdir()
    broken = Wheel().write(tmp_path / "broken", stubs)
    with zipfile.ZipFile(broken) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(broken, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data[:100] if name.endswith(".so") else data)
    odd = [good.rename(tmp_path / "my wheel (1).whl"), tmp_path / "b\udcff#1-1.0-py3-none-any.whl"]
    odd[1].write_bytes(b"no zip")
    good = Wheel().write(tmp_path, stubs)
    markdown = tmp_path / "verify.md"
    options = ["--store", str(store), "--markdown", str(markdown)]
    words = ["verify", *map(str, (broken, *odd, good)), *options]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == Exit.USAGE, done.output
    assert f"{good.name}  " in done.stdout
    assert markdown.read_text().count("**FAILED**: ") == 3
    unreadable = [one for one in json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout) if "error" in one]
    assert [(one["error"]["code"], one["wheel"]) for one in unreadable] == [
        ("library-damaged", broken.name),
        ("wheel-name-invalid", "my wheel (1).whl"),
        ("wheel-name-invalid", odd[1].name),
    ]
