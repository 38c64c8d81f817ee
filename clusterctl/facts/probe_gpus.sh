#!/bin/sh
# The part of the probe that asks NVIDIA's driver. Sent before probe.sh, whose words it uses, and
# which calls `with_gpus` and `gpu_kernel_log`: gpu_probe.py says what they are to do.

gpu_fields=index,uuid,name,memory.total,driver_version
gpu_fields_more=memory.used,mig.mode.current,compute_cap,pci.bus_id
gpu_fields_health=ecc.errors.uncorrected.volatile.total,persistence_mode,fabric.state,\
gpu_recovery_action

# Without persistence mode nvidia-smi needs a second or more per GPU; the rest does not wait.
with_gpus() {
  smi=nvidia-smi
  found "$smi" || smi=/usr/lib/wsl/lib/nvidia-smi
  if found "$smi"; then
    gpus "$smi" | { "$@" </dev/null; cat; }
  else
    "$@"
  fi
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
    said=$(bounded "$1" "--query-gpu=$fields" --format=csv,noheader,nounits 2>&1)
    status=$?
    case $said in *'not a valid field'*) ;; *) break ;; esac
  done
  section "gpus $status"
  printf '%s\n' "$said"
}

gpu_rows() {
  said=$(bounded "$1" --format=csv,noheader \
    --query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure 2>&1)
  section "gpu_rows $?"
  printf '%s\n' "$said"
}

# Each process after the ID of its container, which stands in the name of its control group.
gpu_processes() {
  said=$(bounded "$1" --format=csv,noheader,nounits \
    --query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory 2>&1)
  section "gpu_processes $?"
  printf '%s\n' "$said" | while IFS= read -r line; do
    pid=${line#*, }
    pid=${pid%%,*}
    case $pid in '' | *[!0-9]*) continue ;; esac
    printf '%s\t%s\n' "$(grep -s -o -m 1 '[0-9a-f]\{64\}' "/proc/$pid/cgroup")" "$line"
  done
}

# What stays to be said when nvidia-smi hangs: a GPU that fell off the bus does that to it.
gpu_kernel_log() {
  [ -d /sys/module/nvidia ] || return 0
  section kernel_log
  { bounded dmesg || bounded journalctl -k -b -q --no-pager; } |
    grep -e 'NVRM: Xid' -e 'NVRM: loading' | tail -n 60
  [ -e /dev/nvidia-nvswitchctl ] || return 0
  section fabric_manager
  bounded systemctl is-active nvidia-fabricmanager
}
