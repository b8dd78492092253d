"""`buildfarm serve`."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from builder.errors import Code, MissingToolError, UsageError
from builder.images.network import is_loopback
from builder.log import print_line, print_warning
from builder.option import argument, flag, option
from builder.publish.index.levels import levels_of


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of `buildfarm serve`."""

    index: Path = argument("The folder of the index. It is made if it is missing.", "DIR")
    host: str = option("The address to listen on.", "ADDRESS", default="127.0.0.1")
    port: int = option("The port to listen on; 0: any free port.", "N", default=8080, min=0, max=65535)
    tls_cert: Path | None = option("Serve HTTPS with this certificate (PEM).", "FILE")
    tls_key: Path | None = option("The key of the certificate (PEM).", "FILE")
    read_token_required: bool = flag("Let nobody read without a token. Uploads always need a token.")
    require: str = option(
        "What the proofs that come with an uploaded wheel must show, as in `publish`.", "LEVELS", default="none"
    )


def serve(options: ServeOptions) -> None:
    """Serve a package index over HTTP, and accept uploads by `buildfarm publish`, twine and `uv publish`.

    stdout has a line for each request, and stderr one for each upload with the name of its token. The address of a
    client is that in X-Forwarded-For, if the request comes from a proxy on this machine or from an address in
    FORWARDED_ALLOW_IPS. After SIGTERM or Ctrl-C, running transfers have 10 seconds to finish.

    Examples:
        buildfarm serve index
        buildfarm serve /srv/wheels --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem
        buildfarm serve /srv/wheels --read-token-required
    """
    required = levels_of(options.require)
    try:
        from builder.publish.server import app as server  # noqa: PLC0415 - see `build`
    except ImportError as error:
        sentence = f"`serve` needs a package that is not installed ({error.name})"
        hint = "in the clone of buildfarm, run `pip install '.[serve]'`"
        raise MissingToolError(sentence, Code.PACKAGE_MISSING, hints=[hint]) from None
    index, certificate, key = options.index, options.tls_cert, options.tls_key
    if (certificate is None) != (key is None):
        sentence = "a certificate and its key belong together; name both or none"
        raise UsageError(sentence, Code.COMMAND_LINE_INVALID, where="--tls-cert, --tls-key")
    if certificate and key:
        server.check_tls(certificate, key)
    app = server.make_app(index, token_required=options.read_token_required, required=required)
    if index.exists() and not index.is_dir():
        raise UsageError("this is a file, not the folder of an index", Code.PATH_NOT_USABLE, where=str(index))
    listening = server.open_socket(options.host, options.port)
    index.mkdir(parents=True, exist_ok=True)
    if not os.access(index, os.W_OK):
        print_warning(f"{index} cannot be written, so the server refuses every upload")
    for project in server.finish_interrupted(index):
        print_line(f"finished an interrupted change of {project}")
    address, number = listening.getsockname()[:2]
    print_line(f"serving {index} on {'https' if key else 'http'}://{host_of(address)}:{number}/simple/")
    if not key and not is_loopback(address):
        print_warning("without TLS, everybody on the network can read the tokens that clients send")
    server.run(app, listening, certificate=certificate, key=key)


def host_of(address: str) -> str:
    """The host in the URL of a server: this machine's name if it listens on every address, such as 0.0.0.0."""
    if ipaddress.ip_address(address).is_unspecified:
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address
