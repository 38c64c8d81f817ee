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
enter "${1%/*}"
staged=${1##*/}
cd "./$staged"
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
    exec 6<.
    (reach "$2" && find . \( -type f -o -type l \) ! -name "$MANIFEST") | while IFS= read -r path; do
        [ -e "$path" ] || [ -L "$path" ] && continue
        mkdir -p "$(dirname "$path")"
        (
            reach "$2/${path%/*}" || exit
            into=/proc/self/fd/6/$path path=./${path##*/}
            cp -al "$path" "$into" 2>/dev/null || cp -a "$path" "$into"
        )
    done
fi

# The manifest says that all is there: not before it is on the disk.
sync -f . 2>/dev/null || sync
mv "$MANIFEST.new" "$MANIFEST"
chmod 755 .
cd ..
# The directory of the model, and below it by its descriptor, which nobody can redirect.
into=${2%/*}
models=${1%/*/*}
mkdir -p "$into"
exec 7<"$into/."
[ "$(readlink /proc/self/fd/7)" = "$(cd -P "$models" && pwd)${into#"$models"}" ] || {
    echo "$into is a link, or below one: remove it" >&2
    exit 1
}
model=/proc/self/fd/7/${2##*/}
rm -rf "./$staged.old"
if [ ! -e "$model" ] && [ ! -L "$model" ]; then
    mv -T "./$staged" "$model"
elif mv --exchange -T "./$staged" "$model" 2>/dev/null; then
    mv -T "./$staged" "./$staged.old"
else
    # Before coreutils 9.5 (Debian 13), and on NFS, there is an instant with neither version in
    # place. Who opens a model just then is told that it is not there, and finds it a moment later;
    # who has its files open keeps them either way.
    mv -T "$model" "./$staged.old"
    mv -T "./$staged" "$model"
fi
rm -rf "./$staged.old"

# Files that the old tree had too were changed just now, as their links became fewer: the manifest
# counts as written after all of them.
touch -ch "$model/$MANIFEST"

# Other versions of it that were begun and never finished.
h='[0-9a-f]'
for left in "./${staged%.*}".$h$h$h$h$h$h$h$h$h$h$h$h; do
    rm -rf "$left" "$left.old"
done
