"""Step for the address that the gateways of several hosts share: keepalived assigns it to one of
them by VRRP, and to another within two seconds if that host, or its HAProxy, is gone.

keepalived gets its own unit and configuration; an existing keepalived is left alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from zlib import crc32

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.steps.files import make_directories, root_script
from clusterctl.steps.package_manager import install_recorded, own_manager

KEEPALIVED = "keepalived"
MARKER = "/var/lib/clusterctl/keepalived-packages"  # names of the packages installed with it
UNITS = "/etc/systemd/system"

# VRRP 3, which counts in hundredths of a second: a host is given up after three advertisements.
# Every host begins as a backup and none takes the address from another, since connections to the
# gateway that has it would be cut. Which gateway lives is seen from what listens there.
CONFIG = """\
# Written by clusterctl.
global_defs {{
    router_id {cluster}_{host}
    script_user root
    enable_script_security
    vrrp_version 3
    vrrp_garp_master_refresh 60
}}
vrrp_script gateway {{
    script "/bin/sh -c 'ss -Hltn src {address} | grep -q .'"
    interval 1
    fall 1
    rise 1
}}
vrrp_instance address {{
    state BACKUP
    nopreempt
    interface {nic}
    virtual_router_id {router}
    priority {priority}
    advert_int 0.3
    unicast_src_ip {own}
    unicast_peer {{
{peers}    }}
    virtual_ipaddress {{
        {address}/{prefix} dev {nic}
    }}
    track_script {{
        gateway
    }}
}}
"""

# HAProxy listens on the address also where it is not now, which Linux has to allow.
UNIT = """\
# Written by clusterctl.
[Unit]
Description=Address of the gateways of the cluster {cluster} (clusterctl)
After=network.target
Before=docker.service

[Service]
Type=simple
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin
ExecStartPre=/bin/sh -c 'exec sysctl -qw net.ipv4.ip_nonlocal_bind=1'
ExecStart=/bin/sh -c 'exec keepalived --dont-fork --log-console --vrrp --use-file={config} \\
  --pid=/run/{name}.pid --vrrp_pid=/run/{name}.vrrp.pid'
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
"""

# Arguments: unit, configuration, address, NIC. Whether another machine has the address is asked of
# the neighbours, by a packet to it, unless keepalived runs here and may have it itself.
LOOK = """\
PATH=$PATH:/usr/sbin:/sbin
[ -d /run/systemd/system ] && echo 'systemd yes'
command -v keepalived >/dev/null && echo 'keepalived yes'
systemctl is-active --quiet "${1##*/}" 2>/dev/null && echo 'active yes'
for file in "$1" "$2"; do
  [ -f "$file" ] && printf 'file %s\\n' "$(sha256sum <"$file" | cut -c1-64)" || echo 'file none'
done
if [ -n "$3" ] && ! systemctl is-active --quiet "${1##*/}" 2>/dev/null; then
  for attempt in 1 2; do
    bash -c 'echo >"/dev/udp/$1/9"' _ "$3" 2>/dev/null
    sleep 0.5
  done
  ip neigh show to "$3" dev "$4" | sed -n 's/.*lladdr \\([0-9a-f:]*\\).*/taken \\1/p'
fi
exit 0
"""

# Arguments: unit, configuration. A configuration has its name only once keepalived is told of it.
START = """\
mv -f -- "$2.new" "$2" && systemctl daemon-reload && systemctl enable --quiet "${1##*/}" &&
  systemctl reload-or-restart "${1##*/}"
"""

# Another cluster, or the host's owner, may need what HAProxy needed.
REMOVE = """\
PATH=$PATH:/usr/sbin:/sbin
systemctl disable --quiet --now "${1##*/}" 2>/dev/null
rm -f -- "$1" "$2" "$2.new"
[ ! -d /run/systemd/system ] || systemctl daemon-reload
ls "${1%/*}"/clusterctl-address-*.service >/dev/null 2>&1 ||
  grep -rqs '^ *net.ipv4.ip_nonlocal_bind' /etc/sysctl.conf /etc/sysctl.d ||
  sysctl -qw net.ipv4.ip_nonlocal_bind=0
exit 0
"""


@dataclass(frozen=True)
class AddressFound:
    """What LOOK printed."""

    systemd: bool
    keepalived: bool
    active: bool
    digests: tuple[str, ...]  # Of unit and configuration; "none" for a missing one
    taken: str  # MAC address of a machine that answers for it; empty: none does


def found_in(text: str) -> AddressFound:
    """Parse the output of LOOK."""
    rows = [line.partition(" ")[::2] for line in text.splitlines()]
    return AddressFound(
        systemd=("systemd", "yes") in rows,
        keepalived=("keepalived", "yes") in rows,
        active=("active", "yes") in rows,
        digests=tuple(value for name, value in rows if name == "file"),
        taken=next((value for name, value in rows if name == "taken"), ""),
    )


@dataclass(frozen=True)
class KeepalivedFiles:
    """Names of the files of one cluster on a host."""

    cluster: str

    @property
    def unit(self) -> str:
        return f"{UNITS}/clusterctl-address-{self.cluster}.service"

    @property
    def config(self) -> str:
        return f"/etc/clusterctl/{self.cluster}/keepalived.conf"

    @property
    def paths(self) -> tuple[str, str]:
        return self.unit, self.config

    @property
    def unit_text(self) -> str:
        name = f"clusterctl-address-{self.cluster}"
        return UNIT.format(cluster=self.cluster, config=self.config, name=name)


@dataclass(frozen=True)
class OnInterface:
    """Where a host can have the shared address."""

    nic: str
    own: IPv4Interface  # The host's own address there


def seat(facts: HostFacts, address: IPv4Address) -> OnInterface | None:
    """Return the interface whose network contains the address; None if there is none."""
    for nic in facts.nics:
        for each in nic.addresses:
            if ":" in each.ip or each.prefix >= 32:
                continue
            own = IPv4Interface(f"{each.ip}/{each.prefix}")
            if address in own.network:
                return OnInterface(nic.name, own)
    return None


class VirtualAddress:
    """Step: keepalived on this host takes part in sharing the gateways' address."""

    title = "virtual address"

    def __init__(
        self,
        cluster: str,
        address: IPv4Address,
        facts: Mapping[str, HostFacts],
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`facts`: of the answering hosts with a gateway, the head first."""
        self._files = KeepalivedFiles(cluster)
        self._address = address
        self._seats = {name: seat(of_host, address) for name, of_host in facts.items()}
        self._macs = {nic.mac for of_host in facts.values() for nic in of_host.nics}
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        """Raises RequirementsNotMet if the host cannot have the address, or another machine
        does."""
        here, name = self._seat_of(view), view.host.name
        found = _look(view, self._files, str(self._address), here.nic)
        if not found.systemd:
            raise RequirementsNotMet(
                "gateway.virtual_ip needs systemd, which runs keepalived",
                host=name,
                hint="remove the key, and give clients the addresses of all gateways",
            )
        if found.taken and found.taken not in self._macs:
            raise RequirementsNotMet(
                f"gateway.virtual_ip {self._address} is taken: the machine with the MAC address "
                f"{found.taken} answers for it on {here.nic}",
                host=name,
                hint=f"choose a free address in {here.own.network}",
            )
        wanted = tuple(map(_digest, (self._files.unit_text, self.config(name))))
        if found.active and found.digests == wanted:
            return None
        install = "" if found.keepalived else f"install {KEEPALIVED}, "
        return Change(f"{install}share {self._address} on {here.nic} with the other gateways")

    def apply(self, view: HostView, _change: Change) -> None:
        files = self._files
        if not _look(view, files).keepalived:
            install_recorded(view, own_manager(view, self._pause), KEEPALIVED, MARKER)
        make_directories(view, UNITS)
        config = self.config(view.host.name).encode()
        view.transport.put(files.unit_text.encode(), files.unit, sudo=True)
        view.transport.put(config, f"{files.config}.new", mode=0o600, sudo=True)
        root_script(
            view, START, *files.paths, doing="starting keepalived", timeout=deadlines.SYSTEMD
        )

    def config(self, host: str) -> str:
        """Return keepalived's configuration on that host. Where several hosts could take the
        address at once, the first in the list gets it."""
        here = self._seats[host]
        assert here  # noqa: S101 - by `_seat_of`
        others = [one.own.ip for name, one in self._seats.items() if one and name != host]
        return CONFIG.format(
            cluster=self._files.cluster,
            host=host,
            address=self._address,
            nic=here.nic,
            own=here.own.ip,
            prefix=here.own.network.prefixlen,
            # Told apart from others in the same network: 1 to 255
            router=crc32(f"{self._files.cluster} {self._address}".encode()) % 255 + 1,
            priority=max(1, 200 - list(self._seats).index(host)),
            peers="".join(f"        {ip}\n" for ip in others),
        )

    def _seat_of(self, view: HostView) -> OnInterface:
        if found := self._seats.get(view.host.name):
            return found
        raise RequirementsNotMet(
            f"gateway.virtual_ip {self._address} is not in the network of any of its interfaces",
            host=view.host.name,
            hint="choose an address in a network of every host in gateway.hosts",
        )


class VirtualAddressAbsent:
    """Step: this host takes no part in sharing the gateways' address."""

    title = "virtual address"

    def __init__(self, cluster: str) -> None:
        self._files = KeepalivedFiles(cluster)

    def check(self, view: HostView) -> Change | None:
        left = set(_look(view, self._files).digests) != {"none"}
        return Change("stop keepalived, which shared the gateways' address") if left else None

    def apply(self, view: HostView, _change: Change) -> None:
        files = self._files
        doing = "ending keepalived"
        root_script(view, REMOVE, *files.paths, doing=doing, timeout=deadlines.SYSTEMD)


def _look(view: HostView, files: KeepalivedFiles, address: str = "", nic: str = "") -> AddressFound:
    words: Sequence[str] = (*files.paths, address, nic)
    return found_in(root_script(view, LOOK, *words, doing="looking at keepalived"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
