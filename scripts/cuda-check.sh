#!/usr/bin/env bash
# Compiles and links the CUDA build on a machine without a GPU, a driver or a CUDA toolkit.
#
# The compiler comes from NVIDIA's wheels on PyPI (scripts/cuda-link/requirements.txt) into a cache folder,
# the NVIDIA libraries are replaced by stubs that look for the real ones when the binary first uses a GPU.
# The result therefore starts anywhere; `--profile release` makes one to carry to a machine with a GPU
# (scripts/gpu-check.sh). Any failure to compile, link or start ends with a nonzero status.
#
# Usage: scripts/cuda-check.sh [--profile cuda-check|release] [--arch 90]
#   SPECGEN_CUDA_TOOLKIT   folder of the toolkit (default ~/.cache/specgen/cuda-toolkit)
set -euo pipefail
cd "$(dirname "$0")/.."

profile=cuda-check
arch=${CUDA_COMPUTE_CAP:-90}
while [ $# -gt 0 ]; do
    case $1 in
        --profile) profile=${2:?"--profile needs a name"}; shift 2 ;;
        --arch) arch=${2:?"--arch needs a compute capability, such as 90"}; shift 2 ;;
        *) echo "cuda-check: unknown option $1 (known: --profile NAME, --arch CAP)" >&2; exit 2 ;;
    esac
done

fail() { echo "cuda-check: $*" >&2; exit 1; }
say() { printf '%s cuda-check: %s\n' "$(date +%T)" "$*"; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the stubs are x86-64 Linux code, this is $(uname -sm): link with an installed CUDA toolkit instead"
for tool in cargo gcc g++ ar nm readelf size strip python3; do
    command -v "$tool" > /dev/null || fail "$tool not found on PATH"
done

# 1. Toolkit: one folder per list of wheels, complete or absent (renamed into place).
links=scripts/cuda-link
cache=${SPECGEN_CUDA_TOOLKIT:-${XDG_CACHE_HOME:-$HOME/.cache}/specgen/cuda-toolkit}
toolkit=$cache/$(sha256sum "$links/requirements.txt" | cut -c1-12)
mkdir -p "$cache"
exec 9> "$cache/lock"
flock 9
if [ ! -d "$toolkit" ]; then
    say "fetching the CUDA compiler (100 MB) into $toolkit"
    partial=$(mktemp -d "$cache/partial.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary=:all: --require-hashes \
        --target "$partial" -r "$links/requirements.txt"
    # The kernel build looks for lib64, the wheels have lib.
    ln -s lib "$partial/nvidia/cu13/lib64"
    mv "$partial" "$toolkit"
    trap - EXIT
fi
root=$toolkit/nvidia/cu13

# 2. Stubs, in a folder that cudarc adds to the link path by itself when it exists (no RUSTFLAGS needed).
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-gnu --features specgen-cli/cuda > "$work/metadata"
cudarc=$(python3 -c 'import json, os, sys; print(*[os.path.dirname(p["manifest_path"]) for p in json.load(open(sys.argv[1]))["packages"] if p["name"] == "cudarc"])' "$work/metadata")
[ -f "$cudarc/Cargo.toml" ] || fail "no single cudarc among the dependencies (found: '$cudarc')"
python3 "$links/stubs.py" "$cudarc" "$work"
gcc -c -fPIC "$work/stubs.S" -o "$work/stubs.o"
gcc -c -fPIC -O2 -Wall -Werror -I "$work" "$links/loader.c" -o "$work/loader.o"
ar rcsD "$work/libcuda.a" "$work/stubs.o" "$work/loader.o"
for name in cublas cublasLt curand nvrtc; do ar rcsD "$work/lib$name.a"; done # their stubs are in libcuda.a
cp "$root/lib/libcudart_static.a" "$work/libcudart.a"
target=target/cuda
if ! cmp -s "$work/libcuda.a" "$root/lib/stubs/libcuda.a"; then
    mkdir -p "$root/lib/stubs"
    cp "$work"/lib*.a "$root/lib/stubs/"
    # Cargo doesn't know that a system library changed: make it link again.
    [ ! -d "$target" ] || cargo clean --quiet --locked --target-dir "$target" --profile "$profile" -p specgen-cli
fi
flock -u 9

# 3. Compile and link.
export CUDA_HOME=$root CUDA_PATH=$root CUDA_ROOT=$root CUDA_TOOLKIT_ROOT_DIR=$root PATH=$root/bin:$PATH
export CUDA_COMPUTE_CAP=$arch NVCC_CCBIN=g++ CUDAFORGE_THREADS=${CUDAFORGE_THREADS:-$(nproc)}
unset CUDNN_LIB NVCC
if [ "$profile" = cuda-check ]; then
    export NVCC_APPEND_FLAGS='-Ofc max' # nobody runs these kernels: compile them fast, not well
fi
say "building with $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/nvcc \1/p') for compute capability $arch, profile $profile"
start=$SECONDS
cargo build --locked --target-dir "$target" --profile "$profile" -p specgen-cli --features cuda
say "compiled and linked in $((SECONDS - start)) s"

# 4. What came out.
binary=$target/$profile/specgen
strip -o "$binary.stripped" "$binary"
printf '%s: %d bytes, %d stripped\n' "$binary" "$(stat -c %s "$binary")" "$(stat -c %s "$binary.stripped")"
readelf -d "$binary" | awk '/NEEDED/ { print "needs " $NF }'
if readelf -d "$binary" | grep -E 'NEEDED.*(libcu|libnv)'; then
    fail "$binary needs an NVIDIA library to start"
fi
nm "$binary" > "$work/symbols"
grep -q ' [tT] cuInit$' "$work/symbols" || fail "$binary holds no CUDA code: does the feature 'cuda' reach candle?"
printf 'CUDA code: %s driver entry points, %s bytes of device code in fatbins\n' \
    "$(grep -cE ' [tT] cu[A-Z]' "$work/symbols")" \
    "$(size -A "$binary" | awk '$1 == ".nv_fatbin" { bytes = $2 } END { print bytes + 0 }')"
if [ "$profile" != cuda-check ] && command -v xz > /dev/null; then
    xz --keep --force -T0 "$binary.stripped"
    printf '%s: %d bytes\n' "$binary.stripped.xz" "$(stat -c %s "$binary.stripped.xz")"
fi
"$binary" --version || fail "$binary does not start on a machine without a driver"
say "passed"
