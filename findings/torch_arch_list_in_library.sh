#!/bin/sh
# torch 2.8.0 and 2.11.0 (cp312, x86_64, package index): what torch.cuda.get_arch_list() returns is one string in
# libtorch_python.so, but in 2.8.0 no zero byte stands before it.
#
# A program that wants to know the GPUs of a torch without importing it reads the strings of the library, split at zero
# bytes, as `strings` and most readers do. In 2.11.0 this finds "sm_75 sm_80 ...". In 2.8.0 it finds nothing: the compiler
# keeps the last bytes of another constant without a zero byte, and the list follows directly ("... ipc_hsm_70 sm_75 ...").
# So the list has an end, and no start that can be looked for.
#
# Seen: 2.8.0: 0 strings that are a list, 1 that ends with one; 2.11.0: 1 and 1. 16 MB are read by range requests.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q uv==0.13.9 remotezip==0.12.6
cat >look.py <<'P'
import os, re, subprocess, sys, tomllib
from remotezip import RemoteZip

ONE = rb"(?:sm|compute)_\d{2,3}[af]?"
found = {}
for version in ("2.8.0", "2.11.0"):
    command = ["env/bin/uv", "pip", "compile", "-q", "--no-deps", "--python-version=3.12", "--format=pylock.toml", "-"]
    lock = subprocess.run(command, input=f"torch=={version}\n", capture_output=True, text=True, check=True).stdout
    url = next(w["url"] for w in tomllib.loads(lock)["packages"][0]["wheels"] if "cp312-cp312-" in w["url"] and "x86_64" in w["url"])
    verify = os.environ.get("SSL_CERT_FILE") or True
    with RemoteZip(url, verify=verify) as wheel:
        texts = wheel.read("torch/lib/libtorch_python.so").split(b"\0")
    lists = [text for text in texts if re.fullmatch(ONE + rb"(?: " + ONE + rb")+", text)]
    ends = [text for text in texts if re.search(ONE + rb"(?: " + ONE + rb")+$", text)]
    print(version, len(lists), "lists;", len(ends), "that end with one:", ends[0][-60:].decode())
    found[version] = len(lists), len(ends)
sys.exit(found != {"2.8.0": (0, 1), "2.11.0": (1, 1)})
P
env/bin/python look.py
