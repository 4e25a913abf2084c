#!/usr/bin/env bash
# Prints what the released binary is made of, as CycloneDX 1.5 in JSON. With
# the path of a binary it also says which one, by its SHA-256:
#
#     dist/sbom.sh target/…/release/tenure >tenure.cdx.json
#
# It says the same whenever commit, toolchain and C library are the same: no
# time and no random number is in it. Packages come from `cargo tree`, which
# resolves features as the build does (`cargo metadata` unites those of all
# members, of tests too); checksums come from Cargo.lock. Besides them it names
# what no package manager sees: the C code that two packages bring along, the
# C library, and the standard library of Rust.
# It needs awk and nothing else, because Debian has that everywhere.
set -euo pipefail
hash=
if [ $# -gt 0 ]; then
    hash="$(sha256sum "$1")"
    hash="${hash%% *}"
fi
cd "$(dirname "$0")/.."
target="$(rustc -vV | sed -n 's/^host: //p')"

# The packages that the build takes, a line each, with their depth.
tree() {
    cargo tree --locked -p tenure-cli --features full --target "$target" \
        --edges "$1" --prefix depth --format '|{p}|{l}|{r}'
}

# The version of C code, from its own header in the package that brings it.
bundled() {
    local package="$1" header="$2" name="$3" version directory
    version="$(tree normal,build |
        awk -F'[| ]' -v package="$package" '$2 == package { found = substr($3, 2) } END { print found }')"
    for directory in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$package-$version"; do
        [ -e "$directory/$header" ] || continue
        sed -n "s/^#define $name  *\"\(.*\)\"/\1/p" "$directory/$header"
        return
    done
    echo "dist/sbom.sh: expected $header in $package $version, found none" >&2
    return 1
}
sqlite="$(bundled libsqlite3-sys sqlite3/sqlite3.h SQLITE_VERSION)"
aws_lc="$(bundled aws-lc-sys aws-lc/include/openssl/base.h AWSLC_VERSION_NUMBER_STRING)"
# Debian's version says which corrections are in.
libc="$(dpkg-query --show --showformat '${Version}' libc6-dev 2>/dev/null ||
    getconf GNU_LIBC_VERSION | sed 's/.* //')"
rust="$(rustc -V | sed 's/^rustc //')"

{
    sed -n 's/^\(name\|version\|checksum\) = "\(.*\)"$/lock|\1|\2/p' Cargo.lock
    # What is linked in; all else takes part in building only.
    tree normal,no-proc-macro | sed 's/^/linked|/'
    tree normal,build | sed 's/^/built|/'
} | LC_ALL=C awk -F'|' -v target="$target" -v hash="$hash" -v sqlite="$sqlite" \
    -v aws_lc="$aws_lc" -v libc="$libc" -v rust="$rust" '
function text(it) {
    gsub(/\\/, "\\\\", it)
    gsub(/"/, "\\\"", it)
    return "\"" it "\""
}
function reference(package) {
    return text("pkg:cargo/" name[package] "@" version[package])
}
function sort(list, count,    i, j, it) {
    for (i = 2; i <= count; i++) {
        it = list[i]
        for (j = i - 1; j > 0 && list[j] > it; j--) list[j + 1] = list[j]
        list[j + 1] = it
    }
}
function described(package,    link) {
    printf "      \"bom-ref\": %s,\n", reference(package)
    printf "      \"name\": %s,\n", text(name[package])
    printf "      \"version\": %s,\n", text(version[package])
    printf "      \"licenses\": [{\"expression\": %s}],\n", text(licence[package])
    if (package in checksum)
        printf "      \"hashes\": [{\"alg\": \"SHA-256\", \"content\": %s}],\n", text(checksum[package])
    if (repository[package] != "")
        printf "      \"externalReferences\": [{\"type\": \"vcs\", \"url\": %s}],\n", text(repository[package])
    printf "      \"purl\": %s\n", reference(package)
}
function other(it, at, part_of) {
    printf ",\n    {\n      \"type\": \"library\",\n      \"scope\": \"required\",\n"
    printf "      \"bom-ref\": %s,\n      \"name\": %s,\n", text(it "@" at), text(it)
    printf "      \"version\": %s,\n      \"description\": %s\n    }", text(at), text(part_of)
}
$1 == "lock" && $2 == "name" { in_lock = $3 }
$1 == "lock" && $2 == "version" { in_lock = in_lock " v" $3 }
$1 == "lock" && $2 == "checksum" { checksum[in_lock] = $3 }
$1 == "linked" || $1 == "built" {
    split($3, words, " ")
    package = words[1] " " words[2]
    if ($1 == "linked") {
        linked[package] = 1
        next
    }
    if (!(package in name)) {
        name[package] = words[1]
        version[package] = substr(words[2], 2)
        # An older way to write OR.
        licence[package] = $4
        gsub(/ *\/ */, " OR ", licence[package])
        repository[package] = $5
        sub(/ *\(\*\)$/, "", licence[package])
        sub(/ *\(\*\)$/, "", repository[package])
        packages[++count] = package
    }
    at[$2] = package
    if ($2 > 0 && !((at[$2 - 1], package) in needs)) {
        needs[at[$2 - 1], package] = 1
        needed[at[$2 - 1]] = needed[at[$2 - 1]] "|" package
    }
}
END {
    root = at[0]
    sort(packages, count)
    printf "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n"
    printf "  \"metadata\": {\n    \"component\": {\n      \"type\": \"application\",\n"
    if (hash != "")
        printf "      \"hashes\": [{\"alg\": \"SHA-256\", \"content\": %s}],\n", text(hash)
    printf "      \"properties\": [{\"name\": \"target\", \"value\": %s}],\n", text(target)
    described(root)
    printf "    }\n  },\n  \"components\": ["
    separator = "\n"
    for (i = 1; i <= count; i++) {
        package = packages[i]
        if (package == root) continue
        printf "%s    {\n      \"type\": \"library\",\n", separator
        printf "      \"scope\": %s,\n", text(package in linked ? "required" : "excluded")
        described(package)
        printf "    }"
        separator = ",\n"
    }
    other("sqlite", sqlite, "C code in libsqlite3-sys")
    other("aws-lc", aws_lc, "C code in aws-lc-sys")
    other("glibc", libc, "The C library, linked in")
    other("rust-std", rust, "The standard library of Rust")
    printf "\n  ],\n  \"dependencies\": ["
    separator = "\n"
    for (i = 1; i <= count; i++) {
        children = split(substr(needed[packages[i]], 2), list, "|")
        sort(list, children)
        printf "%s    {\"ref\": %s, \"dependsOn\": [", separator, reference(packages[i])
        for (j = 1; j <= children; j++)
            printf "%s%s", (j > 1 ? ", " : ""), reference(list[j])
        printf "]}"
        separator = ",\n"
    }
    printf "\n  ]\n}\n"
}'
