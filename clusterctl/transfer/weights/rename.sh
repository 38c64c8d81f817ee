#!/bin/sh
# Rename the staging directory "$1" to "$2", beside it.

set -e
[ "$1" = "$2" ] && exit 0
enter "${1%/*}"
rm -rf "./${2##*/}"
mv -T "./${1##*/}" "./${2##*/}"
