#!/usr/bin/env bash
# Runs the unit tests with the lowest versions that pyproject.toml allows, in a virtual environment
# of their own. Needs `uv`. Raise a minimum there where this fails and scripts/test.sh does not.
#
#     scripts/lowest.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
uv pip compile pyproject.toml --resolution lowest-direct --python-version 3.11 --quiet \
    --output-file "$venv/lowest.txt"
uv pip compile pyproject.toml --extra dev --python-version 3.11 --quiet \
    --override "$venv/lowest.txt" --output-file "$venv/all.txt"
uv venv --quiet --python 3.11 "$venv/venv"
uv pip install --quiet --python "$venv/venv/bin/python" --requirement "$venv/all.txt"
PYTHONPATH=. "$venv/venv/bin/python" -m pytest -p no:cacheprovider "${@:-tests/unit}"
