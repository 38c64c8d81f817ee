"""The cluster's firewall on a host: a separate nftables table, which closes the ports of Ray and
vLLM to all but the cluster's hosts.

The table is `inet clusterctl_CLUSTER`; no other table is read or changed. Its only chain runs
before those of ufw, firewalld and Docker, which may still refuse what it accepts. It refuses only a
list of TCP ports, so SSH and the host's other services are not affected.

Rules that lock the operator out anyway are undone: after UNDO_AFTER seconds, the host restores the
last confirmed rules, unless a new connection of the operator has confirmed these.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_network

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import (
    MALFORMED,
    ClusterctlError,
    ConnectionFailed,
    RequirementsNotMet,
    StepFailed,
)
from clusterctl.packages.bundle import Bundle, fitting
from clusterctl.packages.target import FIREWALL
from clusterctl.steps.files import MAKE_DIRECTORIES, root_script
from clusterctl.steps.package_manager import install_recorded, own_manager, target
from clusterctl.steps.package_sources import manager_of

MARKER = "/var/lib/clusterctl/firewall-packages"  # names of the packages installed with it

UNDO_AFTER = 60  # Seconds; a new SSH connection through jump hosts takes some of them
WAYS = 3  # Attempts to connect for the confirmation

_PATH = "PATH=$PATH:/usr/sbin:/sbin\n"

# Arguments: table, rules, listing, unit. sshd may listen on a port that the rules would close.
LOOK = f"""\
{_PATH}
set -u
printf 'nft %s\\n' "$(command -v nft)"
[ -d /run/systemd/system ] && echo 'systemd yes'
sshd -T 2>/dev/null | sed -n 's/^port \\([0-9]*\\)$/ssh \\1/p'
ss -Hltnp 2>/dev/null | sed -n 's/^[^ ]* *[^ ]* *[^ ]* *[^ ]*:\\([0-9]*\\) .*"sshd".*/ssh \\1/p'
read -r low high </proc/sys/net/ipv4/ip_local_port_range && printf 'range %s-%s\\n' "$low" "$high"
for file in "$2" "$4"; do
  [ -f "$file" ] && printf 'file %s\\n' "$(sha256sum <"$file" | cut -c1-64)" || echo 'file none'
done
if command -v nft >/dev/null && live=$(nft list table inet "$1" 2>/dev/null); then
  [ -f "$3" ] && [ "$live" = "$(cat "$3")" ] && echo 'live same' || echo 'live other'
else
  echo 'live none'
fi
[ -L "/etc/systemd/system/multi-user.target.wants/${{4##*/}}" ] && echo 'wanted yes'
exit 0
"""

# Arguments: table, confirmed rules, new rules, seconds, name of the timer.
TRY = f"""\
{_PATH}
set -e
nft -c -f "$3"
systemctl stop "$5.timer" "$5.service" 2>/dev/null || true
systemctl reset-failed "$5.timer" "$5.service" 2>/dev/null || true
systemd-run --quiet --collect --unit="$5" --on-active="$4" --timer-property=AccuracySec=1s \\
  /bin/sh -c '{_PATH.strip()}
    rm -f "$3"
    if [ -e "$1" ]; then exec nft -f "$1"; else exec nft delete table inet "$2"; fi' \
  undo "$2" "$1" "$3"
nft -f "$3"
"""

# Arguments: table, confirmed rules, new rules, listing, unit, timer, digest of the new rules. Once
# the rules have their name, what the timer does is to load them. If the timer was first, the new
# rules are gone: this connection says nothing of them, and their name must not go to others.
CONFIRM = f"""\
{_PATH}
set -e
if ! mv "$3" "$2" 2>/dev/null &&
  [ "$(sha256sum "$2" 2>/dev/null | cut -c1-64)" != "$7" ]
then
  echo "the host rolled them back before a new connection succeeded; run the command again" >&2
  exit 1
fi
nft list table inet "$1" >"$4"
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -sf "../${{5##*/}}" "/etc/systemd/system/multi-user.target.wants/${{5##*/}}"
systemctl stop "$6.timer" 2>/dev/null || true
"""

# Arguments: timer, new rules.
UNDO = """\
systemctl start "$1.service" 2>/dev/null || true
systemctl stop "$1.timer" 2>/dev/null || true
rm -f "$2"
"""

LOOK_FOR_LEFT = f"""\
{_PATH}
for path in "$2" "$3" "$4"; do if [ -e "$path" ]; then echo "$path"; fi; done
if command -v nft >/dev/null && nft list table inet "$1" >/dev/null 2>&1; then echo "table $1"; fi
exit 0
"""

# Arguments: table, rules, listing, unit, timer
REMOVE = f"""\
{_PATH}
systemctl stop "$5.timer" 2>/dev/null || true
rm -f "/etc/systemd/system/multi-user.target.wants/${{4##*/}}" "$4" "$2" "$2.new" "$3"
if command -v nft >/dev/null && nft list table inet "$1" >/dev/null 2>&1; then
  nft delete table inet "$1"
fi
"""


@dataclass(frozen=True)
class Places:
    """Names of one cluster's firewall on a host."""

    cluster: str

    @property
    def table(self) -> str:
        return f"clusterctl_{self.cluster.replace('-', '_')}"

    @property
    def rules(self) -> str:
        return f"/etc/clusterctl/{self.cluster}/firewall.nft"

    @property
    def listing(self) -> str:
        """The table as `nft list` showed it after it was loaded."""
        return f"/etc/clusterctl/{self.cluster}/firewall.listed"

    @property
    def unit(self) -> str:
        return f"/etc/systemd/system/clusterctl-firewall-{self.cluster}.service"

    @property
    def timer(self) -> str:
        return f"clusterctl-firewall-{self.cluster}-undo"

    @property
    def unit_text(self) -> str:
        # The distributions' nftables.service may flush all tables when it starts.
        return (
            "[Unit]\n"
            f"Description=Firewall of the cluster {self.cluster} (clusterctl)\n"
            "DefaultDependencies=no\n"
            "After=local-fs.target nftables.service\n"
            "Before=network-pre.target\n"
            "Wants=network-pre.target\n\n"
            "[Service]\n"
            "Type=oneshot\n"
            "RemainAfterExit=yes\n"
            f"ExecStart=/bin/sh -c 'PATH=$$PATH:/usr/sbin:/sbin exec nft -f {self.rules}'\n"
        )


@dataclass(frozen=True)
class Admission:
    """Who may connect to which ports of every host."""

    addresses: tuple[str, ...]  # IP addresses and networks
    ports: tuple[str, ...]  # TCP ports and ranges (11000-11999), besides those Linux assigns
    # Whether every host of the inventory is in `addresses` with all that it has: one that does not
    # answer now may have more, which the rules keep.
    complete: bool = True


@dataclass(frozen=True)
class FirewallFound:
    """What LOOK printed."""

    nft: bool
    systemd: bool
    ssh: tuple[str, ...]
    assigned: str  # the range of ports that Linux assigns by itself
    rules: str  # digest
    unit: str
    live: str
    wanted: bool


def found_in(text: str) -> FirewallFound:
    """Parse the output of LOOK. Raises what MALFORMED lists."""
    rows = [line.split() for line in text.splitlines()]
    values = [(row[0], row[1] if len(row) > 1 else "") for row in rows if row]
    of = {name: value for name, value in values if name != "file"}
    rules, unit = [value for name, value in values if name == "file"]
    return FirewallFound(
        nft=bool(of.get("nft")),
        systemd="systemd" in of,
        ssh=tuple(sorted({value for name, value in values if name == "ssh"} | {"22"}, key=int)),
        assigned=of.get("range", "32768-60999"),
        rules=rules,
        unit=unit,
        live=of.get("live", "none"),
        wanted="wanted" in of,
    )


def ruleset(table: str, admission: Admission, ssh: Sequence[str], assigned: str) -> str:
    """Return the rules as input of `nft -f`, which replaces the table in one step. They match only
    the first packet of a connection, so that existing connections continue, and the kernel need not
    track those of tensors."""
    networks = sorted(
        {ip_network(address) for address in admission.addresses}, key=lambda it: (it.version, it)
    )
    both = {
        name: [str(it) for it in networks if it.version == version]
        for name, version in (("hosts4", 4), ("hosts6", 6))
    }
    sets = ""
    for name, kind in (("hosts4", "ipv4_addr"), ("hosts6", "ipv6_addr")):
        sets += f"  set {name} {{\n    type {kind}\n    flags interval\n    auto-merge\n"
        if both[name]:
            sets += f"    elements = {{ {', '.join(both[name])} }}\n"
        sets += "  }\n"
    ports = ", ".join((*admission.ports, assigned))
    return f"""\
table inet {table}
delete table inet {table}
table inet {table} {{
{sets}  set ports {{
    type inet_service
    flags interval
    auto-merge
    elements = {{ {ports} }}
  }}
  chain input {{
    type filter hook input priority -10; policy accept;
    tcp flags & (fin|syn|rst|ack) != syn accept
    iif lo accept
    tcp dport {{ {", ".join(ssh)} }} accept
    ip saddr @hosts4 accept
    ip6 saddr @hosts6 accept
    tcp dport @ports reject with tcp reset
  }}
}}
"""


class Firewall:
    """Step: the ports of Ray and vLLM answer only the cluster's hosts, even after a reboot."""

    title = "firewall"

    def __init__(
        self,
        cluster: str,
        admission: Admission,
        bundles: Sequence[Bundle] = (),
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._places = Places(cluster)
        self._admission = admission
        self._bundles = tuple(bundles)
        self._pause = pause

    def check(self, view: HostView) -> Change | None:
        found = self._look(view)
        if not found.systemd:
            raise RequirementsNotMet(
                "network.firewall needs systemd, which loads the rules again after a reboot",
                host=view.host.name,
                hint="remove the key, close the ports by other means, and set network.public: true",
            )
        wanted = self._wanted(view, found)
        unit = hashlib.sha256(self._places.unit_text.encode()).hexdigest()
        if (
            found.rules == hashlib.sha256(wanted.encode()).hexdigest()
            and found.live == "same"
            and found.unit == unit
            and found.wanted
        ):
            return None
        install = "" if found.nft else f"install {FIREWALL}, "
        count = len(self._admission.addresses)
        return Change(f"{install}close the cluster's ports to all but {count} addresses of it")

    def apply(self, view: HostView, _change: Change) -> None:
        places, found = self._places, self._look(view)
        if not found.nft:
            self._install(view)
        new, own = f"{places.rules}.new", places.rules.rpartition("/")[0]
        modes = ("755", own.rpartition("/")[0], "700", own)
        root_script(view, MAKE_DIRECTORIES, *modes, doing=f"making {own}")
        rules = self._wanted(view, found).encode()
        view.transport.put(rules, new, mode=0o600, sudo=True)
        view.transport.put(places.unit_text.encode(), places.unit, sudo=True)
        words = (places.table, places.rules, new)
        root_script(view, TRY, *words, str(UNDO_AFTER), places.timer, doing="loading the rules")
        view.say("confirming the rules with a new connection")
        try:
            digest = hashlib.sha256(rules).hexdigest()
            self._confirm(view, (*words, places.listing, places.unit, places.timer, digest))
        except ConnectionFailed as error:
            with suppress(ClusterctlError):  # the host's timer does the same
                root_script(view, UNDO, places.timer, new, doing="rolling the rules back")
            raise StepFailed(
                "no new SSH connection succeeded with the new rules, so they were rolled back",
                host=view.host.name,
                hint="does its sshd listen on a different port than `sshd -T | grep port` says?",
                detail=str(error),
            ) from error

    def _confirm(self, view: HostView, words: Sequence[str]) -> None:
        for left in reversed(range(WAYS)):
            try:
                with closing(view.transport.another()) as transport:
                    again = HostView(view.host, view.facts, transport)
                    root_script(again, CONFIRM, *words, doing="confirming the rules")
                    return
            except ConnectionFailed:
                if not left:
                    raise
                self._pause(1.0)

    def _look(self, view: HostView) -> FirewallFound:
        places = self._places
        words = (places.table, places.rules, places.listing, places.unit)
        text = root_script(view, LOOK, *words, doing="looking at the firewall")
        try:
            return found_in(text)
        except MALFORMED as error:
            raise StepFailed(
                "its firewall's rules cannot be read",
                host=view.host.name,
                hint="on the host: nft list tables; sshd -T",
                detail=text[:2000],
            ) from error

    def _wanted(self, view: HostView, found: FirewallFound) -> str:
        admission = self._admission
        if not admission.complete:
            before = (view.transport.read_file(self._places.rules) or b"").decode(errors="replace")
            kept = (*admission.addresses, *_admitted_by(before))
            admission = Admission(tuple(sorted(set(kept))), admission.ports)
        named = () if view.host.ssh.port is None else (str(view.host.ssh.port),)
        ssh = tuple(sorted({*found.ssh, *named}, key=int))
        return ruleset(self._places.table, admission, ssh, found.assigned)

    def _install(self, view: HostView) -> None:
        manager = own_manager(view, self._pause)
        if self._bundles:
            system, machine = target(view), view.facts.os.architecture
            bundle = fitting(self._bundles, system, machine, host=view.host.name)
            if not any(file.name.startswith(FIREWALL) for file in bundle.files):
                raise RequirementsNotMet(
                    f"has no nft, and the bundle {bundle.path} lacks {FIREWALL}",
                    host=view.host.name,
                    hint=f"clusterctl packages bundle --for {system.name} -o DIRECTORY",
                )
            manager = manager_of(view, bundle, wanted=lambda name: "nft" in name, pause=self._pause)
        install_recorded(view, manager, FIREWALL, MARKER)


def _admitted_by(rules: str) -> tuple[str, ...]:
    """Return the addresses in rules that `ruleset` returned earlier."""
    found: list[str] = []
    for part in rules.split("  set hosts")[1:]:
        _, elements, rest = part.partition("}")[0].partition("elements = { ")
        found += rest.strip().split(", ") if elements else []
    return tuple(address for address in found if _is_network(address))


def _is_network(text: str) -> bool:
    """Return whether it is an address or a network: the host may have changed the file."""
    try:
        return bool(ip_network(text))
    except ValueError:
        return False


class FirewallAbsent:
    """Step: nothing of this cluster's firewall is left."""

    title = "firewall"

    def __init__(self, cluster: str) -> None:
        self._places = Places(cluster)

    def check(self, view: HostView) -> Change | None:
        places = self._places
        words = (places.table, places.rules, places.listing, places.unit)
        left = root_script(view, LOOK_FOR_LEFT, *words, doing="looking for the firewall")
        return Change(f"remove {', '.join(left.splitlines())}") if left.strip() else None

    def apply(self, view: HostView, _change: Change) -> None:
        places = self._places
        words = (places.table, places.rules, places.listing, places.unit, places.timer)
        root_script(view, REMOVE, *words, doing="removing the firewall", timeout=deadlines.SYSTEMD)
