"""Connect to a Dask scheduler, or say in one sentence why that is not possible."""

from __future__ import annotations

import asyncio
import logging
import ssl
import warnings
from urllib.parse import urlsplit

from distributed import Client
from distributed.comm.core import FatalCommClosedError
from distributed.comm.core import connect as connect_comm
from distributed.security import Security

from builder.errors import Code, MissingToolError

#: Seconds for one attempt to connect.
CONNECT_SECONDS = 10.0


class UnreachableError(MissingToolError):
    """The scheduler does not answer."""


class RefusedError(UnreachableError):
    """The certificates do not fit; another attempt would not help."""


def quiet_dask() -> None:
    """Keep log lines and warnings of Dask and asyncio off the terminal: buildfarm says what the user must know."""
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")


async def reach(address: str, security: Security, role: str = "client") -> None:
    """Connect to a scheduler and close the connection; `role` is `client` or `worker`.

    Raises UnreachableError, and RefusedError if the certificates do not fit.
    """
    parts = urlsplit(address)
    arguments = security.get_connection_args(role)  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            comm = await connect_comm(address, timeout=CONNECT_SECONDS, **arguments)  # type: ignore[no-untyped-call]
            comm.abort()
    except FatalCommClosedError as error:
        raise RefusedError(_refusal(error), Code.SCHEDULER_REFUSED, where=address, hints=[TLS_HINT]) from None
    except TimeoutError:
        raise _silent(address) from None
    except OSError as error:
        raise UnreachableError(
            _reason(address, error), Code.SCHEDULER_UNREACHABLE, where=address, hints=_hints(address)
        ) from None


async def connect(address: str, security: Security) -> Client:
    """Connect a client to a scheduler; raises UnreachableError."""
    await reach(address, security)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            client: Client = await Client(  # type: ignore[no-untyped-call]
                address, asynchronous=True, security=security, timeout=CONNECT_SECONDS, set_as_default=False
            )
    except (OSError, ValueError, RuntimeError):
        raise _silent(address) from None
    return client


def _silent(address: str) -> UnreachableError:
    """The error for a program that accepts connections and does not answer."""
    return UnreachableError(
        f"the scheduler does not answer within {CONNECT_SECONDS:.0f} s",
        Code.SCHEDULER_UNREACHABLE,
        where=address,
        hints=_hints(address),
    )


TLS_HINT = "use certificates of one certificate authority for the scheduler, the workers and the clients"


def _refusal(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of the scheduler is not trusted: {cause.verify_message}"
    return "the program at this address does not use TLS, or does not accept the certificate"


def _reason(address: str, error: OSError) -> str:
    """Why a connection failed, in one sentence."""
    if isinstance(error, ConnectionRefusedError):
        return "no scheduler listens at this address"
    if error.errno is not None:
        return f"the scheduler does not answer: {error.strerror or error}"
    if address.startswith("tls:"):
        return "the scheduler closes the connection: it does not accept the certificate"
    return "the program at this address closes the connection: it wants TLS, or is no Dask scheduler"


def _hints(address: str) -> list[str]:
    hints = ["start one with `dask scheduler --host HOST --port PORT`, or correct the address"]
    hints.append(TLS_HINT if address.startswith("tls:") else "if the scheduler wants TLS, write tls://")
    return hints
