"""Network settings of this machine, which containers get: package indexes, proxies, CA bundle; and its own address."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.errors import Code, MissingToolError

#: Variables of uv, pip and HTTP clients that say where packages come from. Variables with paths of this machine
#: (UV_FIND_LINKS, configuration files) are missing because a container does not have these paths.
_NETWORK_VARIABLES = re.compile(
    r"UV_DEFAULT_INDEX|UV_INDEX(_.+)?|UV_EXTRA_INDEX_URL|UV_INSECURE_HOST|PIP_INDEX_URL|PIP_EXTRA_INDEX_URL"
    r"|PIP_TRUSTED_HOST|(?i:https?_proxy|all_proxy|no_proxy)"
)

#: Variables that name a CA bundle, for OpenSSL and uv, pip, requests, curl, git.
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")

#: The CA bundles of Debian, Fedora, openSUSE and Alpine.
_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

#: Name of the copy that `copy_ca_bundle` makes.
CA_BUNDLE = "ca.pem"

#: Variable of uv with the indexes that take precedence over the default one, separated by spaces.
FIRST_INDEX = "UV_INDEX"


def prepend_index(urls: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with these URLs in front of the indexes in UV_INDEX."""
    if not urls:
        return dict(variables)
    return {**variables, FIRST_INDEX: " ".join([*urls, *filter(None, [variables.get(FIRST_INDEX)])])}


def index_variables(environ: Mapping[str, str] = os.environ, *, index: Sequence[str] = ()) -> dict[str, str]:
    """Index settings and proxies of this machine. They may contain passwords, so keep them out of program arguments.

    An index that is set only for uv or only for pip is used for both. `index` are URLs that take precedence.
    """
    found = {k: v for k, v in environ.items() if v and _NETWORK_VARIABLES.fullmatch(k)}
    uv = found.get("UV_DEFAULT_INDEX") or found.get("UV_INDEX_URL")
    pip = found.get("PIP_INDEX_URL")
    if uv and not pip:
        found["PIP_INDEX_URL"] = uv
    if pip and not uv:
        found["UV_DEFAULT_INDEX"] = pip
    return dict(sorted(prepend_index(index, found).items()))


def is_loopback(host: str) -> bool:
    """Whether a host name or an address is that of this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def ca_variables(bundle: str) -> dict[str, str]:
    """All variables that name a CA bundle, with `bundle` as their value."""
    return dict.fromkeys(_CA_VARIABLES, bundle)


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path:
    """This machine's CA bundle: from the environment, otherwise the system's. Raises MissingToolError."""
    import ssl  # noqa: PLC0415 - loads slowly, and only containers need this

    named = [environ[name] for name in _CA_VARIABLES if environ.get(name)]
    default = ssl.get_default_verify_paths().cafile
    for candidate in (*named, *([default] if default else []), *_CA_FILES):
        if (path := Path(candidate)).is_file():
            return path.resolve()
    raise MissingToolError(
        "this machine has no CA bundle, so a container cannot verify package indexes",
        Code.CERTIFICATE_NOT_TRUSTED,
        hints=["install ca-certificates, or set SSL_CERT_FILE to a bundle"],
    )


def copy_ca_bundle(folder: Path) -> Path:
    """A copy of this machine's CA bundle in a folder, for a mount: an engine may not have the bundle's own path.

    This is so if buildfarm itself runs in a container. Every user can read the copy.
    """
    copied = folder / CA_BUNDLE
    shutil.copyfile(ca_bundle(), copied)
    copied.chmod(0o644)
    return copied


def shell_settings(variables: Mapping[str, str]) -> str:
    """A shell script that exports these variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
