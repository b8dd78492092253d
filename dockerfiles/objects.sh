#!/bin/sh
# objects.sh start|stop|wrap COMMAND...: the compilers of one build behind an object cache.
#
# `start` lays out $BUILDFARM_OBJECTS and starts the server; `stop` writes its statistics and ends it; `wrap` runs a
# command between the two and answers with its status. BUILDFARM_* and SCCACHE_* come from builder/wheels/objects.py.
#
#   launch/     gcc, g++, cc, c++, $CC, $CXX: launch.sh         compilers/  the real ones, under the same names
#   cuda/       CUDA_HOME of the build: bin/nvcc is launch.sh   toolkit     the real one
#   site        the build's site-packages                       whole/nvcc  what the server takes for nvcc
#
# The folder has the same name in every build, so paths that reach an object's key (nvcc's own, torch's headers) do
# not tell one Python or torch from another.
set -u
objects=$BUILDFARM_OBJECTS
told=$BUILDFARM_OBJECTS_TOLD
here=${0%/*}
sccache=${BUILDFARM_SCCACHE:-sccache}

launcher() {
    cp "$here/launch.sh" "$1" && chmod 755 "$1"
}

lay_out() {
    rm -rf "$objects"
    mkdir -p "$objects/launch" "$objects/compilers" "$objects/cuda/bin" || return
    # A recipe may name another CC or CXX than the farm's.
    for pair in "gcc $BUILDFARM_CC" "cc $BUILDFARM_CC" "g++ $BUILDFARM_CXX" "c++ $BUILDFARM_CXX" \
        "$CC $CC" "$CXX $CXX" "${BUILDFARM_CC##*/} $BUILDFARM_CC" "${BUILDFARM_CXX##*/} $BUILDFARM_CXX"; do
        real=$(command -v "${pair#* }") && ln -sfn "$real" "$objects/compilers/$(basename "${pair%% *}")"
    done
    # After the real ones were looked up: this folder is the first on PATH.
    for compiler in "$objects/compilers"/*; do
        launcher "$objects/launch/${compiler##*/}" || return
    done
    # Compilers come by these links for every header: each leads straight to where it ends.
    if [ -x "$BUILDFARM_TOOLKIT/bin/nvcc" ]; then
        ln -sfn "$(readlink -f "$BUILDFARM_TOOLKIT")" "$objects/toolkit" || return
        for entry in "$objects/toolkit"/* "$objects/toolkit/bin"/*; do
            target=$objects/cuda${entry#"$objects/toolkit"}
            [ -e "$target" ] || ln -s "$(readlink -f "$entry" || echo "$entry")" "$target" || return
        done
        rm "$objects/cuda/bin/nvcc" && launcher "$objects/cuda/bin/nvcc" || return
        # sccache preprocesses a whole kernel before it asks nvcc for its steps, for a key under which it keeps nothing.
        # What is answered here is new each time, so that nothing is ever found under it either.
        mkdir -p "$objects/whole" && cat > "$objects/whole/nvcc" << END || return
#!/bin/sh
case " \$* " in
    *" -E -Xcompiler=-P ") read -r new < /proc/sys/kernel/random/uuid && echo "\$new" ;;
    *) exec "$objects/toolkit/bin/nvcc" "\$@" ;;
esac
END
        chmod 755 "$objects/whole/nvcc" || return
    fi
    ln -sfn "$(readlink -f "$BUILDFARM_SITE")" "$objects/site"
}

# The server stays in this session and group, so that it is ended with them; it holds nobody's streams.
serve() {
    mkdir -p "$told" "$SCCACHE_DIR" &&
        chmod a+rwx "$told" && # the farm deletes it, and may be another user
        SCCACHE_DIRECT=true SCCACHE_NO_DAEMON=1 SCCACHE_LOG=sccache::server=debug,sccache::compiler::compiler=debug \
            SCCACHE_ERROR_LOG="$told/server.log" \
            "$sccache" --start-server < /dev/null > "$told/start.log" 2>&1
}

# A change that only the host sees must change the object: a cache whose key is the text for the GPU gives the old one
# back (sccache before 0.10, ccache 4.11). Tried once for each sccache, compiler, nvcc and cache, and remembered.
check() {
    [ -z "${BUILDFARM_OBJECTS_REFUSED-}" ] || echo "$BUILDFARM_OBJECTS_REFUSED" > "$told/refused"
    # Nothing is read from the cache then: there is nothing to try, and nothing to learn for others.
    [ -z "${SCCACHE_NO_CACHE+set}${SCCACHE_RECACHE+set}" ] || return 0
    source=$objects/check/buildfarm-check.cpp
    compiler=$objects/launch/${CXX##*/}
    if [ -e "$objects/toolkit" ]; then
        source=$objects/check/buildfarm-check.cu
        compiler=$objects/cuda/bin/nvcc
    fi
    # The marker stands beside the objects, not among them: the server takes each file there for one of its own.
    identity=$("$sccache" --version; "$objects/compilers/${CXX##*/}" --version; [ ! -e "$objects/toolkit" ] || "$objects/toolkit/bin/nvcc" --version)
    marker=$SCCACHE_DIR.checked/$(printf %s "$identity" | cksum | tr ' ' -)
    if [ -e "$marker" ]; then
        read -r verdict < "$marker"
    else
        mkdir -p "$objects/check" "$SCCACHE_DIR.checked"
        for answer in first second; do
            cat > "$source" << END
#ifndef __CUDA_ARCH__
extern "C" const char *buildfarm_check() { return "buildfarm answers $answer"; }
#endif
END
            "$compiler" -c "$source" -o "$objects/check/$answer.o" > "$told/check.log" 2>&1 || return
        done
        verdict=sound
        grep -q 'buildfarm answers second' "$objects/check/second.o" || verdict=stale
        echo "$verdict" > "$marker.$$" && mv "$marker.$$" "$marker"
    fi
    if [ "$verdict" != sound ]; then
        echo "the object cache gave back an old object for a changed source: it is not used" > "$told/refused"
        return 1
    fi
}

start() {
    lay_out || { echo "error: the compilers' folder $objects cannot be made" >&2; exit 1; }
    if serve && check; then
        return
    fi
    # A cache that does not work costs time, not the build: without a server the launchers are the compilers.
    [ -e "$told/refused" ] || cat "$told/start.log" "$told/check.log" 2> /dev/null | tail -n 1 > "$told/refused"
    "$sccache" --stop-server > /dev/null 2>&1
    rm -f "$SCCACHE_SERVER_UDS"
    echo "note: no object cache: $(cat "$told/refused")"
}

stop() {
    [ -S "$SCCACHE_SERVER_UDS" ] || return 0
    "$sccache" --stop-server > /dev/null 2>&1
    rm -f "$SCCACHE_SERVER_UDS"
}

case $1 in
    start) start ;;
    stop) stop ;;
    wrap)
        shift
        start
        "$@"
        status=$?
        stop
        [ "$status" -le 128 ] || kill "-$((status - 128))" $$ # ended by a signal, as the command was
        exit "$status"
        ;;
esac
