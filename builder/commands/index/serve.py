"""`buildfarm serve`."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from builder.cli.options import examples
from builder.commands.folders import open_store
from builder.errors import Code, MissingToolError, UsageError
from builder.images.network import is_loopback
from builder.log import print_line, print_warning
from builder.matrix.models.fields import parse_size
from builder.publish.index.levels import levels_of

EXAMPLES = examples(
    "buildfarm serve index",
    "buildfarm serve /srv/wheels --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem",
    "buildfarm serve /srv/wheels --proxy-headers --read-token-required",
)

IndexArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of the index. It is made if it is missing.")
]
HostOption = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")]
PortOption = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port to listen on; 0: any free port.")
]
CertificateOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate (PEM).")
]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of the certificate (PEM).")]
ProxyOption = Annotated[
    bool,
    typer.Option(
        "--proxy-headers",
        help="Take the address of a client from X-Forwarded-For, if the request comes from a proxy on this machine or"
        " from an address in FORWARDED_ALLOW_IPS.",
    ),
]
ReadTokenOption = Annotated[
    bool, typer.Option("--read-token-required", help="Let nobody read without a token. Uploads always need a token.")
]
MaxSizeOption = Annotated[str, typer.Option("--max-size", metavar="SIZE", help="The largest file that is accepted.")]
UploadRequireOption = Annotated[
    str,
    typer.Option(
        "--require",
        metavar="LEVELS",
        help="What the proofs of an uploaded wheel must show, as in `publish`. The proofs come with the upload, or from"
        " --store.",
    ),
]
ProofStoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="A store with proofs of uploaded wheels. Default: only `buildfarm publish` sends proofs.",
    ),
]
JsonLogOption = Annotated[bool, typer.Option("--json", help="Print each request as a line of JSON.")]


def serve(
    index: IndexArgument,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    proxy_headers: ProxyOption = False,
    read_token_required: ReadTokenOption = False,
    max_size: MaxSizeOption = "4GiB",
    require: UploadRequireOption = "none",
    store: ProofStoreOption = None,
    as_json: JsonLogOption = False,
) -> None:
    """Serve a package index over HTTP, and accept uploads by `buildfarm publish`, twine and `uv publish`.

    stdout has a line for each request. After SIGTERM or Ctrl-C, running transfers have 10 seconds to finish.
    """
    app, run = _server()
    if (tls_cert is None) != (tls_key is None):
        raise UsageError(
            "a certificate and its key belong together; name both or none",
            Code.OPTION_MISSING,
            where="--tls-cert, --tls-key",
        )
    tls = (tls_cert, tls_key) if tls_cert and tls_key else None
    if tls:
        run.check_tls(*tls)
    settings = app.ServerSettings(
        index,
        token_required=read_token_required,
        max_size=parse_size(max_size),
        required=levels_of(require),
        store=open_store(store, run=False, must_exist=True) if store else None,
        json_log=as_json,
    )
    if index.exists() and not index.is_dir():
        raise UsageError("this is a file, not the folder of an index", Code.PATH_NOT_USABLE, where=str(index))
    index.mkdir(parents=True, exist_ok=True)
    listening = run.open_socket(host, port)
    if not os.access(index, os.W_OK):
        print_warning(f"{index} cannot be written, so the server refuses every upload")
    for project in run.finish_interrupted(index):
        print_line(f"finished an interrupted change of {project}")
    address, number = listening.getsockname()[:2]
    print_line(f"serving {index} on {'https' if tls else 'http'}://{host_of(address)}:{number}/simple/")
    if not tls and not proxy_headers and not is_loopback(address):
        print_warning("without TLS, everybody on the network can read the tokens that clients send")
    run.run(app.make_app(settings, _log), listening, tls=tls, proxy_headers=proxy_headers)


def host_of(address: str) -> str:
    """The host in the URL of a server: this machine's name if it listens on every address, such as 0.0.0.0."""
    if ipaddress.ip_address(address).is_unspecified:
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address


def _log(line: str) -> None:
    """Print a line of the access log; a reader of stdout that has ended does not end the server."""
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _server() -> tuple[ModuleType, ModuleType]:
    """The modules of the server; raises MissingToolError without the packages that only the server needs."""
    try:
        from builder.publish.server import app, run  # noqa: PLC0415 - see `build`
    except ImportError as error:
        raise MissingToolError(
            f"`serve` needs a package that is not installed ({error.name})",
            Code.PACKAGE_MISSING,
            hints=["in the clone of buildfarm, run `pip install '.[serve]'`"],
        ) from None
    return app, run
