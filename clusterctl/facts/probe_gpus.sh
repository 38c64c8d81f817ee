#!/bin/sh
# The part of the probe that asks NVIDIA's driver. Sent before probe.sh, whose words it uses, and
# which calls `with_gpus` and `gpu_kernel_log`: gpu_probe.py says what they are to do.

gpu_fields=index,uuid,name,memory.total,driver_version
gpu_fields_more=memory.used,mig.mode.current,compute_cap,pci.bus_id
gpu_fields_health=ecc.errors.uncorrected.volatile.total,persistence_mode,fabric.state,\
gpu_recovery_action,compute_mode

# Without persistence mode nvidia-smi needs a second or more per GPU; the rest does not wait.
with_gpus() {
  smi=nvidia-smi
  found "$smi" || smi=/usr/lib/wsl/lib/nvidia-smi
  if found "$smi"; then
    patient
    gpus "$smi" | { "$@" </dev/null; cat; }
  else
    "$@"
  fi
}

# Sets $smi_limit: without persistence mode a healthy host of eight GPUs took 25 s.
patient() {
  # shellcheck disable=SC2154 # set by probe.sh, of which this is a part
  smi_limit=$limit
  [ -e /run/nvidia-persistenced/socket ] && return
  for gpu in /sys/bus/pci/drivers/nvidia/*:*; do
    [ -e "$gpu" ] && smi_limit=$((smi_limit + limit / 2))
  done
}

smi_bounded() {
  if found timeout; then timeout "$smi_limit" "$@"; else "$@"; fi
}

# Without persistence mode an nvidia-smi that runs alone sets every GPU up again, for a second or
# more each. All of these run at once, and their words wait in the pipes.
gpus() {
  gpu_processes "$1" | { gpu_rows "$1" | { gpu_list "$1"; cat; }; cat; }
}

# Older drivers know fewer fields and refuse all for one.
gpu_list() {
  for fields in "$gpu_fields,$gpu_fields_more,$gpu_fields_health" \
    "$gpu_fields,$gpu_fields_more" "$gpu_fields"; do
    said=$(smi_bounded "$1" "--query-gpu=$fields" --format=csv,noheader,nounits 2>&1)
    status=$?
    case $said in *'not a valid field'*) ;; *) break ;; esac
  done
  section "gpus $status"
  printf '%s\n' "$said"
}

gpu_rows() {
  said=$(smi_bounded "$1" --format=csv,noheader \
    --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure 2>&1)
  section "gpu_rows $?"
  printf '%s\n' "$said"
}

# Each process after the ID of its container, which stands in the name of its control group.
gpu_processes() {
  said=$(smi_bounded "$1" --format=csv,noheader,nounits \
    --query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory 2>&1)
  section "gpu_processes $?"
  printf '%s\n' "$said" | while IFS= read -r line; do
    pid=${line#*, }
    pid=${pid%%,*}
    case $pid in '' | *[!0-9]*) continue ;; esac
    printf '%s\t%s\n' "$(grep -s -o -m 1 '[0-9a-f]\{64\}' "/proc/$pid/cgroup")" "$line"
  done
}

# What stays to be said when nvidia-smi hangs or finds no GPU: why the kernel drives none.
gpu_kernel_log() {
  if [ ! -d /sys/module/nvidia ]; then
    grep -q -s '^0x10de$' /sys/bus/pci/devices/*/vendor || return 0
    driver_on_disk
  fi
  section kernel_log
  log=$({ bounded dmesg || bounded journalctl -k -b -q --no-pager; } |
    grep -e NVRM -e 'is rejected' -e 'Key was rejected' -e 'module loading is restricted' \
      -e 'BAR [0-9].*can.t assign')
  printf '%s\n' "$log" | grep -v -e 'NVRM: Xid' -e 'NVRM: loading' | tail -n 20
  printf '%s\n' "$log" | grep -e 'NVRM: Xid' -e 'NVRM: loading' | tail -n 60
  between_gpus
  [ -e /dev/nvidia-nvswitchctl ] || return 0
  section fabric_manager
  bounded systemctl is-active nvidia-fabricmanager
}

driver_on_disk() {
  section nvidia_modules
  grep -l -s '/nvidia\.ko' /lib/modules/*/modules.dep
  for variable in /sys/firmware/efi/efivars/SecureBoot-*; do
    [ -r "$variable" ] || continue
    section secure_boot
    od -An -t u1 -j 4 -N 1 "$variable" # after four bytes of attributes
  done
}

# Bridges that send what one device sends another up to the CPU, where there are several GPUs.
between_gpus() {
  set -- /sys/bus/pci/drivers/nvidia/*:*
  [ $# -gt 1 ] && found lspci || return 0
  section acs
  bounded lspci -vvv -d ::0604 | while IFS= read -r line; do
    case $line in
      [0-9a-f]*) bridge=${line%% *} ;;
      *ACSCtl:*ReqRedir+*) printf '%s ReqRedir\n' "$bridge" ;;
    esac
  done
}
