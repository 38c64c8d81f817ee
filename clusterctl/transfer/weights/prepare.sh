#!/bin/sh
# Begin the tree that grows in the directory "$1". On stdin, fields parted by tabs:
#   dir PATH        a directory below it
#   copy FILE PATH  a file that this host has elsewhere
#   take FILE PATH  the same, as a hard link, or a copy where none can be

set -e
umask 022
TAB=$(printf '\t')
mkdir -p "${1%/*}"
enter "${1%/*}"
chmod 700 .
mkdir -p "./${1##*/}"
cd "./${1##*/}"
exec 6<.

fetch() (
    # shellcheck disable=SC2154  # set by reach
    reach "$2" && [ -f "./$name" ] || {
        echo "$2 cannot be read, or only through another user's link" >&2
        exit 1
    }
    [ "$1" = take ] && ln -f "./$name" "$3" 2>/dev/null && exit
    dd if="./$name" of="$3.copy" iflag=nofollow,nonblock bs=1M status=none || exit 1
    [ ! -x "./$name" ] || chmod 755 "$3.copy"
    mv "$3.copy" "$3"
)

while IFS=$TAB read -r word first second; do
    case $word in
    dir) mkdir -p "./$first" ;;
    take | copy) fetch "$word" "$first" "/proc/self/fd/6/$second" ;;
    esac
done
