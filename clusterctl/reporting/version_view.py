"""The version record of a cluster as text, from the document of `version --cluster --json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterctl.reporting.escaping import one_line
from clusterctl.reporting.text import below_itself, columns, moment

_ORDER = (
    *("vllm", "ray", "python", "torch", "cuda", "nccl", "driver", "kernel", "os", "engine"),
    *("image", "clusterctl"),
)

MOST_CHANGES = 20

_BEFORE_A_FLAG = re.compile(r"(?:^| )(?=--?[A-Za-z])")


def version_lines(document: Mapping[str, Any], *, width: int | None = None) -> list[str]:
    """Return what hosts have in common, what differs between them, services, and changes."""
    hosts: Mapping[str, Mapping[str, str]] = document["hosts"]
    names = [*_ORDER, *sorted({name for each in hosts.values() for name in each} - {*_ORDER})]
    rows = []
    for name in names:
        values = {host: found[name] for host, found in hosts.items() if name in found}
        alike = len(values) == len(hosts) and len(set(values.values())) == 1
        if alike:
            rows.append([name, next(iter(values.values()))])
        elif values:
            rows += [[name, f"{value} on {host}"] for host, value in values.items()]
    lines = columns(rows, indent="", width=width)
    lines += [f"{host}: {one_line(why)}" for host, why in document["silent"].items()]
    for note in document["vulnerabilities"]:
        lines += below_itself("vulnerable: ", note, width)
    for name, found in document["services"].items():
        lines += ["", f"service {name}"]
        for key, value in found.items():
            lines += below_itself(f"  {one_line(key):<9}", value, width)
    if changes := document["changes"]:
        lines += ["", "changes, newest first:"]
        for each in changes[:MOST_CHANGES]:
            stamp = moment(each["time"])
            what = (
                each["name"] if each["subject"] == "node" else f"{each['subject']} {each['name']}"
            )
            before, after = each["before"], each["after"]
            if each["name"] == "flags":
                before, after = _without_common(before, after), _without_common(after, before)
            change = f"{before or 'none'} → {after or 'none'}"
            lines += below_itself(f"  {stamp}  {each['host']}  {one_line(what)}  ", change, width)
    return lines


def _without_common(flags: str, others: str) -> str:
    """Return a service's flags except those that it shares with the others."""
    known = {one.strip() for one in _BEFORE_A_FLAG.split(others)}
    return " ".join(one.strip() for one in _BEFORE_A_FLAG.split(flags) if one.strip() not in known)
