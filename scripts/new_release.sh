#!/bin/sh
# Takes a new release of vLLM: reads from its wheel what clusterctl knows about a release, prints
# what changed, compares the memory formulas with its code where an environment has it, and runs the
# tests that depend on the tables.
#
#   scripts/new_release.sh 0.34.0 [PYTHON_WITH_THAT_VLLM]
#
# PYTHON_WITH_THAT_VLLM needs no GPU: the wheel with its requirements in a virtual environment.
# PUBLISHED: a directory with ORG--NAME_config.json and ORG--NAME_hf_quant_config.json, such as
# model_configs of github.com/ai-dynamo/aiconfigurator. CONFIGS: where both kinds of config.json go,
# the published ones and those of defaults; further ones may be there. ANSWERS: what vLLM said.
set -eu
cd "$(dirname "$0")/.."

version=${1:?usage: scripts/new_release.sh VERSION [PYTHON_WITH_THAT_VLLM]}
engine=${2:-}
wheels=${WHEELS:-$(mktemp -d)}

if ! ls "$wheels"/vllm-"$version"-*.whl >/dev/null 2>&1; then
    .venv/bin/python -m pip download --quiet --no-deps --dest "$wheels" "vllm==$version"
fi
status=0
.venv/bin/python -m scripts.vllm_release "$wheels"/vllm-"$version"-*.whl || status=1

if [ -n "$engine" ]; then
    configs=${CONFIGS:-$(mktemp -d)}
    for file in "${PUBLISHED:-/nowhere}"/*_config.json; do
        [ -e "$file" ] || continue
        name=$(basename "$file") kind=config.json
        case $name in *_hf_quant_config.json) kind=hf_quant_config.json ;; esac
        mkdir -p "$configs/${name%_"$kind"}"
        cp "$file" "$configs/${name%_"$kind"}/$kind"
    done
    HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES="" "$engine" scripts/default_configs.py "$configs"
    answers=${ANSWERS:-$(mktemp -d)}
    .venv/bin/python -m scripts.prove_formula "$configs" "$answers" --ask "$engine" || status=1
fi
.venv/bin/python -m scripts.new_failures "$wheels"/vllm-"$version"-*.whl || status=1
.venv/bin/pytest -q tests/unit/serving tests/unit/models tests/unit/planning || status=1
exit "$status"
