#!/bin/sh
# tree-sitter-cuda 0.21.2 cannot be loaded by tree-sitter 0.24.0, which its extra `core` (tree-sitter~=0.24) admits.
#
# The grammar was generated for ABI 15 of tree-sitter; 0.24 reads 13 and 14, and 0.25 is the first that reads 15. pip
# installs the newest version, so only a resolution to the lowest versions, or a pin, meets the error, at the first parse.
#
# Seen with Python 3.11: "Incompatible Language version 15. Must be between 13 and 14"; 0.25.0 parses.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
cat >parse.py <<'END'
import tree_sitter, tree_sitter_cuda
print(tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language())).parse(b"int a;").root_node)
END
env/bin/python -m pip install -q "tree-sitter-cuda[core]==0.21.2" tree-sitter==0.24.0
if env/bin/python parse.py >said.txt 2>&1; then
    echo "0.24.0 reads it" && exit 1
fi
tail -n 1 said.txt
grep -q "Incompatible Language version 15" said.txt
env/bin/python -m pip install -q tree-sitter==0.25.0
env/bin/python parse.py
