"""Uploads with proofs: which tokens vouch for them, and what the server does not believe."""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.check import Check
from builder.hashing import sha256_of
from builder.proof import Proof, Verdict, proofs_json, proofs_of, proofs_path
from builder.publish.index.levels import Level
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Entry, FarmFacts
from builder.publish.index.repository import Repository
from builder.publish.provenance import statement_path
from builder.publish.server.client import MAX_EVIDENCE, PUBLISHED, UNCHANGED, UPDATED
from tests.real.publish.remote.make import CELL, ON_GPU, TAG, proven_wheel
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import ON_CPU, checked
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


def farm_of(client: Client) -> FarmFacts:
    farm = entry_of(client).farm
    assert farm
    return farm


def published_proofs(client: Client) -> list[Proof]:
    return proofs_of(json.loads((client.root / farm_of(client).proofs).read_text()))


def with_grafted_library(folder: Path, version: str = "1.0+cu130") -> Path:
    """A wheel with a copy of a library of torch."""
    library = zipfile.ZipFile(proven_wheel(folder / "plain")).read("my_ext/_C.so")
    files = {"my_ext/_C.so": library, "my_ext.libs/libc10.so": library}
    return pure_wheel(folder, "my_ext", version, files, requires=["torch==2.11.*"], tag=TAG)


def statement_of(wheel: Path) -> str:
    return json.dumps({"subject": [{"digest": {"sha256": sha256_of(wheel)}}]})


def test_the_index_has_what_a_publish_into_its_folder_leaves(client: Client, wheel: Path, tmp_path: Path) -> None:
    statement_path(wheel).write_text(statement_of(wheel))
    auth = client.token("prove")
    done = client.upload(wheel, auth, sent(wheel) | {STATEMENT: statement_path(wheel).read_text()})
    assert done.text == f"{PUBLISHED}\n"
    here = Repository(Folder(tmp_path / "folder"))
    here.add(new_wheel(wheel, made_proofs(wheel, cells=[CELL])))
    (other,) = here.entries("my-ext")
    assert replace(entry_of(client), uploaded="") == replace(other, uploaded="")
    farm = farm_of(client)
    assert (farm.cells, farm.built_here) == ({CELL: "cpu"}, True)
    assert (client.root / farm.statement).read_bytes() == statement_path(wheel).read_bytes()
    in_cell = [proof for proof in published_proofs(client) if proof.cell]
    assert {proof.check for proof in in_cell} == set(ON_CPU)
    own = {proof.check for proof in published_proofs(client) if not proof.cell}
    assert own >= {Check.PAYLOAD, Check.TAGS, Check.METADATA, Check.GRAFTED, Check.DEVICE_CODE}
    check = checked(Repository(Folder(client.root)))
    assert (check.wheels, check.faults) == (1, ())


def test_a_token_without_the_scope_is_refused(client: Client, wheel: Path) -> None:
    for number, scopes in enumerate((("upload",), ("upload:my_ext",), ("prove:other",), ("upload", "prove:other"))):
        sentence = "--scope prove" if "upload" in scopes[0] else "does not allow uploads of my-ext"
        client.refuses(403, sentence, wheel, client.token(*scopes, name=f"t{number}"), sent(wheel))
    assert client.upload(wheel, client.token("prove:My_Ext", name="own"), sent(wheel)).text == f"{PUBLISHED}\n"


def test_a_token_without_the_scope_changes_no_proofs(client: Client, wheel: Path) -> None:
    client.upload(wheel, client.token("prove"), sent(wheel))
    before = client.published()
    auth = client.token("upload", name="up")
    client.refuses(403, "", wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL])))
    assert client.upload(wheel, auth).text == f"{UNCHANGED}\n"
    assert client.published() == before


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
        (f'evidence:{{"x": {nested(198)}}}', "nested too deeply"),
        (f'evidence:{{"x": {nested(150)}}}', ""),
        ('evidence:{"libraries": 1}', "wrong type"),
        ('evidence:{"libraries": {"a": {"sass": [1], "ptx": []}}}', "wrong type"),
        ('evidence:{"libraries": {"a": {}}}', "it has no 'sass'"),
    ],
)
def test_proofs_that_cannot_be_read(client: Client, wheel: Path, text: str, sentence: str) -> None:
    if text.startswith("evidence:"):
        text = one_proof(wheel, text.removeprefix("evidence:"))
    field = {PROOFS: text if text != "\udcff" else b"\xff"}
    auth = client.token("prove")
    if sentence:
        assert sentence in client.refuses(400, "the proofs cannot be read", wheel, auth, field)
    else:  # an empty object is taken for an empty list
        assert client.upload(wheel, auth, field).status_code == 200


def test_proofs_of_a_different_file(client: Client, wheel: Path, tmp_path: Path) -> None:
    other = proven_wheel(tmp_path / "other", files={"my_ext/more.py": ""})
    auth = client.token("prove")
    client.refuses(400, f"these are proofs of a different file than {wheel.name}\n", wheel, auth, sent(other))
    both = sent(wheel) | {STATEMENT: statement_of(other)}
    client.refuses(400, "the provenance is of a different file", wheel, auth, both)
    both = sent(wheel) | {STATEMENT: nested(200_000)}
    client.refuses(400, "the provenance cannot be read", wheel, auth, both)


def test_proofs_above_the_limit(client: Client, wheel: Path) -> None:
    large = {PROOFS: " " * (MAX_EVIDENCE + 1)}
    client.refuses(413, f"larger than {MAX_EVIDENCE} bytes", wheel, client.token("prove"), large)
    client.refuses(403, "does not allow proofs", wheel, client.token("upload", name="up"), large)  # not received


def test_two_fields_with_proofs(client: Client, wheel: Path) -> None:
    files = [(PROOFS, (PROOFS, "[]"))] * 2
    refused = client.post("/legacy/", auth=client.token("prove"), data=form_of(wheel), files=files)
    assert (refused.status_code, refused.text) == (400, "the form has two files in one field\n")
    assert client.published() == {}


def test_the_server_reads_the_file_itself(client: Client, tmp_path: Path) -> None:
    """The uploader says that every check of the file passed; the server finds the faults."""
    auth = client.token("prove")

    def refused(status: int, sentence: str, wheel: Path) -> None:
        proofs = made_proofs(wheel, cells=[CELL])
        checks = (Check.PAYLOAD, Check.METADATA, Check.RECORD, Check.GRAFTED, Check.DEVICE_CODE)
        forged = [replace(proofs[0], check=check, when="2999") for check in checks]
        client.refuses(status, sentence, wheel, auth, as_field([*proofs, *forged]))

    requires = ["torch==2.11.*"]
    bare = pure_wheel(tmp_path / "a", "my_ext", "1.0+cu130", requires=requires, tag=TAG)
    refused(403, "payload: failed", bare)
    refused(403, "grafted: failed", with_grafted_library(tmp_path / "c", "1.0"))
    changed = proven_wheel(tmp_path / "d")
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("my_ext/added.py", "")
    refused(403, "record: failed: RECORD does not list my_ext/added.py", changed)
    files = {"my_ext/_C.so": zipfile.ZipFile(changed).read("my_ext/_C.so")}
    excluded = pure_wheel(tmp_path / "e", "my_ext", "1.0", files, requires=["torch==2.9.*"], tag=TAG)
    refused(400, f"there are proofs in {CELL}, but METADATA requires torch==2.9.*", excluded)


def test_gpu_code_is_what_the_server_finds(client: Client, wheel: Path) -> None:
    forged = Proof(
        sha256_of(wheel),
        None,
        Check.DEVICE_CODE,
        Verdict.PASSED,
        evidence={"claimed": ["9.0"], "libraries": {"my_ext/_C.so": {"sass": ["sm_90"], "ptx": []}}},
    )
    client.upload(wheel, client.token("prove"), as_field([*made_proofs(wheel, cells=[CELL]), forged]))
    assert farm_of(client).archs == ()
    (kept,) = (proof for proof in published_proofs(client) if proof.check is Check.DEVICE_CODE)
    assert kept.evidence == {"claimed": ["9.0"], "libraries": {}}


@pytest.mark.parametrize("check", [Check.METADATA, Check.STABLE])
def test_a_check_that_failed_for_the_uploader_has_failed(client: Client, wheel: Path, check: Check) -> None:
    """The uploader has the recipe, so its checks are stricter."""
    failed = replace(made_proofs(wheel)[0], check=check, verdict=Verdict.FAILED, reason="the recipe differs")
    fields = as_field([*made_proofs(wheel, cells=[CELL]), failed])
    client.refuses(403, f"{check}: failed: the recipe differs", wheel, client.token("prove"), fields)


def test_a_finding_that_the_recipe_accepts(client: Client, tmp_path: Path) -> None:
    wheel = with_grafted_library(tmp_path)
    proofs = made_proofs(wheel, cells=[CELL])
    accepted = replace(
        proofs[0], check=Check.GRAFTED, verdict=Verdict.ACCEPTED, reason="libc10", evidence={"accepted": "y"}
    )
    assert client.upload(wheel, client.token("prove"), as_field([*proofs, accepted])).text == f"{PUBLISHED}\n"
    assert farm_of(client).cells == {CELL: "cpu"}


def test_the_bar_of_the_server_is_checked_again(tmp_path: Path, wheel: Path) -> None:
    client = Client(tmp_path / "index", required=[Level.GPU])
    auth = client.token("prove")
    client.refuses(403, "gpu-values: not run", wheel, auth, sent(wheel))
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).text == f"{PUBLISHED}\n"
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"


def test_later_proofs_are_added_and_earlier_ones_stay(client: Client, wheel: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    uploaded = entry_of(client).uploaded
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"
    gpu = [proof for proof in made_proofs(wheel, ON_GPU, cells=[CELL]) if proof.check in {Check.TAGS, Check.GPU_VALUES}]
    assert client.upload(wheel, auth, as_field(gpu)).text == f"{UPDATED}\n"
    assert (farm_of(client).cells, entry_of(client).uploaded) == ({CELL: "gpu"}, uploaded)
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"
    failed = replace(gpu[1], verdict=Verdict.FAILED, when="2030")
    assert client.upload(wheel, auth, as_field([gpu[0], failed])).text == f"{UNCHANGED}\n"  # it stays published


def test_proofs_for_a_wheel_that_was_uploaded_without(client: Client, wheel: Path) -> None:
    client.upload(wheel, client.token("upload"))
    assert client.upload(wheel, client.token("prove", name="p"), sent(wheel)).text == f"{UPDATED}\n"
    assert farm_of(client).cells == {CELL: "cpu"}


def test_an_update_keeps_origin_and_provenance(client: Client, wheel: Path) -> None:
    repository = Repository(Folder(client.root))
    repository.add(new_wheel(wheel, [], origin="https://wheels.example/x.whl"))
    auth = client.token("prove")
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UPDATED}\n"
    farm = farm_of(client)
    assert (farm.origin, farm.built_here) == ("https://wheels.example/x.whl", False)
    assert client.upload(wheel, auth, {STATEMENT: statement_of(wheel)}).text == f"{UPDATED}\n"
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).text == f"{UPDATED}\n"
    farm = farm_of(client)
    assert (farm.origin, farm.built_here, farm.cells) == ("", True, {CELL: "gpu"})
    assert (client.root / farm.statement).read_text() == statement_of(wheel)


def test_other_bytes_are_refused_whatever_the_proofs_say(client: Client, wheel: Path, tmp_path: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    other = proven_wheel(tmp_path / "other", files={"my_ext/more.py": ""})
    client.refuses(409, "a published file never changes", other, auth, sent(other))
    assert client.get("/" + entry_of(client).path).content == wheel.read_bytes()


def test_damaged_proofs_in_the_index_are_replaced(client: Client, wheel: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    (client.root / farm_of(client).proofs).write_text("{")
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UPDATED}\n"
    assert {proof.check for proof in published_proofs(client)} >= set(ON_CPU)
