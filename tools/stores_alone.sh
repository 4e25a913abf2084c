#!/usr/bin/env bash
# Lints the library with each store alone: what stores share is compiled for those
# that use it. Takes three minutes on two cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for store in sqlite file postgres mysql redis etcd nats s3 azure gcs consul kubernetes cluster; do
    printf '=== %s\n' "$store"
    cargo clippy -p tenure --no-default-features --features "$store" --locked -- -D warnings
done
