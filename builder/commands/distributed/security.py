"""Who may connect: TLS with certificates, or loopback."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed.security import Security

from builder.errors import Code, MissingToolError, UsageError

#: The page that says why, and how certificates are made.
TRUST_HINT = "docs/explanation/trust.md says what a worker's scheduler and clients can do"


def check_address(address: str, *, plain_tcp: bool, option: str) -> str:
    """The address of a scheduler; raises UsageError for another form, and for plain TCP to other machines.

    `plain_tcp` is whether the user allowed plain TCP, and `option` names the option with the address.
    """
    try:
        parts = urlsplit(address)
        complete = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
        rest = parts.path or parts.query or parts.fragment or "@" in parts.netloc
    except ValueError:
        complete = rest = ""
    if not complete or rest:
        raise UsageError(
            f"{address!r} is not the address of a scheduler",
            Code.VALUE_INVALID,
            where=option,
            hints=["write tls://HOST:PORT or tcp://HOST:PORT"],
        )
    if parts.scheme == "tcp" and not is_loopback(str(parts.hostname)) and not plain_tcp:
        raise UsageError(
            f"{address} is not encrypted, and everyone who reaches its port could run programs on the workers",
            Code.NOT_ENCRYPTED,
            where=option,
            hints=[
                "use tls:// with certificates; " + TRUST_HINT,
                "pass `--plain-tcp` if only trusted machines reach this network",
            ],
        )
    return address


def is_loopback(host: str) -> bool:
    """Whether a host name or address is that of this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def security_for(address: str, role: str = "client") -> Security:
    """Dask's security settings, from its own configuration; raises MissingToolError if a certificate is missing.

    The configuration is `distributed.comm.tls` in a file of Dask, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on.
    `role` is `client` or `worker`: each has a certificate of its own there.
    """
    if not address.startswith("tls:"):
        return Security()  # type: ignore[no-untyped-call]
    for name in ("ca-file", f"{role}.cert", f"{role}.key"):
        variable = f"DASK_DISTRIBUTED__COMM__TLS__{name.replace('.', '__').replace('-', '_').upper()}"
        file = dask.config.get(f"distributed.comm.tls.{name}", None)
        if not file:
            raise MissingToolError(
                f"the connection needs a certificate, and Dask's configuration has no distributed.comm.tls.{name}",
                Code.CERTIFICATE_NOT_USABLE,
                where=address,
                hints=[f"set {variable}, or write the setting into a file of Dask's configuration"],
            )
        if not Path(file).is_file():
            raise MissingToolError(
                f"the file {file}, which Dask's setting distributed.comm.tls.{name} names, does not exist",
                Code.CERTIFICATE_NOT_USABLE,
                where=address,
                hints=[f"correct {variable}"],
            )
    security = Security(require_encryption=True)  # type: ignore[no-untyped-call]
    try:
        security.get_connection_args(role)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:  # also ssl.SSLError
        raise MissingToolError(
            f"the certificates of Dask's configuration cannot be used: {error}",
            Code.CERTIFICATE_NOT_USABLE,
            where=address,
        ) from None
    return security
