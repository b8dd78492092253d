#!/bin/sh
# packaging 26.4: the tags of free-threaded Python 3.13 and 3.14 contain abi3t, which no Python before 3.15 has.
#
# PEP 803 defines the stable ABI of free-threaded builds, abi3t, from Python 3.15 on. `packaging.tags.cpython_tags` lists
# abi3t for every free-threaded Python, back to cp32-abi3t. So an installer that uses it puts a wheel with the tag
# cp310-abi3t into 3.13t and 3.14t, where a library with the suffix .abi3t.so is not found.
#
# Seen for 3.13t: cp313-abi3t, cp312-abi3t ... cp32-abi3t; for 3.13 with the GIL: no abi3t.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q packaging==26.4
env/bin/python - <<'PYTHON'
from packaging.tags import cpython_tags


def abi3t(version, abi):
    tags = cpython_tags(version, [abi], ["linux_x86_64"])
    return [tag.interpreter for tag in tags if tag.abi == "abi3t"]


for version, abi in (((3, 13), "cp313t"), ((3, 14), "cp314t"), ((3, 15), "cp315t"), ((3, 13), "cp313"), ((3, 15), "cp315")):
    print(abi, abi3t(version, abi))
assert abi3t((3, 13), "cp313t")[0] == "cp313"
assert abi3t((3, 13), "cp313t")[-1] == "cp32"
assert abi3t((3, 14), "cp314t")[0] == "cp314"
assert not abi3t((3, 15), "cp315")
PYTHON
