#!/usr/bin/env bash
# Pins what pyproject.toml allows to exact versions with hashes, for every platform and Python:
# requirements/run.txt for users, requirements/dev.txt for developers and CI. Needs `uv`.
#
#     scripts/lock.sh             keeps versions that still fit
#     scripts/lock.sh --upgrade   takes the newest ones
set -euo pipefail
cd "$(dirname "$0")/.."

lock() { # FILE [FLAGS...]
    local file=requirements/$1.txt made
    shift
    uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-annotate --no-header --quiet --output-file "$file" "$@"
    made=$(grep -v '^#' "$file")
    printf '%s\n' '# Made by scripts/lock.sh from pyproject.toml, which is the file to edit.' \
        "$made" >"$file"
}

# Users get the versions that the tests ran with.
lock dev --extra dev "$@"
lock run --constraint requirements/dev.txt "$@"
