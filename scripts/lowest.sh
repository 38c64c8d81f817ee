#!/usr/bin/env bash
# Runs the unit tests with the lowest versions that pyproject.toml allows, in a virtual environment
# of their own; not those of what runs in images, which have versions of their own. Needs `uv`.
# Raise a minimum there where this fails and scripts/test.sh does not.
#
#     scripts/lowest.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
uv pip compile pyproject.toml --resolution lowest-direct --python-version 3.11 --quiet \
    --output-file "$venv/lowest.txt"
uv venv --quiet --python 3.11 "$venv/venv"
uv pip install --quiet --python "$venv/venv/bin/python" --requirement "$venv/lowest.txt" \
    pytest pytest-timeout pytest-random-order pytest-xdist hypothesis jsonschema
tests=(tests/unit/{commands,containers,inventory,lab,reporting,transfer,transport})
PYTHONPATH=. "$venv/venv/bin/python" -m pytest -p no:cacheprovider "${@:-${tests[@]}}"
