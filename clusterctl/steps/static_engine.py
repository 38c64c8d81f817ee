"""Install Docker's static archive: binaries and systemd units, without a package manager.

Docker documents the archive and where its files go (Install Docker Engine from binaries); the units
follow those of Docker's packages.
"""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.packages.bundle import Bundle, PackageFile
from clusterctl.steps.installed import record_installed
from clusterctl.steps.package_files import bring
from clusterctl.steps.root_script import root_script

# Paths that we installed, one per line, which `down --purge` removes
FILES_MARKER = "/var/lib/clusterctl/engine-files"

UNITS = "/etc/systemd/system"
BINARIES = "/usr/bin"  # As in Docker's documentation: sudo's PATH on RHEL lacks /usr/local/bin

NAMES = """\
set -e
command -v tar >/dev/null || { echo "tar is not installed" >&2; exit 1; }
tar -tzf "$1" | while IFS= read -r name; do
  case $name in docker/?*) printf '%s\\n' "${name#docker/}" ;; esac
done
if command -v iptables >/dev/null; then echo "+iptables"; fi
"""

UNPACK = """\
set -e
archive=$1; directory=$2; shift 2
from=$(mktemp -d "$directory/.docker.XXXXXX")
trap 'rm -rf "$from"' EXIT
tar -xzf "$archive" -C "$from"
for name in "$@"; do
  cp "$from/docker/$name" "$directory/.$name.new"
  chmod 755 "$directory/.$name.new"
  mv -f "$directory/.$name.new" "$directory/$name"
done
systemctl daemon-reload
systemctl enable containerd.service
"""

CONTAINERD = """\
# Written by clusterctl.
[Unit]
Description=containerd
After=network.target local-fs.target

[Service]
Type=notify
ExecStartPre=-/sbin/modprobe overlay
ExecStart={binaries}/containerd
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"""

DOCKER = """\
# Written by clusterctl.
[Unit]
Description=Docker
After=network-online.target containerd.service firewalld.service
Wants=network-online.target
Requires=containerd.service

[Service]
Type=notify
ExecStart={binaries}/dockerd -H unix:///var/run/docker.sock \
--containerd=/run/containerd/containerd.sock{network}
ExecReload=/bin/kill -s HUP $MAINPID
TimeoutStartSec=0
Restart=always
RestartSec=2
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
Delegate=yes
KillMode=process
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""

# For a host without iptables, where dockerd would not start: our containers use the host's network;
# others have none
NO_BRIDGE = " --bridge=none --iptables=false --ip6tables=false"


class StaticEngine:
    """An engine installed from the static archive in a bundle."""

    def __init__(self, bundle: Bundle, archive: PackageFile) -> None:
        self._bundle = bundle
        self._archive = archive

    @property
    def name(self) -> str:
        return self._archive.name

    def install(self, view: HostView) -> None:
        archive = f"{bring(view, self._bundle, [self._archive])}/{self._archive.name}"
        told = root_script(view, NAMES, archive, doing=f"reading {self._archive.name}").split()
        names = [name for name in told if not name.startswith("+")]
        units = {
            f"{UNITS}/containerd.service": CONTAINERD.format(binaries=BINARIES),
            f"{UNITS}/docker.service": DOCKER.format(
                binaries=BINARIES, network="" if "+iptables" in told else NO_BRIDGE
            ),
        }
        # Recorded before they are installed, so that an interrupted installation can be removed.
        record_installed(view, [*(f"{BINARIES}/{name}" for name in names), *units], FILES_MARKER)
        for path, text in units.items():
            view.transport.put(text.encode(), path, sudo=True)
        view.say(f"unpacking {self._archive.name}")
        root_script(
            view,
            UNPACK,
            archive,
            BINARIES,
            *names,
            doing="unpacking Docker",
            timeout=deadlines.PACKAGE_FILES,
        )
