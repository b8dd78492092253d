"""The two samples in small: they converge, and their pictures can be read."""

from __future__ import annotations

import importlib
import struct
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

SAMPLES = Path(__file__).resolve().parent.parent / "samples"


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch):
    """Import a sample as `python samples/NAME.py` would."""
    monkeypatch.syspath_prepend(str(SAMPLES))
    before, threads = set(sys.modules), torch.get_num_threads()
    torch.set_num_threads(1)  # images this small are drawn fastest by one
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(SAMPLES)):
            del sys.modules[name]


def test_cube_vertices_are_found(sample):
    """From images of 8 x 8 pixels; without the gradient of antialias they would not move at all."""
    found = sample("cube").fit(steps=200, size=8, views=8)
    assert found.errors[0] > 0.2
    assert found.errors[-1] < found.errors[0] / 10
    target = torch.tensor(sample("cube").FACE_COLORS)
    assert (found.colors - target).abs().max() < 0.1


def test_cube_needs_antialias(sample, monkeypatch: pytest.MonkeyPatch):
    cube: ModuleType = sample("cube")
    monkeypatch.setattr(cube, "antialias", lambda color, rast, pos, tri, edges: color)
    found = cube.fit(steps=20, size=8, views=4)
    assert found.errors[-1] == pytest.approx(found.errors[0])


def test_earth_is_better_with_mipmaps(sample):
    earth: ModuleType = sample("earth")
    target = earth.planet(32, 64)
    grey = earth.psnr(torch.full_like(target, 0.4), target)
    with_mipmaps, without = (
        earth.psnr(earth.fit(target, mipmaps=mipmaps, steps=100, size=12), target) for mipmaps in (True, False)
    )
    assert with_mipmaps > grey + 6
    assert with_mipmaps > without + 1


def read_png(path: Path) -> torch.Tensor:
    """(h, w, 3) uint8, row 0 on top; the three filters that the samples write."""
    data, position = path.read_bytes(), 8
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    packed, width, height = b"", 0, 0
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        name, body = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        (check,) = struct.unpack(">I", data[position + 8 + length : position + 12 + length])
        assert check == zlib.crc32(name + body)
        if name == b"IHDR":
            width, height, depth, kind = struct.unpack(">IIBB", body[:10])
            assert (depth, kind) == (8, 2)
        packed += body if name == b"IDAT" else b""
        position += 12 + length
    lines = torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8).reshape(height, 3 * width + 1)
    rows = lines[:, 1:].reshape(height, width, 3).clone()
    for y, kind in enumerate(lines[:, 0].tolist()):
        if kind == 1:
            rows[y] = rows[y].long().cumsum(0).to(torch.uint8)
        elif kind == 2 and y:
            rows[y] += rows[y - 1]
    return rows


def test_png(sample, tmp_path: Path):
    """What is written comes back, bottom row last."""
    x = torch.linspace(0, 1, 40)
    image = torch.stack([x[:, None].expand(40, 40), x.expand(40, 40), torch.rand(40, 40)], dim=-1)[:23]
    sample("png").write_png(tmp_path / "deep" / "test.png", image)
    assert torch.equal(read_png(tmp_path / "deep" / "test.png"), (image * 255).round().to(torch.uint8).flip(0))


def test_grid(sample):
    png: ModuleType = sample("png")
    red, green = torch.tensor([1.0, 0, 0]).expand(2, 3, 3), torch.tensor([0, 1.0, 0]).expand(2, 3, 3)
    image = png.grid([[red, green], [green, red]], gap=1, paper=0.5)
    assert image.shape == (7, 9, 3)
    assert torch.equal(image[4:6, 1:4], red) and torch.equal(image[1:3, 1:4], green)  # row 0 is the bottom
    assert torch.equal(png.enlarge(image, 2)[::2, ::2], image)


@pytest.mark.parametrize("name", ["cube", "earth"])
def test_the_programs_write_their_pictures(name: str, sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sample(name).main(["--out", str(tmp_path), "--steps", "2"])
    for path in tmp_path.iterdir():
        assert read_png(path).float().std() > 10
    expected = {"cube": {"cube.png"}, "earth": {"earth.png", "earth-maps.png"}}
    assert {path.name for path in tmp_path.iterdir()} == expected[name]
    assert capsys.readouterr().out


def test_the_pictures_of_the_readme_are_there():
    readme = (SAMPLES.parent / "README.md").read_text()
    pictures = list((SAMPLES / "images").glob("*.png"))
    assert len(pictures) == 3
    for path in pictures:
        assert f"samples/images/{path.name}" in readme
        assert path.stat().st_size < 100_000
        assert read_png(path).float().std() > 10
