"""Check that hosts reach the servers that the inventory names for downloads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from clusterctl.inventory.model import Inventory
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values

WITHIN = 5  # Seconds for one connection; a site's own servers answer in milliseconds
# bash, since hosts have no Python before `bootstrap`.
CONNECT = 'exec 3<>"/dev/tcp/$1/$2"'


def unreached(
    inventory: Inventory, transports: Mapping[str, Transport], nodes: Collection[str]
) -> tuple[str, ...]:
    """Return a note for each server of `packages` that hosts cannot connect to: the proxy from all
    of them, the package index from the head, unless it is behind the proxy. `nodes`: hosts that
    have their container, and will fetch nothing."""
    asked = {name: list(_servers(inventory, name)) for name in transports if name not in nodes}

    def ask(name: str) -> list[tuple[str, str]]:
        found = []
        for url, key in asked[name]:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            ran = transports[name].run(
                ["timeout", str(WITHIN), "bash", "-c", CONNECT, "connect", str(parts.hostname),
                 str(port)],
                timeout=WITHIN + 10,
            )  # fmt: skip
            if not ran.ok:
                lines = ran.stderr.strip().splitlines()
                why = lines[0].rpartition(": ")[2] if lines else f"no answer within {WITHIN} s"
                found.append((f"{parts.hostname}:{port} ({key})", why))
        return found

    hosts: dict[tuple[str, str], list[str]] = {}
    for name, found in values(fan_out({name: name for name in asked if asked[name]}, ask)).items():
        for each in found:
            hosts.setdefault(each, []).append(name)
    return tuple(
        f"{', '.join(names)}: {server} cannot be reached: {why}"
        for (server, why), names in hosts.items()
    )


def _servers(inventory: Inventory, host: str) -> Iterator[tuple[str, str]]:
    """Yield the URLs that a host itself connects to, with their keys in the inventory."""
    packages = inventory.packages
    proxy = packages.proxy
    if proxy:
        urls = dict.fromkeys(url for url in (proxy.http, proxy.https) if url)
        yield from ((url, "packages.proxy") for url in urls)
    index = packages.pip_index
    if index and host == inventory.head.name:
        name = urlsplit(index).hostname or ""
        direct = any(
            name == each.lstrip(".") or name.endswith(f".{each.lstrip('.')}")
            for each in (proxy.no_proxy if proxy else ())
        )
        if proxy is None or direct:
            yield index, "packages.pip_index"
