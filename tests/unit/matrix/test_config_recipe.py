"""Reading extension.yaml: all keys, defaults, and errors with their positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from builder.errors import Code
from builder.gate.acceptance import Accept
from builder.matrix.axes import AbiClass, Arch, Cuda, Torch
from builder.matrix.config import AbiRule, GitSource, PathSource, SdistSource, Variant, WheelSource
from builder.matrix.load import load_recipe
from builder.matrix.models import (
    AbiModel,
    ExcludeModel,
    ImageModel,
    MatrixModel,
    PatchModel,
    RecipeModel,
    SourceModel,
)
from tests.refused import refused
from tests.unit.matrix.conftest import WriteRecipe

HASH = "0123456789abcdef" * 4
FULL = f"""\
name: torch_thing
version: 2.10
summary: A thing
source: {{sdist: torch-thing, version: 2.10, sha256: {HASH}}}
patches: [fix.patch]
abi:
  - {{class: stable, torch: ">=2.10"}}
  - {{class: cpython}}
cuda: optional
env: {{FORCE_CUDA: 1, EMPTY: , ON: yes}}
build_requires: ["setuptools>=77"]
requires: [numpy]
assume_cuda: true
archs: [9.0, 8.0]
python: ">=3.10"
imports: [torch_thing, torch_thing.ops]
needs_first: [torch]
accepts:
  - {{check: fake, op: "thing::f", cell: "torch2.2*", reason: no fake kernel}}
  - {{check: import-order, order: [torch_thing, torch], reason: documented}}
companions: [transformers==4.49.0]
libraries:
  _C: [CPU, CUDA]
variants:
  - {{library: "*_cuda13*", cuda: 13}}
  - {{library: "a/sm90/*", arch: 9.0}}
memory_per_job: 1.5GiB
"""


def test_all_keys(write_recipe: WriteRecipe) -> None:
    folder = write_recipe(text=FULL)
    (folder / "fix.patch").write_text("")
    recipe = load_recipe(folder)
    assert (recipe.name, recipe.version, recipe.summary) == ("torch_thing", "2.10", "A thing")
    assert recipe.folder == folder
    assert recipe.source == SdistSource("torch-thing", "2.10", HASH)
    assert recipe.modules == ("torch", "torch_thing", "torch_thing.ops")
    assert recipe.accepts == (
        Accept("fake", "no fake kernel", op="thing::f", cell="torch2.2*"),
        Accept("import-order", "documented", order=("torch_thing", "torch")),
    )
    assert recipe.patches == (folder / "fix.patch",)
    assert recipe.abi == (AbiRule(AbiClass.STABLE, ">=2.10"), AbiRule(AbiClass.CPYTHON, ""))
    assert (recipe.cuda, recipe.assume_cuda, recipe.python) == ("optional", True, ">=3.10")
    assert recipe.env == {"FORCE_CUDA": "1", "EMPTY": "", "ON": "yes"}
    assert (recipe.build_requires, recipe.requires) == (("setuptools>=77",), ("numpy",))
    assert recipe.archs == (Arch(8, 0), Arch(9, 0))
    assert (recipe.imports, recipe.companions) == (("torch_thing", "torch_thing.ops"), ("transformers==4.49.0",))
    assert recipe.libraries == {"_C": ("CPU", "CUDA")}
    assert recipe.variants == (Variant("*_cuda13*", cuda="13"), Variant("a/sm90/*", arch=Arch(9, 0)))
    assert recipe.memory_per_job == 3 * 2**29


def test_defaults(write_recipe: WriteRecipe) -> None:
    recipe = load_recipe(write_recipe())
    assert recipe.source == PathSource(recipe.folder)
    assert recipe.abi == (AbiRule(AbiClass.CPYTHON, ""),)
    assert (recipe.cuda, recipe.assume_cuda, recipe.memory_per_job) == ("required", False, 2 * 2**30)
    assert (recipe.patches, recipe.archs, recipe.env, recipe.libraries) == ((), (), {}, {})


def test_sources_elsewhere(write_recipe: WriteRecipe) -> None:
    url, revision = "https://git.example/thing.git", "0123456789" * 4
    source = f"{{git: '{url}', revision: {revision}, subdirectory: ops}}"
    assert load_recipe(write_recipe(source=source)).source == GitSource(url, revision, "ops")
    official = load_recipe(write_recipe(source="{wheel: torchvision, version: 0.26.0}"))
    assert official.source == WheelSource("torchvision", "0.26.0")


def test_a_patch_may_be_for_some_builds_only(write_recipe: WriteRecipe) -> None:
    new, cuda, every = (
        "{file: new.patch, torch: '>=2.6'}",
        "{file: cuda.patch, cuda: '>=13', torch: '<3'}",
        "every.patch",
    )
    folder = write_recipe(patches=f"[{every}, {new}, {cuda}]")
    for name in ("new.patch", "cuda.patch", every):
        (folder / name).write_text(name)
    recipe = load_recipe(folder)
    assert [path.name for path in recipe.patches] == [every, "new.patch", "cuda.patch"]

    def applied(torch: str, version: str) -> list[str]:
        return [path.name for path in recipe.of(Torch.parse(torch), Cuda.parse(version)).patches]

    assert applied("2.5.1", "12.4") == [every]
    assert applied("2.6.0", "12.4") == [every, "new.patch"]
    assert applied("2.11.0", "13.0") == [every, "new.patch", "cuda.patch"]


def test_cases_are_next_to_the_recipe(write_recipe: WriteRecipe) -> None:
    folder = write_recipe()
    assert load_recipe(folder).cases is None
    (folder / "cases.py").touch()
    assert load_recipe(folder).cases == folder / "cases.py"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"abi": "[{clas: abi3}]"}, "unknown key `abi[0].clas`; did you mean `class`?"),
        ({"version": "1.0+cu130"}, "`version`: '1.0+cu130' has a local part (+cu130), which buildfarm adds itself"),
        ({"abi": "stble"}, "`abi` must be 'cpython', 'abi3' or 'stable', not 'stble'"),
        ({"env": "[A=1]"}, "`env` must be a mapping of keys"),
        ({"env": "{A: [1]}"}, "`env.A` must be text"),
        ({"source": "{}"}, "`source`: must name exactly one of path, sdist, git, wheel; it names none"),
        ({"source": "{sdist: x, version: 1}"}, "`source`: sdist also needs sha256"),
        ({"source": "{path: ., version: 1}"}, "`source`: version cannot be combined with path"),
        ({"source": f"{{git: '--upload-pack=x', revision: {HASH[:40]}}}"}, "`source.git`: '--upload-pack=x' is not a"),
        ({"source": f"{{git: 'https://x/y', revision: {HASH[:40]}, subdirectory: ../z}}"}, "`source.subdirectory`:"),
        ({"source": "{path: gone}"}, "`source.path`: there is no folder 'gone' in one"),
        ({"source": "{path: link}"}, "`source.path`: 'link' is outside of the recipe's folder; copy it into one"),
        ({"patches": "[../a.patch]"}, "`patches[0]`: '../a.patch' is outside of the recipe's folder; copy it into one"),
        ({"patches": "[a.patch]"}, "`patches[0]`: there is no file 'a.patch' in one"),
        (
            {"patches": "[{file: a.patch, torch: new}]"},
            "`patches[0].torch`: 'new' is not a version specifier; write it like >=2.10,<3",
        ),
    ],
)
def test_mistakes(write_recipe: WriteRecipe, tmp_path: Path, keys: dict[str, str], says: str) -> None:
    folder = write_recipe(**keys)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.patch").write_text("")
    (folder / "link").symlink_to(outside)
    with refused(Code.KEY_INVALID, f"{folder / 'extension.yaml'}:", f": {says}"):
        load_recipe(folder)


def test_a_link_inside_the_folder_is_allowed(write_recipe: WriteRecipe) -> None:
    folder = write_recipe(source="{path: link}")
    (folder / "src").mkdir()
    (folder / "link").symlink_to(folder / "src")
    assert load_recipe(folder).source == PathSource(folder / "src")


@pytest.mark.parametrize(
    "model", [MatrixModel, ExcludeModel, ImageModel, RecipeModel, PatchModel, AbiModel, SourceModel]
)
def test_every_key_has_a_description(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert (field.description or "").endswith("."), name
