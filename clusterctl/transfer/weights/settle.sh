#!/bin/sh
# The tree that grew in "$1" becomes the model directory "$2", in one step. On stdin, fields
# parted by tabs:
#   same PATH PATH   the second file has the content of the first
#   link TARGET PATH a symbolic link
#   file SIZE PATH   what must be there by now
#   manifest         and then its text, to the end

set -e
umask 022
TAB=$(printf '\t')
MANIFEST=.clusterctl-model.json
cd "$1"
while IFS=$TAB read -r word first second; do
    case $word in
    same)
        mkdir -p "$(dirname "./$second")"
        ln -f "./$first" "./$second" 2>/dev/null || cp -p "./$first" "./$second"
        ;;
    link)
        mkdir -p "$(dirname "./$second")"
        ln -sfn "$first" "./$second"
        ;;
    file)
        size=$(stat -c %s "./$second" 2>/dev/null || echo none)
        [ "$size" = "$first" ] && continue
        echo "$second is incomplete: it has $size of $first bytes" >&2
        exit 1
        ;;
    manifest)
        cat >"$MANIFEST.new"
        break
        ;;
    esac
done

# A Hugging Face cache keeps its other snapshots, and the blobs that they point to.
if [ -d snapshots ] && [ -d "$2/snapshots" ]; then
    (cd "$2" && find . \( -type f -o -type l \) ! -name "$MANIFEST") | while IFS= read -r path; do
        [ -e "$path" ] || [ -L "$path" ] && continue
        mkdir -p "$(dirname "$path")"
        cp -al "$2/$path" "$path" 2>/dev/null || cp -a "$2/$path" "$path"
    done
fi

# The manifest says that all is there: not before it is on the disk.
sync -f . 2>/dev/null || sync
mv "$MANIFEST.new" "$MANIFEST"
chmod 755 .
mkdir -p "$(dirname "$2")"
rm -rf "$1.old"
if [ ! -e "$2" ] && [ ! -L "$2" ]; then
    mv "$1" "$2"
elif mv --exchange -T "$1" "$2" 2>/dev/null; then
    mv "$1" "$1.old"
else
    # Before coreutils 9.5 (Debian 13), and on NFS, there is an instant with neither version in
    # place. Who opens a model just then is told that it is not there, and finds it a moment later;
    # who has its files open keeps them either way.
    mv "$2" "$1.old"
    mv "$1" "$2"
fi
rm -rf "$1.old"

# Files that the old tree had too were changed just now, as their links became fewer: the manifest
# counts as written after all of them.
touch "$2/$MANIFEST"

# Other versions of it that were begun and never finished.
h='[0-9a-f]'
for left in "${1%.*}".$h$h$h$h$h$h$h$h$h$h$h$h; do
    rm -rf "$left" "$left.old"
done
