#!/bin/sh
# Begins the scripts that write below the models directory, whose owner may put a link, or a directory
# of theirs, in the place of the staging directory at any time.

# Enter the directory "$1": from here on only what was entered counts. It must be no link, and ours:
# of the user that the file system gives new files to, which on NFS may be another than root.
enter() {
    cd -P "$1" || exit 1
    new=$(mktemp ./.owner.XXXXXX)
    owner=$(stat -c %u "$new")
    rm -f "$new"
    [ "$(stat -c %u .)" = "$owner" ] && [ "$(stat -c %d:%i .)" = "$(stat -c %d:%i "$1")" ] && return
    echo "$1 is a link, or belongs to another user than root: remove it" >&2
    exit 1
}
