"""Reading extension.yaml: all keys, defaults, and errors with their positions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.gate.acceptance import Accept
from builder.matrix.axes import AbiClass, Arch
from builder.matrix.config import AbiRule, GitSource, PathSource, SdistSource, Variant, WheelSource
from builder.matrix.load import load_recipe
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
  - {{check: fake, op: "thing::f", cell: "torch2.2*", until: 3.0, reason: no fake kernel}}
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
    assert recipe.accepted == (
        Accept("fake", "no fake kernel", op="thing::f", cell="torch2.2*"),
        Accept("import-order", "documented", order=("torch_thing", "torch")),
    )
    assert replace(recipe, version="3.0").accepted == recipe.accepted[1:]
    assert recipe.patches == (folder / "fix.patch",)
    assert recipe.abi == (AbiRule(AbiClass.STABLE, ">=2.10"), AbiRule(AbiClass.CPYTHON, ""))
    assert (recipe.cuda, recipe.assume_cuda, recipe.python) == ("optional", True, ">=3.10")
    assert recipe.env == {"FORCE_CUDA": "1", "EMPTY": "", "ON": "yes"}
    assert (recipe.build_requires, recipe.requires) == (("setuptools>=77",), ("numpy",))
    assert recipe.archs == (Arch(8, 0), Arch(9, 0))
    assert (recipe.imports, recipe.companions) == (
        ("torch_thing", "torch_thing.ops"),
        ("transformers==4.49.0",),
    )
    assert recipe.libraries == {"_C": ("CPU", "CUDA")}
    assert recipe.variants == (Variant("*_cuda13*", cuda="13"), Variant("a/sm90/*", arch=Arch(9, 0)))
    assert recipe.memory_per_job == 3 * 2**29


def test_defaults(write_recipe: WriteRecipe) -> None:
    recipe = load_recipe(write_recipe())
    assert recipe.source == PathSource(recipe.folder)
    assert recipe.abi == (AbiRule(AbiClass.CPYTHON, ""),)
    assert (recipe.cuda, recipe.assume_cuda, recipe.memory_per_job) == ("required", False, 2 * 2**30)
    assert (recipe.patches, recipe.archs, recipe.env, recipe.libraries) == ((), (), {}, {})


def test_git_source(write_recipe: WriteRecipe) -> None:
    url, revision = "https://git.example/thing.git", "0123456789" * 4
    source = f"{{git: '{url}', revision: {revision}, subdirectory: ops}}"
    assert load_recipe(write_recipe(source=source)).source == GitSource(url, revision, "ops")


def test_an_official_wheel_as_source(write_recipe: WriteRecipe) -> None:
    recipe = load_recipe(write_recipe(source="{wheel: torchvision, version: 0.26.0}"))
    assert recipe.source == WheelSource("torchvision", "0.26.0")


def test_cases_are_next_to_the_recipe(write_recipe: WriteRecipe) -> None:
    folder = write_recipe()
    assert load_recipe(folder).cases is None
    (folder / "cases.py").touch()
    assert load_recipe(folder).cases == folder / "cases.py"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        pytest.param({"nam": "x"}, "unknown key `nam`; did you mean `name`?", id="unknown"),
        pytest.param({"source": "{pat: .}"}, "unknown key `source.pat`; did you mean `path`?", id="unknown-in-source"),
        pytest.param(
            {"abi": "[{clas: abi3}]"}, "unknown key `abi[0].clas`; did you mean `class`?", id="unknown-in-abi"
        ),
        pytest.param(
            {"name": "a/b"},
            "`name`: 'a/b' is not a name for a wheel; use letters, digits, - and _, and {cuda}, {cuda_major} and"
            " {torch}",
            id="name",
        ),
        pytest.param({"version": "new"}, "`version`: 'new' is not a version; write it like 1.2.3", id="version"),
        pytest.param(
            {"version": "1.0+cu130"},
            "`version`: '1.0+cu130' has a local part (+cu130), which buildfarm adds itself",
            id="local-version",
        ),
        pytest.param({"abi": "stble"}, "`abi` must be 'cpython', 'abi3' or 'stable', not 'stble'", id="abi"),
        pytest.param({"abi": "[]"}, "`abi` must list at least one value", id="no-abi"),
        pytest.param(
            {"abi": "[{class: abi3, torch: 2.10}]"},
            "`abi[0].torch`: '2.10' is not a version specifier; write it like >=2.10,<3",
            id="abi-torch",
        ),
        pytest.param({"cuda": "never"}, "`cuda` must be 'required' or 'optional', not 'never'", id="cuda"),
        pytest.param({"env": "[A=1]"}, "`env` must be a mapping of keys", id="env"),
        pytest.param({"env": "{A B: 1}"}, "`env.A B`: 'A B' is not a name for an environment variable", id="env-name"),
        pytest.param({"env": "{A: [1]}"}, "`env.A` must be text", id="env-value"),
        pytest.param({"seconds_per_case": "1.5"}, "`seconds_per_case` must be a whole number, not '1.5'", id="int"),
        pytest.param({"assume_cuda": "perhaps"}, "`assume_cuda` must be true or false", id="bool"),
        pytest.param(
            {"build_requires": "['no no']"},
            "`build_requires[0]`: 'no no' is not a requirement; write it like setuptools>=77",
            id="requirement",
        ),
        pytest.param({"imports": "a"}, "`imports` must be a list; write [a]", id="imports"),
        pytest.param(
            {"imports": "[a-b]"},
            "`imports[0]`: 'a-b' is not a module name; write it like torch_scatter",
            id="module",
        ),
        pytest.param(
            {"variants": "[{library: a, cuda: 12.x}]"},
            "`variants[0].cuda`: '12.x' is not a CUDA version; write it like 13 or 12.8",
            id="variant-cuda",
        ),
        pytest.param(
            {"variants": "[{library: a}]"}, "`variants[0]`: must have exactly one of `cuda` and `arch`", id="variant"
        ),
        pytest.param({"libraries": "{_C: CPU}"}, "`libraries._C` must be a list; write [CPU]", id="libraries"),
        pytest.param(
            {"memory_per_job": "2"},
            "`memory_per_job`: '2' is not a size; write it like 512MiB or 2GiB",
            id="memory",
        ),
        pytest.param(
            {"python": "3.x"},
            "`python`: '3.x' is not a version specifier; write it like >=3.10",
            id="python",
        ),
        pytest.param(
            {"source": "{}"},
            "`source`: must name exactly one of path, sdist, git, wheel; it names none",
            id="no-source",
        ),
        pytest.param(
            {"source": "{path: ., git: 'https://x/y'}"},
            "`source`: must name exactly one of path, sdist, git, wheel; it names path and git",
            id="two-sources",
        ),
        pytest.param(
            {"source": "{sdist: x, version: 1}"},
            "`source`: sdist also needs sha256",
            id="sdist-no-sha256",
        ),
        pytest.param({"source": "{git: 'https://x/y'}"}, "`source`: git also needs revision", id="git-no-revision"),
        pytest.param(
            {"source": "{path: ., version: 1}"},
            "`source`: version cannot be combined with path",
            id="version-and-path",
        ),
        pytest.param(
            {"source": "{sdist: x, version: 1, sha256: abc}"},
            "`source.sha256`: 'abc' is not a sha256: 64 digits 0-9 and a-f",
            id="sha256",
        ),
        pytest.param(
            {"source": f"{{sdist: x, version: 1, sha256: {HASH[:-1]}g}}"},
            f"`source.sha256`: '{HASH[:-1]}g' is not a sha256: 64 digits 0-9 and a-f",
            id="sha256-digits",
        ),
        pytest.param(
            {"source": "{git: 'https://x/y', revision: main}"},
            "`source.revision`: 'main' is not a full commit hash: 40 digits 0-9 and a-f",
            id="branch",
        ),
        pytest.param(
            {"source": f"{{git: '--upload-pack=x', revision: {HASH[:40]}}}"},
            "`source.git`: '--upload-pack=x' is not a git URL; write it like https://…/name.git",
            id="git-option",
        ),
        pytest.param(
            {"source": f"{{git: 'https://x/y', revision: {HASH[:40]}, subdirectory: ../z}}"},
            "`source.subdirectory`: '../z' must be a path inside the source tree",
            id="subdirectory",
        ),
        pytest.param({"source": "{path: gone}"}, "`source.path`: there is no folder 'gone' in one", id="no-such-path"),
        pytest.param(
            {"source": "{path: ..}"},
            "`source.path`: '..' is outside of the recipe's folder; copy it into one",
            id="path-up",
        ),
        pytest.param(
            {"source": "{path: /}"},
            "`source.path`: '/' is outside of the recipe's folder; copy it into one",
            id="path-absolute",
        ),
        pytest.param(
            {"source": "{path: link}"},
            "`source.path`: 'link' is outside of the recipe's folder; copy it into one",
            id="path-by-link",
        ),
        pytest.param(
            {"patches": "[../a.patch]"},
            "`patches[0]`: '../a.patch' is outside of the recipe's folder; copy it into one",
            id="patch-up",
        ),
        pytest.param(
            {"patches": "[link/a.patch]"},
            "`patches[0]`: 'link/a.patch' is outside of the recipe's folder; copy it into one",
            id="patch-by-link",
        ),
        pytest.param({"patches": "[a.patch]"}, "`patches[0]`: there is no file 'a.patch' in one", id="no-patch"),
    ],
)
def test_mistakes(write_recipe: WriteRecipe, tmp_path: Path, keys: dict[str, str], sentence: str) -> None:
    folder = write_recipe(**keys)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.patch").write_text("")
    (folder / "link").symlink_to(outside)
    with pytest.raises(UsageError) as caught:
        load_recipe(folder)
    assert caught.value.sentence == sentence
    assert caught.value.where.startswith(f"{folder / 'extension.yaml'}:")


def test_a_link_inside_the_folder_is_allowed(write_recipe: WriteRecipe) -> None:
    folder = write_recipe(source="{path: link}")
    (folder / "src").mkdir()
    (folder / "link").symlink_to(folder / "src")
    assert load_recipe(folder).source == PathSource(folder / "src")


def test_a_missing_key(write_recipe: WriteRecipe) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe(write_recipe(text="name: x\n"))
    assert caught.value.sentence == "key `version` is missing"
    assert [re.findall("key `[a-z]+` is missing", hint) for hint in caught.value.hints] == [
        ["key `source` is missing"],
        ["key `abi` is missing"],
        ["key `imports` is missing"],
    ]
    assert "write `abi: cpython`" in caught.value.hints[1]
