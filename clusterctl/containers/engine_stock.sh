#!/bin/sh
# Says what this host's engine has of images, and what it can take in: lines of a word, a tab and
# a value. Reads only. $1 is the directory where blobs wait, which need not exist yet; $2 a name
# to look up by itself, if not empty: the containerd store does not list an image of which it never
# fetched the layers that it had already.
PATH=$PATH:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin:/snap/bin
LC_ALL=C
export PATH LC_ALL

engine='{{.DockerRootDir}}|{"version":{{json .ServerVersion}},"os":{{json .OSType}},'\
'"machine":{{json .Architecture}},"driver":{{json .DriverStatus}},"security":{{json .SecurityOptions}}}'
info=$(docker info --format "$engine") || exit 3
root=${info%%|*}
printf 'root\t%s\nengine\t%s\n' "$root" "${info#*|}"

image='{"id":{{json .Id}},"tags":{{json .RepoTags}},"layers":{{json .RootFS.Layers}},'\
'"size":{{json .Size}},"config":{{json .Config}}}'
ids=$(docker image ls --quiet --no-trunc | sort -u)
# shellcheck disable=SC2086  # several ids
[ -z "$ids$2" ] || docker image inspect --format "image	$image" $ids $2 2>/dev/null

map=$root/image/overlay2/distribution/diffid-by-digest/sha256
[ -d "$map" ] && find "$map" -type f | while read -r path; do
  printf 'digest\t%s\n' "${path##*/}"
done

for python in python3 python3.19 python3.18 python3.17 python3.16 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 /usr/libexec/platform-python; do
  command -v "$python" >/dev/null || continue
  said=$("$python" -I -c 'import sys, json, http; sys.exit(sys.version_info < (3, 9))' 2>&1)
  case $? in
    1) printf 'unusable\t%s: %s\n' "$python" "$(printf '%s' "${said:-older than 3.9}" | tail -n 1)" ;;
    *) # Also if it was killed meanwhile: it is there, and its first program says what ails it
      printf 'python\t%s\n' "$python"
      break
      ;;
  esac
done

cache=$1
while [ ! -e "$cache" ]; do cache=${cache%/*}; cache=${cache:-/}; done
for path in "$root" "$cache"; do
  df -Pk "$path" | while read -r device _ _ free _; do
    case $free in *[!0-9]*) ;; *) printf 'disk\t%s\t%s\n' "$free" "$device" ;; esac
  done
done
exit 0
