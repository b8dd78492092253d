"""Network settings of this machine, which containers get: package indexes, proxies, CA bundle; and its own address."""

import ipaddress
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder import SAVED
from builder.errors import Code, MissingToolError, UsageError
from builder.formats import digest_of
from builder.untrusted import without_credentials

#: Variables of uv, pip and HTTP clients that say where packages come from. Variables with paths of this machine
#: (UV_FIND_LINKS, configuration files) are missing because a container does not have these paths.
_NETWORK_VARIABLES = re.compile(
    r"UV_DEFAULT_INDEX|UV_INDEX(_.+)?|UV_EXTRA_INDEX_URL|UV_INSECURE_HOST|PIP_INDEX_URL|PIP_EXTRA_INDEX_URL"
    r"|PIP_TRUSTED_HOST|(?i:https?_proxy|all_proxy|no_proxy)"
)

#: Variables that name the default package index, in uv's order of precedence; pip's counts when uv's are not set.
INDEX_SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")

#: The settings of uv and pip that say where packages come from and how they are fetched. No other setting of the user
#: reaches uv and pip: it could change which packages a build and a cell have. Source: uv 0.13 and pip 26.
_OF_PLACES = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX(_.+)?|EXTRA_INDEX_URL|FIND_LINKS|NO_INDEX|KEYRING_PROVIDER|INSECURE_HOST|NATIVE_TLS"
    r"|SYSTEM_CERTS|OFFLINE|HTTP_.+|REQUEST_TIMEOUT|CACHE_DIR|NO_CACHE|LINK_MODE|CONCURRENT_.+|CREDENTIALS_DIR"
    r"|LOCK_TIMEOUT|PYTHON_(DOWNLOADS(_JSON_URL)?|INSTALL_DIR|INSTALL_MIRROR|CACHE_DIR)|(S3|GCS|AZURE)_ENDPOINT_URL)"
    r"|PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|CLIENT_CERT|FIND_LINKS|NO_INDEX|PROXY|CACHE_DIR|NO_CACHE_DIR"
    r"|DEFAULT_TIMEOUT|TIMEOUT|RETRIES|KEYRING_PROVIDER|NO_INPUT|DISABLE_PIP_VERSION_CHECK)"
)

#: Those that count with a saved folder too: they say where files are kept on this machine.
_OF_DISKS = re.compile(
    r"UV_(CACHE_DIR|NO_CACHE|LINK_MODE|CONCURRENT_.+|LOCK_TIMEOUT|PYTHON_(DOWNLOADS(_JSON_URL)?|INSTALL_DIR|CACHE_DIR))|PIP_CACHE_DIR"
)

#: Settings of uv.toml whose variable has another name.
_OTHER_NAMES = {
    "allow-insecure-host": "UV_INSECURE_HOST",
    **{f"{name}-proxy": f"{name.upper()}_PROXY" for name in ("http", "https", "no")},
}

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

#: Where containers find a saved folder.
SAVED_MOUNT = "/buildfarm/saved"


def saved_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of `store save` that takes the place of the network (`--from DIR`), or None."""
    return Path(environ[SAVED]).expanduser().absolute() if environ.get(SAVED) else None


def saved_mount() -> dict[Path, str]:
    """The saved folder and its path in containers that install packages; empty without one."""
    return {folder: SAVED_MOUNT} if (folder := saved_folder()) else {}


def saved_index(index: Sequence[str]) -> str:
    """Where a saved folder has the packages that were resolved with these indexes before the default index."""
    return f"index/{digest_of([without_credentials(url) for url in index])[:12] if index else 'default'}"


def package_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the shell, of uv and pip only those about indexes, mirrors, certificates and caches.

    Such settings of uv.toml become variables; one of the shell takes precedence. Raises UsageError for a uv.toml that
    cannot be read.
    """
    found = {k: v for k, v in environ.items() if not k.startswith(("UV_", "PIP_")) or _OF_PLACES.fullmatch(k)}
    if saved := saved_folder(environ):
        others = {k: v for k, v in found.items() if not _OF_PLACES.fullmatch(k) or _OF_DISKS.fullmatch(k)}
        return others | {
            "UV_DEFAULT_INDEX": (saved / saved_index(())).as_uri(),
            "UV_PYTHON_INSTALL_MIRROR": (saved / "pythons").as_uri(),
            "UV_OFFLINE": "1",
        }
    for path in uv_files(environ):
        try:
            settings = _of_file(tomllib.loads(path.read_text(encoding="utf-8")))
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            sentence = f"the settings of uv cannot be read: {error}"
            raise UsageError(sentence, Code.VALUE_INVALID, where=str(path)) from error
        has_default = any(found.get(name) for name in INDEX_SETTINGS)
        for name, value in settings.items():
            if name in (FIRST_INDEX, "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
                separator = "," if name == "UV_FIND_LINKS" else " "
                found[name] = separator.join(filter(None, (found.get(name), value)))
            elif not (has_default and name in INDEX_SETTINGS):
                found.setdefault(name, value)
    return found


def uv_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The uv.toml of the user, then that of the system, as uv finds them outside of a project."""
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true"):
        return []
    if named := environ.get("UV_CONFIG_FILE"):
        return [Path(named)]
    own = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    shared = (*environ.get("XDG_CONFIG_DIRS", "").split(":"), "/etc")
    system = [path for folder in shared if folder and (path := Path(folder, "uv", "uv.toml")).is_file()]
    return [*(path for path in [Path(own, "uv", "uv.toml")] if path.is_file()), *system[:1]]


def _of_file(settings: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in {**settings, **settings.get("pip", {})}.items():
        name = _OTHER_NAMES.get(key, f"UV_{key.upper().replace('-', '_')}")
        if key in _OTHER_NAMES or (_OF_PLACES.fullmatch(name) and key != "index"):
            separator = "," if name in ("UV_FIND_LINKS", "NO_PROXY") else " "
            found[name] = separator.join(value) if isinstance(value, list) else str(value)
    for index in settings.get("index", ()):
        url = f"{index['name']}={index['url']}" if "name" in index else index["url"]
        if index.get("default"):
            found["UV_DEFAULT_INDEX"] = url
        elif index.get("format") == "flat":
            found["UV_FIND_LINKS"] = ",".join(filter(None, (found.get("UV_FIND_LINKS"), index["url"])))
        elif not index.get("explicit"):  # uv asks an explicit index only for packages that a project names
            found[FIRST_INDEX] = " ".join(filter(None, (found.get(FIRST_INDEX), url)))
    return found


def prepend_index(urls: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with these URLs in front of the indexes in UV_INDEX; of a saved folder, what it has of them."""
    if not urls:
        return dict(variables)
    if saved := saved_folder():
        urls = [(saved / saved_index(urls)).as_uri()]
    return {**variables, FIRST_INDEX: " ".join([*urls, *filter(None, [variables.get(FIRST_INDEX)])])}


def index_variables(environ: Mapping[str, str] = os.environ, *, index: Sequence[str] = ()) -> dict[str, str]:
    """Index settings and proxies of this machine. They may contain passwords, so keep them out of program arguments.

    An index that is set only for uv or only for pip is used for both. `index` are URLs that take precedence. A saved
    folder is mounted (`saved_mount`).
    """
    found = {k: v for k, v in package_settings(environ).items() if v and _NETWORK_VARIABLES.fullmatch(k)}
    uv = found.get("UV_DEFAULT_INDEX") or found.get("UV_INDEX_URL")
    pip = found.get("PIP_INDEX_URL")
    if uv and not pip:
        found["PIP_INDEX_URL"] = re.sub(r"^[\w.-]+=(?=\w+://)", "", uv)  # uv's form has a name
    if pip and not uv:
        found["UV_DEFAULT_INDEX"] = pip
    found = prepend_index(index, found)
    for folder, mounted in saved_mount().items():
        found = {name: value.replace(f"{folder.as_uri()}/", f"file://{mounted}/") for name, value in found.items()}
    return dict(sorted(found.items()))


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
        Code.CERTIFICATE_NOT_USABLE,
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
