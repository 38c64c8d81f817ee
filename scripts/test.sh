#!/usr/bin/env bash
# Sets up all it needs and runs every test: style, types, unit, contract (real sshd, dockerd and
# Ray on this machine), and the lab (whole hosts). `scripts/test.sh quick` leaves the lab out.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --tests
export PATH="$PWD/.venv/bin:$PATH"

section() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

section 'style'
ruff format --check .
ruff check .
mapfile -t shell_files < <(git ls-files '*.sh' .ci/run)
shellcheck "${shell_files[@]}"

section 'types'
mypy

section 'unit'
pytest -q -n 2 tests/unit

section 'contract: real sshd, dockerd, Ray'
pytest -q tests/contract

if [ "${1:-}" != quick ]; then
    section 'lab: whole hosts'
    pytest -q -x tests/lab
fi
section 'done'
