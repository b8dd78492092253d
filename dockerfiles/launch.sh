#!/bin/sh
# A compiler, through the object cache. objects.sh puts this under the name of each compiler into two folders that go
# first on PATH: launch/ (gcc, g++, ...) and cuda/bin/ (nvcc), a toolkit that differs from the real one in this only.
# No name of a compiler is changed and no variable of a build system is needed: setuptools, ninja, make and CMake find
# `g++` and `nvcc` as they always do.
set -f
name=${0##*/}
home=${0%/launch/*}
home=${home%/cuda/bin/*}
real=$home/compilers/$name
[ "$name" != nvcc ] || real=$home/toolkit/bin/nvcc

# What a compiler starts is a compiler: nvcc looks for gcc on PATH, and would wait for a server that waits for nvcc.
rest=:$PATH:
for folder in "$home/launch" "$home/cuda/bin"; do
    while :; do
        case $rest in
            *:"$folder":*) rest=${rest%%:"$folder":*}:${rest#*:"$folder":} ;;
            *) break ;;
        esac
    done
done
rest=${rest%:}
# shellcheck disable=SC2123
PATH=$home/compilers$rest
export PATH

compiles=
wraps=
lists=
list=
object=
direct=${BUILDFARM_PLACE-}
[ -z "${CPATH-}${C_INCLUDE_PATH-}${CPLUS_INCLUDE_PATH-}" ] || direct=
case $PWD in
    "${BUILDFARM_SOURCE-}" | "${BUILDFARM_SOURCE-}"/*) ;;
    *) direct= ;;
esac
last=
for argument; do
    case $argument in
        -c | -dc | -dw | --compile | --device-c | --device-w) compiles=yes ;;
        -fwrapv | -fno-strict-overflow) wraps=${wraps:-yes} ;;
        -fno-wrapv | -fstrict-overflow | -ftrapv | -Wunused-result) wraps=no ;;
        -MD | -MMD | --generate-dependencies-with-compile | --generate-nonsystem-dependencies-with-compile) lists=yes ;;
    esac
    # Where a header may come from, and BUILDFARM_PLACE does not stand for it.
    case $argument in
        -I*) path=${argument#-I} ;;
        -isystem*) path=${argument#-isystem} ;;
        -iquote | -idirafter) path= ;;
        -i* | @* | -B* | -Wp,* | -X* | --sysroot* | --include* | --imacros*) path=.. ;;
        *) path=$argument ;;
    esac
    case $path in
        *..*) direct= ;;
        "${BUILDFARM_SOURCE-}" | "${BUILDFARM_SOURCE-}"/* | "$home"/* | "${BUILDFARM_PREFIX-$home}"/* | /usr/* | /opt/*) ;;
        /*) direct= ;;
    esac
    case $last in
        -MF | --dependency-output) list=$argument ;;
        -MT | --dependency-target-name) object=$argument ;;
        -o | --output-file) object=${object:-$argument} ;;
    esac
    last=$argument
done
# Nothing but a compile has a result to keep.
[ -n "$compiles" ] || exec "$real" "$@"

# With no server there is nowhere to keep it. The flags are the same all the same, for they decide bytes.
cached=
[ ! -S "${SCCACHE_SERVER_UDS-}" ] || cached=yes

count=$#
if [ "$name" = nvcc ]; then
    # sccache has nvcc list a kernel's headers in a run of its own, with one more preprocessing for each GPU architecture.
    # The list is for the next build in the same folder. Every build of the farm has a new one, so an empty list does.
    case $list$object in
        *[!A-Za-z0-9_./+=,@%-]*) lists= ;; # it would need quotes
    esac
    if [ -n "$cached" ] && [ -n "$lists" ] && [ -n "$list" ] && [ -n "$object" ] && echo "$object:" 2> /dev/null > "$list"; then
        while [ "$count" -gt 0 ]; do
            count=$((count - 1))
            case $1 in
                -MD | -MMD | -MP | --generate-*dependencies-with-compile | --generate-dependency-targets) ;;
                -MF | -MT | --dependency-output | --dependency-target-name)
                    count=$((count - 1))
                    shift
                    ;;
                *) set -- "$@" "$1" ;;
            esac
            shift
        done
        count=$#
    fi
    # sccache 0.16 takes the value of an option it does not know for a second source, and gives up.
    option=
    while [ "$count" -gt 0 ]; do
        count=$((count - 1))
        case $option$1 in
            -cudart | -cudadevrt | -std | -ftz | -prec-div | -prec-sqrt | -fmad | -dopt | -diag-suppress | \
                -diag-error | -diag-warn | -split-compile | -frandom-seed | -Xcudafe | -Xfatbin | \
                --cudart | --cudadevrt | --std | --ftz | --prec-div | --prec-sqrt | --fmad | --dopt | --diag-suppress | \
                --diag-error | --diag-warn | --split-compile | --frandom-seed | --cudafe-options | --fatbin-options)
                option=$1
                ;;
            *)
                set -- "$@" "$option${option:+=}$1"
                option=
                ;;
        esac
        shift
    done
    [ -z "$option" ] || set -- "$@" "$option"
elif [ "$wraps" = yes ]; then
    # Python's own flags say the same in another way from 3.12 on (-fwrapv, -fno-strict-overflow), and 3.10 has a word
    # on warnings more. In one form, an object that knows nothing of Python is the same for all of them.
    set -- "$@" -fno-strict-overflow -Wno-unused-result
    while [ "$count" -gt 0 ]; do
        count=$((count - 1))
        case $1 in
            -fwrapv | -fno-strict-overflow | -Wno-unused-result) ;;
            *) set -- "$@" "$1" ;;
        esac
        shift
    done
fi
[ -n "$cached" ] || exec "$real" "$@"
# nvcc's own key is for nothing: sccache keeps the results of nvcc's steps alone, each under a key of its own.
[ "$name" != nvcc ] || exec "${BUILDFARM_SCCACHE:-sccache}" "$home/whole/nvcc" "$@"
if [ -n "$direct" ]; then
    # Found by what the headers of last time hold now, without preprocessing. A header that is new may hide one of them;
    # so whatever can be new, a file's name in the source's tree, goes into the key, by a folder in which headers are
    # looked for last. It is empty, and its name is in no object. What compilers, ninja and sccache write meanwhile is no
    # header, and would only make every key another.
    names=$(cd "$BUILDFARM_SOURCE" && find . -name .git -prune -o ! -type d ! -name '*.o' ! -name '*.d' ! -name '*.so' \
        ! -name '.ninja_*' ! -name '.tmp*' -printf '%p %l\n' | LC_ALL=C sort | sha256sum)
    place=$home/place/$direct-${names%% *}
    if [ -d "$place" ] || mkdir -p "$place"; then
        SCCACHE_DIRECT=true
        export SCCACHE_DIRECT
        set -- "$@" -idirafter "$place"
    fi
fi
exec "${BUILDFARM_SCCACHE:-sccache}" "$real" "$@"
