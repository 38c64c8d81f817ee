#!/usr/bin/env bash
# The main job on this machine, from nothing: two bare Debian hosts, then the same three commands
# that a real cluster takes, a completion, a standby that takes over, and two replicas whose flags, and
# then whose image, change while requests come.
# Needs root on Debian or Ubuntu.
#
#     scripts/demo.sh                leaves it all running; clusterctl lab down removes it
#     scripts/demo.sh --down         takes it down at the end
#     scripts/demo.sh --model tiny   for a machine with less than 12 GiB of memory to spare
set -euo pipefail
cd "$(dirname "$0")/.."

model=qwen2.5-1.5b down=
while [ $# -gt 0 ]; do
    case $1 in
        --down) down=1 ;;
        --model) model=${2:?"--model takes tiny or qwen2.5-1.5b"} && shift ;;
        *) printf 'usage: scripts/demo.sh [--model tiny] [--down]\n' >&2 && exit 2 ;;
    esac
    shift
done
[ "$(id -u)" -eq 0 ] || {
    printf 'demo: it makes hosts on this machine, and needs root for it\n  fix: sudo scripts/demo.sh\n' >&2
    exit 5
}
scripts/setup.sh --lab
export PATH="$PWD/.venv/bin:$PATH"
# With a home that cannot be written to, layers on their way, logs and what is remembered go here.
[ -w "${HOME:-/nowhere}" ] || export XDG_CACHE_HOME=$PWD/.venv/cache XDG_STATE_HOME=$PWD/.venv/state

bold='' plain=''
[ ! -t 1 ] || [ -n "${NO_COLOR:-}" ] || { bold=$(printf '\033[1m') plain=$(printf '\033[0m'); }
run() {
    printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"
    "$@"
}

tiny=(/data/models/tiny --name tiny)
answers=$(mktemp)
trap 'rm -f "$answers"' EXIT
run clusterctl lab up --hosts 2 --for "$model"
run clusterctl bootstrap inventory/lab.yaml
case $model in
    tiny) run clusterctl serve "${tiny[@]}" --tp 2 ;;
    *) run clusterctl serve "$model" --tp 2 ;;
esac
run clusterctl status

printf '\n%sA completion, as any OpenAI client would ask for it:%s\n' "$bold" "$plain"
CLUSTERCTL_API_KEY=$(clusterctl ssh gpu1 cat /etc/clusterctl/lab/api.key)
curl --silent --show-error --fail-with-body --max-time 120 --noproxy '*' http://10.77.0.11:8000/v1/completions \
    --header @<(printf "Authorization: Bearer %s" "$CLUSTERCTL_API_KEY") \
    --header 'Content-Type: application/json' \
    --data "{\"model\": \"$model\", \"prompt\": \"Two hosts are\", \"max_tokens\": 16}"
printf '\n\nThe weights are random, so the words mean nothing; the path they took is real.\n'

# Runs a command while a client of both gateways sends two requests a second.
under_load() {
    CLUSTERCTL_API_KEY=$CLUSTERCTL_API_KEY python -m tests.bench.load http://10.77.0.11:8000 tiny \
        --other http://10.77.0.12:8000 --rate 2 --seconds 1200 >"$answers" &
    run "$@"
    kill "$!"
    wait "$!" || true # the counts say what was lost
    python -c '
import json, sys
count = json.load(sys.stdin)
print("Requests meanwhile: {sent} sent, {whole} answered, {failed} failed, {broken} cut short.".format(**count))
' <"$answers"
}

printf '\n%sA second engine sleeps on the same devices, and takes over when a rank is killed:%s\n' "$bold" "$plain"
run clusterctl stop "$model"
run clusterctl serve "${tiny[@]}" --tp 2 --standby
for _ in $(seq 150); do # it starts once the first one has nothing to do
    clusterctl status | grep -q 'standby *asleep' && break
    sleep 2
done
run clusterctl status
under_load clusterctl ssh gpu2 'pkill -KILL -o -f RayWorkerProc && sleep 15'
run clusterctl status || true # the first engine has not started again

printf '\n%sTwo replicas behind the gateway, and other flags while a client sends two requests a second:%s\n' "$bold" "$plain"
run clusterctl stop tiny
run clusterctl serve "${tiny[@]}" --replicas 2
under_load clusterctl serve "${tiny[@]}" --replicas 2 -- --max-model-len 1024

printf '\n%sAnother image, and a gateway on both hosts, while the same client sends requests:%s\n' "$bold" "$plain"
next=${CLUSTERCTL_LAB_DIR:-/var/lib/clusterctl-lab}/next.yaml
image=$(sed -n 's/^image: //p' inventory/lab.yaml)
printf 'FROM %s\nRUN echo next >/release\n' "$image" | clusterctl ssh gpu1 docker build --quiet -t clusterctl/lab:next - >/dev/null
sed -e 's|^image: .*|image: clusterctl/lab:next|' -e '/^image_archive:/d' -e '$a gateway: {hosts: all}' inventory/lab.yaml >"$next"
run diff inventory/lab.yaml "$next" || true # they differ
under_load clusterctl bootstrap "$next" --yes
run clusterctl status

if [ -n "$down" ]; then
    run clusterctl lab down
else
    printf 'Still running. Remove it all: .venv/bin/clusterctl lab down\n'
fi
