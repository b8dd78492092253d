#!/bin/sh
# Calls a compiler through sccache. server.py copies this file, under the name of each compiler, into two folders that
# go first on PATH: launch/ (gcc, g++, ...) and cuda/bin/ (nvcc). cuda/ links to the real toolkit for everything else.
# setuptools, ninja, make and CMake find `g++` and `nvcc` as they always do, without changed names or variables.
#
# This is a shell script because it runs for each call of a compiler: the start of a Python would cost more than the
# script saves.
set -f
name=${0##*/}
home=${0%/launch/*}
home=${home%/cuda/bin/*}
real=$home/compilers/$name
[ "$name" != nvcc ] || real=$home/toolkit/bin/nvcc

# Drop the launchers from PATH. nvcc looks for gcc on PATH, and a nested call of sccache would wait for a server that
# waits for nvcc.
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

# Linkers find the libraries of the toolkit, its stub of the driver, and the libraries of torch's CUDA packages, after
# the folders that the image or the recipe names.
LIBRARY_PATH=${LIBRARY_PATH:+$LIBRARY_PATH:}$home/cuda/lib64:$home/cuda/lib64/stubs
for folder in cudnn nccl cusparselt nvshmem; do
    LIBRARY_PATH=$LIBRARY_PATH:$home/site/nvidia/$folder/lib
done
export LIBRARY_PATH

# Options such as -march=native choose the CPU of this machine, which the users of the wheel may not have: choose the
# oldest CPU of the platform. In nvcc's options, the value may be one of a list with commas.
case "$*" in
    *=native*)
        case $(uname -m) in
            x86_64) cpu=x86-64 ;;
            *) cpu=armv8-a ;;
        esac
        count=$#
        while [ "$count" -gt 0 ]; do
            count=$((count - 1))
            argument=$1
            shift
            case $argument in
                *-m*=native*)
                    argument=$(printf '%s\n' "$argument" | sed -E \
                        -e "s/(^|[,= ])-march=native($|[, ])/\1-march=$cpu\2/g" \
                        -e "s/(^|[,= ])-m(tune|cpu)=native($|[, ])/\1-mtune=generic\3/g")
                    ;;
            esac
            set -- "$@" "$argument"
        done
        ;;
esac

# nvcc's own threads would multiply the number of compilers, for which the plan reserved the memory: remove them.
#
# A call that makes GPU code and names no architecture gets those of the plan, which nvcc's default (sm_75) does not
# serve: torch adds none if the letters `arch` are in any option for nvcc, such as -Xcompiler -march=x86-64-v3 or
# -I/search/include. With BUILDFARM_NVCC_REPLACE (the recipe's `override_architectures`), remove each choice of GPU
# architectures too, so that every such call gets the plan's.
architectures=
if [ "$name" = nvcc ]; then
    architectures=${BUILDFARM_NVCC_ARCHITECTURES-}
    for argument; do
        case $argument in
            -cubin | --cubin | -ptx | --ptx | -optix-ir | --optix-ir | -ltoir | --ltoir) architectures= ;; # take only one
            -E | --preprocess | -M | --generate-dependencies | -MM | --generate-nonsystem-dependencies) architectures= ;;
        esac
    done
    replaced=
    [ -z "$architectures" ] || replaced=${BUILDFARM_NVCC_REPLACE-}
    named= # whether the call names architectures
    makes= # whether it makes GPU code

    # Whether a text of options has one to remove; sets `named`.
    to_remove() {
        found=
        case " $1 " in
            *[[:space:]]-t[[:space:]=0-9]* | *[[:space:]]--threads[[:space:]=]*) found=yes ;;
        esac
        case " $1 " in
            *[[:space:]]-gencode[[:space:]=]* | *[[:space:]]--generate-code[[:space:]=]* | *[[:space:]]-arch[[:space:]=]* | \
                *[[:space:]]--gpu-architecture[[:space:]=]* | *[[:space:]]-code[[:space:]=]* | \
                *[[:space:]]--gpu-code[[:space:]=]*)
                named=yes
                found=$found$replaced
                ;;
        esac
        [ -n "$found" ]
    }

    # A text of options without them.
    remove_from() {
        value="(\"[^\"]*\"|'[^']*'|[^[:space:]\"'])+"
        expression="s/(^|[[:space:]])(-t[[:space:]=]*|--threads[[:space:]=]+)[0-9]+/\\1/g"
        if [ -n "$replaced" ]; then
            names='-gencode|--generate-code|-arch|--gpu-architecture|-code|--gpu-code'
            expression="$expression;s/(^|[[:space:]])($names)[[:space:]=]+$value/\\1/g"
        fi
        printf '%s\n' "$1" | tr '\n' ' ' | sed -E "$expression"
    }

    # Sets `files` to a list of option files; to one without these options if they have any.
    options_files() {
        files=$1
        text=$(IFS=, && for file in $1; do cat "$file" && echo; done)
        if to_remove "$text"; then
            digest=$(printf '%s' "$text $architectures" | sha256sum)
            files=$home/options/${digest%% *}
            mkdir -p "$home/options" && remove_from "$text" > "$files.$$" && mv "$files.$$" "$files"
        fi
    }

    if to_remove "${NVCC_PREPEND_FLAGS-} ${NVCC_APPEND_FLAGS-}"; then
        NVCC_PREPEND_FLAGS=$(remove_from "${NVCC_PREPEND_FLAGS-}")
        NVCC_APPEND_FLAGS=$(remove_from "${NVCC_APPEND_FLAGS-}")
        export NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS
    fi
    count=$#
    previous=
    is_value=
    while [ "$count" -gt 0 ]; do
        count=$((count - 1))
        argument=$1
        shift
        if [ -n "$is_value" ]; then
            is_value=
            continue
        fi
        case $previous in
            -optf | --options-file) options_files "$argument" && argument=$files ;;
            -o | -Xcompiler | -Xlinker | -Xptxas | -Xcudafe | -Xnvlink | -Xfatbin | -Xarchive | --output-file | --*-options) ;;
            *)
                case $argument in
                    -t | --threads) is_value=yes && continue ;;
                    -t=* | -t[0-9]* | --threads=*) continue ;;
                    -optf=* | --options-file=*) options_files "${argument#*=}" && argument=${argument%%=*}=$files ;;
                    *.cu | -fatbin | --fatbin | -dlink | --device-link) makes=yes ;;
                    -c | -dc | -dw | --compile | --device-c | --device-w) makes=yes ;;
                    -gencode | --generate-code | -arch | --gpu-architecture | -code | --gpu-code)
                        named=yes
                        [ -z "$replaced" ] || { is_value=yes && continue; }
                        ;;
                    -gencode=* | --generate-code=* | -arch=* | --gpu-architecture=* | -code=* | --gpu-code=*)
                        named=yes
                        [ -z "$replaced" ] || continue
                        ;;
                esac
                ;;
        esac
        previous=$argument
        set -- "$@" "$argument"
    done
    if [ -n "$replaced" ]; then
        [ -n "$makes$named" ] || architectures=
    elif [ -z "$makes" ] || [ -n "$named" ]; then
        architectures=
    fi
fi

compiles=
wraps=
shared=
lists=
list=
object=
source=
direct=${BUILDFARM_HEADERS_DIGEST-}
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
        # sccache 0.16 fails if two GPUs share one virtual architecture ("fatbinary: could not open input file").
        -code | -code=* | --gpu-code | --gpu-code=*) shared=yes ;;
        *arch=compute_*,code=*)
            virtual=${argument##*arch=compute_}
            virtual=${virtual%%,*}
            codes=${argument#*,code=}
            case ${codes%%sm_"$virtual"*}${codes#*sm_"$virtual"} in
                *sm_*) shared=yes ;;
            esac
            ;;
    esac
    case $argument in
        -*) ;;
        *.c | *.cc | *.cpp | *.cxx | *.c++ | *.C | *.cu | *.s | *.S) source=$argument ;;
    esac
    # Headers from a path that BUILDFARM_HEADERS_DIGEST does not cover.
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
# buildfarm refuses a wheel with libraries if nothing was compiled or linked.
[ -z "${BUILDFARM_STATISTICS_DIR-}" ] || [ -z "$source$object$compiles" ] ||
    : 2> /dev/null >> "$BUILDFARM_STATISTICS_DIR/called"
# shellcheck disable=SC2086 # several options
[ -z "$architectures" ] || set -- "$@" $architectures
# Only a compile has a result that the cache can keep.
[ -n "$compiles" ] || exec "$real" "$@"
# buildfarm shows which files are being compiled.
[ -z "${BUILDFARM_STATISTICS_DIR-}" ] || [ -z "$source" ] ||
    printf '%s\n' "$source" 2> /dev/null >> "$BUILDFARM_STATISTICS_DIR/calls"
# buildfarm compiles a cured file and its original once more, with the same options, and compares the code.
[ -z "${BUILDFARM_STATISTICS_DIR-}" ] || [ -z "$source" ] ||
    printf '%s\0' "$name" "$PWD" "$source" "$@" 2> /dev/null > "$BUILDFARM_STATISTICS_DIR/call.$$"

# Without a server nothing is cached, but the flags below stay the same, because they decide the bytes of objects.
cached=
[ ! -S "${SCCACHE_SERVER_UDS-}" ] || cached=yes
[ -z "$shared" ] || cached=
# A source may call sccache by itself: its server, or sccache in its place, started this script. A second sccache would
# wait for the first one.
caller=
[ ! -r "/proc/$PPID/comm" ] || read -r caller < "/proc/$PPID/comm" || :
[ "$caller" != sccache ] || cached=

count=$#
if [ "$name" = nvcc ]; then
    # For a list of a kernel's headers sccache runs nvcc once more, which preprocesses the source again for each GPU
    # architecture. Only a later build in the same folder reads the list. Every build has a new folder, so the list may
    # be empty.
    case $list$object in
        *[!A-Za-z0-9_./+=,@%-]*) lists= ;; # the name would need quotes in the list
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
    # sccache 0.16 takes the value of an option that it does not know for a second source, and does not cache then. So
    # join option and value.
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
    # Python's own flags differ by version and mean the same: -fwrapv before 3.12, -fno-strict-overflow from 3.12 on,
    # and 3.10 adds -Wno-unused-result. Write them in one form, so that an object that does not depend on Python has one
    # key for all Pythons.
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
# sccache stores the results of nvcc's steps only, each under a key of its own, and none for the call itself; see
# server.py for the nvcc that the server gets.
[ "$name" != nvcc ] || exec "${BUILDFARM_SCCACHE:-sccache}" "$home/whole/nvcc" "$@"
if [ -n "$direct" ]; then
    # sccache's direct mode finds an object by the contents of the headers that were read last time, without
    # preprocessing. A new header could hide one of them. A new header is a new file name in the source tree, so the
    # names of the tree go into the key: as the name of an empty folder that is searched last, which no object contains.
    # Files that compilers, ninja and sccache write during the build are not headers and would change every key.
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
