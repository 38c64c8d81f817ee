# shellcheck shell=sh
# A host's way to the others, where it has no Python: routes and packet sizes only.
# Arguments: SOURCE TO SIZE, again and again; the size is that of the whole IP packet.
# Answers: `route SOURCE TO NIC`, `echo SOURCE TO SIZE MILLISECONDS`, `-` for none
# or lost, and `done` at the end.
AT_ONCE=32

route() {
  command -v ip >/dev/null || return
  answer=$(ip -o route get "$2" from "$1" 2>/dev/null)
  case $answer in
    *' dev '*) nic=${answer#* dev }; printf 'route %s %s %s\n' "$1" "$2" "${nic%% *}" ;;
    *) printf 'route %s %s -\n' "$1" "$2" ;;
  esac
}

# iputils' ping; busybox's cannot forbid fragments.
echo_one() {
  case $2 in *:*) header=48 ;; *) header=28 ;; esac
  answer=$(ping -n -q -M "do" -c 3 -i 0.3 -W 1 -I "$1" -s $(($3 - header)) "$2" 2>&1)
  case $answer in
    *'min/avg/max'*)
      times=${answer##*= }
      printf 'echo %s %s %s %s\n' "$1" "$2" "$3" "${times%%/*}"
      ;;
    *'packet loss'*) printf 'echo %s %s %s -\n' "$1" "$2" "$3" ;;
  esac
}

PATH=$PATH:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
seen=' '
running=0
while [ $# -ge 3 ]; do
  case $seen in
    *" $1>$2 "*) ;;
    *) route "$1" "$2"; seen="$seen$1>$2 " ;;
  esac
  echo_one "$1" "$2" "$3" &
  running=$((running + 1))
  [ "$running" -lt "$AT_ONCE" ] || { wait; running=0; }
  shift 3
done
wait
printf 'done\n'
