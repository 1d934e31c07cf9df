#!/usr/bin/env bash
# Runs the kernels' tests in Miri, which watches every access of the scalar path and of the code around it (memory of packed
# weights, key stores, the thread team, attention's cells): bounds, aliasing, alignment, data races, leaks.
#
# Needs a nightly Rust with Miri, and installs it with rustup where it is missing.
# Left out (`cfg(miri)` in the tests): what needs protected pages, and most cases of what is only slow.
# All of it takes about 25 minutes beside other work on two cores.
#
# Usage: scripts/miri.sh [filter of the tests]
set -euo pipefail
cd "$(dirname "$0")/.."

toolchain=${MIRI_TOOLCHAIN:-nightly}
cargo "+$toolchain" miri --version > /dev/null 2>&1 \
    || rustup toolchain install "$toolchain" --profile minimal --component miri --component rust-src

# The team asks for the machine's cores, and property tests for the folder: both need the real system.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
cargo "+$toolchain" miri test --locked -p specgen-kernels --target-dir "${CARGO_TARGET_DIR:-target/miri}" --lib -- "$@"
