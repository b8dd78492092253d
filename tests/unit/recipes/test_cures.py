"""Cures of known causes: the code of each row before and after, sources that must stay, and what the recipe keeps."""

import hashlib
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from builder.diagnosis.first_error import every_error
from builder.diagnosis.known_errors import KnownCause, KnownError, causes, knowledge
from builder.diagnosis.rewrite import NotRewrittenError, faults, rewrite, with_include
from builder.errors import UsageError
from builder.matrix.axes import Torch
from builder.matrix.config import PathSource, Recipe
from builder.matrix.load import load_recipe
from builder.recipes.cures import PATCH, cure, treat
from builder.store import Store
from builder.wheels.sources.prepare import prepare_source, source_digest
from tests.unit.wheels.make_record import build_for

BUILD = build_for("torch2.11.0-cu130-cp312")
TORCH, CUDA = BUILD.torch, BUILD.cuda
ROWS = [error for error in knowledge().errors if error.cure]
REWRITES = [error for error in ROWS if error.cure and error.cure.rewrite]
CHECK = '  AT_CHECK(x.is_cuda(), "no GPU");\n'


def row(name: str) -> KnownError:
    return next(error for error in ROWS if error.about == f"`{name}`")


def found(*lines: str) -> list[KnownCause]:
    return causes(every_error(lines, "/build/src"), TORCH, CUDA, [])


def source(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


AT_CHECK = '/build/src/a.cu(2): error: identifier "AT_CHECK" is undefined'


@pytest.mark.parametrize("known", REWRITES, ids=lambda known: known.about)
def test_a_rewrite_makes_the_example(known: KnownError) -> None:
    cure = known.cure
    assert cure
    after = rewrite(cure.before.encode(), cure.rewrite, cure.include)
    assert after.decode() == cure.after
    assert rewrite(after, cure.rewrite, cure.include) == after
    assert faults(after) == 0
    others = [each.cure for each in REWRITES if each is not known and each.cure]
    assert [other.rewrite for other in others if rewrite(after, other.rewrite) != after] == []


def test_names_in_macros_change_and_comments_and_texts_do_not() -> None:
    code = '// AT_CHECK\n#define C(x) \\\n  AT_CHECK(x, "AT_CHECK")\n#ifdef AT_CHECK\n#endif\nint AT_CHECKED;\n'
    after = code.replace("  AT_CHECK(", "  TORCH_CHECK(")
    assert rewrite(code.encode(), {"AT_CHECK": "TORCH_CHECK"}).decode() == after


def test_a_match_inside_of_a_match_and_a_kernel_launch_change_too() -> None:
    code = b"void f() { v = __shfl(__shfl(v, 1), /* lane */ 2); }"
    after = rewrite(code, {"__shfl($$$A)": "__shfl_sync(0xffffffff, $$$A)"})
    assert after == b"void f() { v = __shfl_sync(0xffffffff, __shfl_sync(0xffffffff, v, 1), /* lane */ 2); }"
    code = b"void f() {\n  k<float><<<CeilDiv(n, 2), 2>>>(x.data<float>());\n}\n"
    after = rewrite(code, {"CeilDiv($A, $B)": "at::ceil_div($A, $B)", "$X.data<$T>()": "$X.data_ptr<$T>()"})
    assert after == b"void f() {\n  k<float><<<at::ceil_div(n, 2), 2>>>(x.data_ptr<float>());\n}\n"


def test_an_instruction_changes_in_asm_alone() -> None:
    code = b'#define S(x) asm("@p shfl.up.b32 %0; bar.sync 0;\\n" : "+r"(x))\n'
    code += b'auto s = "shfl.up.b32 %0;";  // asm shfl.up.b32 %0;\n'
    after = rewrite(code, {"asm shfl.$M.b32 $$$A;": "shfl.sync.$M.b32 $$$A, 1;"})
    assert after == code.replace(b"shfl.up.b32 %0; bar", b"shfl.sync.up.b32 %0, 1; bar")


def test_a_statement_without_replacement_goes_with_its_line_and_line_ends_stay() -> None:
    code = b"int a;\r\nextern State *state;\r\nint b;\r\n"
    assert rewrite(code, {"extern State *$S;": ""}) == b"int a;\r\nint b;\r\n"
    code = b"#pragma once\r\n#include <a.h>\r\nvoid f() { AT_CHECK(x); }"
    after = rewrite(code, {"AT_CHECK": "TORCH_CHECK"}, ["b.h"])
    assert after == b"#pragma once\r\n#include <a.h>\r\n#include <b.h>\r\nvoid f() { TORCH_CHECK(x); }"


@pytest.mark.parametrize(
    "code",
    [
        "@int a;\n",
        "// licence\n#pragma once\n@int a;\n",
        "#ifndef A_H\n#define A_H\n#include <a.h>\n@#endif\n",
        "#ifdef X\n#include <x.h>\n#endif\n#include <a.h>\n@",
        "#include <a.h>\n@int a;",
    ],
)
def test_an_include_stands_below_no_condition(code: str) -> None:
    after = code.replace("@", "#include <b.h>\n")
    assert with_include(code.replace("@", "").encode(), "b.h").decode() == after
    assert with_include(after.encode(), "b.h").decode() == after


def test_what_is_no_utf8_or_would_be_no_code_stays() -> None:
    with pytest.raises(NotRewrittenError, match="it is not UTF-8"):
        rewrite(b"void f() { AT_CHECK(x); } // \xe9", {"AT_CHECK": "TORCH_CHECK"})
    with pytest.raises(NotRewrittenError, match="it is not UTF-8"):
        with_include(b"// \xe9", "a.h")
    assert rewrite(b"// \xe9", {"AT_CHECK": "TORCH_CHECK"}) == b"// \xe9"
    with pytest.raises(NotRewrittenError, match="the result would be no C"):
        rewrite(b"void f() { AT_CHECK(x); }", {"AT_CHECK": "TORCH_CHECK(("})


def test_a_cure_changes_every_file_that_has_the_cause(tmp_path: Path) -> None:
    tree = source(tmp_path, a_cu=CHECK, b_h=CHECK, third__party_h="", tests__c_cpp=CHECK)
    treatment = treat(tree, found(AT_CHECK), TORCH, CUDA)
    assert treatment.done == ["a.cu and b.h: AT_CHECK → TORCH_CHECK (torch 1.5 removed it)"]
    assert treatment.files == dict.fromkeys(("a.cu", "b.h"), CHECK.replace("AT_", "TORCH_").encode())


def test_other_names_that_the_release_removed_are_cured_at_once(tmp_path: Path) -> None:
    code = 'void f(at::Tensor x) {\n  AT_CHECK(true, "");\n  AT_WARN("slow");\n}\n'
    treatment = treat(source(tmp_path, a_cu=code), found(AT_CHECK), TORCH, CUDA)
    assert treatment.files["a.cu"].decode() == code.replace("AT_", "TORCH_")
    assert len(treatment.done) == 2


def test_a_source_with_its_own_definition_stays(tmp_path: Path) -> None:
    tree = source(tmp_path, a_cu=CHECK, b_cu=CHECK, own_h="#ifndef AT_CHECK\n#define AT_CHECK TORCH_CHECK\n#endif\n")
    assert list(treat(tree, found(AT_CHECK), TORCH, CUDA).files) == ["a.cu"]


def test_nothing_changes_without_a_cure(tmp_path: Path) -> None:
    tree = source(tmp_path, a_cu=CHECK)
    lines = ['/build/src/a.cu(2): error: identifier "mine" is undefined']
    assert treat(tree, found(*lines), TORCH, CUDA) == treat(tree, [], TORCH, CUDA)


def test_two_cures_for_one_place_are_not_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(row("AT_WARN").cure.rewrite, "AT_CHECK", "MY_CHECK")  # type: ignore[union-attr]
    treatment = treat(source(tmp_path, a_cu=CHECK, b_cu="int a;\n"), found(AT_CHECK), TORCH, CUDA)
    assert treatment.files == {}
    assert treatment.refused[0] == "a.cu is not changed: two cures are for one place, AT_CHECK"


def test_a_file_that_the_build_generates_is_not_cured(tmp_path: Path) -> None:
    treatment = treat(source(tmp_path, b_cu="int a;\n"), found(AT_CHECK), TORCH, CUDA)
    assert treatment.refused == ["`AT_CHECK` is not cured: a.cu is no file of the source"]


def test_a_file_that_is_no_utf8_is_not_cured(tmp_path: Path) -> None:
    tree = source(tmp_path, a_cu=CHECK.encode() + b"// \xe9\n", b_cu=CHECK)
    treatment = treat(tree, found(AT_CHECK), TORCH, CUDA)
    assert list(treatment.files) == ["b.cu"]
    assert treatment.refused == ["a.cu is not changed: it is not UTF-8"]


def test_a_standard_header_is_included_where_it_is_missing(tmp_path: Path) -> None:
    lines = [
        "/build/src/a.cpp:3:6: error: ‘unique_ptr’ in namespace ‘std’ does not name a template type",
        "    3 | std::unique_ptr<int> f();",
        "      |      ^~~~~~~~~~",
        "/build/src/a.cpp:1:1: note: ‘std::unique_ptr’ is defined in header ‘<memory>’; did you forget to"
        " ‘#include <memory>’?",
    ]
    treatment = treat(source(tmp_path, a_cpp="#include <a.h>\n"), found(*lines), TORCH, CUDA)
    assert treatment.files == {"a.cpp": b"#include <a.h>\n#include <memory>\n"}
    assert treatment.done == ["a.cpp: #include <memory>"]


def test_a_missing_package_is_required(tmp_path: Path) -> None:
    traceback = ["Traceback (most recent call last):", '  File "/build/src/setup.py", line 1, in <module>']
    for module, needs in (("pkg_resources", [("build_requires", "", "setuptools<82")]), ("nobody_knows_it", [])):
        lines = [*traceback, f"    import {module}", f"ModuleNotFoundError: No module named '{module}'"]
        assert treat(tmp_path, found(*lines), TORCH, CUDA).recipe == needs


def test_the_standard_of_setup_py_is_that_of_torch(tmp_path: Path) -> None:
    setup = "flags = {'cxx': ['-O2', '-std=c++14'], \"nvcc\": ['-g -std=c++14', '-std=c++14']}  # -std=c++14\n"
    stays = "other = ['no -std=c++14', '/std:c++14', '-std=c++20']\n"
    lines = ["/env/torch/all.h:4:2: error: #error C++17 or later compatible compiler is required to use PyTorch."]
    treatment = treat(source(tmp_path, setup_py=setup + stays, a_cpp=""), found(*lines), TORCH, CUDA)
    assert treatment.files["setup.py"].decode() == setup.replace("-std=c++14'", "-std=c++17'") + stays
    assert treatment.done == ["setup.py: -std=c++14 → -std=c++17", "setup.py: -g -std=c++14 → -g -std=c++17"]


def test_ptxas_names_no_file_of_the_source(tmp_path: Path) -> None:
    """nvcc 13.0 compiles `__ballot`, and ptxas refuses what comes out."""
    tree = source(tmp_path, k_cu="__device__ int f(int x) { return __ballot(x); }\n")
    line = "ptxas /tmp/k.ptx, line 30; error   : Instruction 'vote' without '.sync' is not supported on .target sm_70"
    treatment = treat(tree, found(line), TORCH, CUDA)
    assert treatment.files == {"k.cu": b"__device__ int f(int x) { return __ballot_sync(0xffffffff, x); }\n"}


def test_the_copy_of_a_library_is_left_out_where_it_is_included(tmp_path: Path) -> None:
    """The errors are in the copy of CUB, and the cure is in the file that includes it; the copy stays as it is."""
    copy = "namespace cub { struct Sum {}; }\nauto sum = cub::Sum();\n"
    tree = source(tmp_path, k_cu='#include "cub/cub.cuh"\n', cub__cub_cuh=copy)
    line = '/build/src/cub/cub.cuh(9): error: more than one instance of overloaded function "cub::Debug" matches it'
    treatment = treat(tree, found(line), TORCH, CUDA)
    assert treatment.files == {"k.cu": b"#include <cub/cub.cuh>\n"}
    assert treatment.done == ['k.cu: #include "cub/cub.cuh" → #include <cub/cub.cuh> (CUDA 13.0 needs it)']


CODE = (
    b'// a\r\nvoid f(at::Tensor x) {\r\n  AT_CHECK(true, "");\r\n  AT_DISPATCH_ALL_TYPES(x.type(), "f", [&] {});\r\n}'
)
NO_MODULE = "ModuleNotFoundError: No module named 'pybind11'"
CURED = CODE.replace(b"AT_CHECK", b"TORCH_CHECK").replace(b"x.type()", b"x.scalar_type()")


@pytest.fixture
def recipe(tmp_path: Path, store: Store) -> Recipe:
    """A recipe whose source distribution is in the store."""
    (tree := tmp_path / "toy-1.0").mkdir()
    (tree / "a.cu").write_bytes(CODE)
    (tree / "b.cu").write_text("int b;\n")
    with tarfile.open(archive := tmp_path / "toy-1.0.tar.gz", "w:gz") as tar:
        tar.add(tree, tree.name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    kept = store.root / "sources" / "sdists" / digest
    kept.mkdir(parents=True)
    archive.rename(kept / archive.name)
    (folder := tmp_path / "toy").mkdir()
    (folder / "extension.yaml").write_text(
        "# mine\nname: toy\nversion: 1.0\nsource:\n  sdist: toy\n  version: 1.0\n"
        f"  sha256: {digest}\nabi: cpython\nimports: [toy]\nbuild_requires: [numpy]  # mine\n"
    )
    return load_recipe(folder)


def prepared(recipe: Recipe, store: Store, folder: Path) -> bytes:
    folder.mkdir()
    prepare_source(recipe, folder, cache=store.root / "sources")
    assert (folder / "b.cu").read_text() == "int b;\n"
    return (folder / "a.cu").read_bytes()


def test_the_recipe_has_the_patch_and_the_next_build_has_the_same_source(
    recipe: Recipe, store: Store, tmp_path: Path
) -> None:
    cured, treatment = cure(recipe, BUILD, found(AT_CHECK), store)
    assert len(treatment.done) == 2
    assert cured.patches == (recipe.folder / PATCH,)
    assert prepared(cured, store, tmp_path / "cured") == CURED
    again = load_recipe(recipe.folder)
    assert again == cured
    assert source_digest(again) == source_digest(cured) != source_digest(recipe)
    head = (recipe.folder / PATCH).read_text().partition("diff --git")[0].splitlines()
    assert head[2:4] == [f"  {line}" for line in treatment.done]
    text = (recipe.folder / "extension.yaml").read_text()
    assert text.endswith(f"# mine\n# a cure that `buildfarm build` added\npatches:\n  - {PATCH}\n")


def test_a_second_cure_is_in_the_same_patch(recipe: Recipe, store: Store, tmp_path: Path) -> None:
    first, one = cure(recipe, BUILD, found(AT_CHECK), store)
    lines = (
        "b.cu:1:1: error: 'unique_ptr' is not a member of 'std'",
        "b.cu:1:1: note: 'std::unique_ptr' is in header '<memory>'; did you forget to '#include <memory>'?",
    )
    second, two = cure(first, BUILD, found(*lines), store)
    assert second.patches == first.patches
    assert second is not first
    (tmp_path / "cured").mkdir()
    prepare_source(second, tmp_path / "cured", cache=store.root / "sources")
    assert (tmp_path / "cured/a.cu").read_bytes() == CURED
    assert (tmp_path / "cured/b.cu").read_text() == "#include <memory>\nint b;\n"
    head = (recipe.folder / PATCH).read_text().partition("diff --git")[0]
    assert [line.strip() for line in head.splitlines()[2:] if line] == [*one.done, *two.done]


def test_the_same_error_again_changes_nothing(recipe: Recipe, store: Store) -> None:
    cured, _ = cure(recipe, BUILD, found(AT_CHECK), store)
    again, treatment = cure(cured, BUILD, found(AT_CHECK), store)
    assert again is cured
    assert treatment.refused == ["`AT_CHECK` is not cured: no file has code of the form that the cure knows"]


def test_a_requirement_joins_those_of_the_recipe(recipe: Recipe, store: Store) -> None:
    cured, treatment = cure(recipe, BUILD, found(NO_MODULE), store)
    assert cured.build_requires == ("numpy", "pybind11")
    assert treatment.done == ["extension.yaml: build_requires: pybind11"]
    assert "build_requires: [numpy, pybind11]  # mine\n" in (recipe.folder / "extension.yaml").read_text()
    assert load_recipe(recipe.folder) == cured
    assert cure(cured, BUILD, found(NO_MODULE), store)[0] is cured


def test_a_build_whose_torch_needs_no_cures_has_the_source_as_it_is(
    recipe: Recipe, store: Store, tmp_path: Path
) -> None:
    cure(recipe, BUILD, found(AT_CHECK), store)
    path = recipe.folder / "extension.yaml"
    path.write_text(path.read_text().replace(f"- {PATCH}", f"- {{file: {PATCH}, torch: '>=2.6'}}"))
    both = load_recipe(recipe.folder)
    for torch, code in (("2.5.1", CODE), ("2.6.0", CURED)):
        assert prepared(both.of(Torch.parse(torch), BUILD.cuda), store, tmp_path / torch) == code
    assert source_digest(both.of(Torch.parse("2.5.1"), BUILD.cuda)) == source_digest(recipe)
    before = (recipe.folder / PATCH).read_bytes()
    again, treatment = cure(both, build_for("torch2.5.1-cu124-cp312"), found(NO_MODULE), store)
    assert again is both
    assert treatment.refused == [f"nothing is cured: `patches` has {PATCH} for other builds, or not at its end"]
    assert (recipe.folder / PATCH).read_bytes() == before


def test_the_folder_of_the_user_stays(recipe: Recipe, store: Store, tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "a.cu").write_bytes(CODE)
    mine = replace(recipe, source=PathSource(own))
    before = {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and store.root not in path.parents
    }
    assert cure(mine, BUILD, found(AT_CHECK, NO_MODULE), store)[0] is mine
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_form_that_cannot_be_extended_is_an_error(recipe: Recipe, store: Store) -> None:
    path = recipe.folder / "extension.yaml"
    before = path.read_text().replace("build_requires: [numpy]  # mine", "build_requires: &own [numpy]\nrequires: *own")
    path.write_text(before)
    own = load_recipe(recipe.folder)
    with pytest.raises(UsageError, match="a form that buildfarm cannot extend"):
        cure(own, BUILD, found(NO_MODULE), store)
    assert path.read_text() == before
