"""Pictures as bytes, by the standard library alone: PNG and GIF written, PNG read."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(picture: Tensor) -> bytes:
    """A (C, H, W) uint8 picture of 1 to 4 channels as PNG, no filters (W3C PNG, third edition)."""
    channels, height, width = picture.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    lines = picture.permute(1, 2, 0).reshape(height, -1).tolist()
    packed = zlib.compress(b"".join(b"\0" + bytes(line) for line in lines))
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed) + _chunk(b"IEND", b"")


def read_png(data: bytes) -> Tensor:
    """An 8-bit PNG that is not interlaced as a (C, H, W) uint8 picture; every filter of section 9."""
    assert data.startswith(_SIGNATURE), "it does not begin with the PNG signature"
    at, packed, header = len(_SIGNATURE), b"", ()
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + body), f"bad sum of {kind!r}"
        header = struct.unpack(">IIBBBBB", body) if kind == b"IHDR" else header
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    width, height, depth, colour, _, _, interlaced = header
    assert (depth, interlaced) == (8, 0), "this reader knows 8 bits without interlacing"
    channels = _CHANNELS[colour]
    raw, stride = zlib.decompress(packed), width * channels
    lines: list[bytearray] = []
    above = bytearray(stride)
    for row in range(height):
        begin = row * (stride + 1)
        above = _unfiltered(raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride]), above, channels)
        lines.append(above)
    flat = torch.tensor(list(b"".join(lines)), dtype=torch.uint8)
    return flat.reshape(height, width, channels).permute(2, 0, 1).contiguous()


def _unfiltered(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    for i in range(len(line)):
        left, corner = (line[i - step], above[i - step]) if i >= step else (0, 0)
        near = left + above[i] - corner
        paeth = min((left, above[i], corner), key=lambda one: abs(near - one))
        line[i] = (line[i] + (0, left, above[i], (left + above[i]) // 2, paeth)[kind]) % 256
    return line


def write_gif(indices: list[int], width: int, palette: list[tuple[int, int, int]]) -> bytes:
    """One frame of at most 100 pixels with a palette of 128 colours, as GIF89a: too short for codes to grow."""
    clear, end = 128, 129
    assert len(indices) <= 100 and len(palette) == clear
    screen = struct.pack("<HHBBB", width, len(indices) // width, 0b1_000_0_110, 0, 0)
    colours = bytes(part for colour in palette for part in colour)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, len(indices) // width, 0)
    codes = bytes([clear, *indices, end])  # 8 bits each as long as the table has fewer than 256 entries
    return b"GIF89a" + screen + colours + frame + bytes([7, len(codes)]) + codes + b"\0;"
