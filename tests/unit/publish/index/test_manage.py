"""Changes of an index folder by the command line: what `publish` refuses, `yank` and `index`, and what pages show."""

import errno
import html
import json
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from builder.commands.index.publish import PublishOutcome, publish_text, publish_wheels
from builder.errors import Code
from builder.formats import sha256_of
from builder.proof import Check, Proof, Verdict, proofs_json, proofs_path
from builder.publish.index import new_wheel as wheel_file
from builder.publish.index import objects
from builder.publish.index.levels import OF_VERIFY, Level, levels, sentence, shortfalls
from builder.publish.index.new_wheel import merged, new_wheel
from builder.publish.index.objects import Folder, open_objects, url_of
from builder.publish.index.pages import Entry, FarmFacts
from builder.publish.index.repository import Repository
from builder.publish.people.people_pages import home_page, project_page
from builder.publish.proof_lines import Gradient
from builder.publish.provenance import statement_path
from builder.store import Store
from tests.refused import refused
from tests.unit.conftest import Call
from tests.unit.loopback import pure_wheel
from tests.unit.publish.html_page import Page
from tests.unit.publish.index.make import CELL, ON_CPU, checked, proofs_of, ready
from tests.unit.publish.server.client import Client


@pytest.fixture
def index(tmp_path: Path) -> Path:
    repository = Repository(Folder(tmp_path / "index"))
    for version in ("1.0+cu121", "1.0+cu124", "2.0+cu124", "3.0"):
        repository.add(ready(tmp_path, version=version, proven=False))
    return tmp_path / "index"


@pytest.mark.parametrize("damage", ["", None, "mine"], ids=["empty", "missing", "tampered"])
def test_write_pages_mends_each_page(index: Path, call: Call, damage: str | None) -> None:
    pages = """index.html simple/index.html simple/index.json simple/my-ext/index.html cu124/index.html
        cu124/my-ext/index.html cu124/my-ext/index.json projects/my-ext/index.html"""
    texts = {page: (index / page).read_text() for page in pages.split()}
    for folder in ("cu124", "projects", "simple"):
        shutil.copytree(index / folder / "my-ext", index / folder / "ghost")
    for page, text in texts.items():
        if damage is None:
            (index / page).unlink()
        else:
            (index / page).write_text(damage and text.replace("my", damage))
    assert call("index", "write-pages", index)[0] == 0
    assert {page: (index / page).read_text() for page in texts} == texts
    assert not list(index.glob("*/ghost/*"))


def test_check_finishes_an_interrupted_change(index: Path, tmp_path: Path, call: Call) -> None:
    class Killed(BaseException):
        pass

    class Stopping(Repository):
        def write_pages(self, project: str) -> None:
            raise Killed(project)

    with pytest.raises(Killed):
        Stopping(Folder(index)).add(ready(tmp_path, version="4.0", proven=False))
    code, out, _ = call("index", "check", index)
    assert (code, out) == (0, "finished the interrupted change of my-ext\nchecked: 1 project, 5 wheels, 0 faults\n")


def test_a_reason_has_no_control_characters(index: Path, call: Call) -> None:
    words = ("yank", "my_ext==3.0", "--index", index, "--reason")
    for reason in ("two\nlines", "red \x1b[31m", "\x07", "\x9b31m", "\u202e"):
        code, _, err = call(*words, reason)
        assert (code, "\x1b" in err) == (2, False)
        assert not list(index.glob("records/my-ext/*.yank"))
    assert call(*words, "größer als 1 ✓")[0] == 0


def test_the_folder_of_an_index_is_named_in_three_ways(index: Path, call: Call, tmp_path: Path) -> None:
    for place in (index, f"{index.as_uri()}/", f"{index.as_uri()}/simple/"):
        code, out, _ = call("verify", "my_ext==3.0", "--index", place, "--store", tmp_path / "store")
        assert (code, out.split()[0]) == (0, "my_ext-3.0-py3-none-any.whl")
        words = ("--index", place, "--torch", "2.11", "--cuda", "13.0", "--python", "3.12")
        assert call("resolve", "my_ext", *words)[1].startswith("my_ext-3.0-py3-none-any.whl ")
    assert call("index", "check", index.as_uri())[0] == 0


def test_a_new_index_in_a_source_folder_is_no_part_of_the_source(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder without a matrix
    wheel = ready(tmp_path, version="1.0+cu130").wheel
    words = ("publish", wheel, "--to", tmp_path / "index", "--store", tmp_path / "store", "--require", "none")
    assert call(*words)[0] == 0
    assert (tmp_path / "index" / ".gitignore").read_text() == "*\n"
    assert checked(Repository(Folder(tmp_path / "index"))).faults == ()
    (tmp_path / "file").write_text("")
    code, _, err = call(*words[:3], tmp_path / "file" / "index", *words[4:])
    assert code == 2
    assert "name a different folder with `--to DIR`" in " ".join(err.split())


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "{wheel}", "--to", "{index}", "--store", "{tmp}/store", "--require", "none"),
        ("token", "add", "{index}", "--name", "ci", "--scope", "read"),
    ],
    ids=lambda words: words[0],
)
def test_a_full_disk_names_the_index(
    index: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    wheel = ready(tmp_path, version="4.0", proven=False).wheel

    def full(source: object, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *((str(source),) if source == wheel else ()))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.copyfile", full)
    monkeypatch.setattr(objects, "sync", full)
    code, _, err = call(*(word.format(wheel=wheel, index=index, tmp=tmp_path) for word in words))
    assert code == 1
    assert f"error[disk-full]: the disk is full ({index}" in err


def test_prune_survives_files_that_vanish(index: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = index / "files/ab/cd/x-1.0-py3-none-any.whl"
    unused.parent.mkdir(parents=True)
    unused.write_bytes(b"x")
    age = Folder.age

    def vanishing(self: Folder, name: str) -> float:
        (self.root / name).unlink()
        return age(self, name)

    monkeypatch.setattr(Folder, "age", vanishing)
    code, _, err = call("index", "prune", index, "--keep", 9)
    assert (code, err) == (0, "")


def test_a_stray_file_is_no_project(index: Path, tmp_path: Path, call: Call) -> None:
    stray = [
        index / folder / name for folder in ("simple", "cpu", "projects", "records") for name in ("x", "robots.txt")
    ]
    for path in stray:
        path.write_text("User-agent: *\n")
    Repository(Folder(index)).add(ready(tmp_path, version="4.0", proven=False))
    assert call("index", "write-pages", index) == (0, "", "")
    for folder in ("simple", "cpu"):
        page = json.loads((index / folder / "index.json").read_bytes())
        assert page["projects"] == [{"name": "my-ext"}]
    assert "robots" not in (index / "index.html").read_text()
    assert Repository(Folder(index)).projects() == ["my-ext"]
    assert call("index", "check", index)[:2] == (0, "checked: 1 project, 5 wheels, 0 faults\n")
    assert all(path.is_file() for path in stray)


@pytest.mark.parametrize("place", ["https://wheels.example/simple/", "http://wheels.example:8080/", "gs://bucket"])
def test_an_index_behind_a_url_is_not_changed(place: str) -> None:
    with refused(Code.INDEX_NOT_WRITABLE, place):
        open_objects(place)


CELLS = {"torch2.11.0-cu130-cp311": "cpu", "torch2.11.0-cu130-cp312": "gpu", "torch2.12.0-cu132-cp312": "static"}


def index_of(folder: Path, *wheels: Path) -> Path:
    """Publish these wheels in an index; return the folder with its pages."""
    for wheel in wheels:
        Repository(Folder(folder)).add(new_wheel(wheel, []))
    return folder / "simple"


def entry(version: str, cells: dict[str, str], *, yanked: str | None = None) -> Entry:
    name = f"my_ext-{version}-cp310-abi3-manylinux_2_28_x86_64.whl"
    farm = FarmFacts(("cu130", "cu132"), cells, proofs="files/p", archs=("sm_90",))
    return Entry(name, f"files/ab/{name}", "0", 2048, "2026-11-22T20:30:00.000000Z", "", "0", yanked, farm=farm)


def test_the_html_page_follows_the_standards(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "my_ext", "1.0+cu13", requires_python=">=3.8,<9")
    page = index_of(tmp_path / "index", wheel) / "my-ext" / "index.html"
    links = Page(page.read_text())
    assert {"name": "pypi:repository-version", "content": "1.4"} in links.of("meta")
    (link,) = links.of("a")
    address = urlsplit(urljoin(page.as_uri(), link["href"]))
    assert "+" not in address.path
    published = Path(unquote(address.path))
    assert published.read_bytes() == wheel.read_bytes()
    assert address.fragment == f"sha256={sha256_of(wheel)}"
    assert link["data-core-metadata"] == f"sha256={sha256_of(published.with_name(f'{wheel.name}.metadata'))}"
    assert "data-dist-info-metadata" not in link
    assert link["data-requires-python"] == ">=3.8,<9"
    assert 'data-requires-python="&gt;=3.8,&lt;9"' in page.read_text()
    assert [entry["href"] for entry in Page((tmp_path / "index/simple/index.html").read_text()).of("a")] == ["my-ext/"]


def test_the_json_page_agrees_with_the_html_page(tmp_path: Path) -> None:
    wheels = [
        pure_wheel(tmp_path, "my_ext", version, requires_python=">=3.8") for version in ("1.10", "1.9", "1.9+cu13")
    ]
    simple = index_of(tmp_path / "index", *wheels)
    data = json.loads((simple / "my-ext" / "index.json").read_text())
    assert data["meta"]["api-version"] == "1.4"
    assert (data["name"], data["versions"]) == ("my-ext", ["1.9", "1.9+cu13", "1.10"])
    assert [f"{f['url'].replace('+', '%2B')}#sha256={f['hashes']['sha256']}" for f in data["files"]] == [
        link["href"] for link in Page((simple / "my-ext" / "index.html").read_text()).of("a")
    ]
    newest = data["files"][-1]
    assert (newest["filename"], newest["size"]) == ("my_ext-1.10-py3-none-any.whl", wheels[0].stat().st_size)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", newest["upload-time"])
    assert newest["requires-python"] == ">=3.8"
    assert json.loads((simple / "index.json").read_text())["projects"] == [{"name": "my-ext"}]


def test_a_page_has_the_levels_and_the_commands_of_each_version() -> None:
    farm = replace(entry("2.0+cu13", CELLS).farm or FarmFacts(), gpus={"torch2.11.0-cu130-cp312": ("sm_80", "sm_90")})
    wheels = [
        entry("1.0+cu130.torch211", {"torch2.11.0-cu130-cp311": "gpu"}),
        replace(entry("2.0+cu13", CELLS), farm=farm),
        entry("2.1rc1+cu13", CELLS),
        entry("0.9+cu13", CELLS, yanked="slow"),
    ]
    texts = Page(project_page("my-ext", wheels).decode()).texts
    headings = [text for text in texts if text.startswith("Version ")]
    assert headings == ["Version 2.0", "Version 1.0", "Version 0.9", "Version 2.1rc1 (pre-release)"]
    paths = [text for text in texts if re.fullmatch(r"cu[\d/.torch]+", text)]
    assert paths == ["cu132", "cu130", "cu130/torch2.11", "cu132", "cu132", "cu130"]
    levels = [(label, cells) for label, cells in pairwise(texts) if cells.startswith("torch2.1")][:3]
    assert levels == [
        ("GPU", "torch2.11.0-cu130-cp312 (sm_80, sm_90)"),
        ("CPU", "torch2.11.0-cu130-cp311"),
        ("static", "torch2.12.0-cu132-cp312"),
    ]
    assert "All wheels of this version are yanked." in texts


def test_the_pages_are_well_formed_and_need_no_other_host() -> None:
    for data in (project_page("my-ext", [entry("1.0+cu13", CELLS)]), home_page(["my-ext", "other"]), home_page([])):
        page = Page(data.decode())
        assert not [url for url in page.all("src") + page.all("href") if "//" in url]


def test_the_page_says_which_ops_lose_gradients() -> None:
    farm = FarmFacts(("cu130",), {}, gradients={"ns::add": "yes, checked", "ns::sub": str(Gradient.LOST)})
    listed = Entry.from_json(replace(entry("1.0+cu130", {}), farm=farm).to_json())
    page = project_page("ops", [listed]).decode()
    assert "gradients: none: the gradients of the inputs are lost (ns::sub); yes, checked (ns::add)" in page


def test_hostile_text_stays_text() -> None:
    data = project_page("my-ext", [entry("1.0+cu13", CELLS, yanked="<script>alert(1)</script>")]).decode()
    assert "<script>alert" not in data
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in data


def test_every_link_of_a_published_wheel_leads_to_a_file(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Repository(Folder(root)).add(ready(tmp_path, version="1.0+cu130"))
    for path in ("index.html", "projects/my-ext/index.html"):
        page = root / path
        for link in Page(page.read_text()).of("a"):
            target = page.parent / link["href"].replace("%2B", "+")
            assert (target / "index.html" if target.is_dir() else target).is_file(), link


OTHER = "torch2.12.0-cu130-cp312"
ON_GPU = (*ON_CPU, Check.GPU_VALUES)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return pure_wheel(tmp_path / "dist", "my_ext", "1.0+cu130")


@pytest.mark.parametrize(
    ("checks", "level"),
    [((), {}), ((Check.LINKAGE,), {CELL: "static"}), (ON_CPU, {CELL: "cpu"}), (ON_GPU, {CELL: "gpu"})],
)
def test_the_level_follows_from_the_checks(wheel: Path, checks: tuple[Check, ...], level: dict[str, str]) -> None:
    assert levels(proofs_of(wheel, checks)) == level


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.NOT_RUN])
@pytest.mark.parametrize("check", ON_CPU)
def test_each_needed_check_is_needed(wheel: Path, check: Check, verdict: Verdict) -> None:
    proofs = [proof for proof in proofs_of(wheel) if proof.check is not check]
    assert [*map(sentence, shortfalls(proofs, Level.CPU))] == [f"{CELL}: {check}: not run: there is no proof"]
    proofs += [Proof(proofs[0].wheel, proofs[1].cell, check, verdict, "because")]
    assert [*map(sentence, shortfalls(proofs, Level.CPU))] == [f"{CELL}: {check}: {verdict}: because"]


def test_a_failed_check_is_refused_at_every_level(wheel: Path) -> None:
    proofs = proofs_of(wheel, ON_GPU)
    failed = Proof(proofs[0].wheel, proofs[1].cell, Check.COMPILE, Verdict.FAILED, "because")
    proofs += [Proof(proofs[0].wheel, None, check, Verdict.PASSED) for check in OF_VERIFY]
    for level in Level:
        assert not shortfalls(proofs, level)
        assert [*map(sentence, shortfalls([*proofs, failed], level))] == [f"{CELL}: compile: failed: because"]


def test_every_cell_must_reach_the_level(wheel: Path) -> None:
    proofs = proofs_of(wheel) + proofs_of(wheel, (Check.LINKAGE,), cells=[OTHER])
    assert levels(proofs) == {CELL: "cpu", OTHER: "static"}
    assert {str(one.cell) for one in shortfalls(proofs, Level.CPU)} == {OTHER}
    assert not shortfalls(proofs, Level.STATIC)


def test_without_static_proofs_or_cells_no_level_is_reached(wheel: Path) -> None:
    assert [one.reason for one in shortfalls([], Level.STATIC)] == [
        "no check of the file was run",
        "no cell was tested",
    ]
    assert levels([proof for proof in proofs_of(wheel) if proof.cell]) == {CELL: "none"}


def test_the_newest_proof_counts_and_not_run_replaces_nothing() -> None:
    old = Proof("0", None, Check.TAGS, Verdict.FAILED, when="2026-01-01T00:00:00+00:00")
    new = Proof("0", None, Check.TAGS, Verdict.PASSED, when="2026-02-01T00:00:00+00:00")
    skipped = Proof("0", None, Check.TAGS, Verdict.NOT_RUN, when="2026-03-01T00:00:00+00:00")
    assert merged([new], [old, skipped]) == merged([skipped, old], [new]) == [new]


def test_proofs_of_the_store_and_beside_the_wheel_are_used(wheel: Path, repository: Repository, store: Store) -> None:
    (result,) = publish_wheels(repository, [wheel], store, [Level.CPU])
    assert result.outcome is PublishOutcome.REFUSED
    assert repository.projects() == []
    proofs = proofs_of(wheel)
    store.save_proofs(proofs[:3])
    proofs_path(wheel).write_bytes(proofs_json(proofs[3:]))
    (result,) = publish_wheels(repository, [wheel], store, [Level.CPU])
    assert (result.outcome, result.cells, result.paths) == (
        PublishOutcome.PUBLISHED,
        {CELL: "cpu"},
        ("simple", "cu130", "cu130/torch2.11"),
    )
    (result,) = publish_wheels(repository, [wheel], store, [Level.CPU])
    assert result.outcome is PublishOutcome.UNCHANGED


def test_another_machine_adds_to_what_the_index_has(wheel: Path, tmp_path: Path) -> None:
    repository, first, second = Repository(Folder(tmp_path / "index")), Store(tmp_path / "a"), Store(tmp_path / "b")
    first.save_proofs(proofs_of(wheel, ON_GPU, cells=[CELL, OTHER.replace("cu130", "cu132")]))
    statement = json.dumps({"subject": [{"digest": {"sha256": sha256_of(wheel)}}]})
    statement_path(wheel).write_text(statement)
    publish_wheels(repository, [wheel], first, [Level.GPU])
    (before,) = repository.entries("my-ext")
    statement_path(wheel).unlink()
    second.save_proofs(proofs_of(wheel))
    (result,) = publish_wheels(repository, [wheel], second, [Level.GPU])
    assert (result.outcome, result.reasons) == (PublishOutcome.UNCHANGED, ())
    assert result.paths == ("simple", "cu130", "cu132", "cu130/torch2.11", "cu132/torch2.12")
    (entry,) = repository.entries("my-ext")
    assert entry == before
    assert entry.farm
    assert entry.farm.built_here
    assert repository.objects.read(entry.farm.statement).decode() == statement
    third = Store(tmp_path / "c")
    third.save_proofs(proofs_of(wheel, ON_GPU, cells=[OTHER]))
    (result,) = publish_wheels(repository, [wheel], third, [Level.GPU])
    assert set(result.cells) == {*entry.farm.cells, OTHER}


def test_an_adopted_wheel_keeps_its_origin_until_a_statement_comes(
    wheel: Path, repository: Repository, store: Store
) -> None:
    origin = "https://wheels.example/x.whl"
    repository.add(new_wheel(wheel, proofs_of(wheel), origin=origin))
    statement = json.dumps({"subject": [{"digest": {"sha256": sha256_of(wheel)}}]})
    for beside, expected in (("", (origin, False)), (statement, ("", True))):
        if beside:
            statement_path(wheel).write_text(beside)
        publish_wheels(repository, [wheel], store, [Level.CPU])
        (entry,) = repository.entries("my-ext")
        assert entry.farm
        assert (entry.farm.origin, entry.farm.built_here, entry.farm.cells) == (*expected, {CELL: "cpu"})


def test_the_text_says_how_to_publish_what_has_no_results_here(
    wheel: Path, repository: Repository, store: Store
) -> None:
    refused = publish_wheels(repository, [wheel], store, [Level.CPU])
    conflict = [replace(result, lacking=()) for result in refused]
    assert "Each cell must reach" not in publish_text(conflict, "file:///index/", [Level.CPU])
    cuda_only = [replace(result, reasons=("values: not run: no GPU on this machine",)) for result in refused]
    assert "publish without results of these ops with `--require static`" in publish_text(
        cuda_only, "file:///index/", [Level.CPU]
    )


def test_the_page_of_a_wheel_without_a_local_version_has_its_url(
    tmp_path: Path, repository: Repository, store: Store
) -> None:
    wheels = [pure_wheel(tmp_path / "dist", "my_ext", "1.0"), pure_wheel(tmp_path / "dist", "other", "1.0+cu130")]
    publish_wheels(repository, wheels, store, [Level.NONE])
    (entry,) = repository.entries("my-ext")
    (page,) = (tmp_path / "index").glob("projects/my-ext/index.html")
    assert f'pip install \'my-ext @ <span data-path="{entry.path}#sha256={entry.sha256}"' in html.unescape(
        page.read_text()
    )
    assert 'data-path="simple/"' in page.read_text()
    assert "pip install --extra-index-url <span" in (tmp_path / "index/projects/other/index.html").read_text()


def test_a_check_of_verify_that_did_not_run_is_named_once(tmp_path: Path, repository: Repository, store: Store) -> None:
    wheels = [pure_wheel(tmp_path / "dist", name, "1.0+cu130") for name in ("my_ext", "other")]
    for wheel in wheels:
        not_run = Proof(sha256_of(wheel), None, Check.WINDOW, Verdict.NOT_RUN, "the symbols of torch 2.11 are unknown")
        store.save_proofs([*proofs_of(wheel), not_run])
    results = publish_wheels(repository, wheels, store, [Level.CPU])
    text = publish_text(results, url_of(str(tmp_path / "index")), [Level.CPU])
    assert text.count("window: not run for 2 wheels: the symbols of torch 2.11 are unknown") == 1


def test_a_refusal_groups_its_reasons_and_offers_nothing_to_install(
    wheel: Path, tmp_path: Path, repository: Repository, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    store.save_proofs(proofs_of(wheel))
    publish_wheels(repository, [wheel], store, [Level.CPU])
    why = "a GPU is needed to compare the values of this op with those of its reference in float64"
    outcomes = [{"op": f"a::f{i}", "case": "", "verdict": "not run", "reason": f"a::f{i}: {why}"} for i in range(4)]
    joined = "; ".join(one["reason"] for one in outcomes)
    gpu = replace(proofs_of(wheel)[-1], check=Check.GPU_VALUES, verdict=Verdict.NOT_RUN, reason=joined)
    store.save_proofs([replace(gpu, evidence={"outcomes": outcomes})])
    results = publish_wheels(repository, [wheel], store, [Level.GPU])
    assert results[0].reasons == (f"{CELL}: gpu-values: not run: {joined}",), "--json has all"
    text = publish_text(results, url_of(str(tmp_path / "index")), [Level.GPU])
    assert " ".join(text.split()).count(why) == 1
    assert text.splitlines()[1].startswith("  not run   GPU           a GPU is needed")
    assert max(map(len, text.split("\n\n")[0].splitlines()[1:])) <= 100
    assert "pip install" not in text


NAME = "my_ext-1.0-py3-none-any.whl"
INFO = "my_ext-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: my_ext\nVersion: 1.0\n"


def wheel_of(folder: Path, files: Mapping[str, bytes | None], name: str = NAME) -> Path:
    """A wheel with these files beside the usual ones; None: without this file."""
    usual = {f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": b"Tag: py3-none-any\n", f"{INFO}/RECORD": b""}
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**usual, **files}.items():
            if data is not None:
                archive.writestr(path, data)
    return folder / name


def metadata_with(line: bytes) -> dict[str, bytes | None]:
    return {f"{INFO}/METADATA": METADATA + line + b"\n"}


LINUX = "my_ext-1.0-cp312-cp312-linux_x86_64.whl"
HOSTILE: dict[str, tuple[dict[str, bytes | None], str, str]] = {
    "no RECORD": ({f"{INFO}/RECORD": None}, NAME, "has no RECORD"),
    "no WHEEL": ({f"{INFO}/WHEEL": None}, NAME, "has no WHEEL"),
    "UTF-8": (metadata_with(b"Author: M\xfcller"), NAME, "METADATA is not UTF-8: byte 57 is 0xfc"),
    "long Requires-Dist": (
        metadata_with(b"Requires-Dist: x" + b">=1," * 600 + b">=1"),
        NAME,
        "Requires-Dist of METADATA is too long",
    ),
    "tag": ({}, LINUX, "WHEEL says py3-none-any, but the file name says cp312-cp312-linux_x86_64"),
    "control characters": ({"a\nb": b""}, NAME, "control characters: 'a\\nb'"),
    "large SBOM": ({f"{INFO}/sboms/x.cdx.json": b"[" * 31 * 2**20}, NAME, "x.cdx.json cannot be read"),
    "SBOM of another kind": ({f"{INFO}/sboms/x.cdx.json": b"[]"}, NAME, "x.cdx.json cannot be read"),
}


@pytest.mark.parametrize(("files", "name", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_it_is_refused(tmp_path: Path, files: Mapping[str, bytes | None], name: str, sentence: str) -> None:
    wheel = wheel_of(tmp_path, files, name)
    with refused(Code.WHEEL_DAMAGED, sentence):
        new_wheel(wheel, [])
    client = Client(tmp_path / "index")
    answer = client.upload(wheel, client.token())
    assert (answer.status_code, sentence in answer.text, answer.text.count("\n")) == (400, True, 1), answer.text
    assert not (client.root / "records").exists()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b"Tag: py2-none-any\nTag: py3-none-any\n", "my_ext-1.0-py2.py3-none-any.whl"),
        (b"Tag: py2.py3-none-any\n", "my_ext-1.0-py2.py3-none-any.whl"),
        (b"Tag: py3-none-any\n", "my_ext-1.0-py2.py3-none-any.whl"),
        (
            b"Tag: cp312-cp312-manylinux_2_17_x86_64\nTag: cp312-cp312-manylinux2014_x86_64\n",
            "my_ext-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        ),
        (b"Tag: cp312-cp312-linux_x86_64\n", "my_ext-1.0-cp312-cp312-manylinux1_x86_64.whl"),
        (b"Tag: cp312-cp312-linux_x86_64\n", "my_ext-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        (b"", "my_ext-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
    ],
)
def test_tags_of_real_wheels(tmp_path: Path, written: bytes, name: str) -> None:
    assert new_wheel(wheel_of(tmp_path, {f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n" + written}, name), [])


def test_names_in_other_languages(tmp_path: Path) -> None:
    author = {f"{INFO}/METADATA": METADATA + "Author: Müller\n".encode()}
    made = new_wheel(wheel_of(tmp_path, {"my_ext/naïve\u3000文.txt": b"", **author}), [])
    assert made.attached[".metadata"] == author[f"{INFO}/METADATA"]


def test_the_first_sbom_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{INFO}/sboms/{name}.cdx.json": f'{{"name": "{name}"}}'.encode() for name in ("b", "a")}
    wheel = wheel_of(tmp_path, files)
    assert new_wheel(wheel, []).attached[".cdx.json"] == b'{"name": "a"}'
    monkeypatch.setattr(wheel_file, "MAX_SBOM", 5)
    with refused(Code.WHEEL_DAMAGED, "a.cdx.json"):
        new_wheel(wheel, [])
