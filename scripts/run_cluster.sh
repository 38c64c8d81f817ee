#!/usr/bin/env bash
# One Ray node in a container on this host, started by hand.
#
#   run_cluster.sh IMAGE HEAD_ADDRESS --head|--worker HF_HOME [further arguments of docker run]
#
# Run it on every host, with the same IMAGE and HEAD_ADDRESS, --head on one of them. It stays in
# the foreground; ending it ends the node. The container is called `node`: `docker exec -it node
# bash`, then `vllm serve ... --distributed-executor-backend ray` on the head.
#
# The node's address is VLLM_HOST_IP if given with -e, else the one that leads to HEAD_ADDRESS.
# With a file ~/.ray/auth_token, the same on all hosts, nobody without it can use the cluster.
#
#   RUN_CLUSTER_DRY_RUN=1   print the docker command, one argument a line, and do nothing
#   RUN_CLUSTER_ROOT=DIR    look for /dev, /sys, /etc/cdi and /var/run/cdi below DIR (for tests)
set -euo pipefail

NAME=node
LABEL=clusterctl.by-hand
GCS_PORT=6379
NOFILE=1048576
STACK=67108864
root=${RUN_CLUSTER_ROOT:-}
dry_run=${RUN_CLUSTER_DRY_RUN:-}

say() { printf 'run_cluster: %s\n' "$*" >&2; }

fail() { # STATUS CAUSE [FIX]
    say "$2"
    [ -z "${3:-}" ] || printf '  fix: %s\n' "$3" >&2
    exit "$1"
}

usage() {
    fail 2 "$1" "$(basename "$0") IMAGE HEAD_ADDRESS --head|--worker HF_HOME [docker arguments]"
}

# What the caller's `docker run` arguments say of a variable; false when they say nothing.
given() { # NAME
    local index argument setting
    for ((index = 0; index < ${#extra[@]}; index++)); do
        argument=${extra[index]}
        case $argument in
            -e | --env) setting=${extra[index + 1]:-} ;;
            --env=*) setting=${argument#--env=} ;;
            -e?*) setting=${argument#-e} ;;
            *) continue ;;
        esac
        case $setting in
            "$1"=*) printf '%s\n' "${setting#*=}" && return ;;
            "$1") printf '%s\n' "${!1:-}" && return ;;
        esac
    done
    return 1
}

# Put another value in the place of every setting of a variable, or add one.
set_variable() { # NAME VALUE
    local index found=
    for ((index = 0; index < ${#extra[@]}; index++)); do
        case ${extra[index]} in
            -e | --env)
                case ${extra[index + 1]:-} in
                    "$1" | "$1"=*) extra[index + 1]=$1=$2 && found=1 ;;
                esac
                ;;
            --env="$1" | --env="$1"=*) extra[index]=--env=$1=$2 && found=1 ;;
            -e"$1" | -e"$1"=*) extra[index]=-e$1=$2 && found=1 ;;
        esac
    done
    [ -n "$found" ] || extra+=(-e "$1=$2")
}

has_argument() { # PATTERN
    local argument
    for argument in ${extra[@]+"${extra[@]}"}; do
        # shellcheck disable=SC2254 # a pattern is meant
        case $argument in $1) return 0 ;; esac
    done
    return 1
}

route_to() { # ADDRESS: this host's own address on the way there
    ip -o route get "$1" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p' | head -n 1
}

nic_of() { # ADDRESS: the interface that holds it, nothing when none does
    ip -o addr show 2>/dev/null | awk -v ip="$1" '{ sub("/.*", "", $4); if ($4 == ip) { print $2; exit } }'
}

nics() { ip -o link show 2>/dev/null | awk -F': ' '{ sub("@.*", "", $2); print $2 }'; }

find_node_ip() {
    local head_ip way
    head_ip=$(getent ahosts "$head_address" 2>/dev/null | awk 'NR == 1 { print $1 }')
    way=$(route_to "${head_ip:-$head_address}")
    node_ip=$(given VLLM_HOST_IP || true)
    if [ -z "$node_ip" ]; then
        node_ip=$way
    elif [ -n "$way" ] && [ -z "$(nic_of "$node_ip")" ]; then
        # Two nodes with one address is how Ray comes to miss GPUs for ever.
        say "VLLM_HOST_IP $node_ip is on no interface of this host; $way is used instead"
        node_ip=$way
    fi
    [ -n "$node_ip" ] || fail 5 "the address of this host on the way to $head_address is not known" \
        "pass -e VLLM_HOST_IP=ADDRESS"
    nic=$(nic_of "$node_ip")
}

is_nic() { nics | grep -qxF -- "$1"; }

# NCCL takes a name as a prefix, so that eth1 also means eth10: `=` makes it exact.
exact() { # NAMES
    local name
    for name in ${1//,/ }; do
        is_nic "$name" || { printf '%s\n' "$1" && return; }
    done
    printf '=%s\n' "$1"
}

# Both are set on every node: the head's would fill what a worker lacks.
choose_nics() {
    local nccl gloo name
    [ -n "$(nics)" ] || return 0
    nccl=$(exact "$(given NCCL_SOCKET_IFNAME || printf '%s' "$nic")")
    gloo=$(given GLOO_SOCKET_IFNAME || printf '%s' "$nic")
    case $nccl in
        [=^]*) ;;
        *) nics | grep -q -- "^${nccl%%,*}" || no_such_nic NCCL_SOCKET_IFNAME "$nccl" ;;
    esac
    for name in ${gloo//,/ }; do
        is_nic "$name" || no_such_nic GLOO_SOCKET_IFNAME "$name"
    done
    set_variable NCCL_SOCKET_IFNAME "$nccl"
    set_variable GLOO_SOCKET_IFNAME "$gloo"
}

no_such_nic() { # VARIABLE NAME
    fail 5 "$1 names $2, and this host has no such interface" "name one of: $(nics | paste -sd ' ')"
}

add_gpus() {
    if has_argument '--gpus*' || has_argument '*nvidia.com/gpu*' || has_argument '--runtime*'; then
        return
    fi
    if [ ! -e "$root/dev/nvidiactl" ]; then
        say "no NVIDIA GPU here: the node joins without one"
    elif has_cdi; then
        options+=(--device nvidia.com/gpu=all)
    else
        options+=(--gpus all)
    fi
}

has_cdi() {
    compgen -G "$root/etc/cdi/*nvidia*" >/dev/null || compgen -G "$root/var/run/cdi/*nvidia*" >/dev/null || return 1
    case $(docker info --format '{{json .CDISpecDirs}}' 2>/dev/null) in
        *cdi*) ;;
        *) return 1 ;;
    esac
}

add_rdma() {
    grep -qs ACTIVE "$root"/sys/class/infiniband/*/ports/*/state || return 0
    options+=(--device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1)
}

add_limits() {
    local hard
    hard=$(ulimit -Hn)
    if [ "$hard" = unlimited ] || [ "$hard" -gt "$NOFILE" ]; then
        hard=$NOFILE
    fi
    options+=(--ulimit "nofile=$hard" --ulimit "stack=$STACK")
}

add_token() {
    local token=$HOME/.ray/auth_token
    if given RAY_AUTH_MODE >/dev/null; then
        return
    fi
    if [ -r "$token" ]; then
        options+=(-v "$token:/run/ray/auth_token:ro" -e RAY_AUTH_MODE=token
            -e RAY_AUTH_TOKEN_PATH=/run/ray/auth_token)
    else
        say "no $token: whoever reaches port $GCS_PORT can run code here"
        say "  (umask 077; mkdir -p ~/.ray; openssl rand -hex 32 > ~/.ray/auth_token), copied to all hosts, changes that"
        options+=(-e RAY_AUTH_MODE=disabled)
    fi
}

with_port() { # ADDRESS
    case $1 in
        *:*) printf '[%s]:%s' "$1" "$GCS_PORT" ;;
        *) printf '%s:%s' "$1" "$GCS_PORT" ;;
    esac
}

build_command() {
    local address
    options=(--rm --name "$NAME" --label "$LABEL=$role" --network host --ipc host --init
        -v "$hf_home:/root/.cache/huggingface")
    address=$(with_port "$head_address")
    find_node_ip
    choose_nics
    add_limits
    add_gpus
    add_rdma
    add_token
    set_variable VLLM_HOST_IP "$node_ip"
    set_variable RAY_ADDRESS "$address"
    if [ "$role" = head ]; then
        ray=(start --block --head "--port=$GCS_PORT" --disable-usage-stats)
    else
        ray=(start --block "--address=$address")
    fi
    ray+=("--node-ip-address=$node_ip")
    command=(docker run "${options[@]}" --entrypoint ray "${extra[@]}" "$image" "${ray[@]}")
}

require_docker() {
    command -v docker >/dev/null || fail 5 "docker is not installed here" "clusterctl bootstrap"
    docker version >/dev/null 2>&1 || fail 5 "the Docker daemon does not answer" "systemctl start docker"
}

# vLLM's images have had no Ray since 0.18.
require_ray() {
    docker image inspect "$image" >/dev/null 2>&1 || docker pull "$image" >&2 ||
        fail 5 "there is no image $image here, and it cannot be pulled"
    docker run --rm --network none --entrypoint python3 "$image" -c 'import ray' >/dev/null 2>&1 ||
        fail 5 "$image has no Ray" \
            "printf 'FROM $image\nRUN uv pip install --system \"ray[default]==2.56.1\"\n' | docker build -t vllm-with-ray -, then use vllm-with-ray, on every host"
}

# A container of that name may be somebody else's.
require_free_name() {
    local state
    state=$(docker inspect --format "{{.State.Status}} {{index .Config.Labels \"$LABEL\"}}" "$NAME" 2>/dev/null) || return 0
    case $state in
        "running "?*) fail 7 "a node runs here already" "docker stop $NAME" ;;
        *" "head | *" "worker) docker rm "$NAME" >/dev/null ;;
        *) fail 7 "a container called $NAME is here, and it is not of this script" "docker rename $NAME OTHER" ;;
    esac
}

stop_own() {
    [ ! -s "$cidfile" ] || docker stop -t 30 "$(cat "$cidfile")" >/dev/null 2>&1 || true
    rm -rf "$(dirname "$cidfile")"
}

run_node() {
    cidfile=$(mktemp -d)/id
    trap stop_own EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # In the background, since bash runs no trap while it waits for a foreground command.
    docker run --cidfile "$cidfile" "${command[@]:2}" &
    wait "$!"
}

[ $# -ge 4 ] || usage "four arguments are needed, and there are $#"
image=$1
head_address=$2
role=${3#--}
hf_home=$4
case $3 in
    --head | --worker) ;;
    *) usage "the third argument is --head or --worker, not $3" ;;
esac
shift 4
extra=("$@")

build_command
if [ -n "$dry_run" ]; then
    printf '%s\n' "${command[@]}"
    exit
fi
require_docker
require_ray
require_free_name
run_node
