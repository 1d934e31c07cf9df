#!/usr/bin/env bash
# Builds the kernels for 64-bit ARM and runs their tests in an emulator, with the byte products of Armv8.2 and without.
#
# Installs what it needs where that can be had (rustup target, and as root of a Debian or Ubuntu the cross linker and
# qemu-user). Where a piece cannot be had it prints why, and checks what it can: the tests, else that it compiles, else nothing.
# On an ARM machine this is nothing but the ordinary tests.
#
# Usage: scripts/arm-check.sh [filter of the tests]
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
say() { printf '%s arm-check: %s\n' "$(date +%T)" "$*"; }
have() { command -v "$1" > /dev/null; }

case "$(uname -sm)" in
    'Linux aarch64' | 'Darwin arm64')
        cargo test --locked -p specgen-kernels -- "$@"
        exit ;;
    'Linux x86_64') ;;
    *) say "skipped: $(uname -sm) runs no program for $target"; exit 0 ;;
esac

if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    if ! { have rustup && rustup target add "$target"; }; then
        say "skipped: this Rust has no standard library for $target, and rustup cannot add it"
        exit 0
    fi
fi

linker=aarch64-linux-gnu-gcc
if ! { have "$linker" && have qemu-aarch64; } && have apt-get && [ "$(id -u)" -eq 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends \
        qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross; } > /dev/null 2>&1 || say 'apt-get could not install the cross linker and qemu-user'
fi

# Where its builds go: for the other target nothing is shared with those of this machine.
args=(--locked -p specgen-kernels --target "$target" --target-dir "${CARGO_TARGET_DIR:-target/arm}")
if ! { have "$linker" && have qemu-aarch64; }; then
    cargo check --tests "${args[@]}"
    say "compiles; tests skipped: $linker and qemu-aarch64 are not both there (Debian: qemu-user, gcc-aarch64-linux-gnu)"
    exit 0
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
# The C library of the cross compiler. Kernels that a CPU without byte products gets are tested on the others too.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
cargo test "${args[@]}" -- "$@"
# A CPU without them must find that out, and start.
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -cpu cortex-a72 -L /usr/aarch64-linux-gnu' \
    cargo test "${args[@]}" -- all_kinds small_products
say 'passed'
