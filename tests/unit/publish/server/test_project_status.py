"""The status of a project (PEP 792): quarantined means no files and no uploads, archived means no uploads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import Code
from builder.publish.index.integrity import check_index
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Status
from builder.publish.index.repository import Repository
from builder.publish.server.uploads import FOLDER
from tests.refused import refused
from tests.unit.publish.index.conftest import Run
from tests.unit.publish.index.make import ready
from tests.unit.publish.server.client import Client

JSON = {"accept": "application/vnd.pypi.simple.v1+json"}
STATUS = Status("quarantined", "stolen token")
PAGES = ("simple/my-ext/", "cu130/my-ext/", "projects/my-ext/")


@pytest.fixture
def client(tmp_path: Path) -> Client:
    client = Client(tmp_path / "index")
    client.publish(tmp_path)
    return client


def pages(client: Client) -> list[str]:
    return [client.get(f"/{path}").text for path in PAGES]


def test_a_quarantined_project_offers_no_file(client: Client) -> None:
    repository = Repository(Folder(client.root))
    (entry,) = repository.entries("my-ext")
    before = pages(client)
    repository.set_status("my-ext", STATUS)
    for page in pages(client):
        assert "quarantined" in page
        assert "stolen token" in page
        assert entry.filename not in page
        assert entry.sha256[:2] + "/" + entry.sha256[2:] not in page
    for path in ("simple", "cu130"):
        page = client.get(f"/{path}/my-ext/", headers=JSON).json()
        assert (page["files"], page["versions"]) == ([], [])
        assert page["project-status"] == {"status": "quarantined", "reason": "stolen token"}
    for path in (entry.path, f"{entry.path}.metadata", f"{entry.path}.proofs.json"):
        answer = client.get(f"/{path}")
        assert (answer.status_code, answer.text) == (403, "the project my-ext is quarantined: stolen token\n")
    assert check_index(repository).faults == ()
    repository.set_status("my-ext", Status())
    assert pages(client) == before
    assert client.get(f"/{entry.path}").status_code == 200
    assert check_index(repository).faults == ()


@pytest.mark.parametrize("name", ["archived", "deprecated"])
def test_other_projects_keep_their_files(client: Client, name: str) -> None:
    repository = Repository(Folder(client.root))
    repository.set_status("my-ext", Status(name))
    (entry,) = repository.listed("my-ext", "cu130")
    assert client.get(f"/{entry.path}").status_code == 200


def test_pages_with_wheels_of_a_quarantined_project_are_faults(client: Client) -> None:
    repository = Repository(Folder(client.root))
    page = client.root / "simple/my-ext/index.json"
    before = page.read_bytes()
    repository.set_status("my-ext", STATUS)
    page.write_bytes(before)  # as an earlier version wrote it
    (fault,) = check_index(repository).faults
    assert fault.startswith("simple/my-ext: the page does not agree with the record of my_ext-1.0")


@pytest.mark.parametrize("name", ["quarantined", "archived"])
def test_a_closed_project_takes_no_upload(client: Client, tmp_path: Path, name: str) -> None:
    repository, auth = Repository(Folder(client.root)), client.token("prove")
    repository.set_status("my-ext", Status(name, "a reason"))
    new = ready(tmp_path, version="2.0")
    said = f"the project my-ext is {name}, so it takes no uploads: a reason"
    for _ in range(2):
        answer = client.upload(new.wheel, auth)
        assert (answer.status_code, answer.text) == (403, f"{said}\n")
    assert client.get("/legacy/?project=my-ext", auth=auth).json()["closed"] == said
    assert client.get("/legacy/?project=other", auth=auth).json()["closed"] == ""
    with refused(Code.PROJECT_CLOSED, said):
        repository.add(new)
    assert [str(entry.version) for entry in repository.entries("my-ext")] == ["1.0+cu130"]
    assert not list((client.root / FOLDER).iterdir())
    assert repository.objects.names("pending") == []
    repository.set_status("my-ext", Status("deprecated"))
    assert client.upload(new.wheel, auth).text == "published\n"


@pytest.mark.parametrize("place", ["index", "files"])
def test_a_status_that_cannot_be_read_closes_the_project(client: Client, tmp_path: Path, place: str) -> None:
    (entry,) = Repository(Folder(client.root)).entries("my-ext")
    (client.root / "records/my-ext/status").write_text("{")
    if place == "files":
        assert client.get(f"/{entry.path}").status_code == 403
    else:
        assert client.upload(ready(tmp_path, version="2.0").wheel, client.token()).status_code == 400


def test_the_commands_name_the_status(client: Client, tmp_path: Path, run: Run) -> None:
    new = ready(tmp_path, version="2.0", proven=False)
    index = client.root
    assert run("index", "status", index, "my_ext", "quarantined", "--reason", "stolen token")[0] == 0
    words = ("publish", new.wheel, "--to", index, "--require", "none", "--store", tmp_path / "store", "--json")
    code, out, _ = run(*words)
    (result,) = json.loads(out)
    assert (code, result["outcome"]) == (1, "refused")
    assert result["reasons"][0] == "the project my-ext is quarantined, so it takes no uploads: stolen token"
    target = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")
    code, _, err = run("resolve", "my_ext", "--index", index, *target)
    assert code == 2
    assert "error[project-closed]: my_ext: this project is quarantined: stolen token" in " ".join(err.split())
    assert run("index", "status", index, "my_ext", "active")[0] == 0
    assert run("resolve", "my_ext", "--index", index, *target)[0] == 0
    assert run(*words)[0] == 0
