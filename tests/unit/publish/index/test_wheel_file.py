"""Wheels that no installer can use, that contradict themselves, or that are hostile are not published."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from builder.errors import Code
from builder.publish.index import new_wheel as wheel_file
from builder.publish.index.new_wheel import new_wheel
from tests.refused import refused
from tests.unit.publish.server.client import Client

NAME = "my_ext-1.0-py3-none-any.whl"
INFO = "my_ext-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: my_ext\nVersion: 1.0\n"


def wheel_of(folder: Path, files: Mapping[str, bytes | None], name: str = NAME) -> Path:
    """A wheel with these files beside the usual ones; None: without this file."""
    usual = {f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": b"Tag: py3-none-any\n", f"{INFO}/RECORD": b""}
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**usual, **files}.items():
            if data is not None:
                archive.writestr(path, data)
    return folder / name


def metadata_with(line: bytes) -> dict[str, bytes | None]:
    return {f"{INFO}/METADATA": METADATA + line + b"\n"}


LINUX = "my_ext-1.0-cp312-cp312-linux_x86_64.whl"
HOSTILE: dict[str, tuple[dict[str, bytes | None], str, str]] = {
    "no RECORD": ({f"{INFO}/RECORD": None}, NAME, "has no RECORD"),
    "no WHEEL": ({f"{INFO}/WHEEL": None}, NAME, "has no WHEEL"),
    "UTF-8": (metadata_with(b"Author: M\xfcller"), NAME, "METADATA is not UTF-8: byte 57 is 0xfc"),
    "long Requires-Dist": (
        metadata_with(b"Requires-Dist: x" + b">=1," * 600 + b">=1"),
        NAME,
        "Requires-Dist of METADATA is too long",
    ),
    "tag": ({}, LINUX, "WHEEL says py3-none-any, but the file name says cp312-cp312-linux_x86_64"),
    "control characters": ({"a\nb": b""}, NAME, "control characters: 'a\\nb'"),
    "large SBOM": ({f"{INFO}/sboms/x.cdx.json": b"[" * 31 * 2**20}, NAME, "x.cdx.json cannot be read"),
    "SBOM of another kind": ({f"{INFO}/sboms/x.cdx.json": b"[]"}, NAME, "x.cdx.json cannot be read"),
}


@pytest.mark.parametrize(("files", "name", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused(tmp_path: Path, files: Mapping[str, bytes | None], name: str, sentence: str) -> None:
    wheel = wheel_of(tmp_path, files, name)
    with refused(Code.WHEEL_DAMAGED, sentence):
        new_wheel(wheel, [])
    client = Client(tmp_path / "index")
    answer = client.upload(wheel, client.token())
    assert (answer.status_code, sentence in answer.text, answer.text.count("\n")) == (400, True, 1), answer.text
    assert not (client.root / "records").exists()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b"Tag: py2-none-any\nTag: py3-none-any\n", "my_ext-1.0-py2.py3-none-any.whl"),
        (b"Tag: py2.py3-none-any\n", "my_ext-1.0-py2.py3-none-any.whl"),
        (b"Tag: py3-none-any\n", "my_ext-1.0-py2.py3-none-any.whl"),
        (
            b"Tag: cp312-cp312-manylinux_2_17_x86_64\nTag: cp312-cp312-manylinux2014_x86_64\n",
            "my_ext-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        ),
        (b"Tag: cp312-cp312-linux_x86_64\n", "my_ext-1.0-cp312-cp312-manylinux1_x86_64.whl"),
        (b"Tag: cp312-cp312-linux_x86_64\n", "my_ext-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        (b"", "my_ext-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
    ],
)
def test_tags_of_real_wheels(tmp_path: Path, written: bytes, name: str) -> None:
    assert new_wheel(wheel_of(tmp_path, {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n" + written}, name), [])


def test_names_in_other_languages(tmp_path: Path) -> None:
    author = {f"{INFO}/METADATA": METADATA + "Author: Müller\n".encode()}
    made = new_wheel(wheel_of(tmp_path, {"my_ext/naïve\u3000文.txt": b"", **author}), [])
    assert made.attached[".metadata"] == author[f"{INFO}/METADATA"]


def test_the_first_sbom_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{INFO}/sboms/{name}.cdx.json": f'{{"name": "{name}"}}'.encode() for name in ("b", "a")}
    wheel = wheel_of(tmp_path, files)
    assert new_wheel(wheel, []).attached[".cdx.json"] == b'{"name": "a"}'
    monkeypatch.setattr(wheel_file, "MAX_SBOM", 5)
    with refused(Code.WHEEL_DAMAGED, "a.cdx.json"):
        new_wheel(wheel, [])
