#!/bin/sh
# What this host holds of models. Reads only, and no file's content but that of manifests. Files that
# links lead to are told as well, directories are not. Run as
#   look MODELS MINUTES KEPT   all models below the directory MODELS; KEPT: directory of keep.sh's files
#   held MODEL ROOT FILE       the model MODEL, whose manifest is in ROOT and whose hashes are in FILE
# Tells, with tabs between the fields:
#   free KIB, readonly DIRECTORY
#   tree PATH   then the records of a model, and `end`:
#     file STAMP WRITTEN CHANGED SIZE PATH   times of the last write and of the last change of any kind
#     link PATH TARGET
#     kept SHA256 STAMP PATH                 hashed on this host; right while the file has this stamp
#     sealed WRITTEN                         of the manifest, whose lines follow, prefixed by '|'
#   incoming NAME KIB STATE   on its way; `idle` where nobody has written to it for MINUTES

TAB=$(printf '\t')
TZ=UTC0
export TZ
MANIFEST=.clusterctl-model.json
INCOMING=.clusterctl-incoming
DEPTH=99 # of directories whose files are listed
FILE="file$TAB%i:%s:%y:%z$TAB%y$TAB%z$TAB%s$TAB%n"

files() {
    (
        # shellcheck disable=SC2154  # set by reach
        reach "$1" && [ "$name" = . ] || return
        if [ -d snapshots ]; then
            find . -type f ! -name "$MANIFEST" -exec stat -c "$FILE" {} +
            find . -type l | while IFS= read -r link; do
                printf "link$TAB%s$TAB%s\n" "$link" "$(readlink "$link")"
            done
        else
            find . -maxdepth "$DEPTH" \( -name .git -o -name .cache \) -prune -o \
                -xtype f ! -name "$MANIFEST" -exec stat -L -c "$FILE" {} +
        fi
    )
}

# The model "$1" in the directory "$4", whose manifest is in the directory "$2" and whose hashes are in
# the file "$3".
record() {
    echo "tree$TAB$1"
    files "$4"
    [ -f "$3" ] && sed "s/^/kept$TAB/" "$3"
    if [ -f "$2/$MANIFEST" ]; then
        echo "sealed$TAB$(stat -c %y "$2/$MANIFEST")"
        show "$2/$MANIFEST" | sed 's/^/|/'
    fi
    echo end
}

# An engine reads no files further below, and a directory of checkpoints may hold many.
if [ "$0" = held ]; then
    DEPTH=2
    record "$1" "$2" "$3" "$1"
    exit 0
fi

# The nearest directory that is there: the models directory may be made only by the first push.
there=$1
while [ ! -d "$there" ] && [ "$there" != / ]; do there=$(dirname "$there"); done
free=$(df -Pk "$there" 2>/dev/null | awk 'NR == 2 { print $4 }')
echo "free$TAB${free:-0}"
[ -w "$there" ] || echo "readonly$TAB$there"
cd "$1" 2>/dev/null || exit 0

model() {
    [ -d "$1" ] || return 1
    [ -f "$1/$MANIFEST" ] || [ -f "$1/config.json" ] || [ -d "$1/snapshots" ] || return 1
    record "$1" "$models/$1" "$kept/$(printf '%s' "${models#/}/$1" | tr / @)" "$models/$1"
}

models=$1 kept=$3
for one in *; do
    model "$one" && continue
    for two in "$one"/* "$one"/hub/models--*; do
        model "$two"
    done
done
for one in "$INCOMING"/*/; do
    [ -d "$one" ] && [ ! -L "$INCOMING" ] || continue
    one=${one%/}
    used=$(du -sk "$one" 2>/dev/null | cut -f 1)
    [ -n "$used" ] || continue # moved to its name since it was listed
    fresh=$(find "$one" -mmin "-$2" 2>/dev/null) && [ -z "$fresh" ] && state=idle || state=fresh
    echo "incoming$TAB${one##*/}$TAB$used$TAB$state"
done
exit 0
