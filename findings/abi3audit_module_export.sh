#!/bin/sh
# abi3audit 0.0.26: a module with the export hook of PEP 793 (PyModExport_NAME) is "not ABI3", although the hook is part of the stable ABI.
#
# The hook is the only way to write a module for abi3t, and it works beside PyInit_NAME. abi3audit allows exported
# functions whose names begin with PyInit_ only, so with --strict it refuses such a module.
#
# Seen: one violation, PyModExport__C.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q abi3audit==0.0.26 abi3info==2026.9.25
cat >c.c <<'C'
void *PyInit__C(void) { return 0; }
void *PyModExport__C(void) { return 0; }
C
gcc -shared -fPIC c.c -o _C.abi3.so
status=0
env/bin/abi3audit --strict --report _C.abi3.so >report.json 2>audit.txt || status=$?
cat report.json audit.txt
echo "exit status $status"
[ "$status" -ne 0 ]
grep -q "PyModExport__C" report.json
