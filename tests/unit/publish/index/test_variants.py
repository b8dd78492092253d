"""`index variants`: variant wheels of published wheels, with metadata that variantlib accepts."""

from __future__ import annotations

import hashlib
import json
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from variantlib.variant_dist_info import VariantDistInfo
from variantlib.variants_json import VariantsJson

from builder.publish.index.integrity import check_index
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.index.variants.variant import SCHEMA, Variant
from builder.publish.index.variants.variant_wheel import write_variant_wheel
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.conftest import Run
from tests.unit.publish.index.make import add_with_code


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An index with three wheels of one version."""
    found = Repository(Folder(tmp_path / "index"))
    add_with_code(found, tmp_path, "cu126.torch211", "cu126", ["sm_80", "sm_90"])
    add_with_code(found, tmp_path, "cu130.torch211", "cu130", ["sm_80", "sm_90", "compute_90"])
    add_with_code(found, tmp_path, "torch211", "cu130", ["sm_80"])
    return found


def listed(tmp_path: Path) -> dict[str, Path]:
    """The files that the page of `variants/` lists; each has its hash."""
    page = tmp_path / "index" / "variants" / "my-ext"
    files = {}
    for file in json.loads((page / "index.json").read_text())["files"]:
        path = page / file["url"].replace("%2B", "+")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file["hashes"]["sha256"]
        assert file["filename"] in (page / "index.html").read_text()
        files[file["filename"]] = path
    return files


def test_the_variants_of_a_version(tmp_path: Path, repository: Repository, run: Run) -> None:
    simple = (tmp_path / "index" / "simple" / "my-ext" / "index.json").read_bytes()
    code, out, err = run("index", "variants", tmp_path / "index")
    assert code == 0, err
    assert out.splitlines() == [
        "my_ext-1.0+torch211-py3-none-any-cu126.whl",
        "my_ext-1.0+torch211-py3-none-any-cu130.whl",
        "no variant of my_ext-1.0+torch211-py3-none-any.whl: its version does not name one CUDA variant",
        "variants/ has 2 wheels",
    ]
    files = listed(tmp_path)
    index_level = json.loads(files["my_ext-1.0+torch211-variants.json"].read_bytes())
    assert index_level["$schema"] == SCHEMA
    merged = VariantsJson(index_level)
    assert merged.variants.keys() == {"cu126", "cu130"}
    for label in ("cu126", "cu130"):
        with zipfile.ZipFile(files[f"my_ext-1.0+torch211-py3-none-any-{label}.whl"]) as wheel:
            own = VariantDistInfo(wheel.read("my_ext-1.0+torch211.dist-info/variant.json"), label)
            metadata = message_from_bytes(wheel.read("my_ext-1.0+torch211.dist-info/METADATA"))
        assert own.variant_desc == merged.variants[label]
        assert (metadata["Name"], metadata["Version"]) == ("my_ext", "1.0+torch211")
    assert {prop.to_str() for prop in merged.variants["cu130"].properties} == {
        "nvidia :: cuda_version_lower_bound :: 13.0",
        "nvidia :: cuda_version_upper_bound :: 14",
        "nvidia :: sm_arch :: 80_real",
        "nvidia :: sm_arch :: 90_real",
        "nvidia :: sm_arch :: 90_virtual",
    }
    assert (tmp_path / "index" / "simple" / "my-ext" / "index.json").read_bytes() == simple
    check = check_index(repository)
    assert (check.faults, check.unused) == ((), ())


def test_a_second_run_changes_nothing(tmp_path: Path, repository: Repository, run: Run) -> None:
    run("index", "variants", tmp_path / "index")
    before = {path: path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file()}
    run("index", "variants", tmp_path / "index")
    assert {path: path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file()} == before
    assert len(repository.entries("my-ext")) == 3


def test_yank_and_prune_change_the_variants(tmp_path: Path, repository: Repository, run: Run) -> None:
    index = tmp_path / "index"
    run("index", "variants", index)
    first = set(listed(tmp_path))
    assert run("yank", "my_ext-1.0+cu126.torch211-py3-none-any.whl", "--index", index)[0] == 0
    assert first - set(listed(tmp_path)) == {"my_ext-1.0+torch211-py3-none-any-cu126.whl"}
    text = json.loads(listed(tmp_path)["my_ext-1.0+torch211-variants.json"].read_bytes())
    assert list(text["variants"]) == ["cu130"]
    assert check_index(repository).faults == ()
    assert run("unyank", "my_ext==1.0+cu126.torch211", "--index", index)[0] == 0
    assert set(listed(tmp_path)) == first
    add_with_code(repository, tmp_path, "cu130.torch211", "cu130", ["sm_80"], version="2.0")
    assert check_index(repository).faults == ()
    assert run("index", "prune", index, "--keep", "1")[0] == 0
    assert {name.split("-")[1] for name in listed(tmp_path)} == {"2.0+torch211"}
    assert check_index(repository).faults == ()
    assert run("yank", "my_ext==2.0+cu130.torch211", "--index", index)[0] == 0
    assert not (index / "variants" / "my-ext").exists()
    assert check_index(repository).faults == ()


def test_check_names_variants_of_yanked_wheels_and_damaged_files(
    tmp_path: Path, repository: Repository, run: Run
) -> None:
    run("index", "variants", tmp_path / "index")
    repository.yank("my_ext-1.0+cu126.torch211-py3-none-any.whl", "wrong")  # as a command that was killed afterwards
    listed(tmp_path)["my_ext-1.0+torch211-py3-none-any-cu130.whl"].write_bytes(b"damaged")
    faults = check_index(repository).faults
    assert [fault.partition(": ")[2] for fault in faults] == [
        "my_ext-1.0+torch211-py3-none-any-cu126.whl is yanked or deleted;"
        " `buildfarm index variants` removes it from the page",
        "the file is missing or its content changed",
    ]
    page = tmp_path / "index" / "variants" / "my-ext" / "index.json"
    page.write_text("{}")
    assert check_index(repository).faults == (
        "variants/my-ext/index.json: the page is missing or damaged; `buildfarm index variants` writes it",
    )


def test_wheels_without_a_variant_have_a_reason(tmp_path: Path, repository: Repository, run: Run) -> None:
    for entry in repository.entries("my-ext"):
        repository.yank(entry.filename, "wrong")
    add_with_code(repository, tmp_path, "cu124", "cu124", [])
    add_with_code(repository, tmp_path, "cu126", "cu126", ["sm_90a"])
    add_with_code(repository, tmp_path, "cu128", "cu128", ["sm_80"], "cp311-cp311-linux_x86_64")
    add_with_code(repository, tmp_path, "cu128", "cu128", ["sm_90"], "cp312-cp312-linux_x86_64")
    code, out, _ = run("index", "variants", tmp_path / "index", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["wheels"] == {"my-ext": ["my_ext-1.0-cp311-cp311-linux_x86_64-cu128.whl"]}
    assert sorted(set(result["skipped"].values())) == [
        "a different wheel of this version has other properties",
        "it is yanked",
        "its code for one GPU model only has no variant property",
        "the check device-code has not read its GPU code",
    ]


def test_the_sbom_names_the_variant_wheel_and_other_components_stay(tmp_path: Path) -> None:
    old = "my_ext-1.0+cu130-py3-none-any.whl"
    ref = "pkg:pypi/my-ext@1.0%2Bcu130?file_name=my_ext-1.0%2Bcu130-py3-none-any.whl"
    torch = {"name": "torch", "version": "2.11.0+cu130", "purl": "pkg:pypi/torch@2.11.0%2Bcu130"}
    sbom = {"metadata": {"component": {"name": "my_ext", "version": "1.0+cu130", "purl": ref}}, "components": [torch]}
    path = "my_ext-1.0+cu130.dist-info/sboms/buildfarm.cdx.json"
    files: dict[str, str | bytes] = {"my_ext.py": "", "my_ext-1.0+cu130.data/scripts/x": "", path: json.dumps(sbom)}
    wheel = pure_wheel(tmp_path, "my_ext", "1.0+cu130", files, requires=["torch==2.11.0+cu130"])
    assert wheel.name == old
    variant = Variant("cu130", "1.0", {"sm_arch": ("80_real",)})
    made = write_variant_wheel(wheel, variant, tmp_path)
    assert made.name == "my_ext-1.0-py3-none-any-cu130.whl"
    with zipfile.ZipFile(made) as archive:
        new = json.loads(archive.read("my_ext-1.0.dist-info/sboms/buildfarm.cdx.json"))
        metadata = message_from_bytes(archive.read("my_ext-1.0.dist-info/METADATA"))
        record = archive.read("my_ext-1.0.dist-info/RECORD").decode()
        names = archive.namelist()
    new_ref = "pkg:pypi/my-ext@1.0?file_name=my_ext-1.0-py3-none-any-cu130.whl"
    assert new["metadata"]["component"] == {"name": "my_ext", "version": "1.0", "purl": new_ref}
    assert new["components"] == [torch]
    assert metadata["Requires-Dist"] == "torch==2.11.0+cu130"
    assert "my_ext-1.0.data/scripts/x" in names
    assert [line.split(",")[0] for line in record.splitlines()] == names
