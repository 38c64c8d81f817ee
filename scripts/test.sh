#!/usr/bin/env bash
# Sets up all it needs and runs every test: style, types, unit, contract (real sshd, dockerd and
# Ray on this machine), the lab (whole hosts), and the first command on odd machines.
#
#     scripts/test.sh            everything but what follows
#     scripts/test.sh quick      without the lab
#     scripts/test.sh long       what the lab takes long for: the fabric, images without Ray, hosts
#                                without internet, the articles, the ways from a laptop and through a
#                                bastion, containers that attack their hosts, more faults and their
#                                verdicts, a slow host: an hour or two
#     scripts/test.sh gpu        on a machine with two NVIDIA GPUs: the main job, a fault, and a table of
#                                speeds and memory, estimated and measured (docs/lab.md): 25 minutes
#     scripts/test.sh machines   all rows of the matrix of machines (docs/lab.md): 40 minutes
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --tests
export PATH="$PWD/.venv/bin:$PATH"

section() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

if [ "${1:-}" = long ]; then
    section 'lab: what takes long'
    pytest -q tests/lab/test_{fabric,derived_image,without_internet,articles,losses,main_job,security_of_containers,slow_host,verdicts,walks}.py
    exit
fi
if [ "${1:-}" = gpu ]; then
    section 'whole hosts with GPUs'
    # Without one, every test would be skipped
    [ "${CLUSTERCTL_GPU_TESTS:-}" = cpu ] || nvidia-smi -L
    pytest -v tests/gpu
    exit
fi
if [ "${1:-}" = machines ]; then
    section 'machines: every row'
    pytest -q tests/machines
    exit
fi

section 'style'
ruff format --check .
ruff check .
mapfile -t shell_files < <(git ls-files '*.sh' .ci/run)
shellcheck "${shell_files[@]}"

section 'types'
mypy

# Signals ignored, as under nohup, and in an order of its own for each commit: no test may live on
# what another leaves, and what was tried once can be tried again.
seed=${TEST_SEED:-$((16#$(git rev-parse --short=7 HEAD)))}
section "unit, in the order of TEST_SEED=$seed"
(trap '' HUP && pytest -q -n 2 --random-order-bucket=global --random-order-seed="$seed" tests/unit </dev/null)

# They wait more than they compute, and each process has engines of its own.
section 'contract: real sshd, dockerd, Ray'
pytest -q -n 2 --dist loadfile tests/contract

if [ "${1:-}" != quick ]; then
    section 'lab: whole hosts'
    pytest -q -x -m 'not long' tests/lab
    section 'machines: refusals and odd places'
    pytest -q -m 'not matrix' tests/machines
else
    section 'machines: refusals and odd places'
    pytest -q -m 'not matrix and not lab' tests/machines
fi
section 'done'
