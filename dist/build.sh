#!/usr/bin/env bash
# Builds the released binary, one static file, and tries it: that it needs no
# shared library, names no directory of this machine, finds hosts by name, and
# runs a command in office. The same commit, toolchain and C library give the
# same bytes in any directory; dist/reproduce.sh shows it. Beside the binary it
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
c_flags=()
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

linked="$(ldd "$binary" 2>&1 || true)"
[[ "$linked" == *'statically linked'* || "$linked" == *'not a dynamic executable'* ]] ||
    fail "expected a static binary, found: $linked"

# A name is found (and then nobody listens on port 1), and one that is none is not.
found="$("$binary" leader x --store postgres://u@localhost:1/db 2>&1 || true)"
[[ "$found" == *refused* ]] || fail "expected localhost to be found, and to refuse: $found"
lost="$("$binary" leader x --store postgres://u@no-such-host.invalid:1/db 2>&1 || true)"
[[ "$lost" == *lookup* ]] || fail "expected an error of the name look-up, found: $lost"

place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
term="$("$binary" run try --once --quiet --store "sqlite://$place/t.db" -- sh -c 'echo $TENURE_TERM')"
[ "$term" = 1 ] || fail "expected to run a command in term 1, found: $term"

dist/sbom.sh "$binary" >"$binary.cdx.json"

echo "$binary: $linked, $(stat -c %s "$binary") bytes, $("$binary" --version)"
