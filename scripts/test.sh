#!/usr/bin/env bash
# Sets up all it needs and runs the tests.
#
#     scripts/test.sh            the core: style, types, unit, contract (real sshd, dockerd and Ray on
#                                this machine), and in the lab, on whole hosts, what the README promises
#     scripts/test.sh quick      the core without the lab: no root needed
#     scripts/test.sh slice [N]  one part of everything else, at most 40 minutes; without N, the list
#     scripts/test.sh ci         the core, then one slice, which changes with each commit
#     scripts/test.sh gpu        on a machine with NVIDIA GPUs: the main job, faults, speeds and memory
set -euo pipefail
cd "$(dirname "$0")/.."

core_in_the_lab=(
    tests/lab/test_main_job.py
    tests/lab/test_replicas.py
    tests/lab/test_security.py
    tests/lab/test_faults.py
    tests/lab/test_image_push.py
)

section() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

slices() { grep -v '^#' tests/slices.txt; }

run_slice() { # N
    local minutes arguments words
    read -r minutes arguments < <(slices | sed -n "$1p")
    [ -n "$arguments" ] || { slices | cat -n >&2 && exit 2; }
    section "slice $1 of $(slices | wc -l), $minutes minutes when last timed: $arguments"
    mapfile -t words < <(xargs -n 1 <<<"$arguments")
    pytest -q "${words[@]}" && return

    # A fault that comes now and then is a bug to find, and no reason to throw the run away.
    section "red once: what failed runs once more, alone"
    pytest -q --last-failed --last-failed-no-failures=none "${words[@]}"
    printf 'red once, then green: find out why\n'
}

scripts/setup.sh --tests
export PATH="$PWD/.venv/bin:$PATH"

case "${1:-}" in
    slice)
        [ -n "${2:-}" ] || { slices | cat -n && exit; }
        run_slice "$2"
        exit
        ;;
    gpu)
        section 'whole hosts with GPUs'
        # Without one, every test would be skipped
        [ "${CLUSTERCTL_GPU_TESTS:-}" = cpu ] || nvidia-smi -L
        pytest -v tests/gpu/test_{cluster,early_ranks,changes,standby,sleep,down}.py
        exit
        ;;
    '' | quick | ci) ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac

section 'style'
ruff format --check .
ruff check .
mapfile -t shell_files < <(git ls-files '*.sh' .ci/run)
shellcheck "${shell_files[@]}"

section 'types'
mypy

# Signals ignored, as under nohup, and in an order of its own for each commit: no test may live on
# what another leaves, and what was tried once can be tried again.
commit=$((16#$(git rev-parse --short=7 HEAD)))
seed=${TEST_SEED:-$commit}
section "unit, in the order of TEST_SEED=$seed"
(trap '' HUP && pytest -q -n 2 --random-order-bucket=global --random-order-seed="$seed" -m 'not long' tests/unit </dev/null)

# They wait more than they compute, and each process has engines of its own.
section 'contract: real sshd, dockerd, Ray'
pytest -q -n 2 --dist loadfile tests/contract

if [ "${1:-}" != quick ]; then
    section 'lab: whole hosts'
    pytest -q --maxfail 3 -m 'not long' "${core_in_the_lab[@]}"
fi
if [ "${1:-}" = ci ]; then
    run_slice $((commit % $(slices | wc -l) + 1))
fi
section 'done'
