#!/bin/sh
# pip 26.2 and 26.3, uv 0.13.9: of two wheels of one version, pip 26.3 takes the linux_x86_64 file, the others the manylinux file.
#
# A find-links folder or an index holds the raw wheel of a compile (linux_x86_64) beside the repaired one
# (manylinux_2_17_x86_64). Up to pip 26.2, the repaired one wins. pip 26.3 (packaging 26.3) ranks linux_x86_64 first,
# so it installs the file that nobody audited. uv still takes manylinux.
#
# Seen: pip 26.2 manylinux, pip 26.3 linux, uv 0.13.9 manylinux.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for release in 26.2 26.3; do
    python3 -m venv "pip-$release"
    "pip-$release/bin/python" -m pip install -q "pip==$release"
done
pip-26.3/bin/python -m pip install -q uv==0.13.9
machine=$(uname -m)

MACHINE=$machine python3 - <<'PYTHON'
import os
import zipfile

for platform in ("linux", "manylinux_2_17"):
    tag = f"py3-none-{platform}_{os.environ['MACHINE']}"
    info = "ranked-1.0.dist-info"
    files = {
        "ranked.py": f"platform = {platform!r}\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: ranked\nVersion: 1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(f"ranked-1.0-{tag}.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
PYTHON

for release in 26.2 26.3; do
    "pip-$release/bin/python" -m pip install -q --no-index --find-links . --target "by-pip-$release" ranked
done
pip-26.3/bin/uv pip install -q --python pip-26.3/bin/python --no-index --find-links . --target by-uv ranked
picked() { PYTHONPATH=$1 python3 -c "import ranked; print(ranked.platform)"; }
echo "pip 26.2: $(picked by-pip-26.2); pip 26.3: $(picked by-pip-26.3); uv 0.13.9: $(picked by-uv)"
[ "$(picked by-pip-26.2)" = manylinux_2_17 ]
[ "$(picked by-pip-26.3)" = linux ]
[ "$(picked by-uv)" = manylinux_2_17 ]
