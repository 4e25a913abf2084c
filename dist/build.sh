#!/usr/bin/env bash
# Builds the released binary, one static file. Sees that it names no directory of
# this machine, and tries it (try.sh). The same commit, toolchain and C library give
# the same bytes in any directory; dist/reproduce.sh shows it. Beside the binary it
# writes what that is made of, tenure.cdx.json.
set -euo pipefail
cd "$(dirname "$0")/.."

target="$(rustc -vV | sed -n 's/^host: //p')"
output="$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)"
binary="${CARGO_TARGET_DIR:-target}/$target/release/tenure"

# Panics and C assertions name source files by their paths. Each directory of
# this machine gets a fixed name instead. Of several prefixes that fit the
# compilers take the one given last, so the directories that may lie within
# others come last. The sources of crates are in a folder named after their
# registry, which may be a mirror, so that folder is replaced too: cargo
# fetches first, to make it.
cargo fetch --quiet --locked --target "$target"
home="${CARGO_HOME:-$HOME/.cargo}"
sysroot="$(rustc --print sysroot)"
commit="$(rustc -vV | sed -n 's/^commit-hash: //p')"
flags=(-C target-feature=+crt-static)
# As .cargo/config.toml has it, which these replace.
c_flags=(-g0)
private=()
name_instead() {
    flags+=("--remap-path-prefix=$1=$2")
    c_flags+=("-ffile-prefix-map=$1=$2")
    [ "$1" = "$2" ] || private+=("$1")
}
name_instead "$PWD" /tenure
name_instead "$home" /cargo
for registry in "$home"/registry/src/*/; do
    name_instead "${registry%/}" /crates
done
name_instead "$output" /target
# Where the component rust-src is installed, rustc names its directory.
name_instead "$sysroot/lib/rustlib/src/rust" "/rustc/$commit"

# These replace what the user's own settings would add. Directories may have
# spaces, hence the encodings.
CARGO_ENCODED_RUSTFLAGS="$(IFS=$'\x1f' && printf '%s' "${flags[*]}")" \
    CFLAGS="$(printf '%q ' "${c_flags[@]}")" CC_SHELL_ESCAPED_FLAGS=1 \
    cargo build --release --locked -p tenure-cli --features full --target "$target"

fail() {
    echo "dist/build.sh: $1" >&2
    exit 1
}

for directory in "${private[@]}"; do
    ! grep -qaF "$directory/" "$binary" ||
        fail "expected no directory of this machine in the binary, found $directory"
done

dist/try.sh "$binary"
dist/sbom.sh "$binary" >"$binary.cdx.json"

echo "$binary: $(stat -c %s "$binary") bytes, $("$binary" --version)"
