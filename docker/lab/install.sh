#!/bin/sh
# Installs one layer of the lab image into the running root: system, vllm or ray.
# The Dockerfile and clusterctl's own builder (no engine needed) both run it. Where pip gets
# its wheels from is up to its environment (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL, ...).
set -eu

build=$(cd "$(dirname "$0")" && pwd)
venv=/opt/venv
stamp=$(mktemp)

install_system() {
    apt-get update
    grep -v '^#' "$build/packages.txt" |
        DEBIAN_FRONTEND=noninteractive xargs apt-get install --yes --no-install-recommends
    rm -rf /var/lib/apt/lists/*
}

install_vllm() {
    python3 -m venv "$venv"
    pip_install --requirement "$build/vllm.lock"
    # Building writes beside the sources, which may be mounted read-only.
    sources=$(mktemp -d)
    cp -r "$build/platform-plugin" "$build/vllm-metadata" "$sources"
    pip_install --no-build-isolation "$sources/platform-plugin" "$sources/vllm-metadata"
    rm -rf "$sources"
    compile
}

install_ray() {
    pip_install --requirement "$build/ray.lock"
    compile
}

# The lock files are complete: dependencies left out are left out on purpose.
pip_install() {
    "$venv/bin/pip" install --quiet --no-deps --no-compile --no-cache-dir \
        --disable-pip-version-check --root-user-action=ignore "$@"
}

# Bytecode that holds whatever the files' times are, so that images are alike and containers
# start fast. Only for what this layer brought; a few test files are in no valid Python.
compile() {
    find "$venv/lib" -name '*.py' -cnewer "$stamp" |
        "$venv/bin/python3" -m compileall -q -j 0 --invalidation-mode unchecked-hash -i - \
            >/dev/null || :
}

case ${1:-} in
    system | vllm | ray) "install_$1" ;;
    *)
        echo "usage: install.sh system|vllm|ray" >&2
        exit 2
        ;;
esac
rm -f "$stamp"
