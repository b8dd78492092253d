"""A compiler cache that machines share: sccache's remote backends, chosen by sccache's own variables in the shell.

sccache asks the cache on this disk first, and keeps there what it found in the remote one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit


@dataclass(frozen=True)
class _Backend:
    """One of sccache's backends."""

    #: In sccache's chain of caches.
    name: str
    #: The variables that turn it on.
    switches: frozenset[str]
    #: The variable with the first part of every key.
    prefix: str


_BACKENDS = (
    _Backend(
        "redis",
        frozenset({"SCCACHE_REDIS", "SCCACHE_REDIS_ENDPOINT", "SCCACHE_REDIS_CLUSTER_ENDPOINTS"}),
        "SCCACHE_REDIS_KEY_PREFIX",
    ),
    _Backend(
        "memcached", frozenset({"SCCACHE_MEMCACHED", "SCCACHE_MEMCACHED_ENDPOINT"}), "SCCACHE_MEMCACHED_KEY_PREFIX"
    ),
    _Backend("s3", frozenset({"SCCACHE_BUCKET"}), "SCCACHE_S3_KEY_PREFIX"),
    _Backend("gcs", frozenset({"SCCACHE_GCS_BUCKET"}), "SCCACHE_GCS_KEY_PREFIX"),
    _Backend("azure", frozenset({"SCCACHE_AZURE_BLOB_CONTAINER"}), "SCCACHE_AZURE_KEY_PREFIX"),
    _Backend("webdav", frozenset({"SCCACHE_WEBDAV_ENDPOINT"}), "SCCACHE_WEBDAV_KEY_PREFIX"),
)

#: Variables of remote backends, also of those that are not supported: a build never gets them.
_REMOTE = re.compile(
    r"SCCACHE_(?:REDIS|MEMCACHED|S3|GCS|AZURE|WEBDAV|OSS|COS|GHA)(?:_.+)?"
    r"|SCCACHE_(?:BUCKET|REGION|ENDPOINT|MULTILEVEL_.+)|AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)"
)

_CHAIN = "SCCACHE_MULTILEVEL_CHAIN"

#: The first part of every key, unless the shell has one.
_PREFIX = "buildfarm"


def is_remote(name: str) -> bool:
    """Whether a variable configures a remote backend of sccache."""
    return _REMOTE.fullmatch(name) is not None


def shared_variables(shell: Mapping[str, str], extension: str) -> dict[str, str]:
    """What sccache's server needs for the remote backends that the shell's variables name; empty if it names none.

    The name of the extension is added to each key prefix, so that no extension finds objects of another. User name and
    password leave Redis's URL, because sccache logs URLs.
    """
    found = {name: value for name, value in shell.items() if value and is_remote(name)}
    used = [backend for backend in _BACKENDS if backend.switches & found.keys()]
    if not used:
        return {}
    for backend in used:
        found[backend.prefix] = f"{found.get(backend.prefix, _PREFIX).rstrip('/')}/{extension}"
    if url := found.pop("SCCACHE_REDIS", ""):
        found.setdefault("SCCACHE_REDIS_ENDPOINT", url)
    if url := found.get("SCCACHE_REDIS_ENDPOINT", ""):
        found |= _redis_variables(url)
    found.setdefault(_CHAIN, ",".join(["disk", *(backend.name for backend in used)]))
    return found


def _redis_variables(url: str) -> dict[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:  # sccache will refuse it
        return {}
    if "@" not in parts.netloc:
        return {}
    login, _, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    database = re.fullmatch(r"db=(\d+)", parts.query) or re.fullmatch(r"/(\d+)", parts.path)
    return {
        "SCCACHE_REDIS_ENDPOINT": urlunsplit((parts.scheme, host, "", "", parts.fragment)),
        **({"SCCACHE_REDIS_USERNAME": unquote(user)} if user else {}),
        **({"SCCACHE_REDIS_PASSWORD": unquote(password)} if password else {}),
        **({"SCCACHE_REDIS_DB": database[1]} if database else {}),
    }
