#!/usr/bin/env bash
# Makes .venv with clusterctl in it. With --lab also installs what the lab and the tests need
# from this machine's own package sources (root on Debian or Ubuntu). A second run is instant.
#
#     PYTHON=python3.13 scripts/setup.sh   with that Python, instead of the oldest that will do
set -euo pipefail
cd "$(dirname "$0")/.."

lab_packages=(
    debootstrap systemd-container iproute2 apt-utils dpkg-dev openssh-server openssh-client
    procps iptables sudo curl
)
test_packages=(
    docker.io docker-registry busybox-static fish git tcsh zstd
    dnf createrepo-c rpm gpg gpg-agent nftables prometheus chromium
)

say() { printf '%s\n' "setup: $*" >&2; }

fail() { # CAUSE FIX
    say "$1"
    printf '  fix: %s\n' "$2" >&2
    exit 5
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        sudo -- "$@"
    else
        fail "only root can do this: $*" "run scripts/setup.sh as root, or where sudo can ask you"
    fi
}

# The first proxy of the environment that takes no connection, said in one line.
dead_proxy() {
    local name place
    command -v timeout >/dev/null || return 1 # a Mac has none
    for name in https_proxy HTTPS_PROXY http_proxy HTTP_PROXY all_proxy ALL_PROXY; do
        place=${!name:-}
        place=${place#*://}
        place=${place#*@} # what is before it may be a password
        place=${place%%/*}
        case $place in
            *:*) ;;
            *) continue ;;
        esac
        # shellcheck disable=SC2016 # the other bash expands it
        timeout 5 bash -c ': <"/dev/tcp/$1/$2"' _ "${place%:*}" "${place##*:}" 2>/dev/null || {
            printf '%s names a proxy at %s, and nothing answers there' "$name" "$place"
            return
        }
    done
    return 1
}

# What downloads. It may go well without the proxy (no_proxy, files on this machine), so that a
# dead one is a warning first, and the cause only of a failure.
download() {
    local proxy
    if proxy=$(dead_proxy); then
        [ "${PIP_RETRIES:-}" = 0 ] || say "warning: $proxy"
        export PIP_RETRIES=0 # of no use, and minutes
    fi
    "$@" || fail "nothing could be downloaded${proxy:+: $proxy}" \
        "${proxy:+unset ${proxy%% *}, or correct it; or }see why above, and run it again"
}

install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        fail "these are missing, and this is not Debian or Ubuntu: ${missing[*]}" \
            "install what brings the same commands"
    say "installing ${missing[*]}"
    download as_root apt-get update -qq
    # The engine and sshd are for tests and lab hosts: nothing may start on this machine.
    local policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] || {
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    }
    download as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq -o DPkg::Lock::Timeout=600 --no-install-recommends \
        "${missing[@]}" >/dev/null
}

# The lab goes by where apt gets this machine's packages from, which apt knows from its lists.
ensure_package_lists() {
    [ -n "$(apt-get indextargets 'Created-By: Packages')" ] || download as_root apt-get update -qq
}

make_venv() {
    local stamp wanted locked=$1 python made source
    stamp=.venv/.made-from
    source=$(cat pyproject.toml requirements/*.txt | cksum) # POSIX: this machine may be a Mac
    wanted="$locked $source"
    made=$(cat "$stamp" 2>/dev/null || true)
    # What the tests need includes what users need.
    [ "$made" != "$wanted" ] && [ "$made" != "dev $source" ] || return 0
    [ -w . ] || fail "$PWD cannot be written to by $(id -un)" "clone it to a directory of your own"
    python=$(find_python) || {
        install_packages python3 python3-venv
        python=$(find_python) ||
            fail "clusterctl needs Python 3.11 or newer with venv" "apt-get install python3-venv"
    }
    say "making .venv with $python"
    # What a killed run was making may lack any of its files.
    [ ! -e .venv/.unfinished ] || rm -rf .venv
    [ -x .venv/bin/python ] || {
        mkdir -p .venv && touch .venv/.unfinished
        "$python" -m venv .venv
    }
    local pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
    download "${pip[@]}" --require-hashes --requirement "requirements/$locked.txt"
    download "${pip[@]}" --no-deps --editable .
    printf '%s' "$wanted" >"$stamp"
    rm -f .venv/.unfinished
}

case "${1:-}" in
    --lab) install_packages "${lab_packages[@]}"; ensure_package_lists; make_venv run ;;
    --tests)
        install_packages "${lab_packages[@]}" "${test_packages[@]}"
        ensure_package_lists
        make_venv dev
        ;;
    '') make_venv run ;;
    *) say "usage: scripts/setup.sh [--lab | --tests]"; exit 2 ;;
esac
