#!/bin/sh
# The files of the model directory "$1" that an engine may read, and what is known of their bytes:
# the manifest in "$2", and the hashes kept in the file "$3". Fields are parted by tabs:
#   file STAMP CHANGED SIZE PATH   CHANGED: the later of its last write and its last change of any kind
#   sealed CHANGED                 of the manifest, whose lines follow, prefixed by '|'
#   kept SHA256 STAMP PATH
# Reads no weights, and changes nothing.

TAB=$(printf '\t')
TZ=UTC0
export TZ
cd "$1" 2>/dev/null || exit 0

find -L . -maxdepth 2 -name '.?*' -prune -o -type f -size +0 \( -name '*.safetensors' -o -name '*.bin' \
    -o -name '*.gguf' -o -name '*.pt' -o -name '*.json' -o -name '*.model' -o -name '*.txt' \
    -o -name '*.jinja' -o -name '*.tiktoken' -o -name '*.py' \) \
    -exec stat -L -c "%i:%s:%y:%z$TAB%y$TAB%z$TAB%s$TAB%n" {} + |
    while IFS=$TAB read -r stamp written changed size path; do
        later=$(printf '%s\n%s\n' "$written" "$changed" | sort | tail -n 1)
        printf "file$TAB%s$TAB%s$TAB%s$TAB%s\n" "$stamp" "$later" "$size" "${path#./}"
    done
if [ -f "$2/.clusterctl-model.json" ]; then
    printf "sealed$TAB%s\n" "$(stat -c %y "$2/.clusterctl-model.json")"
    sed 's/^/|/' "$2/.clusterctl-model.json"
fi
[ -f "$3" ] && sed "s/^/kept$TAB/" "$3"
exit 0
