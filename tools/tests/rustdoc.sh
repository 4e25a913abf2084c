#!/usr/bin/env bash
# Stands in for rustdoc (RUSTDOC) where cargo runs the tests in documentation. Before
# them the documentation itself is made, of the same packages and without warnings, into
# TENURE_DOCUMENTATION. For `cargo doc` all that they depend on is checked once more.
set -euo pipefail
case " $* " in
    *' --test '*) ;;
    *) exec rustdoc "$@" ;;
esac
made=()
leave_out=''
for argument in "$@"; do
    case "$leave_out$argument" in
        --test | --no-run | --nocapture | --test-*=* | --persist-doctests=*) ;;
        --test-* | --persist-doctests) leave_out=its-value-of- ;;
        its-value-of-*) leave_out='' ;;
        *) made+=("$argument") ;;
    esac
done
rustdoc "${made[@]}" -D warnings --out-dir "$TENURE_DOCUMENTATION"
exec rustdoc "$@"
