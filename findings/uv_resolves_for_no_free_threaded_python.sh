#!/bin/sh
# uv 0.13.9: no resolution for a free-threaded Python that is not installed.
#
# `uv venv --python 3.14t` takes the name of a free-threaded Python, `uv pip compile --python-version 3.14t` does not: "could not be
# parsed". With `--python-version 3.14`, uv takes a wheel that only the Python with a GIL can install (tag cp314-cp314), and refuses one that
# only the free-threaded Python can install (cp314-cp314t). So whoever locks packages for 3.14t with an older Python at hand gets a wrong
# lock, or none.
#
# Seen: compile for 3.14t: exit 2, "found `t`, which is not part of a valid version"; for 3.14: "gil==1.0", and of the other project
# "has no wheels with a matching Python ABI tag".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q uv==0.13.9

env/bin/python - <<'PYTHON'
import zipfile

for name, abi in (("gil", "cp314"), ("nogil", "cp314t")):
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: false\nTag: cp314-{abi}-linux_x86_64\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(f"{name}-1.0-cp314-{abi}-linux_x86_64.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
PYTHON

compile() { # VERSION PROJECT
    echo "$2==1.0" | env/bin/uv pip compile -q --no-index --find-links . --only-binary :all: --python-version "$1" - 2>&1
}

if compile 3.14t nogil >t.txt; then
    echo "changed: uv takes 3.14t"
    exit 1
fi
cat t.txt
grep -q 'found `t`' t.txt
compile 3.14 gil | tee gil.txt
grep -q '^gil==1.0' gil.txt
if compile 3.14 nogil >nogil.txt; then
    echo "changed: uv takes a wheel for 3.14t"
    exit 1
fi
cat nogil.txt
grep -qi 'abi tag' nogil.txt
