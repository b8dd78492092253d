#!/bin/sh
# gcc 12 (and others): whether a header with `#pragma once` is read depends on the second in which an equal file was written.
#
# gcc takes two headers for one file if size, time in seconds and bytes are equal. torch 2.11 has many generated headers
# that are equal, such as those of ops without a native function. pip and uv give each file the time of the installation.
# So the preprocessed text of one source differs between two installations of one torch on one machine, and no compiler
# cache whose key is this text returns an object. Code may differ too: an equal header in another folder can include
# other files, and is left out by chance.
#
# Seen: two equal headers of one second: one is left out; of two seconds: both are read.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
gcc --version | head -n 1
mkdir first second
for name in first second; do
    printf '#pragma once\n#include "value.h"\n' >$name/all.h
    printf 'int %s;\n' $name >$name/value.h
done
printf '#include "first/all.h"\n#include "second/all.h"\n' >source.c
touch -d @1000000000.25 first/all.h
touch -d @1000000000.75 second/all.h
gcc -E -P source.c | tee one.txt
touch -d @1000000001 second/all.h
gcc -E -P source.c | tee two.txt
grep -q 'int first;' one.txt
if grep -q 'int second;' one.txt; then exit 1; fi
grep -q 'int second;' two.txt
