"""Starts the S3 server of moto and a web server in front of it; prints both ports. The keys are in the environment.

moto looks whether an object exists and writes it in two steps, and a real S3 server does this in one. So one request is
answered at a time. The web server knows no S3: it does what nginx or a CDN does in front of a bucket.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

REFUSED = b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message></Error>"
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Quiet(WSGIRequestHandler):  # type: ignore[misc]  # werkzeug is only in the environment of this program
    """Logs nothing; the log has what tests count."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        pass


def s3(log: Path, *, conditional: bool) -> App:
    app, lock = DomainDispatcherApplication(create_backend_app), Lock()

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not conditional:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with lock, log.open("a") as lines:
            if "Credential=wrong/" in environ.get("HTTP_AUTHORIZATION", ""):  # moto accepts every key
                start("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(REFUSED)))])
                return [REFUSED]
            query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
            lines.write(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}{query}\n")
            lines.flush()
            return list(app(environ, start))

    return answer


def website(endpoint: str) -> App:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        config=Config(s3={"addressing_style": "path"}),
    )

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        bucket, _, key = environ["PATH_INFO"].lstrip("/").encode("latin-1").decode().partition("/")
        try:
            found = client.get_object(Bucket=bucket, Key=f"{key}index.html" if key.endswith("/") or not key else key)
        except ClientError:
            start("404 Not Found", [("Content-Length", "0")])
            return []
        data = found["Body"].read()
        start("200 OK", [("Content-Type", found["ContentType"]), ("Content-Length", str(len(data)))])
        return [data]

    return answer


def main(log: str, *options: str) -> None:
    endpoint = next((option for option in options if option.startswith("http")), "")
    store = make_server(
        "127.0.0.1",
        0,
        s3(Path(log), conditional="--unconditional" not in options),
        threaded=True,
        request_handler=Quiet,
    )
    endpoint = endpoint or f"http://127.0.0.1:{store.server_port}"
    web = make_server("127.0.0.1", 0, website(endpoint), threaded=True, request_handler=Quiet)
    Thread(target=web.serve_forever, daemon=True).start()
    print(store.server_port, web.server_port, flush=True)
    store.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
