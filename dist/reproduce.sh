#!/usr/bin/env bash
# Builds the released binary of HEAD twice, in different directories, with
# different copies of cargo's home, and compares byte for byte the two and what
# is said of them. It takes twice the time of dist/build.sh and 4 GB in $TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."

target="$(rustc -vV | sed -n 's/^host: //p')"
home="${CARGO_HOME:-$HOME/.cargo}"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

# Before the copies, so that the builds need no network.
cargo fetch --quiet --locked --target "$target"

build() {
    local source="$place/$1" own="$place/$2"
    mkdir -p "$source" "$own/registry"
    git archive HEAD | tar -x -C "$source"
    cp -a "$home/registry/index" "$home/registry/cache" "$own/registry/"
    # Settings only, such as a mirror's address; credentials stay where they are.
    if [ -e "$home/config.toml" ]; then cp "$home/config.toml" "$own/"; fi
    CARGO_HOME="$own" CARGO_TARGET_DIR="$source/target" "$source/dist/build.sh"
    mv "$source/target/$target/release/tenure" "$place/$3"
    mv "$source/target/$target/release/tenure.cdx.json" "$place/$3.cdx.json"
    rm -rf "$source" "$own"
}
build one cargo first
build a/much/longer/directory/two another/home/of/cargo second

sha256sum "$place"/first* "$place"/second*
cmp "$place/first" "$place/second"
cmp "$place/first.cdx.json" "$place/second.cdx.json"
echo "the same bytes: $(git rev-parse HEAD), $(rustc -V)"
