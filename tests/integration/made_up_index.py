"""An index for the tests of the pages for people: many cells, every state of a cell, and difficult texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from builder.check import Check
from builder.matrix.axes import AbiClass
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.plan import Build, make_plan
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Status
from builder.publish.index.repository import NewWheel, Repository, file_path
from builder.publish.people.project_plan import project_plans
from tests.unit.loopback import pure_wheel
from tests.unit.matrix.make import matrix, recipe
from tests.unit.publish.index.make import ON_CPU, proofs_of, ready

TORCH = ("2.8", "2.10", "2.11", "2.12")
CUDA = ("12.6", "13.0", "13.2")
PYTHON = ("3.10", "3.12", "3.13", "3.14")
LONG = "a_project_with_a_name_" + "that_is_much_longer_than_any_telephone_is_wide_" * 3 + "indeed"
LONG_REASON = "wrong_results_" * 20 + " <script>alert(1)</script>"
_ON_GPU = (Check.LINKAGE, Check.IMPORT, Check.OPS, Check.LOADED, Check.GPU_VALUES)


def make_index(root: Path, work: Path) -> Repository:
    """Fill the folder `root` with an index; the wheels are made in `work`.

    `many-cells` has a plan of many cells in every state, `stable-ext` a plan and one wheel for many cells, `yanked-ext`
    only a yanked wheel, `old-ext` is archived, `untested` was uploaded without proofs, and LONG has a long name.
    """
    repository = Repository(Folder(root))
    recipes = [recipe("many_cells"), recipe("stable_ext", (AbiClass.STABLE, ">=2.10"))]
    plan = make_plan(matrix(TORCH, CUDA, PYTHON), recipes, Selection(), Compat.load())
    for number, build in enumerate(plan.builds):
        if new := _wheel_of(build, number, work):
            _record(repository, new)
    for name, version in (("yanked_ext", "1.0+cu130"), ("old_ext", "2.0+cu126"), (LONG, "1.0+cu130.torch211")):
        wheel = pure_wheel(work, name, version)
        repository.add(new_wheel(wheel, proofs_of(wheel)))
    repository.add(new_wheel(pure_wheel(work, "untested", "0.1"), []))
    repository.yank("yanked_ext-1.0+cu130-py3-none-any.whl", LONG_REASON)
    repository.set_status("old-ext", Status("archived", "use many_cells"))
    repository.set_plans(project_plans(plan))
    return repository


def make_empty_index(root: Path, work: Path) -> None:
    """Fill the folder `root` with an index whose only wheel was removed."""
    repository = Repository(Folder(root))
    new = ready(work)
    repository.add(new)
    repository.remove(new.wheel.name)


def _wheel_of(build: Build, number: int, work: Path) -> NewWheel | None:
    """A wheel of a build, whose proofs depend on the number of the build; None for some builds of `many_cells`."""
    choices = (_ON_GPU, _ON_GPU, ON_CPU, (Check.LINKAGE,), (), ON_CPU, None)
    checks = choices[number % len(choices)] if build.extension == "many_cells" else _ON_GPU
    if checks is None:
        return None
    wheel = pure_wheel(work / str(number), build.extension, f"{build.version}+{build.local_version}")
    tag = f"{build.pythons[0].tag}-{build.pythons[0].tag}" if build.abi is AbiClass.CPYTHON else "py3-none"
    wheel = wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", f"{tag}-manylinux_2_28_x86_64")))
    return new_wheel(wheel, proofs_of(wheel, checks, cells=[str(cell) for cell in build.serves]))


def _record(repository: Repository, new: NewWheel) -> None:
    """Publish a wheel without its pages, which are written once at the end."""
    entry = replace(new.entry, path=file_path(new.entry.sha256, new.entry.filename))
    repository.objects.create(entry.path, new.wheel)
    for suffix, data in new.attached.items():
        repository.objects.write(entry.path + suffix, data)
    repository.objects.write(f"records/{entry.project}/{entry.filename}.json", json.dumps(entry.to_json()).encode())
