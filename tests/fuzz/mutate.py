"""Mutations of bytes, archives and words; the same random generator gives the same mutations."""

import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Mapping

_SMALL = [0, 1, 2, 7, 8, 15, 16, 127, 128, 255, 256]
_INTERESTING = [*_SMALL, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
#: Texts that readers stumble over.
TEXTS = [
    *(b"", b"\0", b"\n", b"../", b"/", b"%s%n", b"\xff\xfe", "é☃\U0001f600".encode(), b"\x1b[31m"),
    *(b"9" * 400, b"9" * 5000, b"-1", b"nan", b"[" * 100, b"{" * 100, b"x" * 300),
    *(b"http://[::1/x.whl", b"pytz (>dev)"),
]


def mutated(data: bytes, rng: random.Random, *, most: int = 8) -> bytes:
    """One to `most` random changes of some bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        rng.choice(_CHANGES)(changed, rng)
    return bytes(changed)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _number(data: bytearray, rng: random.Random) -> None:
    size = rng.choice([1, 2, 4, 8])
    if len(data) > size:
        place = rng.randrange(len(data) - size)
        value = rng.choice(_INTERESTING) % (1 << 8 * size)
        data[place : place + size] = value.to_bytes(size, rng.choice(["little", "big"]))


def _delete(data: bytearray, rng: random.Random) -> None:
    if data:
        start = rng.randrange(len(data))
        del data[start : start + rng.choice([1, 2, 8, 64, 1024])]


def _repeat(data: bytearray, rng: random.Random) -> None:
    if data:
        start = rng.randrange(len(data))
        block = data[start : start + rng.choice([1, 8, 64, 512])]
        place = rng.randrange(len(data) + 1)
        data[place:place] = block * rng.choice([1, 2, 50])


def _insert(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.choice(TEXTS)


def _replace_line(data: bytearray, rng: random.Random) -> None:
    lines = bytes(data).split(b"\n")
    line = rng.randrange(len(lines))
    head, sep, _ = lines[line].partition(b":")
    lines[line] = head + sep + b" " + rng.choice(TEXTS)
    data[:] = b"\n".join(lines)


_CHANGES = (_flip, _number, _delete, _repeat, _insert, _replace_line)


def mutated_zip(files: Mapping[str, bytes], rng: random.Random) -> bytes:
    """An archive of these files: the content of a file, a name, or the archive itself is changed."""
    kind = rng.choice(["content", "content", "content", "name", "archive", "both"])
    members = list(files.items())
    if kind in ("content", "both"):
        place = rng.randrange(len(members))
        members[place] = (members[place][0], mutated(members[place][1], rng))
    if kind == "name":
        place = rng.randrange(len(members))
        name = mutated(members[place][0].encode(), rng, most=2).decode(errors="replace")
        members.insert(rng.randrange(len(members)), (name, members[place][1]))
    out = io.BytesIO()
    usual = [zipfile.ZIP_STORED, *[zipfile.ZIP_DEFLATED] * 2]
    method = rng.choice([*usual * 5, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.NameToInfo.clear()  # so that zipfile warns of no duplicate
            archive.writestr(zipfile.ZipInfo(name[:60_000] or "x"), data, compress_type=method)
    data = out.getvalue()
    return mutated(data, rng) if kind in ("archive", "both") else data


def mutated_tar(rng: random.Random) -> bytes:
    """A small source distribution with random members, links and headers, sometimes damaged."""
    out = io.BytesIO()
    mode = rng.choice(["w:gz", "w:gz", "w:bz2", "w:xz", "w"])
    with tarfile.open(fileobj=out, mode=mode, format=rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) as tar:  # type: ignore[call-overload]
        for _ in range(rng.randint(1, 8)):
            info = tarfile.TarInfo("/".join(rng.choice(_PATHS) for _ in range(rng.randint(1, 4))))
            info.type = rng.choice(_KINDS)
            info.linkname = "/".join(rng.choice(_PATHS) for _ in range(rng.randint(1, 3)))
            info.mode = rng.choice([0o644, 0o755, 0o4755, 0, 0o7777])
            info.size = rng.choice([0, 3, 100]) if info.isreg() else 0
            if rng.random() < 0.2 and mode != "w":
                info.pax_headers = {
                    rng.choice(["comment", "path", "linkpath", "size", "mtime", "GNU.sparse.map"]): rng.choice(
                        ["1", "x" * 300, "../../e", "-1", "nan"]
                    )
                }
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    data = out.getvalue()
    return mutated(data, rng) if rng.random() < 0.4 else data


_LINKS = [tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
_KINDS = [*[tarfile.REGTYPE] * 3, tarfile.DIRTYPE, *_LINKS, tarfile.FIFOTYPE]
_PATHS = ["e-1", "e-1", "e-1", "a", "b", "l", "..", ".", "/etc", "escape", "n" * 256, "x\0y", "é", "\x1b[31m"]


def garbage(rng: random.Random) -> bytes:
    """Random bytes behind the start of a known format."""
    start = rng.choice([b"PK\x03\x04", b"\x7fELF\x02\x01\x01", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b""])
    return start + rng.randbytes(rng.randint(0, 2000)) + struct.pack("<Q", rng.choice(_INTERESTING))
