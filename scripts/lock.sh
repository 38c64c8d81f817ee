#!/usr/bin/env bash
# Pins to exact versions with hashes, for every platform and Python: what pyproject.toml allows, in
# requirements/run.txt for users and requirements/dev.txt for developers and CI; and what node images
# get, a file for each release of Ray. Needs `uv`.
#
#     scripts/lock.sh             keeps versions that still fit
#     scripts/lock.sh --upgrade   takes the newest ones
set -euo pipefail
cd "$(dirname "$0")/.."

lock() { # FILE FROM HEADER [FLAGS...]
    local file=$1 from=$2 header=$3 made
    shift 3
    made=$(uv pip compile "$from" --universal --generate-hashes --no-emit-index-url \
        --no-annotate --no-header --quiet --output-file "$file" "$@" && grep -v '^#' "$file")
    printf '%s\n' "$header" "$made" >"$file"
}

# Users get the versions that the tests ran with.
project='# Made by scripts/lock.sh from pyproject.toml, which is the file to edit.'
lock requirements/dev.txt pyproject.toml "$project" --python-version 3.11 --extra dev "$@"
lock requirements/run.txt pyproject.toml "$project" --python-version 3.11 \
    --constraint requirements/dev.txt "$@"

# The release that clusterctl/steps/node_image.py installs.
ray=2.60.0
echo "ray[default]==$ray" |
    lock "clusterctl/steps/ray_locks/$ray.txt" - \
        '# For Python 3.10 and later. Made by scripts/lock.sh.' --python-version 3.10 "$@"
