"""Uploads with proofs: which tokens vouch for them, and what the server does not believe."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from builder.check import Check
from builder.hashing import sha256_of
from builder.matrix.axes import Cell
from builder.proof import Proof, Verdict, proofs_json, proofs_of, proofs_path
from builder.publish.index.entry import Entry
from builder.publish.index.integrity import check_index
from builder.publish.index.levels import Level
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.provenance import statement_path
from builder.publish.remote.evidence import MAX_EVIDENCE, PUBLISHED, UNCHANGED, UPDATED
from builder.publish.server.tokens import Tokens
from tests.real.publish.remote.make import CELL, ON_GPU, TAG, proven_wheel
from tests.real.publish.server.test_uploads import nothing_published
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import ON_CPU
from tests.unit.publish.index.make import proofs_of as made_proofs
from tests.unit.publish.server.client import Client, form_of

PROOFS, STATEMENT = "buildfarm_proofs", "buildfarm_statement"


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "index")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return proven_wheel(tmp_path / "dist")


def sent(wheel: Path) -> dict[str, str]:
    """The proofs beside a wheel, as a field."""
    return {PROOFS: proofs_path(wheel).read_text()}


def as_field(proofs: Sequence[Proof]) -> dict[str, str]:
    return {PROOFS: proofs_json(proofs).decode()}


def entry_of(client: Client) -> Entry:
    (entry,) = Repository(Folder(client.root)).entries("my-ext")
    return entry


def published_proofs(client: Client) -> list[Proof]:
    farm = entry_of(client).farm
    assert farm
    return proofs_of(json.loads((client.root / farm.proofs).read_text()))


def test_the_index_has_what_a_publish_into_its_folder_leaves(client: Client, wheel: Path, tmp_path: Path) -> None:
    statement = {
        "_type": "x",
        "subject": [{"name": wheel.name, "digest": {"sha256": sha256_of(wheel)}}],
    }
    statement_path(wheel).write_text(json.dumps(statement))
    auth = client.token("prove")
    done = client.upload(wheel, auth, sent(wheel) | {STATEMENT: statement_path(wheel).read_text()})
    assert done.text == f"{PUBLISHED}\n"
    here = Repository(Folder(tmp_path / "folder"))
    here.add(new_wheel(wheel, made_proofs(wheel, cells=[CELL])))
    (other,) = here.entries("my-ext")
    entry = entry_of(client)
    assert replace(entry, uploaded="") == replace(other, uploaded="")
    assert entry.farm
    assert (entry.farm.cells, entry.farm.built_here) == ({CELL: "cpu"}, True)
    assert (client.root / entry.farm.statement).read_bytes() == statement_path(wheel).read_bytes()
    in_cell = [proof for proof in published_proofs(client) if proof.cell]
    assert {proof.check for proof in in_cell} == set(ON_CPU)
    own = {proof.check for proof in published_proofs(client) if not proof.cell}
    assert own >= {Check.PAYLOAD, Check.TAGS, Check.METADATA, Check.GRAFTED, Check.DEVICE_CODE}
    check = check_index(Repository(Folder(client.root)))
    assert (check.wheels, check.faults, check.unused) == (1, (), ())


def test_a_token_without_the_scope_is_refused(client: Client, wheel: Path) -> None:
    for number, scopes in enumerate((("upload",), ("upload:my_ext",), ("prove:other",), ("upload", "prove:other"))):
        refused = client.upload(wheel, client.token(*scopes, name=f"t{number}"), sent(wheel))
        assert refused.status_code == 403, scopes
        assert ("--scope prove" if "upload" in scopes[0] else "does not allow uploads of my-ext") in refused.text
        assert nothing_published(client)
    assert client.upload(wheel, client.token("prove:My_Ext", name="own"), sent(wheel)).text == f"{PUBLISHED}\n"


def test_a_token_without_the_scope_changes_no_proofs(client: Client, wheel: Path) -> None:
    client.upload(wheel, client.token("prove"), sent(wheel))
    before = published_proofs(client)
    auth = client.token("upload", name="up")
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).status_code == 403
    assert client.upload(wheel, auth).text == f"{UNCHANGED}\n"
    assert published_proofs(client) == before


def test_an_expired_token_is_refused(client: Client, wheel: Path) -> None:
    secret, _ = Tokens(client.root).add("old", ("prove",), timedelta(seconds=-1))
    assert client.upload(wheel, ("__token__", secret), sent(wheel)).status_code == 401
    assert client.get("/legacy/", auth=("__token__", secret)).status_code == 401
    assert nothing_published(client)


def test_what_a_token_allows(client: Client) -> None:
    def rights(scope: str, project: str = "") -> tuple[bool, bool]:
        found = client.get(f"/legacy/?project={project}", auth=client.token(scope, name=scope.replace(":", "-"))).json()
        Tokens(client.root).revoke(scope.replace(":", "-"))
        return found["uploads"], found["proofs"]

    assert rights("read") == (False, False)
    assert rights("upload") == rights("upload", "my_ext") == (True, False)
    assert rights("prove:my_ext", "My.Ext") == rights("prove", "x") == (True, True)
    assert rights("prove:my_ext", "other") == rights("upload:my_ext", "other") == (False, False)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def one_proof(wheel: Path, evidence: str) -> str:
    (proof, *_) = made_proofs(wheel, cells=[CELL])
    data = replace(proof, check=Check.DEVICE_CODE).to_json()
    return "[" + json.dumps(data).replace('"evidence": {}', f'"evidence": {evidence}') + "]"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is no JSON"),
        ("{", "it is no JSON"),
        ("null", "wrong type"),
        ("{}", ""),
        ("[1]", "wrong type"),
        ("[{}]", "it has no 'wheel'"),
        ("\udcff", "it is not UTF-8"),
        (nested(500_000), "nested too deeply"),
        (f'evidence:{{"x": {nested(700)}}}', "nested too deeply"),
        (f'evidence:{{"x": {nested(48)}}}', "nested too deeply"),
        (f'evidence:{{"x": {nested(40)}}}', ""),
        ('evidence:{"libraries": 1}', "wrong type"),
        ('evidence:{"libraries": {"a": {"sass": [1], "ptx": []}}}', "wrong type"),
        ('evidence:{"libraries": {"a": {}}}', "it has no 'sass'"),
    ],
)
def test_proofs_that_cannot_be_read(client: Client, wheel: Path, text: str, sentence: str) -> None:
    if text.startswith("evidence:"):
        text = one_proof(wheel, text.removeprefix("evidence:"))
    field: Any = {PROOFS: text if text != "\udcff" else b"\xff"}
    answer = client.upload(wheel, client.token("prove"), field)
    if not sentence:  # an empty object is taken for an empty list
        assert answer.status_code == 200
        return
    assert (answer.status_code, "the proofs cannot be read" in answer.text) == (400, True), answer.text
    assert sentence in answer.text
    assert nothing_published(client)


def test_proofs_of_a_different_file(client: Client, wheel: Path, tmp_path: Path) -> None:
    other = proven_wheel(tmp_path / "other", files={"my_ext/more.py": ""})
    refused = client.upload(wheel, client.token("prove"), sent(other))
    assert (refused.status_code, refused.text) == (400, f"these are proofs of a different file than {wheel.name}\n")
    sha256 = sha256_of(other)
    statement = json.dumps({"subject": [{"digest": {"sha256": sha256}}]})
    refused = client.upload(wheel, client.token("prove", name="b"), sent(wheel) | {STATEMENT: statement})
    assert (refused.status_code, "the provenance is of a different file" in refused.text) == (400, True)
    refused = client.upload(wheel, client.token("prove", name="c"), sent(wheel) | {STATEMENT: nested(200_000)})
    assert (refused.status_code, "the provenance cannot be read" in refused.text) == (400, True)
    assert nothing_published(client)


def test_proofs_above_the_limit(client: Client, wheel: Path) -> None:
    refused = client.upload(wheel, client.token("prove"), {PROOFS: " " * (MAX_EVIDENCE + 1)})
    assert (refused.status_code, f"larger than {MAX_EVIDENCE} bytes" in refused.text) == (413, True)
    assert nothing_published(client)


def test_proofs_of_a_token_without_the_scope_are_not_received(client: Client, wheel: Path) -> None:
    refused = client.upload(wheel, client.token("upload"), {PROOFS: " " * (MAX_EVIDENCE + 1)})
    assert (refused.status_code, "does not allow proofs" in refused.text) == (403, True)
    assert nothing_published(client)


def test_two_fields_with_proofs(client: Client, wheel: Path) -> None:
    files = [(PROOFS, (PROOFS, "[]"))] * 2
    refused = client.post("/legacy/", auth=client.token("prove"), data=form_of(wheel), files=files)
    assert (refused.status_code, refused.text) == (400, "the form has two files in one field\n")
    assert nothing_published(client)


def test_the_server_reads_the_file_itself(client: Client, tmp_path: Path) -> None:
    """The uploader says that every check of the file passed; the server finds the faults."""
    auth = client.token("prove")

    def refusal(wheel: Path) -> str:
        proofs = made_proofs(wheel, cells=[CELL])
        checks = (Check.PAYLOAD, Check.METADATA, Check.RECORD, Check.GRAFTED, Check.DEVICE_CODE)
        forged = [replace(proofs[0], check=check, when="2999") for check in checks]
        answer = client.upload(wheel, auth, as_field([*proofs, *forged]))
        assert answer.status_code in {400, 403}, answer.text
        assert nothing_published(client)
        return str(answer.text)

    requires = ["torch==2.11.*"]
    bare = pure_wheel(tmp_path / "a", "my_ext", "1.0+cu130", requires=requires, tag=TAG)
    assert "payload: failed" in refusal(bare)
    library = zipfile.ZipFile(proven_wheel(tmp_path / "b")).read("my_ext/_C.so")
    files = {"my_ext/_C.so": library, "my_ext.libs/libc10.so": library}
    assert "grafted: failed" in refusal(pure_wheel(tmp_path / "c", "my_ext", "1.0", files, requires=requires, tag=TAG))
    changed = proven_wheel(tmp_path / "d")
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("my_ext/added.py", "")
    assert "record: failed: RECORD does not list my_ext/added.py" in refusal(changed)
    excluded = pure_wheel(
        tmp_path / "e", "my_ext", "1.0", {"my_ext/_C.so": library}, requires=["torch==2.9.*"], tag=TAG
    )
    assert f"there are proofs in {CELL}, but METADATA requires torch==2.9.*" in refusal(excluded)


def test_gpu_code_is_what_the_server_finds(client: Client, wheel: Path) -> None:
    forged = Proof(
        sha256_of(wheel),
        None,
        Check.DEVICE_CODE,
        Verdict.PASSED,
        evidence={"claimed": ["9.0"], "libraries": {"my_ext/_C.so": {"sass": ["sm_90"], "ptx": []}}},
    )
    client.upload(wheel, client.token("prove"), as_field([*made_proofs(wheel, cells=[CELL]), forged]))
    farm = entry_of(client).farm
    assert farm
    assert farm.archs == ()
    (kept,) = (proof for proof in published_proofs(client) if proof.check is Check.DEVICE_CODE)
    assert kept.evidence == {"claimed": ["9.0"], "libraries": {}}


@pytest.mark.parametrize("check", [Check.METADATA, Check.STABLE])
def test_a_check_that_failed_for_the_uploader_has_failed(client: Client, wheel: Path, check: Check) -> None:
    """The uploader has the recipe, so its checks are stricter."""
    failed = replace(made_proofs(wheel)[0], check=check, verdict=Verdict.FAILED, reason="the recipe differs")
    refused = client.upload(wheel, client.token("prove"), as_field([*made_proofs(wheel, cells=[CELL]), failed]))
    assert (refused.status_code, f"{check}: failed: the recipe differs" in refused.text) == (403, True)


def test_a_finding_that_the_recipe_accepts(client: Client, tmp_path: Path) -> None:
    library = zipfile.ZipFile(proven_wheel(tmp_path / "a")).read("my_ext/_C.so")
    files = {"my_ext/_C.so": library, "my_ext.libs/libc10.so": library}
    wheel = pure_wheel(tmp_path / "b", "my_ext", "1.0+cu130", files, requires=["torch==2.11.*"], tag=TAG)
    proofs = made_proofs(wheel, cells=[CELL])
    accepted = replace(
        proofs[0], check=Check.GRAFTED, verdict=Verdict.ACCEPTED, reason="libc10", evidence={"accepted": "y"}
    )
    assert client.upload(wheel, client.token("prove"), as_field([*proofs, accepted])).text == f"{PUBLISHED}\n"
    farm = entry_of(client).farm
    assert farm
    assert farm.cells == {CELL: "cpu"}


def test_the_bar_of_the_server_is_checked_again(tmp_path: Path, wheel: Path) -> None:
    client = Client(tmp_path / "index", required=[Level.GPU])
    auth = client.token("prove")
    refused = client.upload(wheel, auth, sent(wheel))
    assert (refused.status_code, "gpu-values: not run" in refused.text) == (403, True)
    assert nothing_published(client)
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).text == f"{PUBLISHED}\n"
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"


def test_later_proofs_are_added_and_earlier_ones_stay(client: Client, wheel: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    uploaded = entry_of(client).uploaded
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"
    gpu = [proof for proof in made_proofs(wheel, ON_GPU, cells=[CELL]) if proof.check in {Check.TAGS, Check.GPU_VALUES}]
    assert client.upload(wheel, auth, as_field(gpu)).text == f"{UPDATED}\n"
    entry = entry_of(client)
    assert entry.farm
    assert (entry.farm.cells, entry.uploaded) == ({CELL: "gpu"}, uploaded)
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"
    failed = replace(gpu[1], verdict=Verdict.FAILED, when="2030")
    assert client.upload(wheel, auth, as_field([gpu[0], failed])).text == f"{UNCHANGED}\n"  # it stays published


def test_proofs_for_a_wheel_that_was_uploaded_without(client: Client, wheel: Path) -> None:
    client.upload(wheel, client.token("upload"))
    assert client.upload(wheel, client.token("prove", name="p"), sent(wheel)).text == f"{UPDATED}\n"
    farm = entry_of(client).farm
    assert farm
    assert farm.cells == {CELL: "cpu"}


def test_an_update_keeps_origin_and_provenance(client: Client, wheel: Path) -> None:
    repository = Repository(Folder(client.root))
    repository.add(new_wheel(wheel, [], origin="https://wheels.example/x.whl"))
    auth = client.token("prove")
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UPDATED}\n"
    farm = entry_of(client).farm
    assert farm
    assert (farm.origin, farm.built_here) == ("https://wheels.example/x.whl", False)
    statement = {"subject": [{"digest": {"sha256": sha256_of(wheel)}}]}
    assert client.upload(wheel, auth, {STATEMENT: json.dumps(statement)}).text == f"{UPDATED}\n"
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).text == f"{UPDATED}\n"
    farm = entry_of(client).farm
    assert farm
    assert (farm.origin, farm.built_here, farm.cells) == ("", True, {CELL: "gpu"})
    assert json.loads((client.root / farm.statement).read_text()) == statement


def test_other_bytes_are_refused_whatever_the_proofs_say(client: Client, wheel: Path, tmp_path: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    other = proven_wheel(tmp_path / "other", files={"my_ext/more.py": ""})
    refused = client.upload(other, auth, sent(other))
    assert (refused.status_code, "a published file never changes" in refused.text) == (409, True)
    assert client.get("/" + entry_of(client).path).content == wheel.read_bytes()


def test_many_cells_are_one_page(client: Client, wheel: Path) -> None:
    """Cells that the wheel excludes make no pages in the index."""
    proofs = made_proofs(wheel, cells=[CELL])
    far = [replace(proofs[1], cell=Cell.parse(f"torch2.11.0-cu{number}-cp311")) for number in range(131, 199)]
    assert client.upload(wheel, client.token("prove"), as_field([*proofs, *far])).status_code == 400
    assert nothing_published(client)


def test_damaged_proofs_in_the_index_are_replaced(client: Client, wheel: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    farm = entry_of(client).farm
    assert farm
    (client.root / farm.proofs).write_text("{")
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UPDATED}\n"
    assert {proof.check for proof in published_proofs(client)} >= set(ON_CPU)
