#!/bin/sh
# auditwheel 6.8.2 with GNU ld: a library with packed relative relocations passes as manylinux_2_5 if it calls no libc function.
#
# `-z pack-relative-relocs` writes DT_RELR, which glibc reads since 2.36. An older glibc ignores the table without a word,
# and the pointers stay wrong. ld marks the need with the version GLIBC_ABI_DT_RELR, but hangs it on the version needs of
# libc.so.6: a library of tables, whose code calls nothing of libc, has none. auditwheel judges by versions only.
#
# Seen: with a call of malloc: manylinux_2_36; without: manylinux_2_5, although both have DT_RELR.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q auditwheel==6.8.2
ld --version | head -n 1
cat >table.c <<'C'
static const char *words[] = {"one", "two", "three"};
const char **table(void) { return words; }
C
cat >call.c <<'C'
#include <stdlib.h>
static const char *words[] = {"one", "two", "three"};
const char **table(void) { return malloc(8) ? words : 0; }
C
for name in table call; do
    gcc -shared -fPIC -Wl,-z,pack-relative-relocs $name.c -o $name.so
    readelf --dynamic $name.so | grep -q RELR
done
env/bin/python - <<'PYTHON'
import base64
import hashlib
import pathlib
import zipfile

for name in ("table", "call"):
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/lib{name}.so": pathlib.Path(f"{name}.so").read_bytes(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
    }

    def row(path, data):
        return f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"

    record = "".join(row(*each) for each in files.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(f"{name}-1.0-py3-none-linux_x86_64.whl", "w") as wheel:
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            wheel.writestr(path, data)
PYTHON
for name in table call; do
    env/bin/auditwheel show $name-1.0-py3-none-linux_x86_64.whl >$name.txt 2>&1
    printf '%s: %s\n' $name "$(grep -o 'manylinux_2_[0-9]*_x86_64' $name.txt | sort -u | tr '\n' ' ')"
done
grep -q '"manylinux_2_5_x86_64"' table.txt
grep -q 'manylinux_2_36' call.txt
