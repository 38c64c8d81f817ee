#!/bin/sh
# What lies in each of the directories given as arguments: one record a model directory found.
# A Hugging Face cache entry (models--ORG--NAME) is looked through to its newest snapshot.
# Reads only. Every line of a file's content is prefixed by '|', so that no content can be
# taken for a record.

weights() {
    count=0 pointers=0
    for file in "$1"/*.safetensors "$1"/*.bin "$1"/*.gguf "$1"/*.pt; do
        [ -f "$file" ] || continue
        case ${file##*/} in training_args.bin) continue ;; esac
        size=$(stat -L -c %s "$file" 2>/dev/null || echo 0)
        # What git clones without git-lfs: 130 bytes that begin with 'version https://git-lfs'.
        if [ "$size" -lt 1024 ] &&
            [ "$(show "$file" | head -c 15 | tr -d '\000')" = "version https:/" ]; then
            pointers=$((pointers + 1))
            continue
        fi
        count=$((count + 1))
    done
    echo "weights $count $pointers"
}

missing_shards() {
    index=$1/model.safetensors.index.json
    [ -f "$index" ] || return 0
    show "$index" | grep -o '"[^"/]*\.safetensors"' | tr -d '"' | sort -u | while read -r shard; do
        [ -f "$1/$shard" ] || echo "missing $shard"
    done
}

chat_template() {
    if [ -f "$1/chat_template.jinja" ] || [ -f "$1/chat_template.json" ] ||
        show "$1/tokenizer_config.json" | grep -q '"chat_template"'; then
        echo "chat-template"
    fi
}

record() {
    echo "directory $1"
    weights "$1"
    missing_shards "$1"
    chat_template "$1"
    [ -e "$1/RANDOM_WEIGHTS" ] && echo "random-weights"
    # shellcheck disable=SC2154  # reach.sh sets name
    if (reach "$1/config.json" && [ -f "./$name" ] && [ -r "./$name" ]); then
        show "$1/config.json" | sed 's/^/|/'
        echo
        if [ -f "$1/hf_quant_config.json" ]; then
            show "$1/hf_quant_config.json" | sed 's/^/+/'
            echo
        fi
    elif [ -e "$1/config.json" ]; then
        echo "unreadable config.json"
    fi
    echo "end"
}

newest_snapshot() {
    commit=$(show "$1/refs/main")
    if [ -n "$commit" ] && [ -d "$1/snapshots/$commit" ]; then
        echo "$1/snapshots/$commit"
        return
    fi
    # shellcheck disable=SC2012  # names are commit hashes
    ls -t "$1/snapshots" 2>/dev/null | head -n 1 | sed "s|^|$1/snapshots/|"
}

for candidate in "$@"; do
    if [ -d "$candidate/snapshots" ]; then
        snapshot=$(newest_snapshot "$candidate")
        [ -n "$snapshot" ] && record "$snapshot"
    elif [ -d "$candidate" ]; then
        record "$candidate"
    fi
done
exit 0
