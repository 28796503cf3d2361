# Sourced by the other scripts. Sets strict mode and the working directory, the repository's root,
# and defines a few functions.
# shellcheck shell=bash

set -euo pipefail
cd "$(dirname "$0")/.."

# Where cargo puts the static binaries: .cargo/config.toml names the target.
# shellcheck disable=SC2034
out=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu

say() { echo "$(basename "$0"): $*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null; }
is_root() { [ "$(id -u)" = 0 ]; }

# The list of the test programs that scripts/build-tests builds; tests/runner reads it.
# shellcheck disable=SC2034
tests=$out/test-programs
# The test programs that cargo builds only if they are named: they need root, or a machine of their
# own.
# shellcheck disable=SC2034
root_programs=(alone attacks combinations differential live plugins vm)
# The name by which programs that are linked with the shared library find it. Its number changes
# with each change of the headers in crates/libtollgate/include that such programs do not survive.
# shellcheck disable=SC2034
soname=libtollgate.so.0
