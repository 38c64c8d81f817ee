#!/bin/sh
# The sha256 of each file named on stdin, and with "$1" that of every "$1" bytes of it. Tells, with
# tabs between the fields:
#   at BYTES                 read so far, in all, every "$2" seconds; for pieces all is read twice
#   hash WHOLE PIECES PATH   pieces parted by blanks
# A file that cannot be read has no hash. It ends when nobody hears it any more.

TAB=$(printf '\t')
SMALL=16777216 # bytes of a file that is read before a word on it is due
before=0

# The position of file 4, which whoever reads it has moved.
tell() {
    at=$(sed -n 's/^pos:[^0-9]*//p' /proc/self/fdinfo/4)
    echo "at$TAB$((before + ${at:-0}))"
}

# Say how far process "$1" is that reads file 4, and end it with the session: it may have hours to go.
watch() {
    trap '' PIPE
    while sleep "$every" >/dev/null 2>&1 3>&- 4<&-; do
        tell || kill "$1"
    done
}

# Run "$@" on file 4, and say how far it is. Nobody else writes when it is over: two long lines could be mixed.
told() {
    if [ "$size" -le "$SMALL" ]; then
        "$@" <&4
        return
    fi
    "$@" <&4 &
    work=$!
    watch $work >&3 2>/dev/null &
    wait $work
    status=$?
    kill $!
    wait $!
    return $status
}

past() {
    before=$((before + size))
    echo "at$TAB$before" || exit
}

every=$2
exec 3>&1
# All at once: who sends the names need not listen meanwhile.
names=$(cat)
printf '%s\n' "$names" | while IFS= read -r path; do
    size=$(stat -L -c %s "$path" 2>/dev/null) || continue
    { whole=$(told sha256sum); } 2>/dev/null 4<"$path" || { past; continue; }
    past
    parts=
    if [ -n "$1" ]; then
        {
            parts=$(told split -b "$1" --filter=sha256sum - | cut -c 1-64 | tr '\n' ' ')
        } 2>/dev/null 4<"$path" || continue
        past
        # A disk that fails in the middle, or a split that knows no filter, leaves fewer.
        [ "$(echo "$parts" | wc -w)" -eq $(((size + $1 - 1) / $1)) ] || continue
    fi
    printf "hash$TAB%s$TAB%s$TAB%s\n" "${whole%% *}" "$parts" "$path"
done
