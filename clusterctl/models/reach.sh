#!/bin/sh
# Begins the scripts that read models. Their directories may belong to users of the host, who can put
# a link in the place of anything at any time.

# Whether "$1" is of root, or of the user who became root.
is_ours() {
    [ "$1" = 0 ] || [ "$1" = "${SUDO_UID:-0}" ]
}

# Whether nobody else can have put "$1" into the current directory.
is_fixed() {
    # shellcheck disable=SC2046  # two words
    set -- "$1" $(stat -c '%u %a' .)
    is_ours "$2" || return 1
    case $3 in
    1???) is_ours "$(stat -c %u "$1")" ;; # such as /tmp
    *[2367]? | *[2367]) return 1 ;;
    esac
}

# Enter the directory of the file "$1" (absolute), whose name there is $name then; or the directory "$1",
# and $name is ".". A link that others can have put there counts only if it leads to what is below the
# first directory on the way that others can change, and that belongs to the link's owner.
reach() {
    cd / || return 1
    rest=$1 outermost='' links=0 name=.
    while [ -n "$rest" ]; do
        name=${rest%%/*}
        case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
        case $name in '' | .) name=. && continue ;; esac
        [ -n "$outermost" ] || is_fixed "./$name" || outermost=$(pwd -P)
        if [ -L "./$name" ]; then
            links=$((links + 1))
            [ "$links" -le 40 ] || return 1
            if is_fixed "./$name"; then
                target=$(readlink "./$name")
            else
                target=$(readlink -f "./$name") owner=$(stat -c %u "./$name")
                case $target in "$outermost"/*) ;; *) return 1 ;; esac
                [ "$owner" = 0 ] || [ "$owner" = "$(stat -c %u "$target")" ] || return 1
            fi
            case $target in /*) cd / && outermost='' ;; esac
            rest=$target/$rest
        elif [ -d "./$name" ]; then
            around=$(pwd -P)
            cd -P "./$name" 2>/dev/null || return 1
            [ "$name" = .. ] || [ "$(pwd -P)" = "${around%/}/$name" ] || return 1
            name=.
        else
            [ -e "./$name" ] && [ -z "$rest" ]
            return
        fi
    done
}

# Print the regular file "$1" (absolute), at most "$2" MiB of it, or 64.
show() (
    reach "$1" && [ -f "./$name" ] &&
        dd if="./$name" iflag=nofollow,nonblock bs=1M count="${2:-64}" 2>/dev/null
)
