"""An index server, as `publish` sees it: what it has, and what it accepts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter, Retry

from builder.errors import Code, MissingToolError, UsageError
from builder.log import print_line
from builder.proof import PROOFS_SUFFIX, Proof, proofs_of
from builder.publish.index.levels import levels
from builder.publish.index.new_wheel import merged
from builder.publish.index.pages import ALL, JSON_TYPE, Entry, entries_of
from builder.publish.index.reader import VARIABLE, bundle_for, is_safe, token_for
from builder.publish.index.repository import ConflictError, NewWheel, refuse_other
from builder.publish.provenance import SUFFIX as STATEMENT_SUFFIX
from builder.untrusted import JsonError, parse_json

#: Where twine, `uv publish` and `buildfarm publish` upload to.
UPLOAD_PATH = "legacy"
#: The fields of a form with the files beside a wheel, and the suffixes of these files.
EVIDENCE = {"buildfarm_proofs": PROOFS_SUFFIX, "buildfarm_statement": STATEMENT_SUFFIX}
#: Bytes of one such field. Reading JSON needs about twenty times as much memory.
MAX_EVIDENCE = 12 * 2**20
#: The answers to an upload that was accepted.
PUBLISHED, UNCHANGED, UPDATED = "published", "already published", "proofs updated"
#: Seconds for a connection; and between two parts of an answer, because the server checks the whole wheel first.
_SECONDS = (15, 900)
#: Answers after which a new attempt may succeed.
_LATER = {408, 429, 502, 503, 504}
#: The pauses are 0, 6, 12 and 24 seconds. `other`: an error of TLS is final.
_RETRIES = Retry(4, other=0, status_forcelist=_LATER, allowed_methods=None, backoff_factor=3, raise_on_status=False)
_LONGEST_SENTENCE = 2000
#: Bytes that are read at once from the wheel.
_CHUNK = 2**18
_OTHER_CA = "set SSL_CERT_FILE to a CA bundle that contains the CA of the server"
_AGAIN = "run the command again; it continues, and uploads nothing again"


class UploadBody:
    """The form of an upload: requests asks for its length and sends its parts. The wheel is read while it is sent."""

    def __init__(self, new: NewWheel) -> None:
        """The form of twine, with the files beside the wheel as further files; the wheel is in the field `content`."""
        wheel, entry = new.wheel, new.entry
        fields = {
            ":action": "file_upload",
            "protocol_version": "1",
            "filetype": "bdist_wheel",
            "name": entry.project,
            "version": str(entry.version),
            "sha256_digest": entry.sha256,
        }
        files = {name: (name, new.attached[suffix]) for name, suffix in EVIDENCE.items() if suffix in new.attached}
        files["content"] = (wheel.name, b"")
        form = requests.Request("POST", "http://localhost", data=fields, files=files).prepare()
        self.content_type = str(form.headers["Content-Type"])
        end = f"\r\n--{self.content_type.partition('boundary=')[2]}--\r\n".encode()
        body = form.body if isinstance(form.body, bytes) else b""
        self._start, self._end = body.removesuffix(end), end
        self._wheel, self._size = wheel, wheel.stat().st_size

    def __len__(self) -> int:
        return len(self._start) + self._size + len(self._end)

    def __iter__(self) -> Iterator[bytes]:
        yield self._start
        with self._wheel.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
        yield self._end


class IndexServer:
    """A running `buildfarm serve`, by the URL of its root."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for a URL that cannot be used, and without a token."""
        self.url = root_url(url)
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))
        self._session.auth = ("__token__", token_for(self.url))
        # In the session, it would come after REQUESTS_CA_BUNDLE, which `ca_bundle` reads after SSL_CERT_FILE.
        self._verify = bundle_for(self.url)

    def published(self, project: str, filename: str) -> Entry | None:
        """The entry of a wheel on the page of its project; None if it is not published."""
        page = self._ask("GET", f"{ALL}/{project}/", {"Accept": JSON_TYPE})
        if page.status_code == requests.codes.not_found:
            return None
        try:
            return next((entry for entry in entries_of(page.content) if entry.filename == filename), None)
        except JsonError:
            raise self._no_server(f"status {page.status_code}") from None

    def add(self, new: NewWheel) -> bool:
        """Send a wheel with its proofs and its provenance; False if it is published already.

        What the server has is not sent again. Raises ConflictError if the server refuses the wheel, UsageError if it
        does not know the token, and MissingToolError if it does not answer.
        """
        return not self._has(new) and self._send(new)

    def _has(self, new: NewWheel) -> bool:
        """Whether the server has a wheel, and everything that its proofs say."""
        there = self.published(new.entry.project, new.wheel.name)
        if there is None:
            return False
        refuse_other(there, new.entry)
        if not EVIDENCE.values() & new.attached.keys():
            return True
        if STATEMENT_SUFFIX in new.attached and not (there.farm and there.farm.statement):
            return False
        known: list[Proof] = []
        if there.farm and there.farm.proofs:
            answer = self._ask("GET", quote(there.farm.proofs))
            with suppress(JsonError):  # also if the answer is no file
                known = parse_json(answer.content, proofs_of)
        return nothing_new(known, parse_json(new.attached.get(PROOFS_SUFFIX, b"[]"), proofs_of))

    def _send(self, new: NewWheel) -> bool:
        print_line(f"uploading {new.wheel.name}")
        body = UploadBody(new)
        answer = self._ask("POST", f"{UPLOAD_PATH}/", {"Content-Type": body.content_type}, body)
        status, sentence = answer.status_code, answer.content[:_LONGEST_SENTENCE].decode(errors="replace").strip()
        if status == requests.codes.unauthorized:
            sentence = "the server does not know the token, or it has expired"
            hint = "`buildfarm token list DIR` prints the tokens of an index and when they expire"
            raise UsageError(sentence, Code.LOGIN_REFUSED, where=self.url, hints=[hint])
        if status in (requests.codes.not_found, requests.codes.not_allowed):
            raise self._no_server(f"status {status}")
        if status != requests.codes.ok:
            raise ConflictError(sentence or f"the server answers with status {status}", Code.UPLOAD_REFUSED)
        return sentence == PUBLISHED

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: UploadBody | None = None
    ) -> requests.Response:
        """An answer; after a few attempts, raises MissingToolError if the server does not answer or is busy."""
        url, ask = self.url + path, partial(self._session.request, timeout=_SECONDS, allow_redirects=False)
        try:
            answer = ask(method, url, headers=headers, data=body, verify=self._verify)
            if answer.status_code in _LATER:
                raise requests.ConnectionError(f"the server answers with status {answer.status_code}")
        except requests.RequestException as error:
            sentence = f"the server does not answer: {_reason(error)}"
            hint = _OTHER_CA if isinstance(error, requests.exceptions.SSLError) else _AGAIN
            raise MissingToolError(sentence, Code.NETWORK_UNREACHABLE, where=self.url, hints=[hint]) from None
        if answer.is_redirect:
            raise UsageError(f"the server redirects to {answer.headers['location']}", Code.NO_INDEX, where=url)
        return answer

    def _no_server(self, reason: str) -> UsageError:
        return UsageError(
            f"there is no index server of buildfarm ({reason})",
            Code.NO_INDEX,
            where=self.url,
            hints=[
                "`buildfarm serve` takes uploads; a web server with the folder of an index does not",
                "for a server of another kind, run `uv publish --publish-url URL WHEEL...`, which sends no proofs",
            ],
        )


def _reason(error: Exception) -> str:
    """The innermost message of nested connection errors."""
    return re.sub(r"[\"')>]+$", "", str(error)).rpartition(": ")[2] or type(error).__name__


def root_url(url: str) -> str:
    """The URL of the root of an index server, with a final slash; `url` may also be that of the page with all wheels.

    Raises UsageError for a URL with a password, and for HTTP to another machine.
    """
    try:
        parts, _ = urlsplit(url), urlsplit(url).port
    except ValueError:
        parts = urlsplit("")
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageError(
            "this is no URL of an index; write it like https://wheels.example/", Code.VALUE_INVALID, where=url
        )
    if "@" in parts.netloc:
        sentence = "a password in the URL is visible to every user of this machine, as an argument of the command"
        hint = f"put the token into the environment variable {VARIABLE}, and leave it out of the URL"
        raise UsageError(sentence, Code.NOT_ENCRYPTED, where=url, hints=[hint])
    if not is_safe(url):
        sentence = "without TLS, everybody on the network can read the token that is sent"
        hint = "use https://; `buildfarm serve --tls-cert FILE --tls-key FILE` serves it"
        raise UsageError(sentence, Code.NOT_ENCRYPTED, where=url, hints=[hint])
    path = parts.path.rstrip("/").removesuffix(f"/{UPLOAD_PATH}").removesuffix(f"/{ALL}")
    return parts._replace(path=f"{path.rstrip('/')}/").geturl()


def nothing_new(earlier: Sequence[Proof], sent: Sequence[Proof]) -> bool:
    """Whether an index that has the earlier proofs learns nothing from these."""
    both = merged(earlier, sent)
    in_cells = [proof for proof in both if proof.cell]
    return in_cells == [proof for proof in merged(earlier) if proof.cell] and levels(both) == levels(earlier)
