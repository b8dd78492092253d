"""A source behind a URL: every package index with pages of PEP 503 or PEP 691."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote, urljoin, urlsplit

import requests
from packaging.utils import canonicalize_name
from pypi_simple import ACCEPT_JSON_PREFERRED, DistributionPackage, IndexPage, ProjectPage, UnsupportedRepoVersionError

from builder.errors import MissingToolError, UsageError
from builder.publish.index.entry import OWN_KEY, FarmFacts, project_of
from builder.publish.index.mirror.source import Offer, attached_files
from builder.publish.index.pages import Status
from builder.publish.index.wheel_entry import iso_time
from builder.untrusted.json_data import parse_json, text

_CHUNK = 2**20
#: What pypi_simple raises for a page that is none.
_NO_PAGE = (UnsupportedRepoVersionError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
#: Seconds for a connection, and between two parts of an answer.
_SECONDS = (15, 60)


class WebSource:
    """An index by the URL that pip takes as `--index-url`, such as `https://wheels.example/simple/`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/"
        self._session = requests.Session()

    def projects(self) -> list[str]:
        """The normalized names of all projects; raises UsageError if the URL has no page of a package index."""
        answer = self._page(self._url)
        if answer is None:
            raise UsageError("there is no package index", where=_shown(self._url))
        try:
            return sorted({canonicalize_name(name) for name in IndexPage.from_response(answer).projects})
        except _NO_PAGE as error:
            raise self._unreadable(self._url, error) from None

    def offers(self, project: str) -> tuple[list[Offer], Status]:
        """The wheels of a project and its status."""
        url = f"{self._url}{project}/"
        answer = self._page(url)
        if answer is None:
            return [], Status()
        try:
            page = ProjectPage.from_response(answer, project)
            own = _own_facts(answer)
        except _NO_PAGE as error:
            raise self._unreadable(url, error) from None
        offers = [_offer(package, own.get(package.filename), answer.url) for package in page.packages]
        status = Status(page.status.value, page.status_reason or "") if page.status else Status()
        return [offer for offer in offers if _is_wheel_of(project, offer.filename)], status

    def chunks(self, place: str) -> Iterator[bytes]:
        """Contents of a file in parts; raises FileNotFoundError."""
        try:
            answer = self._get(place, stream=True)
            if answer is None:
                raise FileNotFoundError(place)
            with answer:
                yield from answer.iter_content(_CHUNK)
        except requests.RequestException as error:
            raise _silent(place, error) from None

    def _page(self, url: str) -> requests.Response | None:
        """A page as JSON if the server has it: a server of static files has it under the name `index.json`."""
        try:
            answer = self._get(url)
            if answer is not None and "json" in answer.headers.get("content-type", ""):
                return answer
            other = self._get(f"{url}index.json")
        except requests.RequestException as error:
            raise _silent(url, error) from None
        if other is not None:
            with suppress(ValueError):
                if "meta" in other.json():
                    other.headers["content-type"] = "application/vnd.pypi.simple.v1+json"
                    return other
        return answer

    def _get(self, url: str, *, stream: bool = False) -> requests.Response | None:
        """The answer; None if the server has no such file. Raises RequestException for every other error."""
        headers = {} if stream else {"Accept": ACCEPT_JSON_PREFERRED}
        answer = self._session.get(url, headers=headers, timeout=_SECONDS, stream=stream)
        if answer.status_code in {requests.codes.not_found, requests.codes.gone}:
            answer.close()
            return None
        answer.raise_for_status()
        return answer

    def _unreadable(self, url: str, error: Exception) -> UsageError:
        return UsageError(f"this is no page of a package index (PEP 503, PEP 691): {error}", where=_shown(url))


def _own_facts(answer: requests.Response) -> dict[str, FarmFacts]:
    """What an index of buildfarm says about its wheels, by file name."""
    if "json" not in answer.headers.get("content-type", ""):
        return {}
    return parse_json(
        answer.content,
        lambda data: {
            text(file["filename"]): FarmFacts.from_json(file[OWN_KEY]) for file in data["files"] if OWN_KEY in file
        },
    )


def _offer(package: DistributionPackage, farm: FarmFacts | None, page: str) -> Offer:
    return Offer(
        filename=package.filename,
        place=package.url,
        sha256=package.digests.get("sha256", ""),
        size=package.size,
        uploaded=iso_time(package.upload_time) if package.upload_time else "",
        yanked=(package.yanked_reason or "") if package.is_yanked else None,
        built_here=bool(farm and farm.built_here),
        attached={suffix: urljoin(page, f"../../{quote(path)}") for suffix, path in attached_files(farm).items()},
    )


def _is_wheel_of(project: str, filename: str) -> bool:
    try:
        return project_of(filename) == project
    except ValueError:
        return False


def _silent(url: str, error: Exception) -> MissingToolError:
    return MissingToolError(
        f"the source does not answer: {error}",
        where=_shown(url),
        hints=["run the command again; it continues, and downloads nothing again"],
    )


def _shown(url: str) -> str:
    """A URL without user name and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
