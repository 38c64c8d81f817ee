#!/bin/sh
# The manifest of the model directory "$1" is what comes on stdin.

set -eC
umask 022
reach "$1"
cat >./.clusterctl-model.json.new.$$
mv -T ./.clusterctl-model.json.new.$$ ./.clusterctl-model.json
