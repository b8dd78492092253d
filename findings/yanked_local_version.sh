#!/bin/sh
# pip 26.3 and uv 0.13.9: `name==1.4`, where the index has only a yanked `1.4+cu130`: pip installs it, uv has no solution.
#
# A pin may select a yanked file (PEP 592). Does `==1.4` pin `1.4+cu130`? For pip yes: the specifier matches, and the
# yanked file is the only one. For uv no: only `==1.4+cu130` names the yanked file. So after a wheel with a local
# version is yanked, lock files of pip go on to work and those of uv break.
#
# Seen: pip `==1.4`: installed with a warning; uv `==1.4`: "No solution found"; uv `==1.4+cu130`: installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q pip==26.3 uv==0.13.9

env/bin/python - <<'PYTHON'
import hashlib
import pathlib
import zipfile

info = "recalled-1.4+cu130.dist-info"
files = {
    "recalled.py": "",
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: recalled\nVersion: 1.4+cu130\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
page = pathlib.Path("index/recalled")
page.mkdir(parents=True)
wheel = page / "recalled-1.4+cu130-py3-none-any.whl"
with zipfile.ZipFile(wheel, "w") as out:
    for name, text in {**files, f"{info}/RECORD": record}.items():
        out.writestr(name, text)
digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
link = f'<a href="{wheel.name.replace("+", "%2B")}#sha256={digest}" data-yanked="wrong results">{wheel.name}</a>'
(page / "index.html").write_text(f"<!doctype html><html><body>{link}</body></html>")
PYTHON

: >server.txt
env/bin/python -u -m http.server 0 --bind 127.0.0.1 --directory index >server.txt 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
tries=0
until port=$(sed -n 's/.*port \([0-9]*\).*/\1/p' server.txt) && [ -n "$port" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { echo "the server did not start"; exit 2; }
    sleep 0.1
done
index=http://127.0.0.1:$port/

env/bin/python -m pip install --no-cache-dir --index-url "$index" --target by-pip recalled==1.4 2>&1 | tee pip.txt
grep -q "yanked" pip.txt
[ -f by-pip/recalled.py ]
install="env/bin/uv pip install --no-cache --python env/bin/python --default-index $index --target by-uv"
if $install recalled==1.4 >uv.txt 2>&1; then
    echo "changed: uv installs the yanked file for ==1.4"
    exit 1
fi
grep "No solution found" uv.txt
$install recalled==1.4+cu130
[ -f by-uv/recalled.py ]
