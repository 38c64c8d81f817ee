#!/bin/sh
# What lies under the models directory "$1": free space, models with the state of their files,
# and what is on its way, `idle` where nobody has written to it for "$2" minutes; of what was hashed on
# this host (the directory "$3", see keep.sh) and not changed since, the sha256. Reads only, and no file's
# content but that of manifests. Fields are parted by tabs; a manifest's lines are prefixed by '|', so that none is taken for a record.

TAB=$(printf '\t')
MANIFEST=.clusterctl-model.json
INCOMING=.clusterctl-incoming
models=$1 kept_in=$3

# The nearest directory that is there: the models directory may be made only by the first push.
there=$1
while [ ! -d "$there" ] && [ "$there" != / ]; do there=$(dirname "$there"); done
free=$(df -Pk "$there" 2>/dev/null | awk 'NR == 2 { print $4 }')
echo "free$TAB${free:-0}"
[ -w "$there" ] || echo "readonly$TAB$there"
cd "$1" 2>/dev/null || exit 0

files() {
    (
        cd "$1" || return
        find -L . \( -name .git -o -name .cache \) -prune -o \
            -type f ! -name "$MANIFEST" -exec stat -L -c "file$TAB%s$TAB%Y$TAB%n" {} +
    )
}

cache_files() {
    (
        cd "$1" || return
        find . -type f ! -name "$MANIFEST" -exec stat -c "file$TAB%s$TAB%Y$TAB%n" {} +
        find . -type l | while IFS= read -r link; do
            printf "link$TAB%s$TAB%s\n" "$link" "$(readlink "$link")"
        done
    )
}

hashed() {
    kept=$kept_in/$(printf '%s' "${models#/}/$1" | tr / @)
    [ -f "$kept" ] || return
    while IFS=$TAB read -r sum stamp path; do
        [ "$(TZ=UTC0 stat -L -c '%i:%s:%y:%z' "$1/$path" 2>/dev/null)" = "$stamp" ] &&
            printf "hashed$TAB%s$TAB%s\n" "$sum" "$path"
    done <"$kept"
}

record() {
    echo "tree$TAB$1"
    if [ -d "$1/snapshots" ]; then cache_files "$1"; else files "$1"; fi
    hashed "$1"
    if [ -f "$1/$MANIFEST" ]; then
        echo "sealed$TAB$(stat -c %Y "$1/$MANIFEST")"
        sed 's/^/|/' "$1/$MANIFEST"
    fi
    echo end
}

is_model() {
    [ -d "$1" ] || return 1
    [ -f "$1/$MANIFEST" ] || [ -f "$1/config.json" ] || [ -d "$1/snapshots" ]
}

for one in *; do
    if is_model "$one"; then
        record "$one"
        continue
    fi
    for two in "$one"/* "$one"/hub/models--*; do
        is_model "$two" && record "$two"
    done
done
for one in "$INCOMING"/*/; do
    [ -d "$one" ] || continue
    one=${one%/}
    used=$(du -sk "$one" | cut -f 1)
    fresh=$(find "$one" -mmin "-$2" 2>/dev/null) && [ -z "$fresh" ] && state=idle || state=fresh
    echo "incoming$TAB${one##*/}$TAB$used$TAB$state"
done
exit 0
