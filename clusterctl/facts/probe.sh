#!/bin/sh
# Says what this host is, in marked sections on stdout. Reads only, writes nothing anywhere.
#
#   sh -s MARKER LIMIT [disk=PATH] [file=PATTERN] [image=REF] [skip=gpus] [sudo=test] <probe.sh
#
# MARKER  a word that no output can contain by chance; every section starts with a line of it
# LIMIT   whole seconds that one command may take before it is ended
#
# It must run under dash, busybox ash and bash, without root, with commands missing. A fork
# costs more than all that a builtin does here, so files are read by two greps, not by cats.

# Everything is in functions, called on the last line with stdin closed: half a script that
# arrives does nothing, and no command can eat the rest of it.

# Not `{{json .}}`: that would carry the environment of the container off the host.
container_format='{"id":{{json .Id}},"name":{{json .Name}},"image":{{json .Image}},'\
'"labels":{{json .Config.Labels}},"state":{{json .State}},"restarts":{{json .RestartCount}}}'
image_format='{"id":{{json .Id}},"tags":{{json .RepoTags}},"digests":{{json .RepoDigests}},'\
'"layers":{{json .RootFS.Layers}},"size":{{json .Size}},"architecture":{{json .Architecture}},'\
'"labels":{{if .Config}}{{json .Config.Labels}}{{else}}null{{end}},"cuda":[{{if .Config}}{{range .Config.Env}}'\
'{{if or (eq (index (split . "=") 0) "CUDA_VERSION") '\
'(eq (index (split . "=") 0) "NVIDIA_REQUIRE_CUDA")}}{{json .}},{{end}}{{end}}{{end}}null]}'

section() {
  printf '\n%s %s\n' "$marker" "$1"
}

found() {
  command -v "$1" >/dev/null 2>&1
}

bounded() {
  if found timeout; then timeout "$limit" "$@"; else "$@"; fi
}

# Sets $existing to $1 or the nearest directory above it that exists.
find_existing() {
  existing=$1
  while [ -n "$existing" ] && [ ! -e "$existing" ]; do existing=${existing%/*}; done
  existing=${existing:-/}
}

clock() {
  section clock
  read -r uptime _ </proc/uptime
  printf '%s ' "$uptime"
  date +%s.%N
}

whole_files() {
  section files
  trie=
  found ip || trie=/proc/net/fib_trie
  # $trie is one word or none; a pattern that matches nothing is a file that grep -s passes over.
  # shellcheck disable=SC2086
  grep -s -H '' /etc/os-release /usr/lib/os-release /etc/machine-id /var/lib/dbus/machine-id \
    /proc/sys/kernel/random/boot_id /proc/sys/kernel/osrelease /proc/sys/kernel/hostname \
    /proc/net/dev /proc/net/route /proc/net/if_inet6 $trie \
    /sys/class/net/*/speed /sys/class/net/*/mtu /sys/class/net/*/operstate \
    /sys/class/net/*/address /sys/class/net/*/type /sys/class/net/*/uevent \
    /sys/class/net/*/device/numa_node \
    /sys/class/infiniband/*/node_type \
    /sys/class/infiniband/*/ports/*/state /sys/class/infiniband/*/ports/*/link_layer \
    /sys/class/infiniband/*/ports/*/rate \
    /sys/class/infiniband/*/ports/*/gid_attrs/types/* \
    /sys/class/infiniband/*/ports/*/gid_attrs/ndevs/* \
    /sys/bus/pci/drivers/nvidia/*/numa_node /sys/bus/pci/drivers/nvidia/*/iommu_group/type \
    /proc/sys/net/ipv4/ip_local_port_range \
    /sys/fs/cgroup/cgroup.controllers /sys/module/nvidia/version /sys/fs/selinux/enforce
}

# Listening sockets (state 0A), the default IPv6 route, NVIDIA's and display devices on PCI, and
# the GIDs that are not all zero: a port has up to 256, most of them unused; containerd's root.
chosen_lines() {
  section lines
  grep -s -H -e '^MemTotal:' -e '^Uid:' -e '^Cpus_allowed_list:' \
    -e ' 0A [0-9A-F]*:' -e '^00000000000000000000000000000000 00 ' \
    -e '^root *=' -e '^0x10de$' -e '^0x030[02]' -e '^[0:]*[1-9a-f][0-9a-f:]*$' \
    -e '^ENABLED=yes' \
    /proc/meminfo /proc/self/status /proc/net/tcp /proc/net/tcp6 /proc/net/ipv6_route \
    /etc/containerd/config.toml \
    /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/class \
    /sys/class/infiniband/*/ports/*/gids/* /etc/ufw/ufw.conf
}

# Names alone say enough here, and the shell lists them without a fork.
paths() {
  section paths
  printf '%s\n' /sys/class/net/*/device /sys/class/net/*/lower_* /sys/class/net/*/upper_* \
    /sys/class/infiniband/* /sys/class/infiniband/*/device/net/* /dev/infiniband/* \
    /sys/module/nvidia_peerme[m] \
    /etc/cdi/* /var/run/cdi/* \
    /dev/nvidia* /sys/module/nouvea[u] /sys/bus/pci/drivers/vfio-pci/*:* \
    /sys/fs/cgroup/device[s] /run/systemd/syste[m] \
    /sys/fs/cgroup/system.slice/firewalld.servic[e] \
    /sys/fs/cgroup/systemd/system.slice/firewalld.servic[e] \
    /etc/systemd/system/*.wants/nftables.service /etc/systemd/system/*.wants/iptables.service \
    /etc/systemd/system/*.wants/netfilter-persistent.service
}

shell_facts() {
  section shell
  # Linux 6.1 and later say it without a fork.
  { read -r machine </proc/sys/kernel/arch && printf 'machine %s\n' "$machine"; } ||
    printf 'machine %s\n' "$(uname -m)"
  printf 'nofile '
  # shellcheck disable=SC3045  # -H and -n are in all three shells
  ulimit -Hn
  printf 'memlock '
  # shellcheck disable=SC3045
  ulimit -Hl
  engine_nofile
  printf 'user %s\n' "${SUDO_USER:-${LOGNAME:-${USER:-}}}"
  printf 'ssh %s\n' "${SSH_CONNECTION:-}"
  printf 'runtimes'
  for runtime in podman nerdctl crio k3s kubelet; do
    found "$runtime" && printf ' %s' "$runtime"
  done
  printf '\n'
  python
  return 0
}

# A container may open no more files than the daemon that starts it.
engine_nofile() {
  pid=
  { read -r pid </run/docker.pid; } 2>/dev/null
  [ -n "$pid" ] && [ -r "/proc/$pid/limits" ] || return 0
  while read -r max open files _ hard _; do
    [ "$max $open $files" = 'Max open files' ] && printf 'engine-nofile %s\n' "$hard"
  done <"/proc/$pid/limits"
}

# The first Python that can run what clusterctl sends (transport/python.py), or `python3` where none
# can: path, version, and `minimal` where its standard library is not whole. Told from names of
# files: starting it would cost more than all the rest here.
python() {
  best=
  for name in python3 python3.19 python3.18 python3.17 python3.16 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 \
    /usr/libexec/platform-python; do
    found "$name" || continue
    path=$(command -v "$name")
    file=$(readlink -f "$path")
    version=${file##*python}
    case $version in
      3.[0-9] | 3.[0-9][0-9])
        library=${file%/*/*}
        minimal=' minimal'
        [ ! -e "$library/lib/python$version/http" ] && [ ! -e "$library/lib64/python$version/http" ] ||
          minimal=
        ;;
      *) # a shim, which starts another
        version=$(bounded "$path" -I -c 'import http, json, sys; print("%d.%d" % sys.version_info[:2])' 2>&1)
        minimal=
        case $version in 3.[0-9] | 3.[0-9][0-9]) ;; *) version='' minimal=' minimal' ;; esac
        ;;
    esac
    best=${best:-$path $version$minimal}
    case $version$minimal in
      3.9 | 3.[1-9][0-9]) best="$path $version"; break ;;
    esac
  done
  printf 'python3 %s\n' "$best"
}

own_name() {
  section names
  read -r name </proc/sys/kernel/hostname
  found getent || { printf 'getent-is-not-installed\n'; return; }
  bounded getent ahosts "$name"
  # 124: it was ended, and would be no quicker the other way.
  case $? in 0 | 124) ;; *) bounded getent hosts "$name" ;; esac
}

# busybox has an `ip` without -j.
addresses() {
  found ip || return
  section addresses
  ip -j -d addr 2>/dev/null || ip -o addr 2>/dev/null
}

sudo_test() {
  section sudo
  bounded sudo -n true 2>&1
  printf '\nstatus %s\n' "$?"
}

# disks PATH...: first which path stands for which, then what df says, in the same order.
disks() {
  section disks
  count=$#
  while [ "$count" -gt 0 ]; do
    find_existing "$1"
    printf '%s\t%s\n' "$1" "$existing"
    set -- "$@" "$existing"
    shift
    count=$((count - 1))
  done
  bounded df -P -k "$@" 2>&1
}

# Node containers write some of these: no link, no pipe that waits for a writer, not more than 4 MiB.
# What becomes one between the looks reads as empty.
show_file() {
  section "file $1"
  if [ -f "$1" ] && [ ! -L "$1" ] && [ -r "$1" ]; then
    # shellcheck disable=SC2086  # one word, or none
    dd if="$1" $guarded bs=65536 count=64 2>/dev/null | base64 ||
      printf '!unreadable\n'
    return
  fi
  find_existing "$1"
  if [ "$existing" = "$1" ] || { [ -d "$existing" ] && [ ! -x "$existing" ]; }; then
    printf '!unreadable\n'
  else
    printf '!missing\n'
  fi
}

# No word splitting, so a pattern becomes the names it matches, or stays itself.
matching_files() {
  IFS=
  for path in $1; do show_file "$path"; done
  unset IFS
}

engine() {
  info=$(bounded docker info --format '{{json .}}' 2>&1)
  section "engine $?"
  command -v docker
  printf '%s\n' "$info"
  root=${info#*'"DockerRootDir":"'}
  [ "$root" = "$info" ] || [ -z "${root%%\"*}" ] || engine_contents "${root%%\"*}"
}

engine_contents() {
  containerd=$(sed -n 's/^root *= *["'\'']\(\/[^"'\'']*\)["'\''].*/\1/p' /etc/containerd/config.toml)
  disks "$1" ${containerd:+"$containerd"}
  ids=$(bounded docker ps -aq --no-trunc --filter label=clusterctl.cluster 2>&1)
  status=$?
  listed=$ids
  if [ "$status" -eq 0 ] && [ -n "$ids" ]; then
    # shellcheck disable=SC2086  # several ids
    listed=$(bounded docker container inspect --format "$container_format" $ids 2>&1)
    status=$?
  fi
  section "containers $status"
  printf '%s\n' "$listed"
  [ -n "$image" ] || return
  said=$(bounded docker image inspect --format "$image_format" "$image" 2>&1)
  section "image $?"
  printf '%s\n' "$said"
}

# with_engine COMMAND...: docker works while COMMAND does; its words wait in the pipe.
with_engine() {
  if found docker; then
    engine | { "$@" </dev/null; cat; }
  else
    "$@"
  fi
}

quick() {
  clock
  whole_files
  chosen_lines
  paths
  shell_facts
  addresses
  own_name
  gpu_kernel_log
  [ "$sudo" = test ] && sudo_test
  disks_asked "$@"
  guarded=iflag=nofollow,nonblock,fullblock
  dd if=/dev/null "$guarded" of=/dev/null 2>/dev/null || guarded='' # busybox
  for argument in "$@"; do
    case $argument in file=*) matching_files "${argument#file=}" ;; esac
  done
}

disks_asked() {
  count=$#
  set -- "$@" /dev/shm
  while [ "$count" -gt 0 ]; do
    case $1 in disk=*) set -- "$@" "${1#disk=}" ;; esac
    shift
    count=$((count - 1))
  done
  disks "$@"
}

main() {
  marker=$1
  limit=$2
  shift 2
  skip='' sudo='' image=''
  for argument in "$@"; do
    case $argument in
      skip=*) skip=${argument#skip=} ;;
      sudo=*) sudo=${argument#sudo=} ;;
      image=*) image=${argument#image=} ;;
    esac
  done
  # SSH gives a short PATH, without sbin on some systems.
  PATH=$PATH:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin:/snap/bin
  LC_ALL=C
  export PATH LC_ALL
  if [ "$skip" = gpus ]; then
    with_engine quick "$@"
  else
    with_engine with_gpus quick "$@"
  fi
  read -r uptime _ </proc/uptime
  section end
  printf '%s\n' "$uptime"
}

main "$@" </dev/null 2>/dev/null
