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
while IFS=$TAB read -r word first second; do
    case $word in
    dir) mkdir -p "./$first" ;;
    take | copy)
        # -L: in a directory of links, the file and not the link to it.
        [ "$word" = take ] && ln -fL "$first" "./$second" 2>/dev/null && continue
        cp -p "$first" "./$second.copy"
        mv "./$second.copy" "./$second"
        ;;
    esac
done
