"""How this machine reaches its package indexes, for containers: index settings, proxies, CA bundle."""

from __future__ import annotations

import os
import re
import shlex
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.errors import MissingToolError

#: Settings of uv, pip and every HTTP client that say where packages come from. Paths of this machine
#: (UV_FIND_LINKS, configuration files) are not among them: they would mean nothing inside.
_CARRIED = re.compile(
    r"UV_DEFAULT_INDEX|UV_INDEX(_.+)?|UV_EXTRA_INDEX_URL|UV_INSECURE_HOST|PIP_INDEX_URL|PIP_EXTRA_INDEX_URL"
    r"|PIP_TRUSTED_HOST|(?i:https?_proxy|all_proxy|no_proxy)"
)

#: Variables by which programs are told of a CA bundle: OpenSSL and uv, pip, requests, curl, git.
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")

#: Where distributions keep their bundle: Debian's, Fedora's, openSUSE's, Alpine's.
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


#: By which uv is told of indexes that it asks before the default one.
FIRST_INDEX = "UV_INDEX"


def asking_first(index: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """These variables, with these URLs before the indexes that they name already."""
    if not index:
        return dict(variables)
    return {**variables, FIRST_INDEX: " ".join([*index, *filter(None, [variables.get(FIRST_INDEX)])])}


def index_variables(environ: Mapping[str, str] = os.environ, *, index: Sequence[str] = ()) -> dict[str, str]:
    """Index settings and proxies as set here. They may hold passwords: keep their values out of arguments.

    Where only one of uv and pip is told of an index, the other is told too. `index` are URLs to ask first.
    """
    found = {k: v for k, v in environ.items() if v and _CARRIED.fullmatch(k)}
    uv = found.get("UV_DEFAULT_INDEX") or found.get("UV_INDEX_URL")
    pip = found.get("PIP_INDEX_URL")
    if uv and not pip:
        found["PIP_INDEX_URL"] = uv
    if pip and not uv:
        found["UV_DEFAULT_INDEX"] = pip
    return dict(sorted(asking_first(index, found).items()))


def ca_variables(bundle: str) -> dict[str, str]:
    """Every variable by which programs find a CA bundle, pointing at `bundle`."""
    return dict.fromkeys(_CA_VARIABLES, bundle)


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path:
    """This machine's CA bundle: what the environment names, else the system's; raises MissingToolError."""
    named = [environ[name] for name in _CA_VARIABLES if environ.get(name)]
    default = ssl.get_default_verify_paths().cafile
    for candidate in (*named, *([default] if default else []), *_CA_FILES):
        if (path := Path(candidate)).is_file():
            return path.resolve()
    raise MissingToolError(
        "this machine has no CA bundle, so a container could trust no package index",
        hints=["install ca-certificates, or set SSL_CERT_FILE to a bundle"],
    )


def shell_settings(variables: Mapping[str, str]) -> str:
    """Variables as a file for a shell to source."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
