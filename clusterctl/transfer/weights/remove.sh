#!/bin/sh
# Remove the staging directories "$2", "$3", ... in the directory "$1".

set -e
enter "$1"
shift
for staged; do rm -rf "./$staged"; done
