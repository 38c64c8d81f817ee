#!/bin/sh
# The sha256 of each file named on stdin, and with "$1" that of every "$1" bytes of it. A line
# each: whole, pieces parted by blanks, path; parted by tabs. A file that cannot be read has none.

TAB=$(printf '\t')
pieces() {
    [ -n "$1" ] || return 0
    split -b "$1" --filter=sha256sum - <"$2" | cut -c 1-64 | tr '\n' ' '
}
while IFS= read -r path; do
    whole=$(sha256sum <"$path" 2>/dev/null)
    [ -n "$whole" ] || continue
    printf "%s$TAB%s$TAB%s\n" "${whole%% *}" "$(pieces "$1" "$path")" "$path"
done
