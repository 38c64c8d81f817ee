#!/usr/bin/env bash
# One Ray node in a container on this host, started by hand.
#
#   run_cluster.sh IMAGE HEAD_ADDRESS --head|--worker HF_HOME [further arguments of docker run]
#
# Run it on every host, with the same IMAGE and HEAD_ADDRESS, --head on one of them. It stays in
# the foreground; ending it ends the node. The container is called `node`: `docker exec -it node
# bash`, then `vllm serve ... --distributed-executor-backend ray` on the head.
#
# The node's address is VLLM_HOST_IP if given with -e or --env-file, else the one that leads to
# HEAD_ADDRESS. With a file ~/.ray/auth_token, the same on all hosts, nobody without it can use the
# cluster. Several nodes on one host, for tests, each need a name, an address and GPUs:
# --name node2 -e VLLM_HOST_IP=ADDRESS --gpus device=1
#
#   RUN_CLUSTER_DRY_RUN=1   print the docker command, one argument a line, and do nothing
#   RUN_CLUSTER_ROOT=DIR    look below DIR for HF_HOME, /dev, /proc, /run, /sys, /etc/cdi and
#                           /var/run/cdi (for tests)
#
# Exit status, as clusterctl's: 2 arguments, 4 the head is not reached, 5 what this host or the
# image lacks, 6 the node ended, 7 another node is in the way, 130 and 143 after a signal.
set -euo pipefail

LABEL=clusterctl.by-hand
ADDRESS_LABEL=clusterctl.by-hand.address
GCS_PORT=6379
NOFILE=1048576
NOFILE_NEEDED=4096 # with fewer Ray does not live
RAY_WITH_TOKENS=2.52
ANSWER_LIMIT=30 # seconds
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

# What the caller's `docker run` arguments set: NAME=VALUE, or NAME for the value that it has here.
# As Docker has it, a later one wins, and any of -e over those of files.
read_settings() {
    local index argument next file line of_flags=() files=()
    for ((index = 0; index < ${#extra[@]}; index++)); do
        argument=${extra[index]} next=${extra[index + 1]:-}
        case $argument in
            -e | --env) of_flags+=("$next") ;;
            --env=*) of_flags+=("${argument#--env=}") ;;
            -e?*) of_flags+=("${argument#-e}") ;;
            --env-file) files+=("$next") ;;
            --env-file=*) files+=("${argument#--env-file=}") ;;
            --name) name=$next ;;
            --name=*) name=${argument#--name=} ;;
        esac
    done
    for file in ${files[@]+"${files[@]}"}; do
        [ -r "$file" ] || fail 2 "the file of --env-file $file cannot be read" "ls -l $file"
        while read -r line || [ -n "$line" ]; do
            case $line in '' | '#'*) ;; *) settings+=("$line") ;; esac
        done <"$file"
    done
    settings+=(${of_flags[@]+"${of_flags[@]}"})
}

# What they say of one variable; false when they say nothing.
given() { # NAME
    local setting value found=
    for setting in ${settings[@]+"${settings[@]}"}; do
        case $setting in
            "$1"=*) value=${setting#*=} found=1 ;;
            "$1") value=${!1:-} found=1 ;;
        esac
    done
    [ -n "$found" ] && printf '%s\n' "$value"
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

# A pipe is read to its end throughout: what ends early ends the writer by SIGPIPE, and the script
# with it.
nic_of() { # ADDRESS: the interface that holds it, nothing when none does
    ip -o addr show | awk -v ip="$1" '{ sub("/.*", "", $4); if ($4 == ip && !found++) print $2 }'
}

find_node_ip() {
    local head_ip way
    node_ip=$(given VLLM_HOST_IP || true)
    if ! command -v ip >/dev/null; then
        [ -n "$node_ip" ] || fail 5 "this host has no command \`ip\` to find its address with" \
            "apt-get install iproute2 (dnf install iproute), or pass -e VLLM_HOST_IP=ADDRESS"
        say "this host has no command \`ip\`: NCCL and Gloo choose their interfaces themselves"
        return
    fi
    nics=$(ip -o link show | awk -F': ' '{ sub("@.*", "", $2); print $2 }')
    head_ip=$(getent ahosts "$head_address" | awk 'NR == 1 { print $1 }') ||
        fail 4 "this host knows no address of the head, $head_address" \
            "correct HEAD_ADDRESS, or give the head's IP address"
    way=$(ip -o route get "$head_ip" 2>/dev/null | sed -n '1s/.* src \([^ ]*\).*/\1/p') || way=
    [ -n "$way" ] ||
        fail 4 "no route leads from this host to the head, $head_ip" "ip route get $head_ip"
    if [ -z "$node_ip" ]; then
        # Debian's installer gives a host's own name 127.0.1.1.
        case $head_ip in
            "$head_address") ;;
            127.* | ::1)
                fail 5 "$head_address is $head_ip here, where no other host reaches it" \
                    "give the head's IP address as HEAD_ADDRESS, on every host"
                ;;
        esac
        node_ip=$way
    elif [ -z "$(nic_of "$node_ip")" ]; then
        # Two nodes with one address is how Ray comes to miss GPUs for ever.
        say "VLLM_HOST_IP $node_ip is on no interface of this host; $way is used instead"
        node_ip=$way
    fi
    nic=$(nic_of "$node_ip")
}

is_nic() { grep -qxF -- "$1" <<<"$nics"; }

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
    [ -n "$nics" ] || return 0
    nccl=$(exact "$(given NCCL_SOCKET_IFNAME || printf '%s' "$nic")")
    gloo=$(given GLOO_SOCKET_IFNAME || printf '%s' "$nic")
    case $nccl in
        [=^]*) ;;
        *) grep -q -- "^${nccl%%,*}" <<<"$nics" || no_such_nic NCCL_SOCKET_IFNAME "$nccl" ;;
    esac
    for name in ${gloo//,/ }; do
        is_nic "$name" || no_such_nic GLOO_SOCKET_IFNAME "$name"
    done
    set_variable NCCL_SOCKET_IFNAME "$nccl"
    set_variable GLOO_SOCKET_IFNAME "$gloo"
}

no_such_nic() { # VARIABLE NAME
    fail 5 "$1 names $2, and this host has no such interface" "name one of: ${nics//$'\n'/ }"
}

add_gpus() {
    if has_argument '--gpus*' || has_argument '*nvidia.com/gpu*' || has_argument '--runtime*'; then
        return
    fi
    if [ ! -e "$root/dev/nvidiactl" ]; then
        say "no NVIDIA GPU here: the node joins without one"
    elif has_cdi; then
        options+=(--device nvidia.com/gpu=all)
        all_gpus=1
    else
        options+=(--gpus all)
        all_gpus=1
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

# A container may open no more files than the daemon that starts it, whatever this shell may.
add_limits() {
    local pid hard
    pid=$(cat "$root/run/docker.pid" 2>/dev/null || true)
    hard=$(awk '/^Max open files/ { print $5 }' "$root/proc/$pid/limits" 2>/dev/null || true)
    hard=${hard:-$(ulimit -Hn)}
    if [ "$hard" = unlimited ] || [ "$hard" -gt "$NOFILE" ]; then
        hard=$NOFILE
    fi
    [ "$hard" -ge "$NOFILE_NEEDED" ] ||
        fail 5 "Docker may open $hard files here, and Ray needs $NOFILE_NEEDED" \
            "set LimitNOFILE=$NOFILE in docker.service: systemctl edit docker, systemctl restart docker"
    options+=(--ulimit "nofile=$hard" --ulimit "stack=$STACK")
}

add_token() {
    local token=$HOME/.ray/auth_token
    if auth=$(given RAY_AUTH_MODE); then
        return
    fi
    if [ -r "$token" ]; then
        auth=token
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
    find_node_ip
    options=(--rm --name "$name" --label "$LABEL=$role" --label "$ADDRESS_LABEL=$node_ip"
        --network host --ipc host --init -v "$hf_home:/root/.cache/huggingface"
        # As clusterctl has it: docs/security.md
        --cap-drop ALL --cap-add DAC_OVERRIDE
        --security-opt no-new-privileges --pids-limit 32768)
    address=$(with_port "$head_address")
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

# Docker itself would make an empty directory of what is not there, or a volume of that name.
require_model_directory() {
    case $hf_home in /*) ;; *) hf_home=$PWD/$hf_home ;; esac
    [ -d "$root$hf_home" ] || fail 5 "this host has no directory $hf_home" \
        "copy the models there, or, for vLLM to download them: mkdir -p $hf_home"
}

require_docker() {
    local words
    command -v docker >/dev/null || fail 5 "docker is not installed here" "clusterctl bootstrap"
    words=$(timeout "$ANSWER_LIMIT" docker version 2>&1 >/dev/null) && return
    [ $? -ne 124 ] || words="nothing came within $ANSWER_LIMIT s"
    case $words in
        *"permission denied"*)
            fail 5 "the user $(id -un) may not use Docker here: $words" \
                "sudo usermod -aG docker $(id -un), then log in again"
            ;;
        *) fail 5 "the Docker daemon does not answer: $words" "systemctl restart docker" ;;
    esac
}

require_image() {
    docker image inspect "$image" >/dev/null 2>&1 || docker pull "$image" >&2 ||
        fail 5 "there is no image $image here, and Docker could not pull it, as it says above" \
            "where no registry is in reach, on a host that has it: docker save $image | ssh $HOSTNAME docker load"
}

# vLLM's images have had no Ray since 0.18.
require_ray() {
    local found
    found=$(docker run --rm --network none --entrypoint python3 "$image" \
        -c 'import ray; print(ray.__version__)' 2>&1) || case $? in
        125) fail 6 "Docker starts no container of $image: $found" "docker run --rm --entrypoint python3 $image" ;;
        *)
            fail 5 "$image has no Ray" \
                "printf 'FROM $image\nRUN uv pip install --system \"ray[default]==2.60.0\"\n' | docker build -t vllm-with-ray -, then use vllm-with-ray, on every host"
            ;;
    esac
    found=${found##*$'\n'}
    if [ "$auth" = token ] && ! printf '%s\n' "$RAY_WITH_TOKENS" "$found" | sort -VC; then
        fail 5 "$image has Ray $found, which knows no token: whoever reaches port $GCS_PORT could run code here" \
            "use an image with Ray $RAY_WITH_TOKENS or later, or, in a network of your own, pass -e RAY_AUTH_MODE=disabled"
    fi
}

# Docker may be removing it already, when it was stopped just now.
remove_ended() {
    local _
    for _ in {1..50}; do
        docker rm "$name" >/dev/null 2>&1 && return
        docker container inspect "$name" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    fail 7 "the container $name of a node that ended is not removed" "docker rm -f $name"
}

# A container of that name may be somebody else's.
require_free_name() {
    local state
    state=$(docker container inspect --format "{{.State.Status}} {{index .Config.Labels \"$LABEL\"}}" "$name" 2>/dev/null) || return 0
    case $state in
        "running "?*)
            fail 7 "a node runs here already, $name" \
                "docker stop $name, or, for one more: --name node2 -e VLLM_HOST_IP=ADDRESS --gpus device=N"
            ;;
        *" "head | *" "worker) remove_ended ;;
        *) fail 7 "a container called $name is here, and it is not of this script" "docker rename $name OTHER" ;;
    esac
}

# Nodes of one host share its ports, addresses and GPUs.
look_at_other_nodes() {
    local others other its_role its_address
    others=$(docker ps --filter "label=$LABEL" \
        --format "{{.Names}} {{.Label \"$LABEL\"}} {{.Label \"$ADDRESS_LABEL\"}}")
    [ -n "$others" ] || return 0
    while read -r other its_role its_address; do
        [ "$role $its_role" != "head head" ] ||
            fail 7 "a head runs here already, $other, on port $GCS_PORT" "docker stop $other, or --worker"
        [ "$its_address" != "$node_ip" ] ||
            say "$other has the address $node_ip too: vLLM puts no model on both; pass another one of this host, -e VLLM_HOST_IP=ADDRESS"
        [ -z "$all_gpus" ] ||
            say "$other may use the same GPUs: give each node its own, --gpus device=N"
    done <<<"$others"
}

stop_own() {
    [ ! -s "$cidfile" ] || docker stop -t 30 "$(cat "$cidfile")" >/dev/null 2>&1 || true
    rm -rf "$(dirname "$cidfile")"
}

run_node() {
    local status=0
    cidfile=$(mktemp -d)/id
    trap stop_own EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # In the background, since bash runs no trap while it waits for a foreground command.
    docker run --cidfile "$cidfile" "${command[@]:2}" &
    wait "$!" || status=$?
    case $status in
        0 | 137 | 143) return "$status" ;; # docker stop
        125 | 126 | 127) fail 6 "Docker did not start the node, as it says above" "clusterctl check" ;;
    esac
    # Ray ends with 1 when it is stopped, too.
    if [ "$role" = head ]; then
        fail 6 "the node ended, Ray's status was $status; its words are above" \
            "unless it was stopped: ss -ltn shows whether port $GCS_PORT is taken"
    fi
    fail 6 "the node ended, Ray's status was $status; its words are above" \
        "unless it was stopped: nc -zv $head_address $GCS_PORT shows whether the head is there; it starts first"
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
settings=()
name=node
nics=
nic=
all_gpus=

read_settings
require_model_directory
build_command
if [ -n "$dry_run" ]; then
    printf '%s\n' "${command[@]}"
    exit
fi
require_docker
require_image
require_ray
require_free_name
look_at_other_nodes
run_node
