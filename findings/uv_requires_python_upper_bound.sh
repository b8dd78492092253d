#!/bin/sh
# uv 0.13.9 and pip 26.3: an upper bound of Requires-Python keeps pip away from a wheel, but not uv.
#
# A wheel says `Requires-Python: >=3.8,<3.9` and has a tag for each Python 3. On a newer Python, pip refuses the file.
# uv installs it from the same folder, and `uv pip check` finds no fault: uv reads the lower bound only.
# So a wheel whose module exists for one Python needs a tag for this Python; the bound is no fence.
#
# Seen: pip: "requires a different Python"; uv: "+ bounded==1.0"; uv pip check: "All installed packages are compatible".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q pip==26.3 uv==0.13.9

env/bin/python - <<'PYTHON'
import zipfile

info = "bounded-1.0.dist-info"
files = {
    "bounded.py": "",
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: bounded\nVersion: 1.0\nRequires-Python: >=3.8,<3.9\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
with zipfile.ZipFile("bounded-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in {**files, f"{info}/RECORD": record}.items():
        wheel.writestr(name, text)
PYTHON

if env/bin/python -m pip install --no-index --find-links . bounded==1.0 >pip.txt 2>&1; then
    echo "changed: pip installs the wheel"
    exit 1
fi
grep -i "different python\|requires-python" pip.txt
env/bin/uv pip install --python env/bin/python --no-index --find-links . bounded==1.0 2>&1 | tee uv.txt
grep -q "bounded==1.0" uv.txt
env/bin/python -c "import bounded"
env/bin/uv pip check --python env/bin/python 2>&1 | tee check.txt
grep -q "compatible" check.txt
