"""The connection to a Dask scheduler: who may connect, and why a connection fails."""

import asyncio
import logging
import ssl
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import dask
from distributed import Client
from distributed.comm.core import FatalCommClosedError
from distributed.comm.core import connect as connect_comm
from distributed.security import Security

from builder.errors import Code, MissingToolError, UsageError
from builder.images.network import is_loopback
from builder.matrix.compat import and_list

#: Seconds for one attempt to connect.
CONNECT_SECONDS = 10.0
#: The page that says why, and how certificates are made.
TRUST_HINT = "docs/explanation/trust.md says what a worker's scheduler and clients can do"
TLS_HINT = "start the scheduler with `--protocol tls`, and with a certificate of the same authority as this one"


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
        sentence = f"{address!r} is not the address of a scheduler"
        hint = "write tls://HOST:PORT or tcp://HOST:PORT"
        raise UsageError(sentence, Code.VALUE_INVALID, where=option, hints=[hint])
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


def security_for(address: str, role: str = "client") -> Security:
    """Dask's security settings, from its own configuration; raises MissingToolError if a certificate is missing.

    The configuration is `distributed.comm.tls` in a file of Dask, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on.
    `role` is `client` or `worker`: each has a certificate of its own there.
    """
    if not address.startswith("tls:"):
        return Security()  # type: ignore[no-untyped-call]
    security = Security(require_encryption=True)  # type: ignore[no-untyped-call]
    settings = [f"distributed.comm.tls.{name}" for name in ("ca-file", f"{role}.cert", f"{role}.key")]
    absent = [name for name in settings if not Path(dask.config.get(name) or "").is_file()]
    problem = f"{absent[0]} names no file" if absent else ""
    try:
        security.get_connection_args(role)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:  # also ssl.SSLError
        problem = problem or str(error)
    if problem:
        sentence = f"the connection needs a certificate, and that of Dask's configuration cannot be used: {problem}"
        hint = f"set {and_list(settings)}, each to a PEM file, in a file of Dask's configuration or as variables"
        raise MissingToolError(sentence, Code.CERTIFICATE_NOT_USABLE, where=address, hints=[hint])
    return security


class UnreachableError(MissingToolError):
    """The scheduler does not answer; with the code CERTIFICATE_NOT_USABLE, another attempt would not help."""

    def __init__(self, address: str, error: Exception) -> None:
        """`error` is that of the connection; a ValueError says that the other side did not begin with TLS."""
        tls, code = address.startswith("tls:"), Code.NETWORK_UNREACHABLE
        reason = getattr(error, "strerror", None) or str(error) or f"{CONNECT_SECONDS:.0f} s have passed"
        sentence = f"the scheduler does not answer: {reason}"
        if isinstance(error, FatalCommClosedError | ValueError):
            code = Code.CERTIFICATE_NOT_USABLE
            sentence = "the program at this address does not use TLS, or does not accept the certificate"
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                sentence = f"the certificate of the scheduler is not trusted: {error.__cause__.verify_message}"
        elif isinstance(error, OSError) and error.errno is None and not isinstance(error, TimeoutError):
            why = "it does not accept the certificate" if tls else "it wants TLS, or is no Dask scheduler"
            sentence = f"the program at this address closes the connection: {why}"
        plain = "start one with `dask scheduler --host HOST --port PORT`; write tls:// if it wants TLS"
        super().__init__(sentence, code, where=address, hints=[TLS_HINT if tls else plain])


def quiet_dask() -> None:
    """Keep log lines and warnings of Dask and asyncio off the terminal: buildfarm says what the user must know."""
    for name in [*logging.root.manager.loggerDict]:  # Dask's configuration gives `distributed.client` its own level
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")


async def reach(address: str, security: Security, role: str = "client") -> None:
    """Connect to a scheduler and close the connection; `role` is `client` or `worker`.

    Raises UnreachableError.
    """
    parts = urlsplit(address)
    arguments = security.get_connection_args(role)  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            comm = await connect_comm(address, timeout=CONNECT_SECONDS, **arguments)  # type: ignore[no-untyped-call]
            comm.abort()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: Dask's configuration allows only TLS
        raise UnreachableError(address, error) from None


def connect(address: str) -> Client:
    """Connect a client to a scheduler; raises UnreachableError."""
    security = security_for(address)
    asyncio.run(reach(address, security))
    try:
        return Client(  # type: ignore[no-untyped-call]
            address, security=security, timeout=CONNECT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError, RuntimeError):
        raise UnreachableError(address, TimeoutError()) from None
