#!/bin/sh
# bytecode.sh take|keep: the bytecode of a build's packages, so that not every build compiles torch's own modules anew.
#
# It is kept beside uv's cache, since hard links do not cross mounts, under a name of the exact packages, where they came
# from, and the Python. Python itself looks at each file's source before it takes it: at its time and its size, which
# both are the cache's.
set -eu
# Files of root, the build's user could neither link nor replace; see packages.sh.
[ "$(id -u)" -ne 0 ] || exit 0
folder=$BUILDFARM_PACKAGES/bytecode
told=$BUILDFARM_JOB_DIR/packages.txt
name=$( (echo "$BUILDFARM_PREFIX ${UV_INDEX-} ${UV_DEFAULT_INDEX-}" && cat "$BUILDFARM_JOB_DIR/requirements.txt") |
    sha256sum | cut -c1-32)
kept=$folder/$name

packages() {
    find . -mindepth 1 -maxdepth 1 -name '*.dist-info' | sort
}

cd "$BUILDFARM_SITE"
case $1 in
    take)
        packages > "$told"
        [ -d "$kept" ] || exit 0
        # Another build may be putting newer files there; what is missing then, Python compiles.
        cp -al "$kept/." . 2> /dev/null || true
        touch "$kept" 2> /dev/null || true
        ;;
    keep)
        # What the build installed or replaced itself is nobody else's: bytecode without its sources passes for a package.
        [ -s "$told" ] && [ "$(packages)" = "$(cat "$told")" ] || exit 0
        # What was taken has a second link.
        [ -n "$(find . -name '*.pyc' -links 1 -print -quit)" ] || exit 0
        mkdir -p "$folder"
        find "$folder" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
        new=$(mktemp -d "$folder/new.XXXXXX")
        trap 'rm -rf "$new"' EXIT
        chmod 755 "$new"
        find . -name '*.pyc' -exec cp -l --parents --target-directory="$new" {} +
        rm -rf "$kept"
        mv -T "$new" "$kept" 2> /dev/null || true # another was faster
        ;;
esac
