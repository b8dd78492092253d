"""`adopt`: which wheels the arguments name, and where they came from."""

from __future__ import annotations

from pathlib import Path

from builder.commands.index.foreign_wheels import foreign_wheels
from builder.hashing import sha256_of
from tests.unit.loopback import pure_wheel


def test_the_origin_has_no_secret_of_the_url(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "ops", "1.0")
    sha256 = sha256_of(wheel)
    kept = tmp_path / "cache" / "wheels" / sha256 / wheel.name  # a kept wheel is not downloaded again
    kept.parent.mkdir(parents=True)
    wheel.rename(kept)
    place = "dl.example/basic/team/t/{token}/python/" + wheel.name
    url = f"https://user:s3cr3t@{place.format(token='s3cr3ts3cr3t')}?token=s3cr3ts3cr3t#sha256={sha256}"
    (found,) = foreign_wheels([url], tmp_path / "cache", "", ())
    assert (found.path, found.origin) == (kept, f"https://{place.format(token='***')}")
